"""Which examples make up which batch, a function of seed and epoch alone; and the batches, put together on any host."""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints.bundle import coordinator_cpu
from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.base import Column, FeatureSet
from albert_tf.models.task_model import DROPOUT_SEED
from albert_tf.pipelines.batches import HostShard, without_autotune

_DROPOUT_STREAM = 1  # Numbers apart from those of the order.
# Batches are sorted by length within windows of this many, so that an epoch's order stays random across them.
_WINDOW_BATCHES = 64
_AHEAD = 4  # Batches that are put together before they are asked for.
_SMALL_TYPES = (np.uint8, np.uint16)  # Most features are masks, and vocabularies are below 65,536.
_CHUNK_ROWS = 4096  # Rows that are built at once, as int32, before they are stored small.


# ------------------------------------------------------------------ examples as a few tensors


@dataclasses.dataclass(frozen=True)
class _Stored:
  """One column of a split: `[n, …]`, or a ragged tensor whose last axis differs from row to row.

  Attributes:
    values: in the smallest type that holds them.
    dtype: of the batches.
    fill: what ragged rows are filled up with.
  """

  values: Any
  dtype: Any
  fill: int = 0

  @classmethod
  def of(cls, column: Column, fill: int = 0, dtype: Any = None) -> "_Stored":
    """A column of labels or weights."""
    if isinstance(column, np.ndarray):
      return cls(tf.constant(column), dtype or column.dtype)
    dtype = dtype or column[0].dtype
    values = _small(np.concatenate(column).astype(dtype))
    return cls(tf.RaggedTensor.from_row_lengths(values, [len(row) for row in column]), dtype, fill)

  @property
  def is_ragged(self) -> bool:
    return isinstance(self.values, tf.RaggedTensor)

  def take(self, rows: tf.Tensor, length: tf.Tensor | int) -> tf.Tensor:
    """Chosen rows `[b]`; ragged ones padded to `length`."""
    taken = tf.cast(tf.gather(self.values, rows), self.dtype)
    if not self.is_ragged:
      return taken
    shape = [rows.shape[0], *self.values.shape[1:-1], length]
    target = shape if isinstance(length, int) else tf.stack(shape)
    padded = taken.to_tensor(tf.cast(self.fill, self.dtype), shape=target)
    padded.set_shape([*shape[:-1], length if isinstance(length, int) else None])
    return padded


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlatFeatures:
  """A split's features, labels and weights as a few tensors; see `FeatureSet`.

  Attributes:
    lengths: int64 `[n]`.
    row_weights: float32 `[n]`, the sum of each row's weights.
    row_factors: float32 `[n]`; see `FeatureSet.factors`.
    features, labels: name → column; the labels' name is "" where they are one column.
    weights: None: 1.
  """

  lengths: np.ndarray
  row_weights: np.ndarray
  row_factors: np.ndarray
  features: Mapping[str, _Stored]
  labels: Mapping[str, _Stored]
  weights: _Stored | None

  @classmethod
  def of(cls, features: FeatureSet) -> "FlatFeatures":
    """The tensors of a split on the coordinator; its rows are read once."""
    labels, weights, fill = features.labels, features.weights, features.pad_values
    named = {} if labels is None else labels if isinstance(labels, Mapping) else {"": labels}
    sums = np.ones(len(features)) if weights is None else [np.sum(of_row) for of_row in weights]
    with tf.device(coordinator_cpu()):
      return cls(
        lengths=features.lengths,
        row_weights=np.array(sums, np.float32),
        row_factors=np.ones(len(features), np.float32) if features.factors is None else features.factors,
        features=_stored_rows(features),
        labels={name: _Stored.of(column, fill.get("labels", 0)) for name, column in named.items()},
        weights=None if weights is None else _Stored.of(weights, dtype=np.float32),
      )

  def on_current_device(self) -> "FlatFeatures":
    """A copy for another host; the same tensors on the coordinator itself."""

    def moved(column: _Stored) -> _Stored:
      values = tf.nest.map_structure(tf.identity, column.values, expand_composites=True)
      return dataclasses.replace(column, values=values)

    return dataclasses.replace(
      self,
      features={name: moved(column) for name, column in self.features.items()},
      labels={name: moved(column) for name, column in self.labels.items()},
      weights=None if self.weights is None else moved(self.weights),
    )

  @property
  def weights_by_piece(self) -> bool:
    """Whether weights are `[B, S]`."""
    return self.weights is not None and self.weights.is_ragged

  def gather(self, rows: tf.Tensor, length: tf.Tensor | int) -> tuple[dict[str, tf.Tensor], Any, tf.Tensor]:
    """`(x, y, weights)` of chosen rows `[b]`, padded to `length`; y is None without labels."""
    x = {name: column.take(rows, length) for name, column in self.features.items()}
    labels = {name: column.take(rows, length) for name, column in self.labels.items()}
    weights = tf.ones([rows.shape[0]]) if self.weights is None else self.weights.take(rows, length)
    return x, (labels.get("", labels) if labels else None), weights


