"""Batches of examples: which rows share one, in which order, and at which length.

`fit` and `evaluate` of the models read them, `predictor.py`, and so the fine-tuning commands. NumPy
plans the batches, and `tf.data` gathers and pads the planned rows: its own shuffling and bucketing
could not continue an epoch at any update.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from albert_tf.compat import device_kind
from albert_tf.errors import UserError, whole_number
from albert_tf.keras_api.examples import INPUTS_OF_TOKENS, PADDING, Examples, gathered
from albert_tf.keras_api.training_step import DROPOUT_SEED
from albert_tf.pipelines.batches import without_autotune
from albert_tf.settings import LARGEST_INT

DEFAULT_BATCH_SIZE = 32  # Keras' own.
_DEFAULT_MULTIPLE = 32
# Batches are sorted by length within windows of this many, so that an epoch stays in random order.
_WINDOW_BATCHES = 64
_PREFETCHED_BATCHES = 4
_DROPOUT_STREAM = 1  # A number apart from those of the order.


# ------------------------------------------------------------------ which rows, at which length


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batching:
  """Sizes of batches.

  Attributes:
    batch_size: B, the global batch size.
    max_length: S at most.
    bucket_multiple: batches are of similar length and padded to a multiple of this; 0: all are
      padded to `max_length`.
    num_replicas: that share a batch.
    is_static: whether all batches have the shape `[B, max_length]`.
  """

  batch_size: int
  max_length: int
  bucket_multiple: int = _DEFAULT_MULTIPLE
  num_replicas: int = 1
  is_static: bool = False

  @classmethod
  def of(cls, model: Any, examples: Examples, batch_size: int | None) -> "Batching":
    """The sizes for a model's devices; the batch size is rounded up to a multiple of the replicas.

    Raises:
      UserError: the batch size is no number above 0.
    """
    if batch_size is None:
      batch_size = DEFAULT_BATCH_SIZE
    batch_size = whole_number(batch_size, "batch_size", minimum=1, maximum=LARGEST_INT)
    strategy = model.distribute_strategy
    num_replicas = strategy.num_replicas_in_sync
    max_length = int(examples.lengths.max(initial=1))
    is_tpu = device_kind(strategy) == "tpu"
    preprocessor = getattr(model, "preprocessor", None)
    has_one_length = is_tpu or (preprocessor is not None and preprocessor.pad_to_max_length)
    if preprocessor is not None and has_one_length:
      max_length = max(max_length, preprocessor.max_length)
    # A TPU compiles the model anew for each shape. On a GPU fused attention needs one shape.
    is_static = is_tpu or (has_one_length and bool(getattr(model, "jit_compile", False)))
    return cls(
      batch_size=math.ceil(batch_size / num_replicas) * num_replicas,
      max_length=max_length,
      bucket_multiple=0 if has_one_length else _DEFAULT_MULTIPLE,
      num_replicas=num_replicas,
      is_static=is_static,
    )

  def length(self, longest: int) -> int:
    """The padded length of a batch whose longest row has this length.

    Example: 33 tokens in multiples of 32 are padded to 64, and to 40 if that is the most.
    """
    if not self.bucket_multiple:
      return self.max_length
    return min(-(-longest // self.bucket_multiple) * self.bucket_multiple, self.max_length)


def epoch_plan(
  lengths: np.ndarray, batching: Batching, *, seed: int, epoch: int, shuffle: bool = True
) -> list[np.ndarray]:
  """The row numbers of each batch of an epoch; every row is in exactly one batch.

  Example: 5 rows of 9, 20, 12, 30 and 7 tokens, batches of 2, multiples of 16.
      # The random order 3 0 4 1 2 has the buckets 2 1 1 2 1.
      # By bucket, else in this order: 0 4 2 3 1. The batches 0 4 | 2 3 | 1 then change places.
  """
  size = batching.batch_size
  cuts = range(size, len(lengths), size)
  if not shuffle:
    return np.split(np.arange(len(lengths)), cuts)
  rng = np.random.default_rng([seed, epoch])
  order = rng.permutation(len(lengths))
  # Rows of one length keep this order, so that every device makes the same updates.
  multiple = batching.bucket_multiple or _DEFAULT_MULTIPLE
  buckets = -(-lengths // multiple)
  window_size = size * _WINDOW_BATCHES
  for begin in range(0, len(order), window_size):
    window = order[begin : begin + window_size]
    # A stable sort, so that rows of one bucket stay in random order.
    window[:] = window[np.argsort(buckets[window], kind="stable")]
  batches = np.split(order, cuts)
  return [batches[i] for i in rng.permutation(len(batches))]


def training_plan(
  lengths: np.ndarray,
  batching: Batching,
  *,
  seed: int,
  num_steps: int,
  first_step: int = 0,
  shuffle: bool = True,
) -> list[np.ndarray]:
  """The row numbers of the batches of the updates `first_step` to `num_steps`.

  Example: 4 batches an epoch, from update 6 to 10: the epochs 1 and 2 are planned, and the batches
  2 to 5 of these 8 are taken.
  """
  epoch_steps = math.ceil(len(lengths) / batching.batch_size)
  planned: list[np.ndarray] = []
  for epoch in range(first_step // epoch_steps, math.ceil(num_steps / epoch_steps)):
    planned += epoch_plan(lengths, batching, seed=seed, epoch=epoch, shuffle=shuffle)
  done = first_step % epoch_steps
  return planned[done : done + num_steps - first_step]


def plan_by_length(lengths: np.ndarray, batching: Batching) -> list[np.ndarray]:
  """The row numbers of batches for answers: rows of similar length share one.

  Example: 5 rows of 9, 20, 12, 30 and 7 tokens in batches of 2: 4 0 | 2 1 | 3.
  """
  order = np.arange(len(lengths))
  if batching.bucket_multiple:
    order = np.argsort(lengths, kind="stable")
  return np.split(order, range(batching.batch_size, len(order), batching.batch_size))


def dropout_seeds(seed: int, *, num_steps: int, first_step: int = 0) -> np.ndarray:
  """The seed of each update's dropout, int32 `[num_steps - first_step, 2]`."""
  stream = np.random.default_rng([_DROPOUT_STREAM, seed])
  return stream.integers(0, np.iinfo(np.int32).max, (num_steps, 2), np.int32)[first_step:]


