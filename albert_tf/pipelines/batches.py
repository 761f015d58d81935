"""Record files to batches: pretraining's datasets, from any position and for any host.

`pretraining/inputs.py` reads training records with them, `pretraining/evaluation.py` held-out
records.
"""

from collections.abc import Callable, Iterator
import contextlib
import contextvars
import dataclasses
import functools
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
_PARALLEL_BATCHES = min(16, os.cpu_count() or 1)  # Batches parsed in parallel.

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


# The functions within need no AutoGraph, which takes seconds.
@tf.autograph.experimental.do_not_convert
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

  The example at a position depends only on the index and the seed. So a restart costs a seek, and
  every global batch has the same examples for any number of hosts, replicas and micro-batches.

  Args:
    parse: serialized `[B]` → features; see `records.parse`.
    seed: keys the order.
    global_batch_size: examples of one step on all replicas.
    start_position: examples consumed by earlier steps.
    mask: (batch, epoch [B], number of the record [B]) → the batch with other masks; None for the
      stored ones.

  Returns:
    Batches of `global_batch_size / num_replicas` examples, `replicas_per_host` a step.

  Raises:
    UserError: the batch is not divisible by the replicas, or the hosts cannot share the reading.
  """
  rows = _rows_per_replica(global_batch_size, shard, flag="train_batch_size")
  order = DataOrder(
    num_records=index.num_records, seed=seed, num_hosts=shard.num_hosts, host=shard.host
  )
  first_window, skipped = order.locate(start_position)
  reader = ExtentReader(index)

  def read_window(window_index: tf.Tensor) -> Batch:
    window = order.window(window_index)
    extents = order.extents(window)
    sources = order.arrangement(window, extents)
    sources = sources[tf.where(tf.equal(window_index, first_window), skipped, 0) :]
    serialized = tf.gather(reader.read_all(extents), sources)
    # Epoch and number of its record key the fresh masks of an example.
    numbers = tf.ragged.range(extents.starts, extents.starts + extents.counts).flat_values
    return {
      "serialized": serialized,
      "record": tf.gather(numbers, sources),
      "epoch": tf.fill(tf.shape(sources), window.epoch),
    }

  def finish(examples: Batch) -> Batch:
    batch = parse(examples["serialized"])
    if mask is not None:
      batch = mask(batch, examples["epoch"], examples["record"])
    return batch

  dataset = tf.data.Dataset.range(first_window, tf.int64.max)
  # The next window is read while one is used: memory holds two.
  dataset = dataset.map(read_window).prefetch(1)
  # A host may have no examples in the last window of an epoch.
  dataset = dataset.filter(lambda examples: tf.size(examples["serialized"]) > 0)

  # More hosts than lanes: this host takes its own rows of the examples that several hosts read.
  hosts_per_share = shard.num_hosts // order.num_shares
  if hosts_per_share > 1:
    rows_per_host = rows * shard.replicas_per_host
    start = shard.host // order.num_shares * rows_per_host
    dataset = dataset.rebatch(rows_per_host * hosts_per_share, drop_remainder=True)
    dataset = dataset.map(
      lambda examples: tf.nest.map_structure(lambda x: x[start : start + rows_per_host], examples)
    )

  # Tensors are cut and joined; examples are not handled one by one.
  dataset = dataset.rebatch(rows, drop_remainder=True)
  return _finished(dataset, finish, shard)


@tf.autograph.experimental.do_not_convert
def evaluation_batches(
  index: RecordIndex,
  parse: ParseFunction,
  *,
  global_batch_size: int,
  num_steps: int,
  shard: HostShard = HostShard(),
) -> tf.data.Dataset:
  """Held-out records, each once, in file order, as per-replica batches of one size.

  Each host reads its own range of the records, and pads with copies that have `example_weights` 0.

  Args:
    num_steps: number of global batches; the last may be filled with copies.

  Example: 40 records, a batch of 18 on 3 hosts: 3 batches of 6 examples on each host. Host 1 reads
  records 13 to 25, and then 5 copies of record 25.
  """
  rows = _rows_per_replica(global_batch_size, shard, flag="eval_batch_size")
  num_records = min(index.num_records, num_steps * global_batch_size)
  first = num_records * shard.host // shard.num_hosts
  end = num_records * (shard.host + 1) // shard.num_hosts
  num_examples = num_steps * rows * shard.replicas_per_host  # With the copies.
  reader = ExtentReader(index)

  def read(start: tf.Tensor) -> Batch:
    row = tf.range(tf.minimum(num_examples - start, _EVALUATION_RECORDS))
    num_real = tf.clip_by_value(end - first - start, 0, tf.size(row, tf.int64))
    # Where only copies are left, one record is read to copy it.
    num_read = tf.maximum(num_real, 1)
    records = reader.read(tf.minimum(first + start, index.num_records - 1), num_read)
    return {
      "serialized": tf.gather(records, tf.minimum(row, num_read - 1)),
      EXAMPLE_WEIGHTS: tf.cast(row < num_real, tf.float32),
    }

  def finish(examples: Batch) -> Batch:
    return parse(examples["serialized"]) | {EXAMPLE_WEIGHTS: examples[EXAMPLE_WEIGHTS]}

  dataset = tf.data.Dataset.range(0, num_examples, _EVALUATION_RECORDS)
  dataset = dataset.map(read, num_parallel_calls=2, deterministic=True)
  return _finished(dataset.rebatch(rows, drop_remainder=True), finish, shard)


def _rows_per_replica(batch_size: int, shard: HostShard, *, flag: str) -> int:
  rows, remainder = divmod(batch_size, shard.num_replicas)
  if remainder:
    raise UserError(
      f"{flag} must be divisible by the number of replicas. Received: {flag}={batch_size}, "
      f"{shard.num_replicas} replicas. Use {max(1, rows) * shard.num_replicas}."
    )
  return rows


def _finished(
  dataset: tf.data.Dataset, finish: Callable[[Batch], Batch], shard: HostShard
) -> tf.data.Dataset:
  """Parses batches in parallel, and keeps two for each replica ready."""
  dataset = dataset.map(finish, num_parallel_calls=_PARALLEL_BATCHES, deterministic=True)
  return without_autotune(dataset.prefetch(2 * shard.replicas_per_host))


def without_autotune(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Turns off TensorFlow's tuning of the parallelism of reading.

  A dropped iterator waits up to a minute for the tuning thread. Without tuning, every
  `num_parallel_calls` and `prefetch` must be a number.
  """
  options = tf.data.Options()
  options.autotune.enabled = False
  return dataset.with_options(options)


# Of each thread its own: others may make iterators meanwhile.
_is_untuned = contextvars.ContextVar("is_untuned", default=False)


@contextlib.contextmanager
def iterators_without_autotune() -> Iterator[None]:
  """Makes a strategy's iterators without tuning, too, in this thread.

  They read through another dataset for each replica, which ignores the options of the first.
  """
  token = _is_untuned.set(True)
  try:
    yield
  finally:
    _is_untuned.reset(token)


def _without_autotune_on_request(create: Callable[..., tf.data.Dataset]) -> Any:
  """TensorFlow's function that makes the dataset of a replica, which `iterators_without_autotune` changes."""

  @functools.wraps(create)
  def create_device_dataset(*args: Any, **kwargs: Any) -> tf.data.Dataset:
    dataset = create(*args, **kwargs)
    return without_autotune(dataset) if _is_untuned.get() else dataset

  return create_device_dataset


_CREATE = "_create_device_dataset"  # Private; TensorFlow 2.15 to 2.21 have it.
if hasattr(multi_device_iterator_ops, _CREATE):
  _original = getattr(multi_device_iterator_ops, _CREATE)
  setattr(multi_device_iterator_ops, _CREATE, _without_autotune_on_request(_original))
