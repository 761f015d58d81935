"""Parameter counts by formula: nothing is built, so xxlarge costs nothing to count."""

from typing import TYPE_CHECKING, NamedTuple

from albert_tf.errors import UserError

if TYPE_CHECKING:  # `AlbertConfig` imports this module.
  from albert_tf.configs.albert_config import AlbertConfig

HEADS = ("masked_lm", "sentence_order")  # Of pretraining.


class ParameterCount(NamedTuple):
  """Parameters of encoder and pooler, by part. `total` is the paper's number."""

  embeddings: int  # (V + positions + types) E + LayerNorm
  mapping: int  # E -> H; 0 if E = H
  attention: int  # One attention with its LayerNorm
  attention_copies: int
  ffn: int  # One feed-forward with its LayerNorm
  ffn_copies: int
  pooler: int

  @property
  def block(self) -> int:
    """One transformer block: what one layer would cost unshared."""
    return self.attention + self.ffn

  @property
  def total(self) -> int:
    layers = self.attention * self.attention_copies + self.ffn * self.ffn_copies
    return self.embeddings + self.mapping + layers + self.pooler


def count_parameters(config: "AlbertConfig") -> ParameterCount:
  """Counts encoder and pooler.

  Equation: (V + P + T + 2) E + [E != H] (E + 1) H + n_a (4 (H + 1) H + 2 H)
    + n_f ((H + 1) F + (F + 1) H + 2 H) + (H + 1) H, where n_a and n_f are the numbers of
    distinct attentions and feed-forwards that `sharing` leaves.

  Reference:
    ALBERT, section 3.1 and Tables 1, 3 and 4.
  """
  width, hidden, inner = config.embedding_size, config.hidden_size, config.intermediate_size
  blocks = [(layer, k) for layer in range(config.num_hidden_layers) for k in range(config.inner_group_num)]
  tables = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
  return ParameterCount(
    embeddings=tables * width + 2 * width,
    mapping=0 if width == hidden else _dense(width, hidden),
    attention=4 * _dense(hidden, hidden) + 2 * hidden,
    attention_copies=len({config.attention_owner(*block) for block in blocks}),
    ffn=_dense(hidden, inner) + _dense(inner, hidden) + 2 * hidden,
    ffn_copies=len({config.ffn_owner(*block) for block in blocks}),
    pooler=_dense(hidden, hidden),
  )


def count_head_parameters(config: "AlbertConfig", head: str) -> int:
  """Parameters that one of `HEADS` adds. The masked-LM decoder is tied to the word table and adds only its bias."""
  if head not in HEADS:
    raise UserError(f"The head must be one of {', '.join(HEADS)}. Received: {head!r}.")
  if head == "sentence_order":
    return _dense(config.hidden_size, 2)
  width = config.embedding_size
  return _dense(config.hidden_size, width) + 2 * width + config.vocab_size


def _dense(inputs: int, outputs: int) -> int:
  return (inputs + 1) * outputs
