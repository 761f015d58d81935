"""Names and shapes of every variable, in the original's and Hugging Face's checkpoints.

This project uses the original's names. A Hugging Face `Linear.weight` is the transpose of a
`kernel`; all other tensors are equal.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError


class Entry(NamedTuple):
  """One variable."""

  name: str  # The original's.
  shape: tuple[int | None, ...]  # In the original; None is a size the checkpoint decides.
  huggingface: str

  @property
  def transposed(self) -> bool:
    """Whether Hugging Face stores the transpose."""
    return self.name.endswith("/kernel")

  def check(self, shape: tuple[int, ...], *, source: str) -> None:
    """Raises `UserError` for a variable of another shape; `source` is the checkpoint."""
    pairs = zip(self.shape, shape, strict=False)
    if len(shape) != len(self.shape) or any(want not in (None, have) for want, have in pairs):
      raise UserError(
        f"{self.name} must have the shape its configuration says, {list(self.shape)}. Received: {list(shape)} in "
        f"{source}. Give the configuration this checkpoint was made with."
      )


# (original, shape, Hugging Face); shape letters: V vocabulary, E embedding, H hidden, F feed-forward,
# P positions, T segments, C labels (free), digits as they are.
_Rows = list[list[str]]


def _rows(table: str) -> _Rows:
  return [line.split() for line in table.strip().splitlines()]


_EMBEDDINGS = _rows("""
  word_embeddings        VE  word_embeddings.weight
  token_type_embeddings  TE  token_type_embeddings.weight
  position_embeddings    PE  position_embeddings.weight
  LayerNorm/beta         E   LayerNorm.bias
  LayerNorm/gamma        E   LayerNorm.weight
""")
_MAPPING = _rows("""
  kernel  EH  weight
  bias    H   bias
""")
# A block: attention with LayerNorm 1, feed-forward with LayerNorm 2.
_ATTENTION = _rows("""
  attention_1/self/query/kernel    HH  attention.query.weight
  attention_1/self/query/bias      H   attention.query.bias
  attention_1/self/key/kernel      HH  attention.key.weight
  attention_1/self/key/bias        H   attention.key.bias
  attention_1/self/value/kernel    HH  attention.value.weight
  attention_1/self/value/bias      H   attention.value.bias
  attention_1/output/dense/kernel  HH  attention.dense.weight
  attention_1/output/dense/bias    H   attention.dense.bias
  LayerNorm/beta                   H   attention.LayerNorm.bias
  LayerNorm/gamma                  H   attention.LayerNorm.weight
""")
_FFN = _rows("""
  ffn_1/intermediate/dense/kernel         HF  ffn.weight
  ffn_1/intermediate/dense/bias           F   ffn.bias
  ffn_1/intermediate/output/dense/kernel  FH  ffn_output.weight
  ffn_1/intermediate/output/dense/bias    H   ffn_output.bias
  LayerNorm_1/beta                        H   full_layer_layer_norm.bias
  LayerNorm_1/gamma                       H   full_layer_layer_norm.weight
""")
_POOLER = _rows("""
  kernel  HH  weight
  bias    H   bias
