"""Reads serialized pretraining records (needs TensorFlow)."""

from google.protobuf.message import DecodeError
import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.records import features as names
from albert_tf.records.features import PretrainingSpec


def feature_description(spec: PretrainingSpec) -> dict[str, tf.io.FixedLenFeature]:
  """The features for `tf.io.parse_example`, without `token_boundary`, which training does not need."""
  return {
    name: tf.io.FixedLenFeature([spec.length(name)], tf.float32 if name in names.FLOAT_FEATURES else tf.int64)
    for name in names.ALL_FEATURES
    if name != names.TOKEN_BOUNDARY
  }


def parse_pretraining_batch(serialized: tf.Tensor, spec: PretrainingSpec) -> dict[str, tf.Tensor]:
  """Parses a batch of records in one call.

  Args:
    serialized: [B] strings, each a `tf.train.Example`.
    spec: the lengths of its features.

  Returns:
    int32 `input_ids`, `input_mask`, `segment_ids` [B, S]; `masked_lm_positions`,
    `masked_lm_ids` [B, P]; `sentence_order_labels` [B]; float32
    `masked_lm_weights` [B, P].
  """
  parsed = tf.io.parse_example(serialized, feature_description(spec))
  batch = {
    name: value if value.dtype == tf.float32 else tf.cast(value, tf.int32) for name, value in parsed.items()
  }
  batch[names.SENTENCE_ORDER_LABELS] = tf.squeeze(batch.pop(names.SENTENCE_ORDER_LABELS_FEATURE), -1)  # [B]
  return batch


def decode_example(data: bytes, *, source: str = "a record") -> dict[str, np.ndarray]:
  """The features of one record, int64 or float32 `[N]`; a feature of another type is empty.

  Raises:
    UserError: `data` of `source` is not a `tf.train.Example`.
  """
  try:
    found = dict(tf.train.Example.FromString(data).features.feature)
  except (DecodeError, UnicodeDecodeError) as error:
    raise UserError(
      f"A record must be a tf.train.Example. Received: {source}, {len(data)} bytes that are not one ({error}). "
      "Is it a file of pretraining records?"
    ) from error
  return {
    name: np.array(feature.float_list.value, np.float32)
    if name in names.FLOAT_FEATURES
    else np.array(feature.int64_list.value, np.int64)
    for name, feature in found.items()
  }
