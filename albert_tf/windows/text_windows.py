"""Overlapping windows of long texts; TensorFlow ops.

Fine-tuning calls these functions eagerly; SavedModels have them in the graph.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from albert_tf.tokenization.graph_inputs import Tensors


class Windows(NamedTuple):
  """W windows of B texts, in order.

  Attributes:
    row: int32 [W] index of the text.
    begin, length: int32 [W] range of its tokens.
    text_begin: int32 [W] position of these tokens in the window.
  """

  row: tf.Tensor
  begin: tf.Tensor
  length: tf.Tensor
  text_begin: tf.Tensor


def make_windows(
  text_begins: tf.Tensor,
  text_lengths: tf.Tensor,
  *,
  max_seq_length: int,
  doc_stride: int,
  max_windows: int | None = None,
) -> tuple[Windows, tf.Tensor]:
  """Makes windows at a distance of `doc_stride`, until the text ends.

  Args:
    text_begins: [B] position of the text in a window: after [CLS], or after [CLS] question [SEP].
    text_lengths: [B] numbers of tokens.
    max_seq_length: largest S of a window, with question and special tokens.
    doc_stride: distance between the starts of two windows, in tokens.
    max_windows: largest number for one text; None for no limit.

  Returns:
    The windows, and bool [B]: whether a text is longer than its windows.
  """
  text_begins, total = tf.cast(text_begins, tf.int32), tf.cast(text_lengths, tf.int32)
  room = max_seq_length - text_begins - 1
  step = tf.minimum(room, doc_stride)
  wanted = 1 + tf.maximum(0, (total - room + step - 1) // step)  # An empty text has one window.
  count = wanted if max_windows is None else tf.minimum(wanted, max_windows)
  row = tf.repeat(tf.range(tf.size(count)), count)
  ordinal = tf.range(tf.size(row)) - tf.repeat(tf.cumsum(count, exclusive=True), count)
  begin = ordinal * tf.gather(step, row)
  length = tf.minimum(tf.gather(total, row) - begin, tf.gather(room, row))
  return Windows(row, begin, length, tf.gather(text_begins, row)), wanted > count


def cut_pieces(ids: tf.RaggedTensor, row: tf.Tensor, begin: tf.Tensor, length: tf.Tensor) -> tf.RaggedTensor:
  """Cuts `length` [W] tokens from position `begin` [W] of rows `row` [W] of ids [B, (…)]; ragged [W, (length)]."""
  place = tf.repeat(tf.gather(tf.cast(ids.row_splits, tf.int32), row) + begin, length)
  place += tf.ragged.range(length).flat_values
  return tf.RaggedTensor.from_row_lengths(
    tf.gather(ids.flat_values, place), tf.cast(length, tf.int64), validate=False
  )


def in_chunks(
  function: Callable[[Tensors], Tensors],
  batch: Tensors,
  outputs: dict[str, tf.TensorSpec],
  *,
  size: int = 32,
) -> Tensors:
  """Runs a function on chunks of at most `size` rows, one after the other, to bound memory.

  Args:
    function: maps tensors [rows, S] to tensors [rows, …], described by `outputs`.
    batch: tensors [W, S].
  """
  total = tf.shape(next(iter(batch.values())))[0]
  chunks = tf.maximum((total + size - 1) // size, 1)
  rows = (total + chunks - 1) // chunks
  stacked = {}
  for name, tensor in batch.items():
    padded = tf.pad(tensor, [[0, chunks * rows - total], [0, 0]])
    stacked[name] = tf.reshape(padded, [chunks, rows, tf.shape(tensor)[1]])
  done = tf.map_fn(function, stacked, fn_output_signature=outputs, parallel_iterations=1)
  return {
    name: tf.reshape(tensor, tf.concat([[chunks * rows], tf.shape(tensor)[2:]], axis=0))[:total]
    for name, tensor in done.items()
  }


def substrings(
  texts: tf.Tensor, char_bytes: tf.RaggedTensor, row: tf.Tensor, start: tf.Tensor, end: tf.Tensor
) -> tf.Tensor:
  """Characters `start` to `end` of text `row` of texts [B]; the shape is that of `row`.

  `char_bytes` has the byte offset of each character.
  """
  first = tf.gather(char_bytes.row_splits, row)
  begin, stop = (
    tf.gather(char_bytes.flat_values, first + tf.cast(place, first.dtype)) for place in (start, end)
  )
  return tf.strings.substr(tf.gather(texts, row), tf.cast(begin, tf.int32), tf.cast(stop - begin, tf.int32))