# ------------------------------------------------------------------ the batches


def make_dataset(
  strategy: tf.distribute.Strategy,
  examples: Examples,
  plan: Sequence[np.ndarray],
  batching: Batching,
  *,
  seeds: np.ndarray | None = None,
  endless: bool = False,
) -> Any:
  """The planned batches `(x, y, weights)` as Keras takes them, for each replica its part.

  Without labels a batch is `(x,)`. With one replica, and without weights, there are none.

  Args:
    strategy: of the model.
    examples: the examples.
    plan: the row numbers of each batch.
    batching: the sizes.
    seeds: of dropout, int32 `[steps, 2]`; None: batches for answers.
    endless: whether the batches begin again after the last.
  """

  def of_host(context: tf.distribute.InputContext) -> tf.data.Dataset:
    if context.num_input_pipelines > 1:
      raise UserError(
        "`fit` and `predict` run on the devices of one host. Received: a strategy of "
        f"{context.num_input_pipelines} hosts. Use one host with all its devices."
      )
    dataset = _planned_dataset(examples, _parts(examples, plan, batching, seeds), batching)
    return dataset.repeat() if endless else dataset

  return strategy.distribute_datasets_from_function(of_host)


def _parts(
  examples: Examples,
  plan: Sequence[np.ndarray],
  batching: Batching,
  seeds: np.ndarray | None,
) -> dict[str, np.ndarray]:
  """The part of each replica in each batch, step by step, `[steps replicas, …]`.

  A part has at least one row; one that should have none gets a row that does not count. A static
  batch is filled up with such rows.

      # 3 rows 5 2 7 on 2 replicas, B = 4: the parts 5 2 and 7; static: 5 2 and 7 5.

  Returns:
    rows: int32 `[…, B / replicas]`; only the first `count` are used.
    count: int32.
    num_real: int32, the rows that count.
    length: int32, S.
    factor: float32, factor of the rows' weights, such that the mean of the replicas' losses is the
      mean over all rows of the batch (or over their weights).
    seed: int32 `[…, 2]`, in training.
  """
  num_replicas = batching.num_replicas
  size = batching.batch_size // num_replicas
  num_parts = len(plan) * num_replicas
  rows = np.zeros([num_parts, size], np.int32)
  count = np.empty(num_parts, np.int32)
  num_real = np.empty(num_parts, np.int32)
  length = np.empty(num_parts, np.int32)
  factor = np.empty(num_parts, np.float32)
  row_weights = _row_weights(examples)
  lengths = examples.lengths
  for step, batch in enumerate(plan):
    longest = batching.length(int(lengths[batch].max(initial=1)))
    total = row_weights[batch].sum() if examples.divides_by_weights else len(batch)
    for replica, part in enumerate(shared_out(batch, batching)):
      number = step * num_replicas + replica
      rows[number] = batch[0] if len(batch) else 0
      rows[number, : len(part)] = part
      num_real[number] = len(part)
      count[number] = size if batching.is_static else max(len(part), min(1, len(batch)))
      length[number] = longest
      # Keras divides by the values of a part, and by the number of parts.
      values = count[number] * num_replicas
      if examples.divides_by_weights and _has_token_weights(examples):
        values *= longest
      # A batch of which nothing counts keeps its zeros.
      factor[number] = values / total if total > 0 else 1.0
  parts = {
    "rows": rows, "count": count, "num_real": num_real, "length": length, "factor": factor
  }  # fmt: skip
  if seeds is not None:
    parts["seed"] = np.repeat(seeds, num_replicas, axis=0)
    parts["replica"] = np.tile(np.arange(num_replicas, dtype=np.int32), len(plan))
  return parts


