"""A split's examples as a few flat arrays, from which any host puts batches together."""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints.bundle import coordinator_cpu
from albert_tf.finetuning.engine.features import Column, FeatureSet

_SMALL_TYPES = (np.uint8, np.uint16)  # Most features are masks, and vocabularies are below 65,536.
_CHUNK_ROWS = 4096  # Rows that are built at once, as int32, before they are stored small.


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

  @classmethod
  def of(cls, column: Column, fill: int, dtype: Any = None) -> "_Flat":
    """A column of labels or weights."""
    if isinstance(column, np.ndarray):
      return cls(tf.constant(column), dtype or column.dtype)
    dtype = dtype or column[0].dtype
    return cls(tf.constant(_small(np.concatenate(column).astype(dtype))), dtype, (), fill)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlatFeatures:
  """A split's features, labels and weights as a few flat arrays; see `FeatureSet`.

  Attributes:
    lengths: int64 `[n]`.
    row_weights: float32 `[n]`, the sum of each row's weights.
    row_factors: float32 `[n]`; see `FeatureSet.factors`.
    tokens: int64 `[n]`, without padding.
    offsets: int64 `[n + 1]`, sums of the lengths.
    features, labels: name → column; the labels' name is "" where they are one column.
    weights: None: 1.
  """

  lengths: np.ndarray
  row_weights: np.ndarray
  row_factors: np.ndarray
  tokens: np.ndarray
  offsets: Any
  features: Mapping[str, _Flat]
  labels: Mapping[str, _Flat]
  weights: _Flat | None

  @classmethod
  def of(cls, features: FeatureSet) -> "FlatFeatures":
    """Flattens a split into tensors of the coordinator; its rows are read once."""
    labels, weights, fill = features.labels, features.weights, features.pad_values
    named = {} if labels is None else labels if isinstance(labels, Mapping) else {"": labels}
    sums = np.ones(len(features)) if weights is None else [np.sum(of_row) for of_row in weights]
    offsets = np.concatenate([[0], np.cumsum(features.lengths)])
    with tf.device(coordinator_cpu()):
      columns = _flatten_rows(features)
      return cls(
        lengths=features.lengths,
        row_weights=np.array(sums, np.float32),
        row_factors=np.ones(len(features), np.float32) if features.factors is None else features.factors,
        tokens=_row_sums(columns["input_mask"], offsets) if "input_mask" in columns else features.lengths,
        offsets=tf.constant(offsets),
        features=columns,
        labels={name: _Flat.of(column, fill.get("labels", 0)) for name, column in named.items()},
        weights=None if weights is None else _Flat.of(weights, 0, np.float32),
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

  def gather(self, rows: tf.Tensor, length: tf.Tensor | int) -> tuple[dict[str, tf.Tensor], Any, tf.Tensor]:
    """`(x, y, weights)` of chosen rows `[b]`, padded to `length`; y is None without labels."""
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


def _flatten_rows(features: FeatureSet) -> dict[str, _Flat]:
  """Each feature as a column; rows may be put together when asked for, so few are held at a time."""
  rows, first = features.rows, features.rows[0]
  parts: dict[str, list[np.ndarray]] = {name: [] for name in first}
  for begin in range(0, len(rows), _CHUNK_ROWS):
    chunk = [rows[i] for i in range(begin, min(begin + _CHUNK_ROWS, len(rows)))]
    for name in first:
      parts[name].append(_small(np.concatenate([np.ravel(row[name]) for row in chunk])))
  columns = {}
  for name, value in first.items():
    inner = np.shape(value)[:-1] if np.ndim(value) else None
    values = tf.constant(np.concatenate(parts.pop(name)))
    columns[name] = _Flat(values, np.asarray(value).dtype, inner, features.pad_values.get(name, 0))
  return columns


def _row_sums(column: _Flat, offsets: np.ndarray) -> np.ndarray:
  begins = offsets[:-1] * math.prod(column.inner or ())
  return np.add.reduceat(column.values.numpy(), begins, dtype=np.int64)


def _small(values: np.ndarray) -> np.ndarray:
  """The same integers in the smallest type that holds them."""
  if values.dtype.kind != "i" or not values.size or values.min() < 0:
    return values
  fitting = (small for small in _SMALL_TYPES if values.max() <= np.iinfo(small).max)
  return values.astype(next(fitting, values.dtype))
