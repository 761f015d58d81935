"""Labels and weights of examples, checked before training; the Keras models use it.

On an accelerator a wrong label would raise no error: it would only give NaN.
"""

from collections.abc import Mapping, Sequence
import contextlib
import math
from typing import Any

import numpy as np

from albert_tf.errors import UserError
from albert_tf.settings import LARGEST_FLOAT


def as_array(values: Any, subject: str = "Labels") -> np.ndarray:
  """Labels or weights, such as lists, tensors and columns of pandas, as an array.

  Raises:
    UserError: they are a single value, or rows of different lengths.
  """
  with contextlib.suppress(TypeError, ValueError):
    array = np.asarray(values)
    if array.ndim:
      return array
  raise UserError(
    f"{subject} must be a list or an array, with a value for each example, or a row of one length "
    f"for each. Received: {values!r:.60}. Give it this form."
  )


def finite(values: Any, subject: str = "Labels") -> Any:
  """Numbers as an array, or as arrays by name.

  Raises:
    UserError: one is not finite in float32, or is no number.
  """
  if isinstance(values, Mapping):
    return {name: finite(column, f"{subject} {name}") for name, column in values.items()}
  array = as_array(values, subject)
  numbers = _as_numbers(array, {})
  is_wrong = ~(np.abs(numbers) <= LARGEST_FLOAT)  # NaN too: each comparison with it is false.
  if is_wrong.any():
    raise UserError(
      f"{subject} must be finite numbers, at most {LARGEST_FLOAT:.1e}. Received: "
      f"{_first(array, is_wrong)}. Correct it, or leave its example out."
    )
  # Labels that are numbers keep their type, which a loss may read.
  if array.dtype.kind in "iuf":
    return array
  return numbers


def class_ids(
  labels: Any,
  count: int,
  *,
  names: Sequence[str] = (),
  ignored: int | None = None,
  subject: str = "Labels",
) -> np.ndarray:
  """Numbers or names of classes as int32, of the labels' shape.

  Args:
    labels: any shape.
    count: number of classes.
    names: of the classes, by number.
    ignored: a further number that is allowed, such as -1 at padding.
    subject: name of the labels in messages.

  Raises:
    UserError: a label is neither a number below `count` nor a name.
  """
  array = as_array(labels, subject)
  ids = _as_numbers(array, {name: number for number, name in enumerate(names)})
  is_wrong = ~np.isin(ids, range(count))
  if ignored is not None:
    is_wrong &= ids != ignored
  if is_wrong.any():
    or_names = ""
    remedy = "Correct it"
    if names:
      or_names = f", or label_names: {', '.join(names[:9])}"
      remedy = "Number the classes from 0, or give from_pretrained other label_names"
    raise UserError(
      f"{subject} must be whole numbers from 0 to {count - 1}{or_names}. "
      f"Received: {_first(array, is_wrong)}. {remedy}."
    )
  return ids.astype(np.int32)


def class_weights(weights: Any, names: Sequence[str]) -> dict[int, float]:
  """`class_weight` by number of the class; raises `UserError` for other classes or weights.

  {"bad": 2, 1: 3} for the classes bad and good is {0: 2.0, 1: 3.0}.
  """
  if not isinstance(weights, Mapping):
    raise UserError(
      f"class_weight must be a mapping from class to weight. Received: {weights!r:.60}. "
      f"Write {{{names[0]!r}: 2.0}}."
    )
  # An array of objects: else all keys would become strings where one is.
  keys = np.array(list(weights), dtype=object)
  numbers = class_ids(keys, len(names), names=names, subject="Keys of class_weight")
  values = finite(list(weights.values()), "class_weight")
  return dict(zip(numbers.tolist(), values.tolist(), strict=True))


def multi_hot(labels: Any, names: Sequence[str]) -> np.ndarray:
  """Converts a 0/1 matrix, or a list of names for each row, to float32 `[n, C]` of 0 and 1.

  [["good"], []] for the classes bad and good is [[0, 1], [0, 0]].

  Raises:
    UserError: the labels are something else.
  """
  # Names come before digits: classes may have the names "0" and "1". Rows that are no lists raise
  # a TypeError.
  known = set(names)
  with contextlib.suppress(TypeError):
    if all(not isinstance(row, str) and known.issuperset(row) for row in labels):
      return np.array([[name in row for name in names] for row in labels], np.float32)

  # Rows of different lengths, or none, raise a ValueError. A single label may be [n].
  with contextlib.suppress(ValueError):
    matrix = _as_numbers(as_array(labels), {})
    matrix = matrix.reshape(len(matrix), -1)
    if matrix.shape[1] == len(names) and np.isin(matrix, (0, 1)).all():
      return matrix.astype(np.float32)
  raise UserError(
    f"Labels are 0/1, [n, {len(names)}], or in each row a list of names of "
    f"{', '.join(names[:9])}. Received: {labels!r:.200}. Give label_names to from_pretrained."
  )


def _as_numbers(array: np.ndarray, ids: Mapping[str, int]) -> np.ndarray:
  """Numbers in float64, of names their ids; NaN for anything else."""
  if array.dtype.kind in "biuf":
    return array.astype(np.float64)
  # Bytes, dates and complex numbers are no labels.
  if array.dtype.kind not in "OU":
    return np.full(array.shape, math.nan)

  def number(value: Any) -> float:
    if isinstance(value, str):
      return ids.get(value, math.nan)
    # Python's integers may be too long for a float.
    if isinstance(value, (int, float, np.number)) and -LARGEST_FLOAT <= value <= LARGEST_FLOAT:
      return float(value)
    return math.nan

  return np.vectorize(number, otypes=[np.float64])(array)


def _first(array: np.ndarray, is_wrong: np.ndarray) -> str:
  """The first wrong value, for messages."""
  position = tuple(np.argwhere(is_wrong)[0])
  return f"{array[position]!s:.60} in row {position[0]}"
