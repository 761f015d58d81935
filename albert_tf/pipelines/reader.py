"""Records read in the graph: a few long stretches at a time, whichever files they lie in."""

import tensorflow as tf

from albert_tf.pipelines.order import Extents
from albert_tf.pipelines.record_index import RecordIndex
from albert_tf.records.shard_index import BLOCK_RECORDS

_PARALLEL_READS = 16  # Extents asked for at once: a bucket answers each only after a while.


class ExtentReader:
  """Reads extents in the graph, by TensorFlow's own reader on the input's host.

  The tables grow with the corpus. They are inputs of the functions, never constants in a graph: make the reader
  eagerly, where its dataset is made.
  """

  def __init__(self, index: RecordIndex):
    self._paths = tf.constant(index.paths)
    self._first_record = tf.constant(index.first_record)
    self._first_block = tf.constant(index.first_block)
    self._block_bytes = tf.constant(index.block_bytes)

  def read_all(self, extents: Extents) -> tf.Tensor:
    """The records of all extents, one after the other, as serialized `[n]`."""
    wanted = extents.counts > 0
    some = Extents(*[tf.boolean_mask(values, wanted) for values in extents])
    dataset = tf.data.Dataset.from_tensor_slices(tuple(some))
    dataset = dataset.map(self.read, num_parallel_calls=_PARALLEL_READS, deterministic=True)
    joined = dataset.rebatch(tf.maximum(tf.reduce_sum(some.counts), 1))
    return joined.reduce(tf.zeros([0], tf.string), lambda _, records: records)  # Of no extent: no record.

  def read(self, start: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """The records `[start, start + count)` of the list of all; at least one."""
    first, last = tf.unstack(
      tf.searchsorted(self._first_record, tf.stack([start, start + count - 1]), "right")
    )
    files = tf.range(tf.cast(first, tf.int64) - 1, tf.cast(last, tf.int64))
    before = tf.gather(self._first_record, files)
    begin = tf.maximum(start, before) - before  # Within the file.
    end = tf.minimum(start + count, tf.gather(self._first_record, files + 1)) - before
    block = tf.gather(self._first_block, files)
    first_byte = tf.gather(self._block_bytes, block + begin // BLOCK_RECORDS)
    last_byte = tf.gather(self._block_bytes, block - (-end // BLOCK_RECORDS))
    parts = tf.data.Dataset.from_tensor_slices(
      (tf.gather(self._paths, files), first_byte, last_byte, begin % BLOCK_RECORDS, end - begin)
    )
    records = parts.flat_map(_record_dataset).batch(count).get_single_element()
    found = tf.size(records, out_type=tf.int64)
    tf.debugging.assert_equal(found, count, message="fewer records than in the index")
    return records


def _record_dataset(
  path: tf.Tensor, first_byte: tf.Tensor, last_byte: tf.Tensor, skip: tf.Tensor, count: tf.Tensor
) -> tf.data.Dataset:
  """`count` records of `path` behind the first `skip` from `first_byte` on; one request of exactly those bytes."""
  variant = tf.raw_ops.TFRecordDatasetV2(
    # TensorFlow for TPUs reads 127 MiB at a time where all names are of a bucket: the second one is not, and empty.
    filenames=tf.stack([path, "/dev/null"]),
    compression_type="",
    buffer_size=last_byte - first_byte,
    byte_offsets=tf.stack([first_byte, tf.zeros_like(first_byte)]),
  )
  return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string)).skip(skip).take(count)
