"""A split as a few flat arrays, from which TensorFlow operations put padded batches together on any host."""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints.bundle import coordinator_cpu
from albert_tf.finetuning.features import Column, FeatureSet

_SMALL_TYPES = (np.uint8, np.uint16)  # Most features are masks, and vocabularies are below 65,536.
_CHUNK_ROWS = 4096  # Rows that are built at once, as int32, before they are stored small.

Gathered = tuple[dict[str, tf.Tensor], Any, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class _Flat:
  """One column of a split: `[n, …]`, or the values of rows of different lengths one after another.

  Attributes:
    values: in the smallest type that holds them.
    dtype: of the batches.
    inner: of rows of different lengths, the axes before the last one, such as (C,); None for `[n, …]`.
    fill: what such rows are filled up with.
  """

  values: Any
  dtype: Any
  inner: tuple[int, ...] | None = None
  fill: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlatFeatures:
  """A split's features, labels and weights; see `FeatureSet`.

  Attributes:
    lengths: int64 `[n]`.
    row_weights: float32 `[n]`, the sum of each row's weights.
    offsets: int64 `[n + 1]`, sums of the lengths.
    features, labels: name → column; the labels' name is "" where they are one column.
    weights: None: 1.
  """

  lengths: np.ndarray
  row_weights: np.ndarray
  offsets: Any
  features: Mapping[str, _Flat]
  labels: Mapping[str, _Flat]
  weights: _Flat | None

  @classmethod
  def of(cls, features: FeatureSet) -> "FlatFeatures":
    """Flattens a split into tensors of the coordinator; its rows are read once."""
    labels, fill = features.labels, features.pad_values
    named = {} if labels is None else labels if isinstance(labels, Mapping) else {"": labels}
    pieces = int(features.lengths.sum())
    with tf.device(coordinator_cpu()):
      return cls(
        lengths=features.lengths,
        row_weights=_row_weights(features),
        offsets=tf.constant(np.concatenate([[0], np.cumsum(features.lengths)])),
        features=_flatten_rows(features),
        labels={name: _flatten(column, fill.get("labels", 0), pieces) for name, column in named.items()},
        weights=None if features.weights is None else _flatten(features.weights, 0, pieces, np.float32),
      )

  def on_current_device(self) -> "FlatFeatures":
    """A copy for another host; the same tensors on the coordinator itself."""

    def moved(column: _Flat) -> _Flat:
      return dataclasses.replace(column, values=tf.identity(column.values))

    return dataclasses.replace(
      self,
      offsets=tf.identity(self.offsets),
      features={name: moved(column) for name, column in self.features.items()},
      labels={name: moved(column) for name, column in self.labels.items()},
      weights=None if self.weights is None else moved(self.weights),
    )

  @property
  def weights_by_piece(self) -> bool:
    """Whether weights are `[B, S]`."""
    return self.weights is not None and self.weights.inner is not None

  def gather(self, rows: tf.Tensor, length: tf.Tensor | int) -> Gathered:
    """`(x, y, weights)` of chosen rows, padded; y is None without labels.

    Args:
      rows: int32 `[b]`.
      length: S, at least that of the longest of them.
    """
    begins, ends = tf.gather(self.offsets, rows), tf.gather(self.offsets, rows + 1)
    sizes = (ends - begins)[:, tf.newaxis]  # [b, 1]
    place = tf.range(tf.cast(length, tf.int64))
    inside = (place < sizes)[:, tf.newaxis]  # [b, 1, S]

    def take(column: _Flat) -> tf.Tensor:
      if column.inner is None:
        return tf.cast(tf.gather(column.values, rows), column.dtype)
      count = math.prod(column.inner)
      firsts = begins[:, tf.newaxis] * count + sizes * tf.range(count, dtype=tf.int64)  # [b, C]
      values = tf.gather(column.values, tf.where(inside, firsts[..., tf.newaxis] + place, 0))  # [b, C, S]
      filled = tf.where(inside, tf.cast(values, column.dtype), tf.cast(column.fill, column.dtype))
      return tf.reshape(filled, [rows.shape[0], *column.inner, length])

    x = {name: take(column) for name, column in self.features.items()}
    labels = {name: take(column) for name, column in self.labels.items()}
    weights = tf.ones([rows.shape[0]]) if self.weights is None else take(self.weights)
    return x, (labels.get("", labels) if labels else None), weights


def _row_weights(features: FeatureSet) -> np.ndarray:
  if features.weights is None:
    return np.ones(len(features), np.float32)
  return np.array([np.sum(weights) for weights in features.weights], np.float32)


def _flatten_rows(features: FeatureSet) -> dict[str, _Flat]:
  """Each feature as a column; rows may be put together when asked for, so few are held at a time."""
  rows, first = features.rows, features.rows[0]
  pieces = int(features.lengths.sum())
  columns = {name: _Growing(first[name], pieces, len(rows)) for name in first}
  for begin in range(0, len(rows), _CHUNK_ROWS):
    chunk = [rows[i] for i in range(begin, min(begin + _CHUNK_ROWS, len(rows)))]
    for name, column in columns.items():
      column.add([row[name] for row in chunk])
  return {name: column.finish(features.pad_values.get(name, 0)) for name, column in columns.items()}


def _flatten(column: Column, fill: int, pieces: int, dtype: Any = None) -> _Flat:
  if isinstance(column, np.ndarray):
    return _Flat(tf.constant(column), dtype or column.dtype)
  growing = _Growing(np.asarray(column[0], dtype), pieces, len(column))
  growing.add(column)
  return growing.finish(fill)


class _Growing:
  """A column that is filled in place, in the smallest type that holds what it has seen.

  Args:
    first: the first row's value.
    pieces, rows: of the whole split.
  """

  def __init__(self, first: Any, pieces: int, rows: int):
    first = np.asarray(first)
    self._dtype, self._inner = first.dtype, first.shape[:-1] if first.ndim else None
    size = rows if self._inner is None else pieces * math.prod(self._inner)
    self._values = np.empty(size, np.uint8 if first.dtype.kind == "i" else first.dtype)
    self._filled = 0

  def add(self, arrays: Sequence[np.ndarray]) -> None:
    values = np.concatenate([np.ravel(array) for array in arrays])
    least, most = (values.min(), values.max()) if values.size else (0, 0)
    small = [
      kind for kind in _SMALL_TYPES if values.dtype.kind == "i" and least >= 0 and most <= np.iinfo(kind).max
    ]
    needed = np.promote_types(self._values.dtype, small[0] if small else values.dtype)
    self._values = self._values.astype(needed, copy=False)
    self._values[self._filled : self._filled + len(values)] = values
    self._filled += len(values)

  def finish(self, fill: int) -> _Flat:
    values, self._values = self._values, np.empty(0)
    return _Flat(tf.identity(tf.constant(values)), self._dtype, self._inner, fill)
