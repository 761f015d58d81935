"""Named sizes: the ALBERTs and BERTs of the paper's Table 1, and two for a laptop."""

import functools

from albert_tf.configs.albert_config import AlbertConfig
from albert_tf.errors import UserError

VOCAB_SIZE = 30_000  # Section 4.1; the size every released English model has.

# name: (H, layers, N, F), Table 1. F = 4 H and head size 64 (xlarge: 128) are the release's.
_ALBERT_SHAPES = {
  "base": (768, 12, 12, 3072),
  "large": (1024, 24, 16, 4096),
  "xlarge": (2048, 24, 16, 8192),
  "xxlarge": (4096, 12, 64, 16384),
}
# Not in the paper: small enough to pretrain on one CPU or one small GPU.
_LAPTOP_SHAPES = {
  "tiny": (256, 4, 4, 1024),
  "small": (512, 6, 8, 2048),
}
# Version 1 was trained with dropout except xxlarge (section 4.8); version 2 without any.
_V1_DROPOUT = {"base": 0.1, "large": 0.1, "xlarge": 0.1, "xxlarge": 0.0}
_BERT_DROPOUT = 0.1


def named_sizes() -> list[str]:
  """The names `AlbertConfig.from_name` knows. A plain ALBERT name means version 2: no dropout."""
  return list(_table())


def config_of(name: str) -> AlbertConfig:
  """The configuration of a named size.

  Raises:
    UserError: no size has this name.
  """
  table = _table()
  if name not in table:
    raise UserError(f"The size must be one of {', '.join(table)}. Received: {name!r}.")
  return table[name]


@functools.cache
def _table() -> dict[str, AlbertConfig]:
  table = {name: _albert(shape, dropout=0.0) for name, shape in _LAPTOP_SHAPES.items()}
  for name, shape in _ALBERT_SHAPES.items():
    table[name] = table[f"{name}_v2"] = _albert(shape, dropout=0.0)
    table[f"{name}_v1"] = _albert(shape, dropout=_V1_DROPOUT[name])
  for name in ("base", "large", "xlarge"):
    # Table 1: a BERT is the unshared model whose embeddings are as wide as its layers.
    table[f"bert_{name}"] = _albert(_ALBERT_SHAPES[name], dropout=_BERT_DROPOUT).replace(
      embedding_size=_ALBERT_SHAPES[name][0], sharing="none"
    )
  return table


def _albert(shape: tuple[int, int, int, int], *, dropout: float) -> AlbertConfig:
  hidden_size, layers, heads, intermediate_size = shape
  return AlbertConfig(
    vocab_size=VOCAB_SIZE,
    embedding_size=128,  # Section 3.1: E = 128 is best when everything is shared.
    hidden_size=hidden_size,
    num_hidden_layers=layers,
    num_attention_heads=heads,
    intermediate_size=intermediate_size,
    hidden_dropout_prob=dropout,
    attention_probs_dropout_prob=dropout,
  )
