"""Plans the examples of each batch, by seed and epoch, and builds the batches on any host."""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.compat import coordinator_cpu
from albert_tf.finetuning.tasks.base import FeatureSet
from albert_tf.keras_api.task_model import DROPOUT_SEED
from albert_tf.pipelines.batches import HostShard, without_autotune

_DROPOUT_STREAM = 1  # A number apart from those of the order.
# Batches are sorted by length within windows of this many, so that an epoch's order stays random across them.
_WINDOW_BATCHES = 64
_AHEAD = 4  # Batches prefetched.
_CHUNK_ROWS = 4096  # Rows built together as int32, before they are stored in a smaller type.


# ------------------------------------------------------------------ examples as a few tensors


@dataclasses.dataclass(frozen=True)
class FlatFeatures:
  """A split as a few tensors, integers in the smallest type that holds them; see `FeatureSet`.

  Attributes:
    lengths: int64 `[n]`.
    row_weights: float32 `[n]`, the sum of each row's weights.
    columns: `(x, y, weights)`, each a tensor `[n, …]`, ragged in its last axis where rows differ, or a mapping of
      them; y is () without labels.
    fills: padding values, in the structure of `columns`.
  """

  lengths: np.ndarray
  row_weights: np.ndarray
  columns: Any
  fills: Any

  @classmethod
  def of(cls, features: FeatureSet) -> "FlatFeatures":
    """Makes the tensors of a split on the coordinator, and reads its rows once."""

    def tensors(column: Any) -> Any:
      if isinstance(column, Mapping):
        return {name: tensors(each) for name, each in column.items()}
      if isinstance(column, np.ndarray):
        return tf.constant(column)
      return _columns([{"": row} for row in column], features.lengths)[""]

    weights: Any = np.ones(len(features)) if features.weights is None else features.weights
    weights = weights.astype(np.float32) if isinstance(weights, np.ndarray) else weights
    with tf.device(coordinator_cpu()):
      x = _columns(features.rows, features.lengths)
      y = () if features.labels is None else tensors(features.labels)
      columns = (x, y, tensors(weights))
    fill = features.pad_values
    of_labels = tf.nest.map_structure(lambda _: fill.get("labels", 0), y)
    fills = ({name: fill.get(name, 0) for name in x}, of_labels, 0)
    sums = np.array([np.sum(of_row) for of_row in weights], np.float32)
    return cls(features.lengths, sums, columns, fills)

  @property
  def weights_by_piece(self) -> bool:
    """Whether weights are `[B, S]`."""
    return isinstance(self.columns[2], tf.RaggedTensor)

  def on_current_device(self) -> "FlatFeatures":
    """A copy on the current host; on the coordinator the tensors themselves."""
    moved = tf.nest.map_structure(tf.identity, self.columns, expand_composites=True)
    return dataclasses.replace(self, columns=moved)

  def gather(
    self, rows: tf.Tensor, length: tf.Tensor | int
  ) -> tuple[dict[str, tf.Tensor], Any, tf.Tensor]:
    """`(x, y, weights)` of chosen rows `[b]`, int32 and float32, padded to `length`; y is None without labels."""

    def take(column: Any, fill: int) -> tf.Tensor:
      taken = tf.gather(column, rows)
      taken = tf.cast(taken, tf.float32 if taken.dtype.is_floating else tf.int32)
      if not isinstance(column, tf.RaggedTensor):
        return taken
      shape = [rows.shape[0], *column.shape[1:-1], length]
      padded = taken.to_tensor(tf.cast(fill, taken.dtype), shape=tf.stack(shape))
      padded.set_shape([*shape[:-1], length if isinstance(length, int) else None])
      return padded

    x, y, weights = tf.nest.map_structure(take, self.columns, self.fills)
    return x, None if isinstance(y, tuple) else y, weights


