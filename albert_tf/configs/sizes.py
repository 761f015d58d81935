"""Named sizes as plain keyword arguments of `AlbertConfig`: Table 1, the release's versions, and two for a laptop."""

from typing import Any

_VOCAB_SIZE = 30_000  # Section 4.1; the size every released English model has.


def _size(
  hidden_size: int, layers: int, heads: int, *, dropout: float = 0.0, **changes: Any
) -> dict[str, Any]:
  return {
    "vocab_size": _VOCAB_SIZE,
    "embedding_size": 128,  # Section 3.1: E = 128 is best when everything is shared.
    "hidden_size": hidden_size,
    "num_hidden_layers": layers,
    "num_attention_heads": heads,
    "intermediate_size": 4 * hidden_size,  # Section 3.1: F = 4 H.
    "hidden_dropout_prob": dropout,
    "attention_probs_dropout_prob": dropout,
    **changes,
  }


# H, layers, N. The ALBERTs of Table 1. Section 3.1 has H / 64 heads; xlarge's 16, not 32, are the release's. In the
# paper all were trained with dropout until section 4.8 takes it from xxlarge; the release calls that version 1, and
# models of every size without dropout version 2, which a plain name means.
SIZES: dict[str, dict[str, Any]] = {
  "tiny": _size(256, 4, 4),  # Not in the paper: small enough to pretrain on one CPU
  "small": _size(512, 6, 8),  # or one small GPU.
  "base": _size(768, 12, 12),
  "base_v2": _size(768, 12, 12),
  "base_v1": _size(768, 12, 12, dropout=0.1),
  "large": _size(1024, 24, 16),
  "large_v2": _size(1024, 24, 16),
  "large_v1": _size(1024, 24, 16, dropout=0.1),
  "xlarge": _size(2048, 24, 16),
  "xlarge_v2": _size(2048, 24, 16),
  "xlarge_v1": _size(2048, 24, 16, dropout=0.1),
  "xxlarge": _size(4096, 12, 64),
  "xxlarge_v2": _size(4096, 12, 64),
  "xxlarge_v1": _size(4096, 12, 64),
  # The BERTs of Table 1: this model with nothing shared and embeddings as wide as the layers, on the same records.
  # So has the paper: BERT-base of its table 2 and the unshared E = 768 of table 3 are one row. BERT-xlarge is of the
  # paper's first version; its heads are ALBERT-xlarge's, so that the pair differs in sharing and E alone.
  "bert_base": _size(768, 12, 12, dropout=0.1, embedding_size=768, sharing="none"),
  "bert_large": _size(1024, 24, 16, dropout=0.1, embedding_size=1024, sharing="none"),
  "bert_xlarge": _size(2048, 24, 16, dropout=0.1, embedding_size=2048, sharing="none"),
}


def named_sizes() -> list[str]:
  """The names `AlbertConfig.from_name` knows."""
  return list(SIZES)
