"""Are two sets of outputs the same?"""

from collections.abc import Mapping

import numpy as np

TOLERANCE = 1e-5


def difference(
  outputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], *, tolerance: float = TOLERANCE
) -> str:
  """The first difference in words; empty where there is none.

  Floats may differ by `tolerance`, absolutely below 1 and relatively above; NaN equals nothing.
  """
  if set(outputs) != set(expected):
    return f"outputs {sorted(outputs)} instead of {sorted(expected)}"
  for name, array in outputs.items():
    wanted = np.asarray(expected[name])
    array = np.asarray(array)
    if array.shape != wanted.shape:
      return f"{name} has shape {array.shape} instead of {wanted.shape}"
    if array.dtype.kind != wanted.dtype.kind:
      return f"{name} is {array.dtype} instead of {wanted.dtype}"
    if array.dtype.kind == "f":
      if not np.isfinite(array).all():
        return f"{name} holds values that are not finite"
      worst = largest_gap(array, wanted)
      if worst > tolerance:
        return f"{name} differs by {worst:.2e}"
    elif not np.array_equal(array, wanted):
      place = tuple(int(i) for i in np.argwhere(array != wanted)[0])
      return f"{name}{list(place)} is {array[place]!r} instead of {wanted[place]!r}"
  return ""


def largest_gap(array: np.ndarray, wanted: np.ndarray) -> float:
  """max |a − b| / max(1, |b|); 0 for nothing."""
  if array.size == 0:
    return 0.0
  gap = np.abs(array.astype(np.float64) - wanted) / np.maximum(1.0, np.abs(wanted))
  return float(gap.max())


def largest_float_gap(outputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
  """The largest gap of all outputs that are floats."""
  gaps = [largest_gap(array, expected[name]) for name, array in outputs.items() if array.dtype.kind == "f"]
  return max(gaps, default=0.0)


def leading_part(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
  """The part of `array` that is as large as `shape`, from the start of each axis."""
  return array[tuple(slice(0, size) for size in shape)]
