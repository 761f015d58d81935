"""Reads serialized pretraining records (needs TensorFlow)."""

from collections.abc import Sequence

from google.protobuf.message import DecodeError
import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.records import features as names
from albert_tf.records.features import PretrainingSpec, RecordRules
from albert_tf.records.tfrecord import read_records


def feature_description(spec: PretrainingSpec) -> dict[str, tf.io.FixedLenFeature]:
  """The features for `tf.io.parse_example`, but for `token_boundary`, which no step reads."""
  description = {}
  for name in names.ALL_FEATURES:
    dtype = tf.float32 if name in names.FLOAT_FEATURES else tf.int64
    description[name] = tf.io.FixedLenFeature([spec.length(name)], dtype)
  del description[names.TOKEN_BOUNDARY]
  return description


def parse_pretraining_batch(serialized: tf.Tensor, rules: RecordRules) -> dict[str, tf.Tensor]:
  """Parses and checks a batch of records in one call.

  Args:
    serialized: [B] strings, each a `tf.train.Example`.
    rules: the lengths and the largest values of its features.

  Returns:
    int32 `input_ids`, `input_mask`, `segment_ids` [B, S]; `masked_lm_positions`, `masked_lm_ids`
    [B, P]; `sentence_order_labels` [B]; float32 `masked_lm_weights` [B, P].

  Raises:
    tf.errors.InvalidArgumentError: a record has other features or lengths, or a value is out of
      bounds.
  """
  parsed = tf.io.parse_example(serialized, feature_description(rules.spec))
  # Before the values are cut to 32 bits: 2^32 + 7 would become 7. NaN is not within bounds either.
  is_within = [
    tf.reduce_all((parsed[name] >= 0) & (parsed[name] <= tf.cast(largest, parsed[name].dtype)))
    for name, largest in rules.largest_values.items()
  ]
  tf.debugging.Assert(tf.reduce_all(is_within), ["a value of a record is out of its bounds"])
  # TPUs compute with 32 bits.
  batch = {}
  for name, values in parsed.items():
    if name not in names.FLOAT_FEATURES:
      values = tf.cast(values, tf.int32)
    batch[name] = values
  labels = batch.pop(names.SENTENCE_ORDER_LABELS_FEATURE)  # [B, 1]
  batch[names.SENTENCE_ORDER_LABELS] = tf.squeeze(labels, -1)  # [B]
  return batch


def spec_of_records(paths: Sequence[str]) -> PretrainingSpec:
  """The lengths of the first record of these files, for files without a manifest.

  Raises:
    UserError: there is no record, or it is none of pretraining.
  """
  for path in paths:
    for data in read_records(path):
      source = f"{path}, record 0"
      features = decode_example(data, source=source)
      num_tokens = len(features.get(names.INPUT_IDS, ()))
      num_predictions = len(features.get(names.MASKED_LM_POSITIONS, ()))
      if not num_tokens or not num_predictions:
        raise UserError(
          "A pretraining record has input_ids and masked_lm_positions. Received: "
          f"{source}, with {num_tokens} and {num_predictions} of them. Name files of pretraining "
          "records."
        )
      return PretrainingSpec(num_tokens, num_predictions)
  raise UserError(
    f"The record files must hold at least one record. Received: {len(paths)} files with none, "
    f"the first {paths[0]}. Check that create_pretraining_data.py finished."
  )


def decode_example(data: bytes, *, source: str = "a record") -> dict[str, np.ndarray]:
  """The features of one record, int64 or float32 `[N]`; a feature of another type is empty.

  Raises:
    UserError: `data` of `source` is not a `tf.train.Example`.
  """
  try:
    features = dict(tf.train.Example.FromString(data).features.feature)
  except (DecodeError, UnicodeDecodeError) as error:
    raise UserError(
      f"A record must be a tf.train.Example. Received: {source}, {len(data)} bytes that are not "
      f"one ({error}). Is it a file of pretraining records?"
    ) from error
  arrays = {}
  for name, feature in features.items():
    if name in names.FLOAT_FEATURES:
      arrays[name] = np.array(feature.float_list.value, np.float32)
    else:
      arrays[name] = np.array(feature.int64_list.value, np.int64)
  return arrays
