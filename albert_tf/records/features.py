"""Names, types and lengths of the features of a pretraining record.

The names are those of google-research/albert, so that both programs can read each other's records.
`next_sentence_labels` is the format's name of the sentence order label.
"""

from collections.abc import Mapping
import dataclasses

from albert_tf.errors import UserError

INPUT_IDS = "input_ids"
INPUT_MASK = "input_mask"
SEGMENT_IDS = "segment_ids"
TOKEN_BOUNDARY = "token_boundary"
MASKED_LM_POSITIONS = "masked_lm_positions"
MASKED_LM_IDS = "masked_lm_ids"
MASKED_LM_WEIGHTS = "masked_lm_weights"
SENTENCE_ORDER_LABELS_FEATURE = "next_sentence_labels"  # The name in the file.
SENTENCE_ORDER_LABELS = "sentence_order_labels"  # The name in a parsed batch.
_MOST_TOKENS = 1 << 16  # The most positions of a model; a greater number would fill the memory.

# By length: S values, P values; the label has one.
TOKEN_FEATURES = (INPUT_IDS, INPUT_MASK, SEGMENT_IDS, TOKEN_BOUNDARY)
PREDICTION_FEATURES = (MASKED_LM_POSITIONS, MASKED_LM_IDS, MASKED_LM_WEIGHTS)
# Map entries are written in this (sorted) order: protobuf's deterministic order.
ALL_FEATURES = tuple(
  sorted(TOKEN_FEATURES + PREDICTION_FEATURES + (SENTENCE_ORDER_LABELS_FEATURE,))
)
FLOAT_FEATURES = frozenset({MASKED_LM_WEIGHTS})


@dataclasses.dataclass(frozen=True)
class PretrainingSpec:
  """Lengths of the features of one record.

  Args:
    max_seq_length: S, tokens of a sequence, including [CLS], [SEP] and padding.
    max_predictions_per_seq: P, largest number of masked tokens.

  Raises:
    UserError: a length is not possible.
  """

  max_seq_length: int
  max_predictions_per_seq: int

  def __post_init__(self) -> None:
    if not 5 <= self.max_seq_length <= _MOST_TOKENS:
      raise UserError(
        "max_seq_length must be from 5 ([CLS], [SEP], [SEP] and two tokens) to "
        f"{_MOST_TOKENS}. Received: max_seq_length={self.max_seq_length}. Give another length, "
        "such as 128 or 512."
      )
    if not 1 <= self.max_predictions_per_seq <= self.max_seq_length:
      raise UserError(
        "max_predictions_per_seq must be between 1 and max_seq_length. Received: "
        f"max_predictions_per_seq={self.max_predictions_per_seq}, "
        f"max_seq_length={self.max_seq_length}. A usual value is 0.15 x max_seq_length, at least "
        "20."
      )

  def length(self, name: str) -> int:
    """Number of values of feature `name`."""
    if name in TOKEN_FEATURES:
      return self.max_seq_length
    if name in PREDICTION_FEATURES:
      return self.max_predictions_per_seq
    return 1  # The label.


@dataclasses.dataclass(frozen=True)
class RecordRules:
  """What a model expects of every record.

  Args:
    spec: lengths of the features.
    vocab_size, type_vocab_size: numbers of token ids and of segment ids that the model has.
  """

  spec: PretrainingSpec
  vocab_size: int
  type_vocab_size: int

  @property
  def largest_values(self) -> Mapping[str, int]:
    """The largest value of each feature that training reads; the smallest is always 0."""
    return {
      INPUT_IDS: self.vocab_size - 1,
      INPUT_MASK: 1,
      SEGMENT_IDS: self.type_vocab_size - 1,
      MASKED_LM_IDS: self.vocab_size - 1,
      MASKED_LM_POSITIONS: self.spec.max_seq_length - 1,
      MASKED_LM_WEIGHTS: 1,
      SENTENCE_ORDER_LABELS_FEATURE: 1,
    }
