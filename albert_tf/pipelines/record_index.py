"""Index the byte positions of records, check the first records, and read any range of them in the graph."""

from collections.abc import Sequence
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import itertools
import sys

import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.pipelines.order import Extents
from albert_tf.records import PretrainingSpec, read_records
from albert_tf.records.features import (
  ALL_FEATURES,
  INPUT_IDS,
  MASKED_LM_IDS,
  MASKED_LM_POSITIONS,
  TOKEN_BOUNDARY,
)
from albert_tf.records.manifest import check_files
from albert_tf.records.parse import decode_example
from albert_tf.records.shard_index import BLOCK_RECORDS, ShardIndex, load_shard_index, scan_shard
from albert_tf.records.tfrecord import FOOTER_BYTES, HEADER_BYTES

# Parallel requests hide the latency of a bucket.
_PARALLEL_FILES, _PARALLEL_READS = 32, 16


@dataclasses.dataclass(frozen=True)
class RecordIndex:
  """Byte positions of blocks of at most `BLOCK_RECORDS` successive records.

  The records of all files form one list. Every file begins a block.

  Attributes:
    paths: the files that hold records.
    first_record: int64 `[files + 1]`, number of a file's first record in the list; last, the number of all records.
    first_block: int64 `[files]`, place of a file's first entry in `block_bytes`.
    block_bytes: int64 `[blocks + files]`, for each file the first byte of each block and the end of the last block.
    content: hash of the checksums of all records, for the identity of a run.
  """

  paths: tuple[str, ...]
  first_record: np.ndarray
  first_block: np.ndarray
  block_bytes: np.ndarray
  content: str

  @property
  def num_records(self) -> int:
    return int(self.first_record[-1])


def _walk(path: str) -> ShardIndex:
  index = scan_shard(path)
  with contextlib.suppress(OSError, UserError):  # Read-only files are walked at every start.
    index.save(path)
  return index


def build_record_index(paths: Sequence[str]) -> RecordIndex:
  """Reads the index files of records; walks record files without an index, and saves one if possible.

  Args:
    paths: TFRecord files; their order is part of the data order.

  Raises:
    UserError: there are no records, a file differs from its manifest, or a walked file is damaged.
  """
  with concurrent.futures.ThreadPoolExecutor(_PARALLEL_FILES) as pool:
    found = dict(zip(paths, pool.map(load_shard_index, paths), strict=True))
    missing = [path for path, index in found.items() if index is None]
    if missing:
      text = f"{len(missing):,} of {len(paths):,} record files have no index: reading them once"
      print(text, file=sys.stderr, flush=True)
    found |= zip(missing, pool.map(_walk, missing), strict=True)
  shards = [(path, index) for path in paths if (index := found[path]) is not None]
  check_files({path: (index.num_records, index.num_bytes) for path, index in shards})
  full = [(path, index) for path, index in shards if index.num_records]
  if not full:
    raise UserError(
      f"The record files must hold at least one record. Received: {len(paths)} files with none, the first "
      f"{paths[0]}. Check that create_pretraining_data.py finished."
    )
  counts = np.array([index.num_records for _, index in full], np.int64)
  blocks = [np.append(index.offsets, index.num_bytes) for _, index in full]
  content = hashlib.sha256(b"".join(index.digest for _, index in shards))
  return RecordIndex(
    paths=tuple(path for path, _ in full),
    first_record=np.append(0, np.cumsum(counts)),
    first_block=np.cumsum([0, *map(len, blocks[:-1])], dtype=np.int64),
    block_bytes=np.concatenate(blocks),
    content=content.hexdigest()[:16],
  )


def check_records(
  paths: Sequence[str], *, spec: PretrainingSpec, vocab_size: int, at_most: int = 200
) -> None:
  """Checks the first `at_most` records of all files together.

  Raises:
    UserError: a record is damaged, or a feature is missing, has another length or is out of bounds.
  """
  for path in paths:
    offset = 0
    for number, data in enumerate(itertools.islice(read_records(path), at_most)):
      where = f"{path}, record {number} (byte {offset})"
      offset += HEADER_BYTES + len(data) + FOOTER_BYTES
      features = decode_example(data, source=where)
      for name in ALL_FEATURES:
        found = len(features.get(name, ()))
        if found != spec.length(name) and name != TOKEN_BOUNDARY:  # Training does not use it.
          raise UserError(
            "The records must have the lengths that training expects. Received: "
            f"{found} values of {name}, expected {spec.length(name)} ({where}). "
            "Set --max_seq_length and --max_predictions_per_seq to those the records were made with."
          )
      bounds = {
        INPUT_IDS: vocab_size,
        MASKED_LM_IDS: vocab_size,
        MASKED_LM_POSITIONS: spec.max_seq_length,
      }
      for name, bound in bounds.items():
        wrong = [int(value) for value in features[name] if not 0 <= value < bound]
        if wrong:
          raise UserError(
            "Token ids must be below the model's vocab_size, and positions within their row. Received: "
            f"{wrong[0]} in {name} of {where}; the model's vocab_size is {vocab_size}. "
            "Use the configuration of the vocabulary that the records were made with, or make them again."
          )
      at_most -= 1
    if at_most <= 0:
      return


class ExtentReader:
  """Reads extents in the graph, with TensorFlow's record reader.

  Make the reader eagerly: then its tables, which grow with the corpus, are not constants in a graph.
  """

  def __init__(self, index: RecordIndex):
    self._paths = tf.constant(index.paths)
    self._first_record = tf.constant(index.first_record)
    self._first_block = tf.constant(index.first_block)
    self._block_bytes = tf.constant(index.block_bytes)

  def read_all(self, extents: Extents) -> tf.Tensor:
    """The serialized records of all extents, `[n]`, in order."""
    wanted = extents.counts > 0
    some = Extents(*[tf.boolean_mask(values, wanted) for values in extents])
    dataset = tf.data.Dataset.from_tensor_slices(tuple(some))
    dataset = dataset.map(self.read, num_parallel_calls=_PARALLEL_READS, deterministic=True)
    joined = dataset.rebatch(tf.maximum(tf.reduce_sum(some.counts), 1))
    return joined.reduce(
      tf.zeros([0], tf.string), lambda _, records: records
    )  # No extents, no records.

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
  """`count` records of `path`, after `skip` records from `first_byte` on; one request of exactly these bytes."""
  variant = tf.raw_ops.TFRecordDatasetV2(
    # TensorFlow for TPUs reads 127 MiB at a time if all names are in a bucket; /dev/null is not, and is empty.
    filenames=tf.stack([path, "/dev/null"]),
    compression_type="",
    buffer_size=last_byte - first_byte,
    byte_offsets=tf.stack([first_byte, tf.zeros_like(first_byte)]),
  )
  return (
    tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string)).skip(skip).take(count)
  )
