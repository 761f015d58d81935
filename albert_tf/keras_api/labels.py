"""Labels and weights of examples, checked before training; the Keras models use it.

On an accelerator a wrong label would raise no error: it would only give NaN.
"""

from collections.abc import Mapping, Sequence
import contextlib
import math
import re
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.settings import LARGEST_FLOAT

# The label of what has none.
_NO_LABEL = -1


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


def decoded(labels: Any) -> Any:
  """Labels with text for the bytes that `tf.data.Dataset.as_numpy_iterator` makes of strings."""
  if not isinstance(labels, np.ndarray) or labels.dtype != object:
    return labels

  def text(label: Any) -> Any:
    return label.decode() if isinstance(label, bytes) else label

  return np.vectorize(text, otypes=[object])(labels)


def name_of(value: Any) -> Any:
  """The name of a class as text: 1 and 1.0 are "1". What is no text and no whole number stays."""
  if isinstance(value, str):
    return str(value)  # Of NumPy, too.
  is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
  if is_number and math.isfinite(value) and value == int(value):
    return str(int(value))
  return value


def class_names(names: Any) -> tuple[str, ...]:
  """Names of classes as text; raises `UserError` if they are no sequence of texts and numbers."""
  texts: tuple[Any, ...] = (None,)
  if not isinstance(names, (str, bytes)) and np.iterable(names):
    texts = tuple(map(name_of, names))
  if not all(isinstance(text, str) for text in texts):
    raise UserError(
      f"label_names are a list of texts or of whole numbers. Received: {names!r:.60}. Write "
      'label_names=["no", "yes"], or num_labels=2 for labels without names.'
    )
  return texts


