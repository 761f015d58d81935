"""Examples as a few tensors: inputs, labels and weights, in the memory of their tokens without padding.

The models make them of lists and arrays, the tasks of fine-tuning of files; `batches.py` batches
them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools
import hashlib
import json
import math
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from albert_tf.compat import on_coordinator
from albert_tf.errors import UserError
from albert_tf.progress import track

# One array [n, …], or rows that differ in the length of their last axis.
Column: TypeAlias = np.ndarray | tf.RaggedTensor

# Texts tokenized together: twice as fast as all texts together, in half the memory.
ROWS_AT_ONCE = 1024
# Inputs with a value for each token; the others have rows of one length, or their own padding.
INPUTS_OF_TOKENS = ("input_ids", "input_mask", "segment_ids", "p_mask")
# Name of an input → what it is padded with, by default 0. No answer can be in padding.
PADDING = {"p_mask": 1}


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
  def of_texts(
    cls,
    columns: Mapping[str, Any],
    pack: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    *,
    desc: str = "",
  ) -> "Examples":
    """Tokenizes texts, block after block.

    Args:
      columns: strings by name, a sequence of n each.
      pack: makes a padded batch of some rows, such as `AlbertPreprocessor.pack`.
      desc: names a progress bar; "": none.
    """
    num_rows = len(next(iter(columns.values())))
    return cls.of_blocks(
      pack({name: column[rows] for name, column in columns.items()})
      for rows in blocks_of(num_rows, desc=desc)
    )

  @classmethod
  def of_blocks(cls, blocks: Iterable[Mapping[str, Any]]) -> "Examples":
    """Makes examples of padded batches of inputs, one after the other, and drops their padding."""
    parts: dict[str, list[Any]] = {}
    with on_coordinator():
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

    def padded(column: Any, row_length: int | None = length, fill: int = 0) -> Any:
      return None if column is None else np.asarray(gathered(column, numbers, row_length, fill))

    x = {}
    for name, column in self.inputs.items():
      row_length = length if name in INPUTS_OF_TOKENS else None
      x[name] = padded(column, row_length, PADDING.get(name, 0))
    y = tf.nest.map_structure(padded, self.labels)
    weights = tf.nest.map_structure(padded, self.weights)
    if weights is not None:
      return x, y, weights
    if y is not None:
      return x, y
    return (x,)

  def take(self, numbers: np.ndarray) -> "Examples":
    """The examples with these numbers."""
    columns = (self.inputs, self.labels, self.weights)
    with on_coordinator():
      taken = tf.nest.map_structure(lambda column: _taken(column, numbers), columns)
    inputs, labels, weights = taken
    return dataclasses.replace(self, inputs=inputs, labels=labels, weights=weights)

  def fingerprint(self) -> str:
    """A hash of all data that training or evaluation uses."""
    digest = hashlib.sha256()
    columns = {"inputs": dict(self.inputs), "labels": self.labels, "weights": self.weights}
    # With their names: two columns that change places are other examples.
    names = tf.nest.map_structure(lambda column: column is not None, columns)
    digest.update(json.dumps(names, sort_keys=True).encode())
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
    if name in INPUTS_OF_TOKENS:
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
  if first.ragged_rank == 1:
    return tf.concat(same, axis=0)
  # Each example has C rows.
  rows = tf.concat([column.values for column in same], axis=0)
  return tf.RaggedTensor.from_uniform_row_length(rows, int(first.shape[1]))


def _taken(column: Any, numbers: np.ndarray) -> Any:
  if column is None:
    return None
  if isinstance(column, tf.RaggedTensor):
    rows = tf.gather(column, numbers)
    if column.ragged_rank > 1:
      # TensorFlow forgets that each example has C rows.
      rows = tf.RaggedTensor.from_uniform_row_length(rows.values, int(column.shape[1]))
    return rows
  return np.asarray(column)[numbers]


def gathered(column: Any, rows: tf.Tensor, length: Any, fill: int) -> Any:
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
  # The number of choices is static, which a TPU needs.
  sizes = [rows.shape[0], *column.shape[1:-1], length]
  # -1: as many as there are.
  shape = tf.stack([-1 if size is None else size for size in sizes])
  return values.to_tensor(tf.cast(fill, dtype), shape=shape)
