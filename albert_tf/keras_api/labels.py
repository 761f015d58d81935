"""Labels and weights of examples, checked before training: on an accelerator a wrong one would only give NaN."""

from collections.abc import Mapping, Sequence
import contextlib
import math
from typing import Any

import numpy as np

from albert_tf.errors import UserError
from albert_tf.settings import LARGEST_FLOAT


def as_array(values: Any, what: str) -> np.ndarray:
  """Labels or weights, such as lists, tensors and columns of pandas, as an array.

  Raises:
    UserError: they are a single value, or rows of different lengths.
  """
  with contextlib.suppress(TypeError, ValueError):
    array = np.asarray(values)
    if array.ndim:
      return array
  raise UserError(
    f"{what} must be a list or an array, with a value for each example, or a row of one length for each. "
    f"Received: {values!r:.60}. Give it this form."
  )


def finite(values: Any, what: str) -> Any:
  """Numbers as an array, or as arrays by name; raises `UserError` if one is not finite in float32, or is no number."""
  if isinstance(values, Mapping):
    return {name: finite(column, f"{what} {name}") for name, column in values.items()}
  array = as_array(values, what)
  as_float = _as_numbers(array, {})
  wrong = ~(np.abs(as_float) <= LARGEST_FLOAT)  # NaN too.
  if wrong.any():
    raise UserError(
      f"{what} must be finite numbers, at most {LARGEST_FLOAT:.1e}. Received: {_first(array, wrong)}. "
      "Correct it, or leave its example out."
    )
  if array.dtype.kind in "iuf":
    return array
  return as_float


def class_ids(
  labels: Any,
  count: int,
  *,
  names: Sequence[str] = (),
  ignored: int | None = None,
  what: str = "Labels",
) -> np.ndarray:
  """Numbers or names of classes as int32, of the labels' shape.

  Args:
    labels: any shape.
    count: number of classes.
    names: of the classes, by number.
    ignored: a further number that is allowed, such as -1 at padding.
    what: name of the labels in messages.

  Raises:
    UserError: a label is neither a number below `count` nor a name.
  """
  array = as_array(labels, what)
  ids = _as_numbers(array, {name: number for number, name in enumerate(names)})
  wrong = ~np.isin(ids, range(count))
  if ignored is not None:
    wrong &= ids != ignored
  if wrong.any():
    or_names = ""
    remedy = "Correct it"
    if names:
      or_names = f", or label_names: {', '.join(names[:9])}"
      remedy = "Number the classes from 0, or give from_pretrained other label_names"
    raise UserError(
      f"{what} must be whole numbers from 0 to {count - 1}{or_names}. Received: {_first(array, wrong)}. {remedy}."
    )
  return ids.astype(np.int32)


def class_weights(weights: Any, names: Sequence[str]) -> dict[int, float]:
  """`class_weight` by number of the class; raises `UserError` for other classes or weights."""
  if not isinstance(weights, Mapping):
    raise UserError(
      f"class_weight must be a mapping from class to weight. Received: {weights!r:.60}. "
      f"Write {{{names[0]!r}: 2.0}}."
    )
  keys = np.array(list(weights), dtype=object)  # Else all become strings where one is.
  numbers_of_keys = class_ids(keys, len(names), names=names, what="Keys of class_weight")
  values = finite(list(weights.values()), "class_weight")
  return dict(zip(numbers_of_keys.tolist(), values.tolist(), strict=True))


def multi_hot(labels: Any, names: Sequence[str]) -> np.ndarray:
  """Converts a 0/1 matrix, or a list of names for each row, to float32 `[n, C]` of 0 and 1.

  Raises:
    UserError: the labels are something else.
  """
  known = set(names)
  with contextlib.suppress(TypeError):  # Rows that are no lists.
    if all(not isinstance(row, str) and known.issuperset(row) for row in labels):
      return np.array([[name in row for name in names] for row in labels], np.float32)
  with contextlib.suppress(ValueError):  # Rows of different lengths, or none.
    matrix = _as_numbers(as_array(labels, "Labels"), {})
    matrix = matrix.reshape(len(matrix), -1)  # A single label may be [n].
    if matrix.shape[1] == len(names) and np.isin(matrix, (0, 1)).all():
      return matrix.astype(np.float32)
  raise UserError(
    f"Labels are 0/1, [n, {len(names)}], or in each row a list of names of {', '.join(names[:9])}. "
    f"Received: {labels!r:.200}. Give label_names to from_pretrained."
  )


def _as_numbers(array: np.ndarray, ids: Mapping[str, int]) -> np.ndarray:
  """Numbers in float64, of names their ids; NaN for anything else."""
  if array.dtype.kind in "biuf":
    return array.astype(np.float64)
  if array.dtype.kind not in "OU":  # Bytes, dates, complex numbers.
    return np.full(array.shape, math.nan)

  def number(value: Any) -> float:
    if isinstance(value, str):
      return ids.get(value, math.nan)
    if isinstance(value, (int, float, np.number)) and -LARGEST_FLOAT <= value <= LARGEST_FLOAT:
      return float(value)
    return math.nan

  flat = [number(value) for value in array.ravel()]
  return np.array(flat, np.float64).reshape(array.shape)


def _first(array: np.ndarray, wrong: np.ndarray) -> str:
  """The first wrong value, for messages."""
  place = np.argwhere(wrong)[0]
  value = array[tuple(place)]
  return f"{value!s:.60} in row {place[0]}"