def shared_out(batch: np.ndarray, batching: Batching) -> list[np.ndarray]:
  """The rows of a batch for each replica, as equal in number as they can be."""
  if batching.is_static:
    size = batching.batch_size // batching.num_replicas
    return [
      batch[size * replica : size * (replica + 1)] for replica in range(batching.num_replicas)
    ]
  return np.array_split(batch, batching.num_replicas)


def _row_weights(examples: Examples) -> np.ndarray:
  """The sum of each row's weights, float64 `[n]`."""
  weights = examples.weights
  if weights is None or isinstance(weights, Mapping):
    return np.ones(len(examples))
  if isinstance(weights, tf.RaggedTensor):
    return tf.reduce_sum(tf.cast(weights, tf.float64), axis=1).numpy()
  return np.asarray(weights, np.float64).reshape(len(examples), -1).sum(axis=1)


def _has_token_weights(examples: Examples) -> bool:
  return isinstance(examples.weights, tf.RaggedTensor)


def _planned_dataset(
  examples: Examples, parts: Mapping[str, np.ndarray], batching: Batching
) -> tf.data.Dataset:
  """The batches of `_parts`.

  Rows and plan become tensors of the current device, which is the host's within
  `strategy.distribute_datasets_from_function`. Everything after that is TensorFlow's operations, so
  the host may be another machine.
  """
  weights = examples.weights
  # Rows that do not count have the weight 0.
  if weights is None and (batching.num_replicas > 1 or batching.is_static):
    weights = np.ones(len(examples), np.float32)
  scales_weights = batching.num_replicas > 1 or batching.is_static or examples.divides_by_weights
  columns = (dict(examples.inputs), examples.labels, weights)
  inputs, labels, weights = tf.nest.map_structure(_on_this_device, columns)

  # Nothing to convert, which AutoGraph would look for in every function.
  @tf.autograph.experimental.do_not_convert
  def assemble(part: dict[str, tf.Tensor]) -> Any:
    rows = part["rows"]
    length = part["length"]
    if not batching.is_static:
      rows = rows[: part["count"]]
    if not batching.bucket_multiple:
      length = batching.max_length

    def of_tokens(column: Any, fill: int = 0) -> Any:
      return gathered(column, rows, length, fill)

    x = {}
    for name, column in inputs.items():
      if name in INPUTS_OF_TOKENS:
        x[name] = of_tokens(column, PADDING.get(name, 0))
      else:
        x[name] = gathered(column, rows, _longest(column, batching), 0)
    if "seed" in part:
      x[DROPOUT_SEED] = _row_seeds(part["seed"], part["replica"], rows)
    if labels is None:
      return (x,)

    y = tf.nest.map_structure(of_tokens, labels)
    w = tf.nest.map_structure(of_tokens, weights)
    if w is not None and scales_weights:
      is_real = tf.range(tf.size(rows)) < part["num_real"]
      factors = tf.where(is_real, part["factor"], 0.0)
      w = tf.nest.map_structure(lambda values: _scaled(values, factors), w)
    # Keras wants weights for each output.
    if isinstance(y, dict) and w is not None and not isinstance(w, dict):
      w = dict.fromkeys(y, w)
    return keras.utils.pack_x_y_sample_weight(x, y, w)

  dataset = tf.data.Dataset.from_tensor_slices(dict(parts))
  dataset = dataset.map(assemble, num_parallel_calls=2, deterministic=True)
  options = tf.data.Options()
  # Rewriting the pipeline would copy the rows into its graph.
  options.experimental_optimization.apply_default_optimizations = False
  return without_autotune(dataset.prefetch(_PREFETCHED_BATCHES).with_options(options))


