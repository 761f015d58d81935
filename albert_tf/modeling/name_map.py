"""The names of every variable: in the original's checkpoints, at Hugging Face, and in a model here.

Models, checkpoints and conversion take all names from these tables. This project's checkpoints have
the original's names. A Hugging Face `Linear.weight` is the transpose of a `kernel`; all other
tensors are equal.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from albert_tf.configs import AlbertConfig


class Entry(NamedTuple):
  """One variable."""

  # The original's.
  name: str
  # In the original; None is a size that the checkpoint decides.
  shape: tuple[int | None, ...]
  huggingface: str
  # Of a model here, such as "encoder.pooler.kernel".
  attribute: str


class _Section(NamedTuple):
  """Variables whose names have the same beginnings.

  A line of the table: the end of the original's name, the shape, of Hugging Face's name, of the
  attribute. Letters of a shape: V vocabulary, E embedding, H hidden, F feed-forward, P positions,
  T segments, D twice H, C labels (the checkpoint decides); digits as they are.
  In the beginnings of a block's variables {} are the group and the inner group that own it.
  """

  original: str
  huggingface: str
  attribute: str
  table: str

  def entries(self, config: AlbertConfig, owner: tuple[int, ...] = ()) -> Iterator[Entry]:
    # A letter of the table → the number in this configuration.
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
    for line in self.table.strip().splitlines():
      name, shape, huggingface, attribute = line.split()
      yield Entry(
        name=self.original.format(*owner) + name,
        shape=tuple(sizes[letter] for letter in shape),
        huggingface=self.huggingface.format(*owner) + huggingface,
        attribute=self.attribute.format(*owner) + attribute,
      )

  def names(self, owner: tuple[int, ...] = ()) -> list[str]:
    """The original's names."""
    prefix = self.original.format(*owner)
    return [prefix + line.split()[0] for line in self.table.strip().splitlines()]


_EMBEDDINGS = _Section(
  "bert/embeddings/",
  "albert.embeddings.",
  "encoder.embeddings.",
  """
  word_embeddings        VE  word_embeddings.weight        word_embeddings
  token_type_embeddings  TE  token_type_embeddings.weight  token_type_embeddings
  position_embeddings    PE  position_embeddings.weight    position_embeddings
  LayerNorm/beta         E   LayerNorm.bias                layer_norm.beta
  LayerNorm/gamma        E   LayerNorm.weight              layer_norm.gamma
  """,
)
_MAPPING = _Section(
  "bert/encoder/embedding_hidden_mapping_in/",
  "albert.encoder.embedding_hidden_mapping_in.",
  "encoder.embedding_hidden_mapping_in.",
  """
  kernel  EH  weight  kernel
  bias    H   bias    bias
  """,
)
# A block: attention with LayerNorm 1, feed-forward with LayerNorm 2.
_BLOCK = "bert/encoder/transformer/group_{}/inner_group_{}/"
_HUGGINGFACE_BLOCK = "albert.encoder.albert_layer_groups.{}.albert_layers.{}."
_ATTENTION = _Section(
  _BLOCK,
  _HUGGINGFACE_BLOCK,
  "encoder.attention_sublayers.transformer/group_{}/inner_group_{}.",
  """
  attention_1/self/query/kernel    HH  attention.query.weight      query.kernel
  attention_1/self/query/bias      H   attention.query.bias        query.bias
  attention_1/self/key/kernel      HH  attention.key.weight        key.kernel
  attention_1/self/key/bias        H   attention.key.bias          key.bias
  attention_1/self/value/kernel    HH  attention.value.weight      value.kernel
  attention_1/self/value/bias      H   attention.value.bias        value.bias
  attention_1/output/dense/kernel  HH  attention.dense.weight      output_dense.kernel
  attention_1/output/dense/bias    H   attention.dense.bias        output_dense.bias
  LayerNorm/beta                   H   attention.LayerNorm.bias    layer_norm.beta
  LayerNorm/gamma                  H   attention.LayerNorm.weight  layer_norm.gamma
  """,
)
_FFN = _Section(
  _BLOCK,
  _HUGGINGFACE_BLOCK,
  "encoder.ffn_sublayers.transformer/group_{}/inner_group_{}.",
  """
  ffn_1/intermediate/dense/kernel         HF  ffn.weight                    intermediate.kernel
  ffn_1/intermediate/dense/bias           F   ffn.bias                      intermediate.bias
  ffn_1/intermediate/output/dense/kernel  FH  ffn_output.weight             output_dense.kernel
  ffn_1/intermediate/output/dense/bias    H   ffn_output.bias               output_dense.bias
  LayerNorm_1/beta                        H   full_layer_layer_norm.bias    layer_norm.beta
  LayerNorm_1/gamma                       H   full_layer_layer_norm.weight  layer_norm.gamma
  """,
)
_POOLER = _Section(
  "bert/pooler/dense/",
  "albert.pooler.",
  "encoder.pooler.",
  """
  kernel  HH  weight  kernel
  bias    H   bias    bias
  """,
)

