"""Examples as batches: which rows share one, in which order, and at which length.

`fit`, `evaluate`, `predict` and `predict_early` of the models read them, and so do the fine-tuning
commands. NumPy plans the batches, and `tf.data` gathers and pads the planned rows: its own shuffling
and bucketing could not continue an epoch at any update.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools
import hashlib
import math
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from albert_tf.compat import coordinator_cpu, device_kind
from albert_tf.errors import UserError, whole_number
from albert_tf.keras_api.training_step import DROPOUT_SEED
from albert_tf.pipelines.batches import iterators_without_autotune, without_autotune
from albert_tf.progress import track
from albert_tf.settings import LARGEST_INT

# One array [n, …], or rows that differ in the length of their last axis.
Column: TypeAlias = np.ndarray | tf.RaggedTensor

# Texts tokenized together: twice as fast as all texts together, in half the memory.
ROWS_AT_ONCE = 1024
# Inputs with a value for each token; the others have rows of one length, or their own padding.
_OF_TOKENS = ("input_ids", "input_mask", "segment_ids", "p_mask")
# Name of an input → what it is padded with, by default 0. No answer can be in padding.
_PADDING = {"p_mask": 1}
DEFAULT_BATCH_SIZE = 32  # Keras' own.
_DEFAULT_MULTIPLE = 32
# Batches are sorted by length within windows of this many, so that an epoch stays in random order.
_WINDOW_BATCHES = 64
_PREFETCHED_BATCHES = 4
_DROPOUT_STREAM = 1  # A number apart from those of the order.


# ------------------------------------------------------------------ examples as a few tensors


@dataclasses.dataclass(frozen=True, eq=False)
class Examples:
  """n examples, ready to be batched, in the memory of their tokens without padding.

  Attributes:
    inputs: the model's inputs by name, each `[n, …]`.
    labels: labels for the loss `[n, …]`, or by name of output; None: no labels.
    weights: a weight for each example `[n]` or token `[n, s]`, or by name of output; None: 1.
    divides_by_weights: whether a batch's loss is the weighted mean, divided by the sum of the
      weights. Keras divides by the number of rows.
  """

  inputs: Mapping[str, Column]
  labels: Any = None
  weights: Any = None
  divides_by_weights: bool = False

  @classmethod
  def of_blocks(cls, blocks: Iterable[Mapping[str, Any]]) -> "Examples":
    """Makes examples of padded batches of inputs, one after the other, and drops their padding."""
    parts: dict[str, list[Any]] = {}
    # The tables of a tokenizer too: a TPU's host could not give its tensors to this process.
    with tf.device(coordinator_cpu()):
      for block in blocks:
        for name, column in _without_padding(block).items():
          parts.setdefault(name, []).append(column)
      return cls({name: _joined(columns) for name, columns in parts.items()})

  def __len__(self) -> int:
    return len(self.lengths)

  @functools.cached_property
  def lengths(self) -> np.ndarray:
    """int64 `[n]`: the number of tokens of each row."""
    ids = self.inputs["input_ids"]
    if not isinstance(ids, tf.RaggedTensor):
      return np.full(ids.shape[0], ids.shape[-1], np.int64)
    num_rows = int(ids.nrows())
    # [n, s], or [n, C, s] with one length for the C rows of an example.
    row_lengths = ids.values.row_lengths() if ids.ragged_rank > 1 else ids.row_lengths()
    return row_lengths.numpy().reshape(num_rows, -1)[:, 0]

  def padded(self, length: int | None = None) -> tuple[Any, ...]:
    """One batch of all examples, `(x, y, weights)` as far as there are any, as arrays.

    Args:
      length: S; None: that of the longest row.
    """
    numbers = tf.range(len(self))
    x = {}
    for name, column in self.inputs.items():
      row_length = length if name in _OF_TOKENS else None
      x[name] = np.asarray(_gathered(column, numbers, row_length, _PADDING.get(name, 0)))
    if self.weights is not None:
      return x, self.labels, self.weights
    if self.labels is not None:
      return x, self.labels
    return (x,)

  def take(self, numbers: np.ndarray) -> "Examples":
    """The examples with these numbers."""
    columns = (self.inputs, self.labels, self.weights)
    with tf.device(coordinator_cpu()):
      taken = tf.nest.map_structure(lambda column: _taken(column, numbers), columns)
    inputs, labels, weights = taken
    return dataclasses.replace(self, inputs=inputs, labels=labels, weights=weights)

  def fingerprint(self) -> str:
    """A hash of all data that training or evaluation uses."""
    digest = hashlib.sha256()
    columns = {"inputs": dict(self.inputs), "labels": self.labels, "weights": self.weights}
    for column in tf.nest.flatten(columns, expand_composites=True):
      if column is not None:
        array = np.ascontiguousarray(column)
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def check_counts(examples: Examples) -> None:
  """Raises `UserError` if inputs, labels and weights have different numbers of rows."""
  counts = {}
  parts = {"x": dict(examples.inputs), "y": examples.labels, "sample_weight": examples.weights}
  for part, columns in parts.items():
    for column in tf.nest.flatten(columns):
      if column is not None:
        counts[part] = int(column.shape[0])
        if counts[part] != counts["x"]:
          raise UserError(
            f"Each row of x has one of y and of sample_weight. Received: {counts}. Give each as "
            "many."
          )


def with_class_weights(examples: Examples, class_weight: Mapping[int, float]) -> Examples:
  """The examples with their weights times those of their classes; other classes have 1."""
  labels = np.asarray(examples.labels)
  if labels.ndim > 1:
    # A value for each class or, of one label, 0 or 1.
    labels = labels[:, 0] if labels.shape[1] == 1 else labels.argmax(axis=1)
  weights = np.array([class_weight.get(int(label), 1.0) for label in labels], np.float32)
  if examples.weights is not None:
    weights = weights * examples.weights
  return dataclasses.replace(examples, weights=weights)


def blocks_of(count: int, *, desc: str = "") -> Iterable[slice]:
  """Slices that cover `count` rows, tokenized one after the other; `desc` names a progress bar."""
  blocks = [slice(begin, begin + ROWS_AT_ONCE) for begin in range(0, count, ROWS_AT_ONCE)]
  return track(blocks, len(blocks), desc=desc, unit=f"x {ROWS_AT_ONCE}", shown=bool(desc))


def _without_padding(block: Mapping[str, Any]) -> dict[str, Column]:
  """The inputs of a padded batch; those of tokens without padding, in the smallest type.

  Example: `input_ids` of two texts, and of two examples with two choices each.
      # [[7 8 0] [5 6 9]] is the values 7 8 5 6 9 with the row lengths 2 3.
      # [[[7 8 0] [1 0 0]] [[5 6 9] [1 2 0]]] has the row lengths 2 2 3 3.
  """
  mask = np.asarray(block["input_mask"])  # [b, S] or [b, C, S]
  inner_axes = tuple(range(1, mask.ndim - 1))
  lengths = mask.sum(axis=-1).max(axis=inner_axes) if inner_axes else mask.sum(axis=-1)
  # An empty row of choices keeps one token: no axis may be lost.
  lengths = np.maximum(lengths, 1)
  columns: dict[str, Column] = {}
  for name, tensor in block.items():
    array = np.asarray(tensor)
    if name in _OF_TOKENS:
      columns[name] = _ragged(array, lengths)
    elif name == "masked_lm_positions":
      # [CLS], position 0, is never masked.
      columns[name] = _ragged(array, np.count_nonzero(array, axis=-1))
    else:
      columns[name] = array
  return columns


def _ragged(array: np.ndarray, lengths: np.ndarray) -> tf.RaggedTensor:
  """The first `lengths` entries of the last axis of `[b, …, S]`."""
  rows_per_example = math.prod(array.shape[1:-1])
  row_lengths = np.repeat(lengths, rows_per_example)
  rows = array.reshape(-1, array.shape[-1])
  values = rows[np.arange(rows.shape[1]) < row_lengths[:, np.newaxis]]
  if values.dtype.kind == "i" and values.min(initial=0) >= 0:
    values = values.astype(np.min_scalar_type(int(values.max(initial=0))))
  column = tf.RaggedTensor.from_row_lengths(tf.constant(values), row_lengths, validate=False)
  if array.ndim > 2:
    column = tf.RaggedTensor.from_uniform_row_length(column, rows_per_example)
  return column


def _joined(columns: Sequence[Any]) -> Column:
  """The rows of several columns of one input."""
  first = columns[0]
  if not isinstance(first, tf.RaggedTensor):
    return np.concatenate(columns)
  # Blocks may have different types.
  dtype = np.result_type(*[column.dtype.as_numpy_dtype for column in columns])
  same = [column.with_flat_values(tf.cast(column.flat_values, dtype)) for column in columns]
  return tf.concat(same, axis=0)


def _taken(column: Any, numbers: np.ndarray) -> Any:
  if column is None:
    return None
  if isinstance(column, tf.RaggedTensor):
    return tf.gather(column, numbers)
  return np.asarray(column)[numbers]


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
    is_static: whether all batches have the shape `[B, max_length]`, as a TPU needs.
  """

  batch_size: int
  max_length: int
  bucket_multiple: int = _DEFAULT_MULTIPLE
  num_replicas: int = 1
  is_static: bool = False

  @classmethod
  def of(
    cls, model: Any, examples: Examples, batch_size: int | None, bucket_multiple: int | None = None
  ) -> "Batching":
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
    # A TPU compiles the model anew for each shape.
    is_static = device_kind(strategy) == "tpu"
    preprocessor = getattr(model, "preprocessor", None)
    if preprocessor is not None and (is_static or preprocessor.pad_to_max_length):
      max_length = max(max_length, preprocessor.max_length)
      bucket_multiple = 0
    if bucket_multiple is None:
      bucket_multiple = 0 if is_static else _DEFAULT_MULTIPLE
    return cls(
      batch_size=math.ceil(batch_size / num_replicas) * num_replicas,
      max_length=max_length,
      bucket_multiple=bucket_multiple,
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
) -> Any:
  """The planned batches `(x, y, weights)` as Keras takes them, for each replica its part.

  Without labels a batch is `(x,)`. With one replica, and without weights, there are none.

  Args:
    strategy: of the model.
    examples: the examples.
    plan: the row numbers of each batch.
    batching: the sizes.
    seeds: of dropout, int32 `[steps, 2]`: batches for `fit`; None: batches for answers.
  """

  def of_host(context: tf.distribute.InputContext) -> tf.data.Dataset:
    if context.num_input_pipelines > 1:
      raise UserError(
        "`fit` and `predict` run on the devices of one host. Received: a strategy of "
        f"{context.num_input_pipelines} hosts. Use one host with all its devices."
      )
    dataset = _planned_dataset(examples, _parts(examples, plan, batching, seeds), batching)
    # Keras asks for whole epochs of a training, and counts them.
    return dataset if seeds is None else dataset.repeat()

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
    for replica, part in enumerate(_shared_out(batch, batching)):
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