def _columns(rows: Sequence[Mapping[str, np.ndarray]], lengths: np.ndarray) -> dict[str, Any]:
  """Each feature as a tensor; few rows at a time are held in memory."""
  first = rows[0]
  parts: dict[str, list[np.ndarray]] = {name: [] for name in first}
  for begin in range(0, len(rows), _CHUNK_ROWS):
    chunk = [rows[i] for i in range(begin, min(begin + _CHUNK_ROWS, len(rows)))]
    for name, part in parts.items():
      part.append(_small(np.concatenate([np.ravel(row[name]) for row in chunk])))
  columns = {}
  for name, value in first.items():
    column: Any = tf.constant(np.concatenate(parts.pop(name)))
    if np.ndim(value):
      count = math.prod(np.shape(value)[:-1])  # Ragged rows of an example: 1, or C choices.
      column = tf.RaggedTensor.from_row_lengths(column, np.repeat(lengths, count))
      if np.ndim(value) > 1:
        column = tf.RaggedTensor.from_uniform_row_length(column, count)
    columns[name] = column
  return columns


def _small(values: np.ndarray) -> np.ndarray:
  """The integers as uint8 or uint16 if they fit, which saves memory."""
  if values.dtype.kind != "i" or not values.size or values.min() < 0:
    return values
  fitting = np.min_scalar_type(int(values.max()))
  return values.astype(fitting) if fitting.itemsize <= 2 else values


