"""Record files → batches for pretraining, from any position, for any host."""

from collections.abc import Callable, Sequence
import dataclasses

import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.pipelines.checks import check_enough_records
from albert_tf.pipelines.order import ShuffledOrder
from albert_tf.pipelines.record_index import BLOCK_RECORDS, RecordIndex

EXAMPLE_WEIGHTS = (
  "example_weights"  # float32 [B]: 0 for an example that only fills the last evaluation batch.
)

_PARALLEL_READS = 16  # Blocks of a window asked for at once: a bucket answers each only after a while.

Batch = dict[str, tf.Tensor]
ParseFunction = Callable[[tf.Tensor], Batch]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostShard:
  """Which rows of every global batch one host feeds to its replicas.

  Attributes:
    num_replicas: replicas of all hosts.
    num_hosts: input pipelines.
    host: number of this one.
  """

  num_replicas: int = 1
  num_hosts: int = 1
  host: int = 0

  def __post_init__(self) -> None:
    if self.num_replicas % self.num_hosts:
      raise UserError(
        "Every host must have the same number of replicas. Received: "
        f"{self.num_replicas} replicas on {self.num_hosts} hosts. Use equal hosts."
      )

  @property
  def replicas_per_host(self) -> int:
    return self.num_replicas // self.num_hosts


def _record_dataset(path: tf.Tensor, offset: tf.Tensor) -> tf.data.Dataset:
  """The records of `path` from byte `offset` on, read by TensorFlow's own reader on the input's host."""
  variant = tf.raw_ops.TFRecordDatasetV2(
    filenames=tf.reshape(path, [1]),
    compression_type="",
    buffer_size=tf.constant(1 << 20, tf.int64),
    byte_offsets=tf.reshape(offset, [1]),
  )
  return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))


class _BlockReader:
  """Reads one block of an index in the graph, as one tensor of serialized records."""

  def __init__(self, index: RecordIndex):
    self._paths = tf.constant(index.run_paths)
    self._run_offsets = tf.constant(index.run_offsets)
    self._run_counts = tf.constant(index.run_counts)
    self._block_run = tf.constant(index.block_run)
    self._block_offset = tf.constant(index.block_offset)
    self._block_skip = tf.constant(index.block_skip)
    self._span = index.longest_block_span

  def __call__(self, block: tf.Tensor) -> tf.Tensor:
    first = self._block_run[block]
    runs = tf.range(first, tf.minimum(first + self._span, tf.size(self._paths, out_type=tf.int64)))
    starts_here = tf.equal(runs, first)
    offsets = tf.where(starts_here, self._block_offset[block], tf.gather(self._run_offsets, runs))
    counts = tf.gather(self._run_counts, runs) - tf.where(starts_here, self._block_skip[block], 0)
    parts = tf.data.Dataset.from_tensor_slices((tf.gather(self._paths, runs), offsets, counts))
    read = parts.flat_map(lambda path, offset, count: _record_dataset(path, offset).take(count))
    return read.batch(BLOCK_RECORDS).take(1).get_single_element()


def _per_replica(dataset: tf.data.Dataset, shard: HostShard, rows_per_replica: int) -> tf.data.Dataset:
  """The stream of examples, in pieces of any size → this host's per-replica batches.

  `rebatch` cuts and joins whole tensors; elements are never handled one by one.
  """
  if shard.num_hosts > 1:
    dataset = dataset.rebatch(rows_per_replica * shard.num_replicas, drop_remainder=True)
    rows = rows_per_replica * shard.replicas_per_host
    mine = slice(shard.host * rows, (shard.host + 1) * rows)
    dataset = dataset.map(lambda batch: {key: value[mine] for key, value in batch.items()})
  return dataset.rebatch(rows_per_replica, drop_remainder=True)


