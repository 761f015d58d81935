"""A NumPy twin of fine-tuning batches: rows one by one into padded arrays."""

from collections.abc import Mapping

import numpy as np


def numpy_batch(features, indices, *, batch_size, length):
  """`(x, y, weights)` of `batch_size` rows of a `FeatureSet`, padded to `length`.

  Where there are fewer indices, the first one's row fills up with weight 0. Weights are scaled so that their mean is 1.
  """
  taken = [*indices, *[indices[0]] * (batch_size - len(indices))]
  fill = features.pad_values
  rows = [features.rows[i] for i in taken]
  x = {name: stack([row[name] for row in rows], length, fill.get(name, 0)) for name in rows[0]}

  def label(column):
    if isinstance(column, np.ndarray):
      return column[taken]
    return stack([column[i] for i in taken], length, fill.get("labels", 0))

  weights = np.ones(batch_size, np.float32)
  if features.weights is not None:
    weights = stack([features.weights[i] for i in taken], length, 0).astype(np.float32)
  weights[len(indices) :] = 0.0
  if weights.sum() > 0:
    weights = weights * np.float32(weights.size / weights.sum())
  if features.labels is None:
    return x, None, weights
  if isinstance(features.labels, Mapping):
    labels = {name: label(column) for name, column in features.labels.items()}
    return x, labels, dict.fromkeys(labels, weights)
  return x, label(features.labels), weights


def stack(arrays, length, fill):
  """Arrays stacked to `[B, …, S]`, the last axis filled up to `length`; scalars to `[B]`."""
  first = np.asarray(arrays[0])
  if first.ndim == 0:
    return np.array(arrays, first.dtype)
  out = np.full([len(arrays), *first.shape[:-1], length], fill, first.dtype)
  for target, array in zip(out, arrays, strict=True):
    target[..., : np.shape(array)[-1]] = array
  return out
