"""Record files → batches for pretraining, from any position, for any host."""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import os
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops

from albert_tf.errors import UserError
from albert_tf.pipelines.order import DataOrder
from albert_tf.pipelines.record_index import ExtentReader, RecordIndex

# float32 [B]: 0 for examples that only pad the last evaluation batch.
EXAMPLE_WEIGHTS = "example_weights"

_EVALUATION_RECORDS = 1024  # Records read together.
_PARALLEL = min(16, os.cpu_count() or 1)  # Batches parsed in parallel.

# The functions of this file need no AutoGraph, which takes seconds.
_as_it_is = tf.autograph.experimental.do_not_convert

Batch = dict[str, tf.Tensor]
ParseFunction = Callable[[tf.Tensor], Batch]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostShard:
  """One host's share of every global batch; `num_replicas` counts the replicas of all hosts."""

  num_replicas: int = 1
  num_hosts: int = 1
  host: int = 0

  @property
  def replicas_per_host(self) -> int:
    return self.num_replicas // self.num_hosts


def without_autotune(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Turns off TensorFlow's tuning of the parallelism of reading.

  A dropped iterator waits up to a minute for the tuning thread. Without tuning, every `num_parallel_calls` and
  `prefetch` must be a number.
  """
  options = tf.data.Options()
  options.autotune.enabled = False
  return dataset.with_options(options)


@contextlib.contextmanager
def iterators_without_autotune() -> Iterator[None]:
  """Makes a strategy's iterators without tuning, too.

  They read through another dataset for each replica, which ignores the options of the first.
  """
  private = "_create_device_dataset"  # TensorFlow 2.15 to 2.21 have it.
  made: Any = getattr(multi_device_iterator_ops, private, None)
  if made is None:
    yield
    return
  setattr(multi_device_iterator_ops, private, lambda *args, **named: without_autotune(made(*args, **named)))
  try:
    yield
  finally:
    setattr(multi_device_iterator_ops, private, made)


def _rows_per_replica(batch_size: int, shard: HostShard, *, flag: str) -> int:
  rows, rest = divmod(batch_size, shard.num_replicas)
  if rest:
    raise UserError(
      f"{flag} must be divisible by the number of replicas. Received: {flag}={batch_size}, "
      f"{shard.num_replicas} replicas. Use {max(1, rows) * shard.num_replicas}."
    )
  return rows


def training_batches(
  index: RecordIndex,
  parse: ParseFunction,
  *,
  seed: int,
  global_batch_size: int,
  start_position: int = 0,
  shard: HostShard = HostShard(),
  mask: Callable[[Batch, tf.Tensor, tf.Tensor], Batch] | None = None,
) -> tf.data.Dataset:
  """Endless per-replica training batches from example `start_position` of the stream on.

  The example at a position depends only on the index and the seed. So a restart costs a seek, and every global batch
  has the same examples for any number of hosts, replicas and micro-batches.

  Args:
    parse: serialized `[B]` → features; see `records.parse`.
    seed: keys the order.
    global_batch_size: examples of one step on all replicas.
    start_position: examples consumed by earlier steps.
    mask: (batch, epoch [B], number of the record [B]) → the batch with other masks; None for the stored ones.

  Returns:
    Batches of `global_batch_size / num_replicas` examples, `replicas_per_host` a step.

  Raises:
    UserError: the batch is not divisible by the replicas, or the hosts cannot share the reading.
  """
  rows = _rows_per_replica(global_batch_size, shard, flag="train_batch_size")
  order = DataOrder(num_records=index.num_records, seed=seed, num_hosts=shard.num_hosts, host=shard.host)
  first_window, skipped = order.locate(start_position)
  reader = ExtentReader(index)

  @_as_it_is
  def read_window(window: tf.Tensor) -> Batch:
    extents = order.extents(window)
    places = order.arrangement(window, extents)
    places = places[tf.where(tf.equal(window, first_window), skipped, 0) :]
    serialized = tf.gather(reader.read_all(extents), places)
    if mask is None:
      return {"serialized": serialized}
    numbers = tf.ragged.range(extents.starts, extents.starts + extents.counts).flat_values
    epoch = tf.fill(tf.shape(places), window // order.windows_per_epoch)
    return {"serialized": serialized, "record": tf.gather(numbers, places), "epoch": epoch}

  @_as_it_is
  def finish(rows: Batch) -> Batch:
    batch = parse(rows["serialized"])
    return batch if mask is None else mask(batch, rows["epoch"], rows["record"])

  dataset = tf.data.Dataset.range(first_window, tf.int64.max)
  # The next window is read while one is used: memory holds two.
  dataset = dataset.map(read_window).prefetch(1)
  # A host may have no examples in the last window of an epoch.
  dataset = dataset.filter(_as_it_is(lambda rows: tf.size(rows["serialized"]) > 0))
  sharers = shard.num_hosts // order.parts  # Hosts that read the same examples.
  if sharers > 1:
    of_host = rows * shard.replicas_per_host
    first = shard.host // order.parts * of_host
    dataset = dataset.rebatch(of_host * sharers, drop_remainder=True).map(
      _as_it_is(lambda of_all: {name: values[first : first + of_host] for name, values in of_all.items()})
    )
  dataset = dataset.rebatch(rows, drop_remainder=True)  # Cuts and joins whole tensors.
  dataset = dataset.map(finish, num_parallel_calls=_PARALLEL, deterministic=True)
  return without_autotune(dataset.prefetch(2 * shard.replicas_per_host))


def evaluation_batches(
  index: RecordIndex,
  parse: ParseFunction,
  *,
  global_batch_size: int,
  max_steps: int | None = None,
  shard: HostShard = HostShard(),
) -> tf.data.Dataset:
  """Every held-out record once, in file order, as per-replica batches of one size, at most `max_steps` of them.

  Each host reads its own range of the records, and pads with copies that have `example_weights` 0.
  """
  rows = _rows_per_replica(global_batch_size, shard, flag="eval_batch_size")
  steps = min(-(-index.num_records // global_batch_size), max_steps or index.num_records)
  total = min(index.num_records, steps * global_batch_size)
  first, end = (total * host // shard.num_hosts for host in (shard.host, shard.host + 1))
  count = steps * rows * shard.replicas_per_host
  reader = ExtentReader(index)

  @_as_it_is
  def read(start: tf.Tensor) -> Batch:
    row = tf.range(tf.minimum(count - start, _EVALUATION_RECORDS))
    real = tf.clip_by_value(end - first - start, 0, tf.size(row, tf.int64))
    some = tf.maximum(real, 1)
    records = reader.read(tf.minimum(first + start, index.num_records - 1), some)
    weights = tf.cast(row < real, tf.float32)
    return {"records": tf.gather(records, tf.minimum(row, some - 1)), EXAMPLE_WEIGHTS: weights}

  @_as_it_is
  def finish(part: Batch) -> Batch:
    return {**parse(part["records"]), EXAMPLE_WEIGHTS: part[EXAMPLE_WEIGHTS]}

  dataset = tf.data.Dataset.range(0, count, _EVALUATION_RECORDS)
  dataset = dataset.map(read, num_parallel_calls=2, deterministic=True).rebatch(rows, drop_remainder=True)
  dataset = dataset.map(finish, num_parallel_calls=_PARALLEL, deterministic=True)
  return without_autotune(dataset.prefetch(2 * shard.replicas_per_host))