def _shared_out(batch: np.ndarray, batching: Batching) -> list[np.ndarray]:
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
      return _gathered(column, rows, length, fill)

    x = {}
    for name, column in inputs.items():
      if name in _OF_TOKENS:
        x[name] = of_tokens(column, _PADDING.get(name, 0))
      else:
        x[name] = _gathered(column, rows, _longest(column, batching), 0)
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


def _gathered(column: Any, rows: tf.Tensor, length: Any, fill: int) -> Any:
  """Some rows of a column; ragged ones are padded to `[rows, …, length]`, int32 or float32."""
  if column is None:
    return None
  values = tf.gather(column, rows)
  if not isinstance(values, tf.RaggedTensor):
    return values
  dtype = tf.int32
  if values.dtype.is_floating:
    dtype = tf.float32
  values = tf.cast(values, dtype)
  sizes = [rows.shape[0], *values.shape[1:-1], length]
  # -1: as many as there are.
  shape = tf.stack([-1 if size is None else size for size in sizes])
  return values.to_tensor(tf.cast(fill, dtype), shape=shape)


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
      seed, first_step = state.begin(model, seed, first_step)
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
    dataset = make_dataset(model.distribute_strategy, examples, plan, batching, seeds=seeds)
    return cls(
      dataset=dataset,
      initial_epoch=first_step // steps_per_epoch,
      steps_per_epoch=steps_per_epoch,
      missing_updates=-first_step % steps_per_epoch,
    )


