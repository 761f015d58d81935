"""Long contexts as overlapping windows, inside the graph; the windows of `finetuning.squad.features`."""

from typing import NamedTuple

import tensorflow as tf

from albert_tf.serving.modules import Tensors
from albert_tf.tokenization.graph import GraphTokenizer, head

_SPECIAL_PIECES = 3  # [CLS] question [SEP] context [SEP]
_CONTEXT_WEIGHT = 0.01  # Of a window's length beside a piece's context (original code).


class WindowSettings(NamedTuple):
  """Sizes in pieces.

  Attributes:
    max_seq_length: S of a window with its question.
    max_query_length: a question is cut to this.
    doc_stride: distance of two windows' beginnings.
    max_windows: of one context, which is cut behind them.
  """

  max_seq_length: int
  max_query_length: int
  doc_stride: int
  max_windows: int


class Windows(NamedTuple):
  """W windows of B contexts, in order.

  Attributes:
    row: int32 [W] which context.
    begin, length: int32 [W] its pieces.
    text_begin: int32 [W] where they begin in the window, after [CLS] question [SEP].
    is_cut: bool [B] whether the context is longer than its windows.
    batch: `input_ids`, `input_mask`, `segment_ids`, int32 [W, S].
  """

  row: tf.Tensor
  begin: tf.Tensor
  length: tf.Tensor
  text_begin: tf.Tensor
  is_cut: tf.Tensor
  batch: Tensors


def make_windows(
  tokenizer: GraphTokenizer,
  query: tf.RaggedTensor,
  context: tf.RaggedTensor,
  settings: WindowSettings,
  *,
  fixed: bool,
  at_least: int,
) -> Windows:
  """Each window begins `doc_stride` after the one before, until the context ends.

  Args:
    tokenizer: packs.
    query, context: int32 ragged [B, (length)].
    settings: sizes.
    fixed: S is `max_seq_length`; else the longest window's.
    at_least: S is no shorter.
  """
  query = head(query, tf.minimum(query.row_lengths(), settings.max_query_length))
  query_length, total = (tf.cast(ids.row_lengths(), tf.int32) for ids in (query, context))
  room = settings.max_seq_length - query_length - _SPECIAL_PIECES
  step = tf.minimum(room, settings.doc_stride)
  count = 1 + tf.maximum(0, (total - room + step - 1) // step)  # One also for an empty context.
  is_cut = count > settings.max_windows
  count = tf.minimum(count, settings.max_windows)
  row = tf.repeat(tf.range(tf.size(count)), count)
  ordinal = tf.range(tf.size(row)) - tf.repeat(tf.cumsum(count, exclusive=True), count)
  begin = ordinal * tf.gather(step, row)
  length = tf.minimum(tf.gather(total, row) - begin, tf.gather(room, row))
  place = tf.repeat(tf.gather(tf.cast(context.row_splits, tf.int32), row) + begin, length)
  place += tf.ragged.range(length).flat_values
  text = tf.RaggedTensor.from_row_lengths(
    tf.gather(context.flat_values, place), tf.cast(length, tf.int64), validate=False
  )
  batch = tokenizer.pack(
    tf.gather(query, row), text, length=settings.max_seq_length if fixed else None, always_two=True
  )
  missing = tf.maximum(at_least - tf.shape(batch["input_ids"])[1], 0)
  batch = {name: tf.pad(tensor, [[0, 0], [0, missing]]) for name, tensor in batch.items()}
  return Windows(row, begin, length, tf.gather(query_length, row) + 2, is_cut, batch)


def max_context(windows: Windows) -> tf.Tensor:
  """Whether a window is the one that shows a piece with most context, bool [W, T] by place in its text.

  The first of equally good windows wins.
  """
  longest = tf.reduce_max(tf.concat([windows.length, [0]], axis=0))
  left = tf.broadcast_to(tf.range(longest), [tf.size(windows.row), longest])
  length = windows.length[:, tf.newaxis]
  inside = left < length
  # float64, so that sums are equal exactly where Python's are.
  score = tf.cast(tf.minimum(left, length - 1 - left), tf.float64)
  score = tf.where(inside, score + _CONTEXT_WEIGHT * tf.cast(length, tf.float64), -1.0)
  place = windows.begin[:, tf.newaxis] + left  # In the context.
  width = tf.reduce_max(tf.concat([windows.begin + windows.length, [0]], axis=0)) + longest
  key = tf.reshape(windows.row[:, tf.newaxis] * width + place, [-1])
  segments = (tf.reduce_max(tf.concat([windows.row, [-1]], axis=0)) + 1) * width
  best = tf.math.unsorted_segment_max(tf.reshape(score, [-1]), key, segments)
  chosen = inside & (score == tf.reshape(tf.gather(best, key), tf.shape(score)))
  number = tf.broadcast_to(tf.range(tf.size(windows.row))[:, tf.newaxis], tf.shape(score))
  first = tf.math.unsorted_segment_min(
    tf.reshape(tf.where(chosen, number, tf.size(windows.row)), [-1]), key, segments
  )
  return chosen & (number == tf.reshape(tf.gather(first, key), tf.shape(score)))
