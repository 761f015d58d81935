"""Where the records lie: their byte positions, a check of the first ones, and reads of any range.

`pretraining/inputs.py` and `pretraining/evaluation.py` index and check records at the start;
`batches` reads them in the graph.
"""

from collections.abc import Iterator, Sequence
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import itertools
import sys

import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.pipelines.order import Extents
from albert_tf.records import RecordRules, read_records
from albert_tf.records.manifest import check_files
from albert_tf.records.parse import decode_example, feature_description
from albert_tf.records.shard_index import BLOCK_RECORDS, ShardIndex, load_shard_index, scan_shard

# Parallel requests hide the latency of a bucket.
_PARALLEL_FILES = 32
_PARALLEL_READS = 16

# How a read in the graph fails if a record is damaged or a file is not the indexed one.
READ_ERRORS = (
  tf.errors.DataLossError,
  tf.errors.InvalidArgumentError,
  tf.errors.NotFoundError,
)


@dataclasses.dataclass(frozen=True)
class RecordIndex:
  """Byte positions of blocks of at most `BLOCK_RECORDS` successive records.

  The records of all files form one list. Every file begins a block.

  Attributes:
    paths: the files that hold records.
    first_record: int64 `[files + 1]`, number of a file's first record in the list; last, the number
      of all records.
    first_block: int64 `[files]`, place of a file's first entry in `block_bytes`.
    block_bytes: int64 `[blocks + files]`, for each file the first byte of each block and the end of
      the last block.
    content: hash of the checksums of all records, for the identity of a run.

  Example: files of 100 and 70 records of 10 bytes, in blocks of 64. `first_record` is 0 100 170,
  `first_block` is 0 3, `block_bytes` is 0 640 1000 | 0 640 700.
  """

  paths: tuple[str, ...]
  first_record: np.ndarray
  first_block: np.ndarray
  block_bytes: np.ndarray
  content: str

  @property
  def num_records(self) -> int:
    return int(self.first_record[-1])


def build_record_index(paths: Sequence[str]) -> RecordIndex:
  """Reads the index files of records; walks files without a valid one, and saves it if possible.

  Args:
    paths: TFRecord files; their order is part of the data order.

  Raises:
    UserError: there are no records, a file differs from its manifest, or a walked file is damaged.
  """
  with concurrent.futures.ThreadPoolExecutor(_PARALLEL_FILES) as pool:
    loaded = list(pool.map(load_shard_index, paths))
    num_missing = loaded.count(None)
    if num_missing:
      print(
        f"{num_missing:,} of {len(paths):,} record files have no index, or are newer than it: "
        "reading them once",
        file=sys.stderr,
        flush=True,
      )
    shards = list(zip(paths, pool.map(_scan_if_missing, paths, loaded), strict=True))
  check_files({path: (shard.num_records, shard.num_bytes) for path, shard in shards})

  filled = [(path, shard) for path, shard in shards if shard.num_records]
  if not filled:
    raise UserError(
      f"The record files must hold at least one record. Received: {len(paths)} files with none, "
      f"the first {paths[0]}. Check that create_pretraining_data.py finished."
    )
  blocks = [np.append(shard.offsets, shard.num_bytes) for _, shard in filled]
  num_records = [shard.num_records for _, shard in filled]
  num_blocks = [len(offsets) for offsets in blocks]
  content = hashlib.sha256(b"".join(shard.digest for _, shard in shards))
  return RecordIndex(
    paths=tuple(path for path, _ in filled),
    first_record=np.cumsum([0] + num_records, dtype=np.int64),
    first_block=np.cumsum([0] + num_blocks[:-1], dtype=np.int64),
    block_bytes=np.concatenate(blocks),
    content=content.hexdigest()[:16],
  )


def _scan_if_missing(path: str, index: ShardIndex | None) -> ShardIndex:
  if index is None:
    index = scan_shard(path)
    # Files that only can be read are walked at every start.
    with contextlib.suppress(OSError, UserError):
      index.save(path)
  return index


def check_records(paths: Sequence[str], rules: RecordRules, *, at_most: int | None = 200) -> None:
  """Checks the first `at_most` records of all files together, or all records.

  Raises:
    UserError: a record is damaged, or a feature is missing, has another length or is out of bounds.
  """
  for source, data in itertools.islice(_records_of(paths), at_most):
    features = decode_example(data, source=source)
    for name in feature_description(rules.spec):
      length = len(features.get(name, ()))
      if length != rules.spec.length(name):
        raise UserError(
          "The records must have the lengths that training expects. Received: "
          f"{length} values of {name}, expected {rules.spec.length(name)} ({source}). "
          "Name files of one kind, and leave --max_seq_length and --max_predictions_per_seq out."
        )
    for name, largest in rules.largest_values.items():
      values = features[name]
      is_within = (values >= 0) & (values <= largest)  # False for NaN.
      if not is_within.all():
        raise UserError(
          "Token ids must be below the model's vocab_size, segment ids below its type_vocab_size, "
          "labels and input_mask 0 or 1, weights from 0 to 1, and positions within their row. "
          f"Received: {values[~is_within][0]} in {name} of {source}; the model has "
          f"vocab_size={rules.vocab_size}, type_vocab_size={rules.type_vocab_size}. Use the "
          "configuration of the vocabulary that the records were made with, or make them again."
        )