def evaluation_batches(model: Any, examples: Examples, batch_size: int | None) -> Any:
  """The batches of Keras' `evaluate`; rows of similar length share one."""
  batching = Batching.of(model, examples, batch_size)
  plan = plan_by_length(examples.lengths, batching)
  return make_dataset(model.distribute_strategy, examples, plan, batching)


# ------------------------------------------------------------------ answers


class Predictor:
  """Computes the outputs of a model for examples, on all its replicas.

  Args:
    model: decides the devices.
    compute: from the inputs of a batch to nested tensors, each `[B, …]`.
  """

  def __init__(self, model: Any, compute: Callable[[Mapping[str, tf.Tensor]], Any]):
    self._model = model

    def step(x: Mapping[str, tf.Tensor]) -> Any:
      return model.distribute_strategy.run(compute, args=(x,))

    self._step = tf.function(step, autograph=False, reduce_retracing=True)

  def __call__(
    self,
    examples: Examples,
    *,
    batch_size: int | None,
    bucket_multiple: int | None = None,
    callbacks: Any = None,
    verbose: int = 0,
  ) -> Any:
    """The outputs for all rows, in their order; rows of similar length share a batch.

    Returns:
      The structure of `compute`'s result. A leaf is an array `[n, …]`, or a list of n arrays where
      the outputs of different batches have different shapes.
    """
    strategy = self._model.distribute_strategy
    batching = Batching.of(self._model, examples, batch_size, bucket_multiple)
    plan = plan_by_length(examples.lengths, batching)
    with iterators_without_autotune():
      dataset = make_dataset(strategy, Examples(examples.inputs), plan, batching)
      iterator = iter(dataset)
    reports = keras.callbacks.CallbackList(
      callbacks,
      add_progbar=verbose != 0,
      model=self._model,
      verbose=verbose,
      epochs=1,
      steps=len(plan),
    )
    collected = _Collected(strategy)
    reports.on_predict_begin()
    # To the end of the batches: TensorFlow 2.21 crashes where a distributed iterator is dropped
    # that still reads ahead.
    for number, ((x,), rows) in enumerate(zip(iterator, plan, strict=True)):
      reports.on_predict_batch_begin(number)
      # Without the rows that fill up a replica's part.
      counts = [len(part) for part in _shared_out(rows, batching)]
      collected.add(self._step(x), counts)
      reports.on_predict_batch_end(number)
    reports.on_predict_end()
    return collected.outputs(np.concatenate(plan))

  def of_batches(self, batches: Iterable[Mapping[str, Any]]) -> Any:
    """The same for batches of someone else, one after the other."""
    collected = _Collected(self._model.distribute_strategy)
    num_rows = 0
    for x in batches:
      num_rows += len(x["input_ids"])
      collected.add(self._step(x), None)
    if not num_rows:
      raise UserError("There must be at least one batch. Received: none. Leave the call out.")
    return collected.outputs(np.arange(num_rows))


