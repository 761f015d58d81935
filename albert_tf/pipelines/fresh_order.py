"""Sentence order drawn anew: the two segments of a stored record in either order, and the label that says which."""

import tensorflow as tf

from albert_tf.records import features as names

Batch = dict[str, tf.Tensor]


def with_order(batch: Batch, swap: tf.Tensor) -> Batch:
  """The batch with the two segments of some rows in the other order, and their labels turned.

  `[CLS] A [SEP] B [SEP]` becomes `[CLS] B [SEP] A [SEP]`; a row of one segment stays as it is.

  Args:
    batch: records without masks, S tokens a row; label 1 is the swapped order (ALBERT, section 3.1).
    swap: bool [B], which rows.
  """
  second = tf.reduce_sum(batch[names.SEGMENT_IDS], axis=1, keepdims=True)  # B and its [SEP]
  tokens = tf.reduce_sum(batch[names.INPUT_MASK], axis=1, keepdims=True)
  first = tokens - 1 - second  # A and its [SEP]
  swap = swap & (second > 1)[:, 0] & (first > 1)[:, 0]
  place = tf.range(tf.shape(batch[names.INPUT_IDS])[1])[tf.newaxis]
  # Every segment keeps the [SEP] behind it.
  source = tf.where(place <= second, place + first, place - second)
  source = tf.where((place >= 1) & (place < tokens) & swap[:, tf.newaxis], source, place)  # [B, S]
  segments = tf.cast((place > second) & (place < tokens), tf.int32)
  labels = batch[names.SENTENCE_ORDER_LABELS]
  return {
    **batch,
    names.INPUT_IDS: tf.gather(batch[names.INPUT_IDS], source, batch_dims=1),
    names.SEGMENT_IDS: tf.where(swap[:, tf.newaxis], segments, batch[names.SEGMENT_IDS]),
    names.SENTENCE_ORDER_LABELS: tf.where(swap, 1 - labels, labels),
  }
