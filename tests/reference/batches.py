"""A NumPy twin of batches of examples: rows one by one into padded arrays."""

from collections.abc import Mapping

import numpy as np

PADDING = {"p_mask": 1}


def numpy_batch(rows, labels, weights, indices, *, length, count=None, divides_by_weights=False):
  """`(x, y, weights)` of some rows, padded to `length`.

  Args:
    rows: name → array `[…, s]` or scalar, of each example.
    labels: an array, a list of rows `[s]`, or a mapping of them.
    weights: one for each example or, in rows `[s]`, for each token.
    indices: of the batch's rows.
    count: number of rows of the batch, which the first one's row fills up with weight 0.
    divides_by_weights: whether weights are scaled such that their mean is 1.
  """
  count = count or len(indices)
  taken = [*indices, *[indices[0]] * (count - len(indices))]
  x = {
    name: stack([rows[i][name] for i in taken], length, PADDING.get(name, 0)) for name in rows[0]
  }

  def column(values):
    if isinstance(values, Mapping):
      return {name: column(of_name) for name, of_name in values.items()}
    return stack([values[i] for i in taken], length, 0)

  scaled = column(weights).astype(np.float32)
  scaled[len(indices) :] = 0.0
  total = scaled.size * len(indices) / count
  if divides_by_weights:
    total = scaled.sum()
  if total > 0:
    scaled = scaled * np.float32(scaled.size / total)
  y = column(labels)
  if isinstance(y, dict):
    return x, y, dict.fromkeys(y, scaled)
  return x, y, scaled


def stack(arrays, length, fill):
  """Arrays stacked to `[B, …, S]`, the last axis filled up to `length`; scalars to `[B]`."""
  first = np.asarray(arrays[0])
  if first.ndim == 0:
    return np.array(arrays, first.dtype)
  out = np.full([len(arrays), *first.shape[:-1], length], fill, first.dtype)
  for target, array in zip(out, arrays, strict=True):
    target[..., : np.shape(array)[-1]] = array
  return out
