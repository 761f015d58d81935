"""What windows of long texts share: their pieces, the model on many of them, and parts of a text by its characters."""

from collections.abc import Callable

import tensorflow as tf

from albert_tf.serving.signatures.base import Tensors

_WINDOWS_AT_ONCE = 32


def cut_pieces(ids: tf.RaggedTensor, row: tf.Tensor, begin: tf.Tensor, length: tf.Tensor) -> tf.RaggedTensor:
  """Parts of rows, ragged [W, (length)]: of row `row` [W] so many pieces from `begin` on; of ids [B, (length)]."""
  place = tf.repeat(tf.gather(tf.cast(ids.row_splits, tf.int32), row) + begin, length)
  place += tf.ragged.range(length).flat_values
  return tf.RaggedTensor.from_row_lengths(
    tf.gather(ids.flat_values, place), tf.cast(length, tf.int64), validate=False
  )


def in_chunks(
  function: Callable[[Tensors], Tensors], batch: Tensors, outputs: dict[str, tf.TensorSpec]
) -> Tensors:
  """Runs a function on windows in chunks, one after the other, so that memory is bounded.

  Args:
    function: of tensors [rows, S] to tensors [rows, …].
    batch: [W, S] each.
    outputs: what the function returns.
  """
  total = tf.shape(batch["input_ids"])[0]
  chunks = tf.maximum((total + _WINDOWS_AT_ONCE - 1) // _WINDOWS_AT_ONCE, 1)
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
  """Parts of texts [B], shaped as `row`: of that text the characters from `start` to `end`, not counted again."""
  first = tf.gather(char_bytes.row_splits, row)
  begin, stop = (
    tf.gather(char_bytes.flat_values, first + tf.cast(place, first.dtype)) for place in (start, end)
  )
  return tf.strings.substr(tf.gather(texts, row), tf.cast(begin, tf.int32), tf.cast(stop - begin, tf.int32))