def _on_this_device(column: Any) -> Any:
  """A column as tensors of the current device; those of this process stay what they are."""
  if column is None:
    return None
  if isinstance(column, tf.RaggedTensor):
    return tf.nest.map_structure(tf.identity, column, expand_composites=True)
  array = np.asarray(column)
  # As Keras does with arrays.
  if array.dtype == np.float64:
    array = array.astype(np.float32)
  return tf.identity(array)


def _longest(column: Any, batching: Batching) -> int | None:
  """The padded length of a column that has its own lengths; None: that of its longest row."""
  if batching.is_static and isinstance(column, tf.RaggedTensor):
    return int(column.bounding_shape(axis=1))
  return None


def _row_seeds(seed: tf.Tensor, replica: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
  """A seed for each row of a part, int32 `[rows, 2]`; a micro-batch takes that of its first row."""
  of_replica = tf.random.experimental.stateless_fold_in(seed, replica)
  return tf.random.stateless_uniform(
    [tf.size(rows), 2], seed=of_replica, minval=None, maxval=None, dtype=tf.int32
  )


def _scaled(weights: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
  """Weights `[B, …]` times the factors of their rows `[B]`."""
  if weights.shape.rank > 1:
    factors = factors[:, tf.newaxis]
  return tf.cast(weights, tf.float32) * factors


# ------------------------------------------------------------------ batches of fit and evaluate


class TrainingBatches(NamedTuple):
  """What Keras' `fit` is called with.

  Attributes:
    dataset: the batches from the first update that is left; endless, and Keras counts.
    initial_epoch: the epoch of that update.
    steps_per_epoch: updates of an epoch.
    missing_updates: updates that are left of a first epoch that was interrupted; 0: all.
  """

  dataset: Any
  initial_epoch: int
  steps_per_epoch: int
  missing_updates: int

  @classmethod
  def plan(
    cls,
    model: Any,
    examples: Examples,
    *,
    batch_size: int | None,
    epochs: int,
    initial_epoch: int,
    steps_per_epoch: int | None,
    shuffle: bool,
    state: Any,
  ) -> "TrainingBatches":
    """Plans a training, from the state of an interrupted one if there is one.

    Args:
      state: a `SaveState`, or None; the other arguments are those of `fit`.

    Example: 10 rows in batches of 4 are 3 updates an epoch. Continued after update 4, the first
    epoch is number 1, with the 2 updates 5 and 6.
    """
    batching = Batching.of(model, examples, batch_size)
    if steps_per_epoch is None:
      steps_per_epoch = math.ceil(len(examples) / batching.batch_size)
    first_step = initial_epoch * steps_per_epoch
    seed = int(np.random.randint(np.iinfo(np.int32).max))  # Of `keras.utils.set_random_seed`.
    if state is not None:
      content = f"{examples.fingerprint()} {batching.batch_size} {steps_per_epoch} {shuffle}"
      seed, first_step = state.begin(model, seed, first_step, content)
    num_steps = epochs * steps_per_epoch
    # One batch, which nothing reads, if all is done.
    planned_step = min(first_step, num_steps - 1)
    plan = training_plan(
      examples.lengths,
      batching,
      seed=seed,
      num_steps=num_steps,
      first_step=planned_step,
      shuffle=shuffle,
    )
    seeds = dropout_seeds(seed, num_steps=num_steps, first_step=planned_step)
    # Keras asks for whole epochs, and counts them.
    dataset = make_dataset(
      model.distribute_strategy, examples, plan, batching, seeds=seeds, endless=True
    )
    return cls(
      dataset=dataset,
      initial_epoch=first_step // steps_per_epoch,
      steps_per_epoch=steps_per_epoch,
      missing_updates=-first_step % steps_per_epoch,
    )


class EvaluationBatches(NamedTuple):
  """What Keras' `evaluate` is called with.

  Attributes:
    dataset: the batches; rows of similar length share one.
    steps: the number of batches to read; None: all.
  """

  dataset: Any
  steps: int | None

  @classmethod
  def plan(cls, model: Any, examples: Examples, batch_size: int | None) -> "EvaluationBatches":
    """Plans one evaluation of all examples."""
    batching = Batching.of(model, examples, batch_size)
    plan = plan_by_length(examples.lengths, batching)
    strategy = model.distribute_strategy
    if batching.num_replicas == 1:
      return cls(make_dataset(strategy, examples, plan, batching), None)
    # Keras cannot count the batches of several replicas, and warns at their end.
    return cls(make_dataset(strategy, examples, plan, batching, endless=True), len(plan))
