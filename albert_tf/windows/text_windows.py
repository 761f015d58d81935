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

  Example: texts of 9 and 2 tokens after [CLS], in windows of 7 positions at a distance of 3:
    row     0   0   0   1
    begin   0   3   6   0
    length  5   5   3   2   5 tokens at most, beside [CLS] and [SEP]
  """
  text_begins = tf.cast(text_begins, tf.int32)
  text_lengths = tf.cast(text_lengths, tf.int32)
  room = max_seq_length - text_begins - 1  # Without the last [SEP].
  stride = tf.minimum(room, doc_stride)  # No token is skipped.

  # What does not fit into the first window takes one more for each stride, rounded up.
  strides = (text_lengths - room + stride - 1) // stride
  needed = 1 + tf.maximum(0, strides)  # An empty text has one window.
  count = needed
  if max_windows is not None:
    count = tf.minimum(needed, max_windows)

  row = tf.repeat(tf.range(tf.size(count)), count)
  first_of_text = tf.repeat(tf.cumsum(count, exclusive=True), count)
  ordinal = tf.range(tf.size(row)) - first_of_text
  begin = ordinal * tf.gather(stride, row)
  length = tf.minimum(tf.gather(text_lengths, row) - begin, tf.gather(room, row))
  return Windows(row, begin, length, tf.gather(text_begins, row)), needed > count


def cut_pieces(
  ids: tf.RaggedTensor, row: tf.Tensor, begin: tf.Tensor, length: tf.Tensor
) -> tf.RaggedTensor:
  """Tokens `begin` to `begin + length` of the rows `row`; ragged [W, (length)].

  Args:
    ids: ragged [B, (…)].
    row, begin, length: [W].
  """
  first = tf.gather(ids.row_starts(), row) + tf.cast(begin, tf.int64)
  index = tf.ragged.range(first, first + tf.cast(length, tf.int64))
  return index.with_flat_values(tf.gather(ids.flat_values, index.flat_values))


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

  Example: 70 rows run as 3 chunks of 24, the last with 2 rows of padding.
  """
  tensors = list(batch.values())
  total = tf.shape(tensors[0])[0]
  num_chunks = tf.maximum((total + size - 1) // size, 1)
  rows = (total + num_chunks - 1) // num_chunks
  # A loop needs chunks of one size, so the last has padding.
  chunks = {}
  for name, tensor in batch.items():
    padded = tf.pad(tensor, [[0, num_chunks * rows - total], [0, 0]])
    chunks[name] = tf.reshape(padded, [num_chunks, rows, tf.shape(tensor)[1]])
  results = tf.map_fn(function, chunks, fn_output_signature=outputs, parallel_iterations=1)

  joined = {}
  for name, tensor in results.items():
    shape = tf.concat([[num_chunks * rows], tf.shape(tensor)[2:]], axis=0)
    joined[name] = tf.reshape(tensor, shape)[:total]
  return joined


def substrings(
  texts: tf.Tensor, char_bytes: tf.RaggedTensor, row: tf.Tensor, start: tf.Tensor, end: tf.Tensor
) -> tf.Tensor:
  """Characters `start` to `end` of text `row` of texts [B]; the shape is that of `row`.

  `char_bytes` has the byte offset of each character.
  """
  first = tf.gather(char_bytes.row_splits, row)
  begin_byte = tf.gather(char_bytes.flat_values, first + tf.cast(start, first.dtype))
  end_byte = tf.gather(char_bytes.flat_values, first + tf.cast(end, first.dtype))
  num_bytes = tf.cast(end_byte - begin_byte, tf.int32)
  return tf.strings.substr(tf.gather(texts, row), tf.cast(begin_byte, tf.int32), num_bytes)