def _rows_per_replica(batch_size: int, shard: HostShard, *, flag: str) -> int:
  if batch_size % shard.num_replicas:
    raise UserError(
      f"{flag} must be divisible by the number of replicas. Received: {flag}={batch_size}, "
      f"{shard.num_replicas} replicas. Use {max(1, batch_size // shard.num_replicas) * shard.num_replicas}."
    )
  return batch_size // shard.num_replicas


def training_batches(
  index: RecordIndex,
  parse: ParseFunction,
  *,
  seed: int,
  global_batch_size: int,
  start_position: int = 0,
  shard: HostShard = HostShard(),
) -> tf.data.Dataset:
  """Endless per-replica training batches from example `start_position` of the stream on.

  The example at a position depends on the index and the seed alone. So a restart costs a
  seek, not a replay, and the order is the same for any number of hosts,
  replicas and micro-batches, and any batch size.

  Args:
    index: where the records are.
    parse: serialized `[B]` → features; see `records.parse`.
    seed: keys the order.
    global_batch_size: examples of one step on all replicas.
    start_position: examples consumed by earlier steps.
    shard: this host's part.

  Returns:
    Batches of `global_batch_size / num_replicas` examples, `replicas_per_host` a step.

  Raises:
    UserError: the batch is not divisible by the replicas, or there are fewer records than one batch.
  """
  rows = _rows_per_replica(global_batch_size, shard, flag="train_batch_size")
  check_enough_records(index.num_records, global_batch_size)
  order = ShuffledOrder(num_records=index.num_records, seed=seed)
  start = order.locate(start_position)
  reader = _BlockReader(index)

  def read_window(window: tf.Tensor) -> tf.Tensor:
    blocks = tf.data.Dataset.from_tensor_slices(order.window_blocks(window))
    blocks = blocks.map(reader, num_parallel_calls=_PARALLEL_READS, deterministic=True)
    records = blocks.rebatch(order.window_records).get_single_element()
    found = tf.size(records, out_type=tf.int64)
    tf.debugging.assert_equal(found, order.window_size(window), message="fewer records than in the index")
    used = tf.where(tf.equal(window, start.window), start.offset, 0)
    return order.permute_window(records, window)[used:]

  dataset = tf.data.Dataset.range(start.window, tf.int64.max)
  dataset = dataset.map(read_window, num_parallel_calls=2, deterministic=True)
  dataset = _per_replica(dataset.map(lambda records: {"records": records}), shard, rows)
  dataset = dataset.map(
    lambda part: parse(part["records"]), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
  )
  return dataset.prefetch(tf.data.AUTOTUNE)


def evaluation_batches(
  paths: Sequence[str],
  parse: ParseFunction,
  *,
  global_batch_size: int,
  max_steps: int | None = None,
  shard: HostShard = HostShard(),
) -> tf.data.Dataset:
  """Every held-out record once, in file order, as per-replica batches of one size.

  The last batch is filled up with copies whose `example_weights` are 0.

  Args:
    paths: TFRecord files.
    parse: serialized `[B]` → features.
    global_batch_size: examples of one step on all replicas.
    max_steps: evaluate at most this many batches; None for all.
    shard: this host's part.
  """
  rows = _rows_per_replica(global_batch_size, shard, flag="eval_batch_size")

  def fill(records: tf.Tensor) -> Batch:
    missing = global_batch_size - tf.size(records)
    return {
      "records": tf.concat([records, tf.repeat(records[:1], missing)], axis=0),
      EXAMPLE_WEIGHTS: tf.concat([tf.ones_like(records, tf.float32), tf.zeros([missing])], axis=0),
    }

  dataset = tf.data.TFRecordDataset(list(paths)).batch(global_batch_size).map(fill)
  if max_steps is not None:
    dataset = dataset.take(max_steps)
  dataset = _per_replica(dataset, shard, rows)
  dataset = dataset.map(
    lambda part: {**parse(part["records"]), EXAMPLE_WEIGHTS: part[EXAMPLE_WEIGHTS]},
    num_parallel_calls=tf.data.AUTOTUNE,
    deterministic=True,
  )
  return dataset.prefetch(tf.data.AUTOTUNE)