def in_order_of_names(labels: Any, names: Sequence[str]) -> Any:
  """The columns of a data frame or a mapping, `[n, C]` in the order of their names; else `labels`.

  Raises:
    UserError: the columns have other names. A frame's only column may have any.
  """
  if hasattr(labels, "columns"):  # A data frame of pandas.
    labels = {name: labels[name] for name in labels.columns}
    if len(labels) == 1:
      return next(iter(labels.values()))
  if not isinstance(labels, Mapping):
    return labels
  columns = {name_of(name): column for name, column in labels.items()}
  if set(columns) != set(names):
    raise UserError(
      f"Columns of labels have the names of the labels, {', '.join(names[:9])}. Received: "
      f"{', '.join(map(str, columns))}. Rename them, give from_pretrained other label_names, or "
      "give an array in the labels' order."
    )
  # `[C, n]`, which refuses columns of different lengths.
  return as_array([as_array(columns[name], f"Labels {name}") for name in names]).T


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
    names: of the classes, by number. If all are whole numbers, such as 1 to 5 stars, the labels 1
      and "1" are the same.
    ignored: a further number that is allowed, such as -1 at padding.
    subject: name of the labels in messages.

  Raises:
    UserError: a label is neither a number below `count` nor a name.
  """
  array = as_array(labels, subject)
  id_of_number = _ids_of_numbers(names)
  if id_of_number:
    numbers = _as_numbers(array, {name: int(name) for name in names})
    ids = np.vectorize(lambda number: id_of_number.get(number, math.nan), otypes=[float])(numbers)
  else:
    numbers = _as_numbers(array, {name: number for number, name in enumerate(names)})
    ids = numbers

  is_class = np.isin(ids, range(count))
  is_ignored = np.zeros_like(is_class)
  if ignored is not None:
    is_ignored = ~is_class & (numbers == ignored)
  is_wrong = ~(is_class | is_ignored)
  if is_wrong.any():
    allowed = f"whole numbers from 0 to {count - 1}"
    remedy = "Correct it"
    if names:
      label_names = f"label_names: {', '.join(names[:9])}"
      allowed = label_names if id_of_number else f"{allowed}, or {label_names}"
      remedy = "Number the classes from 0, or give from_pretrained other label_names"
    raise UserError(f"{subject} must be {allowed}. Received: {_first(array, is_wrong)}. {remedy}.")
  return np.where(is_ignored, numbers, ids).astype(np.int32)


def asserted_finite(values: Any, subject: str = "Labels") -> Any:
  """As `finite`, for a tensor of a data set: an operation of its graph checks the values."""
  if not isinstance(values, tf.Tensor) or not values.dtype.is_floating:
    return values
  is_right = tf.reduce_all(tf.math.is_finite(values))
  message = f"{subject} must be finite numbers. Received: NaN or infinity. Correct the data set."
  with tf.control_dependencies([tf.debugging.Assert(is_right, [message])]):
    return tf.identity(values)


def asserted_classes(
  labels: Any, count: Any, *, is_read: Any = True, subject: str = "Labels"
) -> Any:
  """As `class_ids`, for a tensor of a data set: an operation of its graph checks the numbers.

  Args:
    labels: numbers, any shape.
    count: number of classes, or a scalar tensor.
    is_read: whether there is a label, of the same shape, if not everywhere.
    subject: name of the labels in messages.
  """
  if not isinstance(labels, tf.Tensor):
    return labels
  numbers = tf.cast(labels, tf.float64)
  is_class = (
    (numbers >= 0) & (numbers < tf.cast(count, tf.float64)) & (numbers == tf.floor(numbers))
  )
  is_wrong = ~is_class & is_read
  message = [f"{subject} must be whole numbers from 0 to", count - 1, ". Received:"]
  message += [tf.boolean_mask(labels, is_wrong)[:1], "Number the classes of the data set from 0."]
  with tf.control_dependencies([tf.debugging.Assert(~tf.reduce_any(is_wrong), message)]):
    return tf.identity(labels)


def tag_ids(
  labels: Any, is_word: np.ndarray, names: Sequence[str], *, ignored: int | None = None
) -> np.ndarray:
  """Numbers or names of the tags of words as int32 `[n, N]`; -1 where there is no word.

  Args:
    labels: a row for each text; what it has beyond the text's words is padding, of any value.
    is_word: bool `[n, N]`.
    names: of the tags, by number.
    ignored: a number for words without a tag, beside -1.

  Raises:
    UserError: a word has no label, or one that is neither a number of a tag nor a name.

  Example: two texts of three words and of one.
      # labels   [["O", "B", "O"], ["B"]]
      # result   [[0, 1, 0], [1, -1, -1]]
  """
  matrix = None
  with contextlib.suppress(TypeError, ValueError):
    matrix = np.asarray(labels)
  # Rows of other lengths, and names: slower, so not for a matrix of numbers.
  if matrix is None or matrix.shape != is_word.shape or matrix.dtype.kind not in "biuf":
    matrix = _rows_of_words(labels, is_word)
  else:
    matrix = matrix.astype(np.float64)
  if ignored is not None:
    matrix[matrix == ignored] = _NO_LABEL
  matrix[~is_word] = _NO_LABEL
  return class_ids(matrix, len(names), names=names, ignored=_NO_LABEL)


def _rows_of_words(labels: Any, is_word: np.ndarray) -> np.ndarray:
  """Rows of any lengths as objects `[n, N]`, cut and padded; see `tag_ids`."""
  if hasattr(labels, "to_list"):  # A ragged tensor, or a column of pandas.
    labels = labels.to_list()
  if not isinstance(labels, (list, tuple)):
    labels = as_array(labels)
  if len(labels) != len(is_word):
    raise UserError(
      f"Each text has a row of labels. Received: {len(is_word)} texts, {len(labels)} rows. Give "
      "each a row."
    )
  width = is_word.shape[1]
  matrix = np.full(is_word.shape, _NO_LABEL, object)
  for number, labels_of_row in enumerate(labels):
    row = np.array(None)
    with contextlib.suppress(TypeError, ValueError):
      row = np.asarray(labels_of_row, object)
    if row.ndim == 2 and row.shape[1] == 1:
      row = row[:, 0]
    if row.ndim != 1:
      raise UserError(
        "Labels of words are a row of classes for each text, [n, N]. Received in row "
        f"{number}: {labels_of_row!r:.60}. Give a class for each word."
      )
    words = np.flatnonzero(is_word[number])
    num_words = int(words.max(initial=-1)) + 1
    if len(row) < num_words or not all(map(_is_padding, row[width:])):
      raise UserError(
        f"Each word has a label. Received in row {number}: {len(row)} labels for at least "
        f"{num_words} words, {labels_of_row!r:.60}. Give as many."
      )
    matrix[number, : len(row)] = row[:width]
  return matrix


def _is_padding(label: Any) -> bool:
  """Whether a label is of no word: -1, "" or None."""
  return label is None or (np.ndim(label) == 0 and label in (_NO_LABEL, ""))


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


def _ids_of_numbers(names: Sequence[str]) -> dict[float, int]:
  """Number → class, if all names are whole numbers other than the classes' own; else empty.

  The names 3 2 1 are {3: 0, 2: 1, 1: 2}. With the names 0 1 2 numbers are classes already.
  """
  # At most 15 digits are exact in float64.
  if not all(re.fullmatch("0|-?[1-9][0-9]{0,14}", name) for name in names):
    return {}
  numbers = [int(name) for name in names]
  if numbers == list(range(len(names))):
    return {}
  return {number: place for place, number in enumerate(numbers)}


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

  # NumPy would warn of a comparison with NaN.
  with np.errstate(invalid="ignore"):
    return np.vectorize(number, otypes=[np.float64])(array)


def _first(array: np.ndarray, is_wrong: np.ndarray) -> str:
  """The first wrong value, for messages."""
  position = tuple(np.argwhere(is_wrong)[0])
  return f"{array[position]!s:.60} in row {position[0]}"