class _Collected:
  """The outputs of batches, as far as they are computed."""

  def __init__(self, strategy: tf.distribute.Strategy):
    self._strategy = strategy
    self._structure: Any = None
    self._batches: list[list[np.ndarray]] = []  # Of each output.

  def add(self, outputs: Any, counts: Sequence[int] | None) -> None:
    """Adds a batch; `counts` are the rows of each replica that are real, None for all."""
    self._structure = outputs
    leaves = tf.nest.flatten(outputs)
    self._batches = self._batches or [[] for _ in leaves]
    for batches, leaf in zip(self._batches, leaves, strict=True):
      parts = [np.asarray(part) for part in self._strategy.experimental_local_results(leaf)]
      if counts is not None:
        parts = [part[:count] for part, count in zip(parts, counts, strict=True)]
      batches.append(np.concatenate(parts))

  def outputs(self, order: np.ndarray) -> Any:
    """All outputs; row i of the batches is the example `order[i]`."""
    leaves = [_in_order(batches, order) for batches in self._batches]
    return tf.nest.pack_sequence_as(self._structure, leaves)


def _in_order(batches: Sequence[np.ndarray], order: np.ndarray) -> Any:
  """The rows of all batches in the order of the examples: an array, or a list where shapes differ."""
  if len({batch.shape[1:] for batch in batches}) == 1:
    joined = np.concatenate(batches)
    in_order = np.empty_like(joined)
    in_order[order] = joined
    return in_order
  rows: list[Any] = [None] * len(order)
  numbers = iter(order.tolist())
  for batch in batches:
    for row in batch:
      rows[next(numbers)] = row
  return rows


def padded_outputs(outputs: Any, fill: float) -> Any:
  """Outputs of a `Predictor` as arrays: rows of different shapes are padded to the largest."""
  if isinstance(outputs, Mapping):
    return {name: padded_outputs(output, fill) for name, output in outputs.items()}
  if isinstance(outputs, tuple):
    return tuple(padded_outputs(output, fill) for output in outputs)
  if isinstance(outputs, np.ndarray):
    return outputs
  largest = np.max([row.shape for row in outputs], axis=0)
  padded = np.full([len(outputs), *largest], fill, outputs[0].dtype)
  for target, row in zip(padded, outputs, strict=True):
    target[tuple(map(slice, row.shape))] = row
  return padded
