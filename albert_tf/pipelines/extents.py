"""Stretches of successive records: what an order asks for, and how they are read in the graph."""

from typing import NamedTuple

import tensorflow as tf

from albert_tf.pipelines.record_index import RecordIndex
from albert_tf.records.shard_index import BLOCK_RECORDS

_PARALLEL_READS = 16  # Extents asked for at once: a bucket answers each only after a while.


class StreamPosition(NamedTuple):
  """A place in the endless stream of training examples."""

  window: int  # Number of the window since the start of epoch 0.
  offset: int  # Examples of that window already consumed.


class HostPart(NamedTuple):
  """The examples at positions p of the stream with p % parts == part."""

  parts: int = 1
  part: int = 0


class Extents(NamedTuple):
  """Stretches of the list of all records; int64 `[extents]` each. A count may be 0."""

  starts: tf.Tensor
  counts: tf.Tensor


class ExtentReader:
  """Reads extents in the graph, by TensorFlow's own reader on the input's host.

  The tables grow with the corpus. They are inputs of the functions, never constants in a graph: make the reader
  eagerly, where its dataset is made.
  """

  def __init__(self, index: RecordIndex):
    self._paths = tf.constant(index.paths)
    self._first_record = tf.constant(index.first_record)
    self._first_mark = tf.constant(index.first_mark)
    self._marks = tf.constant(index.marks)

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
    stretches = tf.range(tf.cast(first, tf.int64) - 1, tf.cast(last, tf.int64))
    before = tf.gather(self._first_record, stretches)
    begin = tf.maximum(start, before) - before  # Within the stretch.
    end = tf.minimum(start + count, tf.gather(self._first_record, stretches + 1)) - before
    mark = tf.gather(self._first_mark, stretches)
    first_byte = tf.gather(self._marks, mark + begin // BLOCK_RECORDS)
    last_byte = tf.gather(self._marks, mark - (-end // BLOCK_RECORDS))
    parts = tf.data.Dataset.from_tensor_slices(
      (tf.gather(self._paths, stretches), first_byte, last_byte, begin % BLOCK_RECORDS, end - begin)
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
