"""Plans the examples of each batch, by seed and epoch, and builds the batches on any host.

`fit` trains and predicts with them. NumPy makes the order, and `tf.data` gathers and pads the
planned rows: its own shuffling and bucketing could not continue an epoch at any update.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.compat import coordinator_cpu
from albert_tf.finetuning.tasks.base import FeatureSet
from albert_tf.keras_api.training_step import DROPOUT_SEED
from albert_tf.pipelines.batches import HostShard, without_autotune

_DROPOUT_STREAM = 1  # A number apart from those of the order.
# Batches are sorted by length within windows of this many, so that an epoch stays in random order.
_WINDOW_BATCHES = 64
_PREFETCHED_BATCHES = 4
# Rows built together as int32, before they are stored in a smaller type.
_CHUNK_ROWS = 4096


# ------------------------------------------------------------------ examples as a few tensors


class FlatFeatures(NamedTuple):
  """A split as a few tensors, integers in the smallest type that holds them; see `FeatureSet`.

  Attributes:
    lengths: int64 `[n]`.
    row_weights: float32 `[n]`, the sum of each row's weights.
    columns: `(x, y, weights)`, each a tensor `[n, …]`, ragged in its last axis where rows differ,
      or a mapping of them; y is () without labels.
    pad_values: name in x → padding value, by default 0.
  """

  lengths: np.ndarray
  row_weights: np.ndarray
  columns: Any
  pad_values: Mapping[str, int]

  @classmethod
  def of(cls, features: FeatureSet) -> "FlatFeatures":
    """Makes the tensors of a split on the coordinator, and reads its rows once."""

    def to_tensors(column: Any) -> Any:
      if isinstance(column, Mapping):
        return {name: to_tensors(values) for name, values in column.items()}
      if isinstance(column, np.ndarray):
        return tf.constant(column)
      return _columns([{"": row} for row in column], features.lengths)[""]

    weights: Any = features.weights
    if weights is None:
      weights = np.ones(len(features), np.float32)
    y = ()  # None would be a column of its own.
    # A slice's first host could not give its tensors to the other hosts.
    with tf.device(coordinator_cpu()):
      x = _columns(features.rows, features.lengths)
      if features.labels is not None:
        y = to_tensors(features.labels)
      columns = (x, y, to_tensors(weights))
    row_weights = np.array([np.sum(row) for row in weights], np.float32)
    return cls(features.lengths, row_weights, columns, features.pad_values)

  @property
  def weights_by_piece(self) -> bool:
    """Whether weights are `[B, S]`."""
    return isinstance(self.columns[2], tf.RaggedTensor)


def _columns(rows: Sequence[Mapping[str, np.ndarray]], lengths: np.ndarray) -> dict[str, Any]:
  """Each feature as a tensor.

  Example: `input_ids` of two examples, of 2 and of 3 tokens.
      # [7 8] and [5 6 9] are the values 7 8 5 6 9 with row lengths 2 3.
      # Two choices each, [[7 8] [1 0]] and [[5 6 9] [1 2 0]], have row lengths 2 2 3 3.
  """
  first_row = rows[0]
  chunks: dict[str, list[np.ndarray]] = {name: [] for name in first_row}
  # Few rows at a time: all of them as int32 could fill the memory.
  remaining = iter(rows)
  while chunk := list(itertools.islice(remaining, _CHUNK_ROWS)):
    for name, values in chunks.items():
      values.append(_in_smallest_type(np.concatenate([np.ravel(row[name]) for row in chunk])))

  columns = {}
  for name, value in first_row.items():
    column: Any = tf.constant(np.concatenate(chunks.pop(name)))
    shape = np.shape(value)
    if shape:
      rows_per_example = math.prod(shape[:-1])  # 1, or C choices.
      column = tf.RaggedTensor.from_row_lengths(column, np.repeat(lengths, rows_per_example))
    if len(shape) > 1:
      column = tf.RaggedTensor.from_uniform_row_length(column, rows_per_example)
    columns[name] = column
  return columns


def _in_smallest_type(values: np.ndarray) -> np.ndarray:
  """Integers as unsigned ones, of one byte or two where they fit, which saves memory."""
  if values.dtype.kind != "i" or values.min() < 0:
    return values
  return values.astype(np.min_scalar_type(int(values.max())))


# ------------------------------------------------------------------ which rows, at which length


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batching:
  """Sizes of batches.

  Attributes:
    batch_size: B, the global batch size.
    max_length: S at most.
    bucket_multiple: batches are of similar length and padded to a multiple of this; 0: all are
      padded to `max_length`.
  """

  batch_size: int
  max_length: int
  bucket_multiple: int = 0

  def length(self, longest: int) -> int:
    """The padded length of a batch whose longest row has this length.

    Example: 33 tokens in multiples of 32 are padded to 64, and to 40 if that is the most.
    """
    if not self.bucket_multiple:
      return self.max_length
    return min(-(-longest // self.bucket_multiple) * self.bucket_multiple, self.max_length)


def epoch_plan(
  lengths: np.ndarray, batching: Batching, *, seed: int, epoch: int
) -> list[np.ndarray]:
  """The row numbers of each batch of an epoch; every row is in exactly one batch.

  Example: 5 rows of 9, 20, 12, 30 and 7 tokens, batches of 2, multiples of 16.
      # The random order 3 0 4 1 2 has the buckets 2 1 1 2 1.
      # By bucket, else in this order: 0 4 2 3 1. The batches 0 4 | 2 3 | 1 then change places.
  """
  rng = np.random.default_rng([seed, epoch])
  order = rng.permutation(len(lengths))
  size = batching.batch_size
  cuts = range(size, len(order), size)
  if not batching.bucket_multiple:
    return np.split(order, cuts)
  buckets = -(-lengths // batching.bucket_multiple)
  window_size = size * _WINDOW_BATCHES
  for begin in range(0, len(order), window_size):
    window = order[begin : begin + window_size]
    # A stable sort, so that rows of one bucket stay in random order.
    window[:] = window[np.argsort(buckets[window], kind="stable")]
  batches = np.split(order, cuts)
  return [batches[i] for i in rng.permutation(len(batches))]


class BatchPlan(NamedTuple):
  """The batches of some steps, before their rows are fetched.

  Attributes:
    lengths: int32 `[steps]`, S.
    columns: name → `[steps, B, …]`:
      rows: int32; a batch that is not full is padded with its first row.
      factors: float32, factor of each row's weights: 0 for padding, else such that the mean weight
        of the batch is 1. Keras' mean over the batch is then the weighted mean over its real rows.
      dropout_seeds: int32 `[steps, B, 2]`, in training.
  """

  lengths: np.ndarray
  columns: dict[str, np.ndarray]

  @classmethod
  def of(cls, batches: Sequence[np.ndarray], flat: FlatFeatures, batching: Batching) -> "BatchPlan":
    """Makes the plan from batches of at most B row numbers.

    Example: the batch 5 2 7 with B = 4 and weights 1 1 2.
        # rows 5 2 7 5; weights that count: 1 1 2 0, in all 4.
        # factors 4 / 4 = 1, and 0 for the padding; weights 1 1 4 would have factors 4 / 6.
    """
    size = batching.batch_size
    rows = np.empty([len(batches), size], np.int32)
    is_real = np.zeros([len(batches), size], bool)
    for step, batch in enumerate(batches):
      rows[step] = batch[0]
      rows[step, : len(batch)] = batch
      is_real[step, : len(batch)] = True
    longest = flat.lengths[rows].max(axis=1).tolist()
    lengths = np.array([batching.length(length) for length in longest])
    # What the weights of a batch must sum up to, for a mean of 1.
    target_sums = np.full(len(batches), size)
    if flat.weights_by_piece:
      target_sums = size * lengths
    sums = (flat.row_weights[rows] * is_real).sum(axis=1)
    # A batch of which nothing counts keeps its zeros.
    factors = np.divide(target_sums, sums, out=np.ones(len(batches)), where=sums > 0)
    row_factors = (factors[:, np.newaxis] * is_real).astype(np.float32)
    return cls(lengths.astype(np.int32), {"rows": rows, "factors": row_factors})

  def of_host(self, shard: HostShard) -> dict[str, np.ndarray]:
    """The per-replica batches of one host, step by step; `[steps replicas, B / replicas]`.

    Example: B = 8 on 2 hosts with 2 replicas each.
        # Each step has the columns 0 1 | 2 3 | 4 5 | 6 7 for the replicas 0 to 3.
        # Host 1 has the replicas 2 and 3: it gets 4 5, then 6 7 of step 0; then 4 5 of step 1.
    """
    replica = np.arange(len(self.lengths) * shard.num_replicas) % shard.num_replicas
    is_mine = replica // shard.replicas_per_host == shard.host
    replica_batches = {"lengths": np.repeat(self.lengths, shard.num_replicas)[is_mine]}
    for name, column in self.columns.items():
      replica_batches[name] = column.reshape(len(replica), -1, *column.shape[2:])[is_mine]
    return replica_batches


def training_plan(
  flat: FlatFeatures, batching: Batching, *, seed: int, num_steps: int, first_step: int = 0
) -> BatchPlan:
  """The batches of updates `first_step` to `num_steps`.

  Their dropout seeds are a function of seed and update; each replica's model takes the first row
  of its part.

  Example: 4 updates an epoch, from update 6 to 10: epochs 1 and 2 are planned, and the batches 2 to
  5 of these 8 are taken.
  """
  epoch_steps = math.ceil(len(flat.lengths) / batching.batch_size)
  batches: list[np.ndarray] = []
  for epoch in range(first_step // epoch_steps, math.ceil(num_steps / epoch_steps)):
    batches += epoch_plan(flat.lengths, batching, seed=seed, epoch=epoch)
  done = first_step % epoch_steps
  plan = BatchPlan.of(batches[done : done + num_steps - first_step], flat, batching)
  seeds = []
  for step in range(first_step, num_steps):
    stream = np.random.default_rng([_DROPOUT_STREAM, seed, step])
    seeds.append(stream.integers(0, np.iinfo(np.int32).max, (batching.batch_size, 2), np.int32))
  plan.columns["dropout_seeds"] = np.stack(seeds)
  return plan


def planned_dataset(
  flat: FlatFeatures, plan: BatchPlan, batching: Batching, *, shard: HostShard
) -> tf.data.Dataset:
  """The per-replica batches `(x, y, weights)` of one host, int32 and float32; see `FeatureSet`.

  Rows and plan become tensors of the current device, which is the host's within
  `strategy.distribute_datasets_from_function`. Everything after that is TensorFlow's operations, so
  the host may be another machine. Without bucketing shapes are static. y is None without labels.
  """
  # A copy on the host; on the coordinator the tensors themselves.
  x_columns, y_column, weight_column = tf.nest.map_structure(
    tf.identity, flat.columns, expand_composites=True
  )

  # Nothing to convert, which AutoGraph would look for in every function.
  @tf.autograph.experimental.do_not_convert
  def assemble(planned: dict[str, tf.Tensor]) -> Any:
    length = planned["lengths"]
    if not batching.bucket_multiple:
      length = batching.max_length

    def gather(column: Any, fill: int = 0) -> tf.Tensor:
      values = tf.gather(column, planned["rows"])
      dtype = tf.int32
      if values.dtype.is_floating:
        dtype = tf.float32
      values = tf.cast(values, dtype)
      if not isinstance(values, tf.RaggedTensor):
        return values
      # [B / replicas, …, S]
      shape = tf.stack([planned["rows"].shape[0], *column.shape[1:-1], length])
      return values.to_tensor(tf.cast(fill, dtype), shape=shape)

    x = {name: gather(column, flat.pad_values.get(name, 0)) for name, column in x_columns.items()}
    y = tf.nest.map_structure(gather, y_column)
    weights = gather(weight_column)
    factors = planned["factors"]
    if flat.weights_by_piece:
      factors = factors[:, tf.newaxis]
    weights *= factors
    if "dropout_seeds" in planned:
      x[DROPOUT_SEED] = planned["dropout_seeds"]
    if isinstance(y, dict):
      # Keras wants weights for each output.
      return x, y, dict.fromkeys(y, weights)
    if isinstance(y, tuple):
      y = None
    return x, y, weights

  dataset = tf.data.Dataset.from_tensor_slices(plan.of_host(shard))
  dataset = dataset.map(assemble, num_parallel_calls=2, deterministic=True)
  options = tf.data.Options()
  # Rewriting the pipeline would copy the rows into its graph.
  options.experimental_optimization.apply_default_optimizations = False
  return without_autotune(dataset.prefetch(_PREFETCHED_BATCHES).with_options(options))
