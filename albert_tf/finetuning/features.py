"""Examples as unpadded rows, and batches of them padded to one length."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
from typing import Any

import numpy as np

Column = np.ndarray | Sequence[np.ndarray]  # One array, or one array a row where lengths differ.
Batch = tuple[dict[str, np.ndarray], Any, Any]


@dataclasses.dataclass(frozen=True)
class FeatureSet:
  """The examples of one split, ready to be batched.

  Attributes:
    rows: one mapping an example: int32 arrays whose LAST axis is its own length s (`input_ids`, `input_mask`,
      `segment_ids`; multiple choice `[C, s]`), and scalars (`start_positions`).
    labels: what the loss compares with: an array `[n, …]`, a list of n arrays `[s]` (tags), or, for a model
      with named outputs, a mapping output name → one of these. None where there are none.
    pad_values: name → what a row is filled up with, 0 unless said; "labels" for tags.
    weights: of each example `[n]` or of each piece, n arrays `[s]`; None: 1. A batch's loss is the weighted
      mean over the whole of it, all replicas together.
  """

  rows: Sequence[Mapping[str, np.ndarray]]
  labels: Column | Mapping[str, Column] | None = None
  pad_values: Mapping[str, int] = dataclasses.field(default_factory=dict)
  weights: Column | None = None

  def __len__(self) -> int:
    return len(self.rows)

  @functools.cached_property
  def lengths(self) -> np.ndarray:
    """int64 `[n]`: the length of each row."""
    return np.array([np.shape(row["input_ids"])[-1] for row in self.rows], np.int64)

  def batch(self, indices: Sequence[int] | np.ndarray, *, batch_size: int, length: int) -> Batch:
    """`(x, y, weights)` of `batch_size` rows, padded to `length`.

    Where there are fewer indices, the first one's row fills up with weight 0. Weights are scaled so that their
    mean is 1: Keras' mean over the batch is then the weighted mean over its real rows.

    Args:
      indices: of the rows, at most `batch_size`.
      batch_size: B.
      length: S, at least that of the longest row.

    Returns:
      x: name → int32 `[B, …, S]` or `[B]`; y as `labels`, None without; weights float32 `[B]` or `[B, S]`, a
      mapping where y is one.
    """
    taken = [*indices, *[indices[0]] * (batch_size - len(indices))]
    names = self.rows[taken[0]].keys()
    x = {
      name: _stack([self.rows[i][name] for i in taken], length, self.pad_values.get(name, 0))
      for name in names
    }
    weights = self._weights(taken, len(indices), length)
    if self.labels is None:
      return x, None, weights
    if isinstance(self.labels, Mapping):
      y = {name: self._column(column, taken, length) for name, column in self.labels.items()}
      return x, y, dict.fromkeys(y, weights)
    return x, self._column(self.labels, taken, length), weights

  def _column(self, column: Column, taken: Sequence[int], length: int) -> np.ndarray:
    if isinstance(column, np.ndarray):
      return column[taken]
    return _stack([column[i] for i in taken], length, self.pad_values.get("labels", 0))

  def _weights(self, taken: Sequence[int], real: int, length: int) -> np.ndarray:
    if self.weights is None:
      weights = np.ones(len(taken), np.float32)
    elif isinstance(self.weights, np.ndarray):
      weights = self.weights[taken].astype(np.float32)
    else:
      weights = _stack([self.weights[i] for i in taken], length, 0).astype(np.float32)
    weights[real:] = 0.0
    total = weights.sum()
    return weights * np.float32(weights.size / total) if total > 0 else weights


def _stack(arrays: Sequence[Any], length: int, fill: int) -> np.ndarray:
  """Arrays stacked to `[B, …, S]`, the last axis filled up to `length`; scalars to `[B]`."""
  first = np.asarray(arrays[0])
  if first.ndim == 0:
    return np.array(arrays, first.dtype)
  out = np.full([len(arrays), *first.shape[:-1], length], fill, first.dtype)
  for target, array in zip(out, arrays, strict=True):
    target[..., : np.shape(array)[-1]] = array
  return out