# ------------------------------------------------------------------ which rows, at which length


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batching:
  """Sizes of batches.

  Attributes:
    batch_size: B, the global batch size.
    max_length: S at most.
    bucket_multiple: batches are of similar length and padded to a multiple of this; 0: all are padded to
      `max_length`.
  """

  batch_size: int
  max_length: int
  bucket_multiple: int = 0

  def length(self, longest: int) -> int:
    """The padded length of a batch whose longest row has this length."""
    if not self.bucket_multiple:
      return self.max_length
    return min(-(-longest // self.bucket_multiple) * self.bucket_multiple, self.max_length)


def epoch_plan(
  lengths: np.ndarray, batching: Batching, *, seed: int, epoch: int
) -> list[np.ndarray]:
  """The row numbers of each batch of an epoch, by seed and epoch; every row is in exactly one batch."""
  rng = np.random.default_rng([seed, epoch])
  order = rng.permutation(len(lengths))
  size = batching.batch_size
  if batching.bucket_multiple:
    window = size * _WINDOW_BATCHES
    parts = [order[i : i + window] for i in range(0, len(order), window)]
    buckets = -(-lengths // batching.bucket_multiple)  # Rows of one bucket stay in random order.
    order = np.concatenate([part[np.argsort(buckets[part], kind="stable")] for part in parts])
  batches = [order[i : i + size] for i in range(0, len(order), size)]
  return (
    [batches[i] for i in rng.permutation(len(batches))] if batching.bucket_multiple else batches
  )


@dataclasses.dataclass(frozen=True)
class Plan:
  """The batches of some steps, before their rows are fetched.

  Attributes:
    rows: int32 `[steps, B]`; a batch that is not full is padded with its first row.
    factors: float32 `[steps, B]`, factor of each row's weights: 0 for padding, else such that the mean weight of
      the batch is 1. Keras' mean over the batch is then the weighted mean over its real rows.
    lengths: int32 `[steps]`, S.
    dropout_seeds: int32 `[steps, B, 2]`, or None.
  """

  rows: np.ndarray
  factors: np.ndarray
  lengths: np.ndarray
  dropout_seeds: np.ndarray | None = None

  @classmethod
  def of(cls, batches: Sequence[np.ndarray], flat: FlatFeatures, batching: Batching) -> "Plan":
    """Makes the plan from batches of at most B row numbers."""
    size = batching.batch_size
    rows = np.stack(
      [np.concatenate([each, np.repeat(each[:1], size - len(each))]) for each in batches]
    )
    real = np.arange(size) < np.array([[len(each)] for each in batches])
    lengths = np.array(
      [batching.length(int(longest)) for longest in flat.lengths[rows].max(axis=1)]
    )
    totals = (flat.row_weights[rows] * real).sum(axis=1)
    counts = size * (lengths if flat.weights_by_piece else np.ones_like(lengths))
    factors = np.divide(counts, totals, out=np.ones(len(rows)), where=totals > 0)
    factors = (factors[:, np.newaxis] * real).astype(np.float32)
    return cls(rows.astype(np.int32), factors, lengths.astype(np.int32))

  def of_host(self, shard: HostShard) -> dict[str, np.ndarray]:
    """The per-replica batches of one host, step by step; `[steps replicas, B / replicas]`."""
    steps, size = self.rows.shape
    mine = slice(shard.host * shard.replicas_per_host, (shard.host + 1) * shard.replicas_per_host)
    names = ("rows", "factors", "dropout_seeds")
    parts: dict[str, np.ndarray | None] = {name: getattr(self, name) for name in names}
    joined = {"lengths": np.repeat(self.lengths, shard.replicas_per_host)}
    for name, part in parts.items():
      if part is not None:
        rest = (size // shard.num_replicas, *part.shape[2:])
        joined[name] = part.reshape(steps, shard.num_replicas, *rest)[:, mine].reshape(-1, *rest)
    return joined


def training_plan(
  flat: FlatFeatures,
  batching: Batching,
  *,
  seed: int,
  num_steps: int,
  first_step: int = 0,
) -> Plan:
  """The batches of updates `first_step` to `num_steps`.

  Their dropout seeds are a function of seed and update; each replica's model takes the first row of its part.
  """
  epoch, done = divmod(first_step, math.ceil(len(flat.lengths) / batching.batch_size))
  batches: list[np.ndarray] = []
  while len(batches) < num_steps - first_step:
    batches += epoch_plan(flat.lengths, batching, seed=seed, epoch=epoch)[done:]
    epoch, done = epoch + 1, 0
  plan = Plan.of(batches[: num_steps - first_step], flat, batching)
  streams = (
    np.random.default_rng([_DROPOUT_STREAM, seed, step]) for step in range(first_step, num_steps)
  )
  shape = (batching.batch_size, 2)
  seeds = [stream.integers(0, np.iinfo(np.int32).max, shape, np.int32) for stream in streams]
  return dataclasses.replace(plan, dropout_seeds=np.stack(seeds))


def planned_dataset(
  flat: FlatFeatures, plan: Plan, batching: Batching, *, shard: HostShard
) -> tf.data.Dataset:
  """The per-replica batches `(x, y, weights)` of one host; see `FeatureSet`.

  Rows and plan become tensors of the current device, which is the host's within
  `strategy.distribute_datasets_from_function`; everything after that is TensorFlow's operations, so the host may be
  another machine. Without bucketing shapes are static.
  """
  tensors = flat.on_current_device()
  fixed = None if batching.bucket_multiple else batching.max_length

  @tf.autograph.experimental.do_not_convert  # Nothing to convert, which AutoGraph would look for in every function.
  def assemble(part: dict[str, tf.Tensor]) -> Any:
    x, y, weights = tensors.gather(part["rows"], part["lengths"] if fixed is None else fixed)
    factors = part["factors"]
    weights *= factors[:, tf.newaxis] if flat.weights_by_piece else factors
    if "dropout_seeds" in part:
      x[DROPOUT_SEED] = part["dropout_seeds"]
    return x, y, dict.fromkeys(y, weights) if isinstance(y, dict) else weights

  dataset = tf.data.Dataset.from_tensor_slices(plan.of_host(shard))
  dataset = dataset.map(assemble, num_parallel_calls=2, deterministic=True).prefetch(_AHEAD)
  options = tf.data.Options()
  # Rewriting the pipeline would copy the rows into its graph.
  options.experimental_optimization.apply_default_optimizations = False
  return without_autotune(dataset.with_options(options))
