"""A column as of pandas, which is not installed here."""

from typing import Any

import numpy as np


class Column:
  """What a column of pandas has, of any objects."""

  def __init__(self, values: Any):
    self._array = np.empty(len(values), object)
    for row, value in enumerate(values):
      self._array[row] = value
    self.dtype = self._array.dtype

  def __len__(self) -> int:
    return len(self._array)

  def __getitem__(self, row: Any) -> Any:
    return self._array[row]

  def to_numpy(self) -> np.ndarray:
    return self._array

  def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
    return self._array
