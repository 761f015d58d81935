"""Reads serialized pretraining records into a batch of tensors (needs TensorFlow)."""

import tensorflow as tf

from albert_tf.records import compact
from albert_tf.records import features as names
from albert_tf.records.features import PretrainingSpec

_WORD_TYPES = {2: tf.uint16, 4: tf.int32}


def feature_description(spec: PretrainingSpec) -> dict[str, tf.io.FixedLenFeature]:
  """What `tf.io.parse_example` needs to know; training has no use for `token_boundary`."""
  return {
    name: tf.io.FixedLenFeature([spec.length(name)], tf.float32 if name in names.FLOAT_FEATURES else tf.int64)
    for name in names.ALL_FEATURES
    if name != names.TOKEN_BOUNDARY
  }


def parse_pretraining_batch(serialized: tf.Tensor, spec: PretrainingSpec) -> dict[str, tf.Tensor]:
  """Parses a batch of records in one call, whichever layout they have (one layout a batch).

  Args:
    serialized: [B] strings, each a `tf.train.Example` or a compact record.

  Returns:
    int32 `input_ids`, `input_mask`, `segment_ids` [B, S]; `masked_lm_positions`,
    `masked_lm_ids` [B, P]; `sentence_order_labels` [B]; float32
    `masked_lm_weights` [B, P].
  """

  def is_compact(size: int) -> tf.Tensor:
    begins = tf.strings.substr(serialized, 0, len(compact.MARKS[size]))
    return tf.reduce_all(begins == compact.MARKS[size])

  # An empty batch takes the first branch, whose results have the right shapes too.
  return tf.case(
    [(is_compact(size), lambda size=size: _parse_compact(serialized, spec, size)) for size in compact.MARKS],
    default=lambda: _parse_examples(serialized, spec),
  )


def _parse_examples(serialized: tf.Tensor, spec: PretrainingSpec) -> dict[str, tf.Tensor]:
  parsed = tf.io.parse_example(serialized, feature_description(spec))
  batch = {
    name: value if value.dtype == tf.float32 else tf.cast(value, tf.int32) for name, value in parsed.items()
  }
  batch[names.SENTENCE_ORDER_LABELS] = tf.squeeze(batch.pop(names.SENTENCE_ORDER_LABELS_FEATURE), -1)  # [B]
  return batch


def _parse_compact(serialized: tf.Tensor, spec: PretrainingSpec, size: int) -> dict[str, tf.Tensor]:
  """The layout is described in `records.compact`; what the record leaves out at its end reads as zeros."""
  length, predictions = spec.max_seq_length, spec.max_predictions_per_seq
  num_words = compact.HEADER_WORDS + 2 * predictions + length
  words = tf.io.decode_raw(serialized, _WORD_TYPES[size], fixed_length=num_words * size)
  words = tf.cast(words, tf.int32)  # [B, words]
  header, slots, ids = tf.split(words, [compact.HEADER_WORDS, 2 * predictions, length], axis=1)
  num_tokens, first_segment, label, used = (header[:, column, None] for column in range(1, 5))  # [B, 1]
  head_words = compact.HEADER_WORDS + 2 * predictions
  tf.debugging.assert_equal(
    tf.strings.length(serialized),
    (head_words + num_tokens[:, 0]) * size,
    message="compact records of other lengths than max_seq_length and max_predictions_per_seq",
  )
  place = tf.range(length)[None]  # [1, S]
  return {
    names.INPUT_IDS: ids,
    names.INPUT_MASK: tf.cast(place < num_tokens, tf.int32),
    names.SEGMENT_IDS: tf.cast((place >= first_segment) & (place < num_tokens), tf.int32),
    names.MASKED_LM_POSITIONS: slots[:, :predictions],
    names.MASKED_LM_IDS: slots[:, predictions:],
    names.MASKED_LM_WEIGHTS: tf.cast(tf.range(predictions)[None] < used, tf.float32),
    names.SENTENCE_ORDER_LABELS: label[:, 0],
  }