""")

# Heads. Hugging Face has no ALBERT class for SQuAD 2's head: the names are those of its XLNet.
_HEADS = {
  "masked_lm": _rows("""
    cls/predictions/transform/dense/kernel     HE  predictions.dense.weight
    cls/predictions/transform/dense/bias       E   predictions.dense.bias
    cls/predictions/transform/LayerNorm/beta   E   predictions.LayerNorm.bias
    cls/predictions/transform/LayerNorm/gamma  E   predictions.LayerNorm.weight
    cls/predictions/output_bias                V   predictions.bias
  """),
  "sentence_order": _rows("""
    cls/seq_relationship/output_weights  2H  sop_classifier.classifier.weight
    cls/seq_relationship/output_bias     2   sop_classifier.classifier.bias
  """),
  # Classification, regression and (one label) multiple choice.
  "classifier": _rows("""
    output_weights  CH  classifier.weight
    output_bias     C   classifier.bias
  """),
  "span": _rows("""
    cls/squad/output_weights  2H  qa_outputs.weight
    cls/squad/output_bias     2   qa_outputs.bias
  """),
  "squad2": _rows("""
    start_logits/dense/kernel    H1  start_logits.dense.weight
    start_logits/dense/bias      1   start_logits.dense.bias
    end_logits/dense_0/kernel    DH  end_logits.dense_0.weight
    end_logits/dense_0/bias      H   end_logits.dense_0.bias
    end_logits/LayerNorm/beta    H   end_logits.LayerNorm.bias
    end_logits/LayerNorm/gamma   H   end_logits.LayerNorm.weight
    end_logits/dense_1/kernel    H1  end_logits.dense_1.weight
    end_logits/dense_1/bias      1   end_logits.dense_1.bias
    answer_class/dense_0/kernel  DH  answer_class.dense_0.weight
    answer_class/dense_0/bias    H   answer_class.dense_0.bias
    answer_class/dense_1/kernel  H1  answer_class.dense_1.weight
  """),
}
HEADS = tuple(_HEADS)
HEAD_VARIABLES = tuple(row[0] for rows in _HEADS.values() for row in rows)


def encoder_entries(config: AlbertConfig) -> list[Entry]:
  """Every variable of encoder and pooler; shared parameters once."""
  entries = list(_entries(config, _EMBEDDINGS, "bert/embeddings/", "albert.embeddings."))
  if config.embedding_size != config.hidden_size:
    entries += _entries(
      config,
      _MAPPING,
      "bert/encoder/embedding_hidden_mapping_in/",
      "albert.encoder.embedding_hidden_mapping_in.",
    )
  for rows, owners in zip((_ATTENTION, _FFN), zip(*config.owners, strict=True), strict=True):
    for group, inner in dict.fromkeys(owners):
      entries += _entries(
        config,
        rows,
        block_prefix(group, inner),
        f"albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}.",
      )
  return [*entries, *_entries(config, _POOLER, "bert/pooler/dense/", "albert.pooler.")]


def check_encoder(config: AlbertConfig, variables: Mapping[str, Any], *, source: str) -> None:
  """Raises `UserError` if the variables' shapes contradict the configuration, before a model is built."""
  entries = encoder_entries(config)
  for entry in entries:
    if entry.name in variables:
      entry.check(tuple(variables[entry.name].shape), source=source)
  missing = [entry.name for entry in entries if entry.name not in variables]
  if 2 * len(missing) > len(
    entries
  ):  # Single ones are for `match`, which knows what may be missing.
    raise UserError(
      f"A checkpoint must hold what its configuration names. Received: {source}, missing: {missing[0]} and "
      f"{len(missing) - 1} others of {len(entries)}. Give the configuration this checkpoint was made with."
    )


def head_entries(config: AlbertConfig, head: str) -> list[Entry]:
  """Every variable of one head of `HEADS`."""
  return list(_entries(config, _HEADS[head], "", ""))


def heads_present(config: AlbertConfig, present: Iterable[str]) -> list[str]:
  """Heads with at least one variable among the names."""
  names = set(present)
  return [
    head for head in HEADS if any(entry.name in names for entry in head_entries(config, head))
  ]


def block_prefix(group: int, inner: int) -> str:
  return f"bert/encoder/transformer/group_{group}/inner_group_{inner}/"


def expand_sharing(config: AlbertConfig, variables: Mapping[str, Any]) -> dict[str, Any]:
  """Gives each layer its own copy of shared parameters, under the names of a model with sharing "none"."""
  unshared = config.replace(sharing="none", num_hidden_groups=1)
  prefix = "bert/encoder/transformer/"
  expanded = {name: value for name, value in variables.items() if not name.startswith(prefix)}
  for layer in range(config.num_hidden_layers):
    for inner in range(config.inner_group_num):
      target = block_prefix(*unshared.attention_owner(layer, inner))
      for rows, owner in ((_ATTENTION, config.attention_owner), (_FFN, config.ffn_owner)):
        source = block_prefix(*owner(layer, inner))
        expanded |= {
          target + row[0]: variables[source + row[0]]
          for row in rows
          if source + row[0] in variables
        }
  return expanded


def _entries(
  config: AlbertConfig, rows: _Rows, prefix: str, huggingface_prefix: str
) -> Iterator[Entry]:
  sizes: dict[str, int | None] = {
    "V": config.vocab_size,
    "E": config.embedding_size,
    "H": config.hidden_size,
    "F": config.intermediate_size,
    "P": config.max_position_embeddings,
    "T": config.type_vocab_size,
    "D": 2 * config.hidden_size,
    "C": None,
    "1": 1,
    "2": 2,
  }
  for name, shape, huggingface in rows:
    yield Entry(
      prefix + name, tuple(sizes[letter] for letter in shape), huggingface_prefix + huggingface
    )