# A model has the heads that its `checkpoint_heads` names.
_HEADS = {
  "masked_lm": _Section(
    "cls/predictions/",
    "predictions.",
    "masked_lm.",
    """
    transform/dense/kernel     HE  dense.weight      transform.kernel
    transform/dense/bias       E   dense.bias        transform.bias
    transform/LayerNorm/beta   E   LayerNorm.bias    layer_norm.beta
    transform/LayerNorm/gamma  E   LayerNorm.weight  layer_norm.gamma
    output_bias                V   bias              output_bias
    """,
  ),
  "sentence_order": _Section(
    "cls/seq_relationship/",
    "sop_classifier.classifier.",
    "sentence_order.",
    """
    output_weights  2H  weight  output_weights
    output_bias     2   bias    output_bias
    """,
  ),
  # Classification, regression and (one label) multiple choice.
  "classifier": _Section(
    "",
    "classifier.",
    "head.",
    """
    output_weights  CH  weight  output_weights
    output_bias     C   bias    output_bias
    """,
  ),
  "span": _Section(
    "cls/squad/",
    "qa_outputs.",
    "head.",
    """
    output_weights  2H  weight  output_weights
    output_bias     2   bias    output_bias
    """,
  ),
  # Hugging Face has no ALBERT class for SQuAD 2's head: the names are those of its XLNet.
  "squad2": _Section(
    "",
    "",
    "head.",
    """
    start_logits/dense/kernel    H1  start_logits.dense.weight    start_dense.kernel
    start_logits/dense/bias      1   start_logits.dense.bias      start_dense.bias
    end_logits/dense_0/kernel    DH  end_logits.dense_0.weight    end_dense_0.kernel
    end_logits/dense_0/bias      H   end_logits.dense_0.bias      end_dense_0.bias
    end_logits/LayerNorm/beta    H   end_logits.LayerNorm.bias    end_norm.beta
    end_logits/LayerNorm/gamma   H   end_logits.LayerNorm.weight  end_norm.gamma
    end_logits/dense_1/kernel    H1  end_logits.dense_1.weight    end_dense_1.kernel
    end_logits/dense_1/bias      1   end_logits.dense_1.bias      end_dense_1.bias
    answer_class/dense_0/kernel  DH  answer_class.dense_0.weight  answer_dense_0.kernel
    answer_class/dense_0/bias    H   answer_class.dense_0.bias    answer_dense_0.bias
    answer_class/dense_1/kernel  H1  answer_class.dense_1.weight  answer_dense_1.kernel
    """,
  ),
}
ALL_HEADS = tuple(_HEADS)


def variable_entries(config: AlbertConfig, heads: Iterable[str] = ()) -> list[Entry]:
  """Every variable of encoder, pooler and heads (of `ALL_HEADS`); shared parameters once."""
  entries = list(_EMBEDDINGS.entries(config))
  # A BERT has no map from E to H, since both are equal.
  if config.embedding_size != config.hidden_size:
    entries += _MAPPING.entries(config)
  # An owner once, in order: one attention for twelve layers has one owner, (0, 0).
  for owner in dict.fromkeys(attention for attention, _ in config.owners):
    entries += _ATTENTION.entries(config, owner)
  for owner in dict.fromkeys(ffn for _, ffn in config.owners):
    entries += _FFN.entries(config, owner)
  entries += _POOLER.entries(config)
  for head in heads:
    entries += _HEADS[head].entries(config)
  return entries


def head_names(head: str) -> list[str]:
  """The original's names of a head's variables."""
  return _HEADS[head].names()


def expand_sharing(config: AlbertConfig, variables: Mapping[str, Any]) -> dict[str, Any]:
  """Gives each layer its own copy of shared parameters, under the names of a model with "none".

  With two layers that share everything, group_0/… is copied to group_0/… and to group_1/….
  """
  # What is in no block is copied once: "bert/encoder/transformer/group_" begins all blocks' names.
  block = _BLOCK.partition("{")[0]
  expanded = {name: value for name, value in variables.items() if not name.startswith(block)}
  # The copy of layer 3, inner group 0 is named group_3/inner_group_0.
  for number, (attention_owner, ffn_owner) in enumerate(config.owners):
    layer_and_inner = divmod(number, config.inner_group_num)
    for section, owner in ((_ATTENTION, attention_owner), (_FFN, ffn_owner)):
      for source, target in zip(section.names(owner), section.names(layer_and_inner), strict=True):
        if source in variables:
          expanded[target] = variables[source]
  return expanded