def check_range(index: RecordIndex, start: int, end: int, rules: RecordRules) -> None:
  """Checks the files that hold the records `[start, end)`, after a read of these has failed.

  Raises:
    UserError: a file is missing or is not the indexed one, or a record is damaged.
  """
  # How many files begin up to the first and up to the last record.
  up_to_first, up_to_last = index.first_record.searchsorted([start, end - 1], side="right")
  for number in range(up_to_first - 1, up_to_last):
    path = index.paths[number]
    if not files.exists(path):
      raise _changed(path, "which is missing")
    check_records([path], rules, at_most=None)
    # Sound records, at other places: another file, or a part of this one.
    shard = scan_shard(path)
    blocks = np.append(shard.offsets, shard.num_bytes)
    first_block = index.first_block[number]
    indexed_blocks = index.block_bytes[first_block : first_block + len(blocks)]
    num_records = index.first_record[number + 1] - index.first_record[number]
    if shard.num_records != num_records or not np.array_equal(blocks, indexed_blocks):
      raise _changed(path, "which now holds other records")


def _changed(path: str, received: str) -> UserError:
  return UserError(
    "A record file must stay as it is while it is read. Received: "
    f"{path}, {received}. Put the file of before back, and give the same command again; a run "
    "continues from its last checkpoint."
  )


def _records_of(paths: Sequence[str]) -> Iterator[tuple[str, bytes]]:
  """The place of each record in words, and its data."""
  for path in paths:
    for number, data in enumerate(read_records(path)):
      yield f"{path}, record {number}", data


class ExtentReader:
  """Reads extents in the graph, with TensorFlow's record reader.

  Make the reader eagerly: then its tables, which grow with the corpus, are not constants in a
  graph.
  """

  def __init__(self, index: RecordIndex):
    self._paths = tf.constant(index.paths)
    self._first_record = tf.constant(index.first_record)
    self._first_block = tf.constant(index.first_block)
    self._block_bytes = tf.constant(index.block_bytes)

  def read_all(self, extents: Extents) -> tf.Tensor:
    """The serialized records of all extents, `[n]`, in order."""
    dataset = tf.data.Dataset.from_tensor_slices(tuple(extents))
    dataset = dataset.filter(lambda _, count: count > 0)
    dataset = dataset.map(self.read, num_parallel_calls=_PARALLEL_READS, deterministic=True)
    # One batch of all; without extents there is none.
    joined = dataset.rebatch(tf.maximum(tf.reduce_sum(extents.counts), 1))
    return joined.reduce(tf.zeros([0], tf.string), lambda _, records: records)

  def read(self, start: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """The records `[start, start + count)` of the list of all; at least one.

    Example: files of 100 and 70 records in blocks of 64, start 90, count 30. Of file 0 it reads
    records 90 to 99: the bytes of block 1, of which it skips 26 records. Of file 1 it reads records
    0 to 19: the bytes of block 0, of which it takes 20 records.
    """
    end = start + count
    # How many files begin up to the first and up to the last record; in the example 1 and 2.
    up_to_first, up_to_last = tf.unstack(
      tf.searchsorted(self._first_record, tf.stack([start, end - 1]), "right", tf.int64)
    )
    numbers = tf.range(up_to_first - 1, up_to_last)

    # Records and blocks within each file.
    first_record = tf.gather(self._first_record, numbers)
    begins = tf.maximum(start, first_record) - first_record
    ends = tf.minimum(end, tf.gather(self._first_record, numbers + 1)) - first_record
    blocks = tf.gather(self._first_block, numbers)
    first_bytes = tf.gather(self._block_bytes, blocks + begins // BLOCK_RECORDS)
    end_bytes = tf.gather(self._block_bytes, blocks - (-ends // BLOCK_RECORDS))
    spans = tf.data.Dataset.from_tensor_slices(
      (
        tf.gather(self._paths, numbers),
        first_bytes,
        end_bytes,
        begins % BLOCK_RECORDS,
        ends - begins,
      )
    )
    records = spans.flat_map(_record_dataset).batch(count).get_single_element()
    num_records = tf.size(records, out_type=tf.int64)
    tf.debugging.assert_equal(num_records, count, message="fewer records than in the index")
    return records


def _record_dataset(
  path: tf.Tensor, first_byte: tf.Tensor, end_byte: tf.Tensor, skip: tf.Tensor, count: tf.Tensor
) -> tf.data.Dataset:
  """`count` records of `path`, after `skip` records from `first_byte` on.

  It is one request of exactly the bytes up to `end_byte`.
  """
  variant = tf.raw_ops.TFRecordDatasetV2(
    # TensorFlow for TPUs reads 127 MiB at a time if all names are in a bucket; /dev/null is not,
    # and is empty.
    filenames=tf.stack([path, "/dev/null"]),
    compression_type="",
    buffer_size=end_byte - first_byte,
    byte_offsets=tf.stack([first_byte, tf.zeros_like(first_byte)]),
  )
  records = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
  return records.skip(skip).take(count)