def _stored_rows(features: FeatureSet) -> dict[str, _Stored]:
  """Each feature as a column; rows may be put together when asked for, so few are held at a time."""
  rows, first = features.rows, features.rows[0]
  parts: dict[str, list[np.ndarray]] = {name: [] for name in first}
  for begin in range(0, len(rows), _CHUNK_ROWS):
    chunk = [rows[i] for i in range(begin, min(begin + _CHUNK_ROWS, len(rows)))]
    for name in first:
      parts[name].append(_small(np.concatenate([np.ravel(row[name]) for row in chunk])))
  columns = {}
  for name, value in first.items():
    values: Any = tf.constant(np.concatenate(parts.pop(name)))
    if np.ndim(value):
      count = math.prod(np.shape(value)[:-1])  # Ragged rows of an example: 1, or C choices.
      values = tf.RaggedTensor.from_row_lengths(values, np.repeat(features.lengths, count))
      if np.ndim(value) > 1:
        values = tf.RaggedTensor.from_uniform_row_length(values, count)
    columns[name] = _Stored(values, np.asarray(value).dtype, features.pad_values.get(name, 0))
  return columns


def _small(values: np.ndarray) -> np.ndarray:
  """The same integers in the smallest type that holds them."""
  if values.dtype.kind != "i" or not values.size or values.min() < 0:
    return values
  fitting = (small for small in _SMALL_TYPES if values.max() <= np.iinfo(small).max)
  return values.astype(next(fitting, values.dtype))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batching:
  """How examples become batches.

  Attributes:
    batch_size: B, global.
    max_length: S at most.
    bucket_multiple: batches are of similar length and padded to a multiple of this; 0: all are padded to
      `max_length`.
  """

  batch_size: int
  max_length: int
  bucket_multiple: int = 0

  def length(self, longest: int) -> int:
    """What a batch whose longest row has this length is padded to."""
    if not self.bucket_multiple:
      return self.max_length
    return min(-(-longest // self.bucket_multiple) * self.bucket_multiple, self.max_length)

  def check(self, features: FeatureSet, what: str) -> None:
    """Raises a `UserError` where there is nothing, or a row is too long."""
    if not len(features):
      raise UserError(f"A split needs examples. Received: {what} without any. Check the file.")
    longest = int(features.lengths.max())
    if longest > self.max_length:
      raise UserError(f"No row may be longer than {self.max_length}. Received: {longest} in {what}.")


# ------------------------------------------------------------------ which rows, at which length


def steps_per_epoch(count: int, batch_size: int) -> int:
  """Batches of an epoch; the last one may be filled up with rows of weight 0."""
  return -(-count // batch_size)


def epoch_plan(lengths: np.ndarray, batching: Batching, *, seed: int, epoch: int) -> list[np.ndarray]:
  """The row numbers of each batch of an epoch, a function of seed and epoch; every row is in exactly one."""
  rng = np.random.default_rng([seed, epoch])
  order = rng.permutation(len(lengths))
  size = batching.batch_size
  if batching.bucket_multiple:
    window = size * _WINDOW_BATCHES
    parts = [order[i : i + window] for i in range(0, len(order), window)]
    buckets = -(-lengths // batching.bucket_multiple)  # Rows of one bucket stay in random order.
    order = np.concatenate([part[np.argsort(buckets[part], kind="stable")] for part in parts])
  batches = [order[i : i + size] for i in range(0, len(order), size)]
  return [batches[i] for i in rng.permutation(len(batches))] if batching.bucket_multiple else batches


@dataclasses.dataclass(frozen=True)
class Plan:
  """The batches of some steps, before their rows are fetched.

  Attributes:
    rows: int32 `[steps, B]`; a batch that is not full is filled up with its first row.
    factors: float32 `[steps, B]`, of each row's weights: 0 for what fills up, else what makes the mean weight of
      the batch 1. Keras' mean over the batch is then the weighted mean over its real rows.
    lengths: int32 `[steps]`, S.
    dropout_seeds: int32 `[steps, B, 2]`, or None.
  """

  rows: np.ndarray
  factors: np.ndarray
  lengths: np.ndarray
  dropout_seeds: np.ndarray | None = None

  @classmethod
  def of(cls, batches: Sequence[np.ndarray], flat: FlatFeatures, batching: Batching) -> "Plan":
    """The plan of batches of row numbers, each with at most B."""
    size = batching.batch_size
    rows = np.stack([np.concatenate([each, np.repeat(each[:1], size - len(each))]) for each in batches])
    real = np.arange(size) < np.array([[len(each)] for each in batches])
    lengths = np.array([batching.length(int(longest)) for longest in flat.lengths[rows].max(axis=1)])
    totals = (flat.row_weights[rows] * real).sum(axis=1)
    counts = size * (lengths if flat.weights_by_piece else np.ones_like(lengths))
    factors = np.divide(counts, totals, out=np.ones(len(rows)), where=totals > 0)
    return cls(
      rows=rows.astype(np.int32),
      factors=(factors[:, np.newaxis] * real).astype(np.float32) * flat.row_factors[rows],
      lengths=lengths.astype(np.int32),
    )

  def of_host(self, shard: HostShard) -> dict[str, np.ndarray]:
    """The per-replica batches of one host, those of a step one after another; `[steps replicas, B / replicas]`."""
    steps, size = self.rows.shape
    mine = slice(shard.host * shard.replicas_per_host, (shard.host + 1) * shard.replicas_per_host)
    parts = {"rows": self.rows, "factors": self.factors, "dropout_seeds": self.dropout_seeds}
    joined = {"lengths": np.repeat(self.lengths, shard.replicas_per_host)}
    for name, part in parts.items():
      if part is not None:
        rest = (size // shard.num_replicas, *part.shape[2:])
        joined[name] = part.reshape(steps, shard.num_replicas, *rest)[:, mine].reshape(-1, *rest)
    return joined


def training_plan(
  flat: FlatFeatures, batching: Batching, *, seed: int, num_steps: int, first_step: int = 0
) -> Plan:
  """The batches of updates `first_step` to `num_steps`.

  Their dropout seeds are a function of seed and update; each replica's model takes the first row of its part.
  """
  epoch, done = divmod(first_step, steps_per_epoch(len(flat.lengths), batching.batch_size))
  batches: list[np.ndarray] = []
  while len(batches) < num_steps - first_step:
    batches += epoch_plan(flat.lengths, batching, seed=seed, epoch=epoch)[done:]
    epoch, done = epoch + 1, 0
  plan = Plan.of(batches[: num_steps - first_step], flat, batching)
  streams = (np.random.default_rng([_DROPOUT_STREAM, seed, step]) for step in range(first_step, num_steps))
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
