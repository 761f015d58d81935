"""Serialized tf.Examples as the strings or ids that they hold."""

from collections.abc import Sequence

import tensorflow as tf

from albert_tf.serving.modules import TOKEN_KEYS, Tensors


def parse_strings(serialized: tf.Tensor, *, required: Sequence[str], optional: Sequence[str] = ()) -> Tensors:
  """One string a feature and example.

  Args:
    serialized: [B] tf.Examples.
    required: features without which an example is an error that names them.
    optional: features that are "" where they are not given.

  Returns:
    Feature name → [B] strings.
  """
  features = {name: tf.io.FixedLenFeature([], tf.string) for name in required}
  features |= {name: tf.io.FixedLenFeature([], tf.string, default_value="") for name in optional}
  return dict(tf.io.parse_example(serialized, features))


def parse_texts_or_ids(serialized: tf.Tensor, text_names: Sequence[str]) -> tuple[Tensors, Tensors]:
  """Examples that hold either strings or the ids that training records hold.

  Args:
    serialized: [B] tf.Examples with every one of `text_names`, or with `input_ids`, `input_mask` and
      `segment_ids` of one length; both may occur in a batch.
    text_names: features of one string each.

  Returns:
    (feature name → [B] strings, "" where ids are given; `TOKEN_KEYS` → int32 ragged [B, (length)], empty
    where strings are).
  """
  features = {name: tf.io.RaggedFeature(tf.string, row_splits_dtype=tf.int64) for name in text_names}
  features |= {name: tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64) for name in TOKEN_KEYS}
  parsed = tf.io.parse_example(serialized, features)
  lengths = {name: parsed[name].row_lengths() for name in features}
  has_ids = lengths["input_ids"] > 0
  fits = [tf.where(has_ids, lengths[name] == 0, lengths[name] == 1) for name in text_names]
  fits += [lengths[name] == lengths["input_ids"] for name in TOKEN_KEYS]
  message = (
    f"An example must hold one string in each of {', '.join(text_names)}, or else {', '.join(TOKEN_KEYS)} "
    "of one length."
  )
  check = tf.debugging.assert_equal(tf.reduce_all(tf.stack(fits)), True, message=message)
  with tf.control_dependencies([check]):
    texts = {name: tf.strings.reduce_join(parsed[name], axis=-1) for name in text_names}
    ids = {name: tf.cast(parsed[name], tf.int32) for name in TOKEN_KEYS}
  return texts, ids


def merge_rows(packed: Tensors, given: Tensors) -> Tensors:
  """Rows of `given` where it has any, else of `packed`; all padded to the longest.

  Args:
    packed: name → [B, S].
    given: name → ragged [B, (length)].
  """
  merged = {}
  for name, tensor in packed.items():
    row = given[name].to_tensor()
    length = tf.maximum(tf.shape(tensor)[1], tf.shape(row)[1])
    has_row = given[name].row_lengths()[:, tf.newaxis] > 0
    padded = [tf.pad(rows, [[0, 0], [0, length - tf.shape(rows)[1]]]) for rows in (row, tensor)]
    merged[name] = tf.where(has_row, *padded)
  return merged
