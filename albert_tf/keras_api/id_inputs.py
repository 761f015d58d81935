"""Ids of a user, or of a user's preprocessor, checked before a model reads them.

On an accelerator an id out of range raises no error: it would only give a wrong answer.
"""

from collections.abc import Collection, Mapping
import contextlib
from typing import Any, NamedTuple, NoReturn

import numpy as np
import tensorflow as tf

from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.modeling.encoder import SYNONYMS, TEXT_INPUTS, check_has_ids

# Inputs of the shape of `input_ids`, and inputs that hold positions in its rows.
_ROWS = (*TEXT_INPUTS, *SYNONYMS, "p_mask")
_POSITIONS = ("read_positions", "masked_lm_positions", "word_positions", "start_positions")


class _Bound(NamedTuple):
  """An input holds whole numbers from 0, below `count`; `meaning` is for messages."""

  count: Any
  meaning: str


def are_known(inputs: Any) -> bool:
  """Whether inputs are values, and no tensors of a graph or of a functional model."""
  return all(
    isinstance(value, np.ndarray) or hasattr(value, "numpy") or not hasattr(value, "shape")
    for value in tf.nest.flatten(inputs)
  )


def checked_ids(inputs: Any, config: AlbertConfig, ranks: Collection[int]) -> dict[str, Any]:
  """Known inputs of a model, lists as arrays; inputs of other names stay as they are.

  Args:
    inputs: arrays, tensors or lists by name, see `Encoder` and the models.
    config: of the model.
    ranks: numbers of axes that `input_ids` may have.

  Raises:
    UserError: a number is out of range, or a shape is wrong.
  """
  check_has_ids(inputs)
  arrays = {name: _as_array(inputs[name], name) for name in _ROWS + _POSITIONS if name in inputs}
  _check_shapes(arrays, config, ranks)
  bounds = _bounds(config, arrays["input_ids"].shape[-1])
  for name, array in arrays.items():
    _check_range(array, name, bounds[name])
  lists = {name: array for name, array in arrays.items() if not hasattr(inputs[name], "shape")}
  return dict(inputs) | lists


def asserted_ids(
  inputs: Mapping[str, Any], config: AlbertConfig, ranks: Collection[int]
) -> dict[str, Any]:
  """As `checked_ids`, for a batch of a data set: operations of its graph check the values."""
  check_has_ids(inputs)
  tensors = {name: inputs[name] for name in _ROWS + _POSITIONS if name in inputs}
  for name, tensor in tensors.items():
    if not isinstance(tensor, tf.Tensor):
      _refuse_form(tensor, name)
  _check_shapes(tensors, config, ranks)
  length = tf.shape(tensors["input_ids"])[-1]
  limit = config.max_position_embeddings
  rule, remedy = _longest(limit)
  checks = [tf.debugging.Assert(length <= limit, [rule, length, remedy])]
  bounds = _bounds(config, length)
  for name, tensor in tensors.items():
    checks.append(_range_assertion(tensor, name, bounds[name]))
  with tf.control_dependencies(checks):
    return dict(inputs) | {name: tf.identity(tensor) for name, tensor in tensors.items()}


def _bounds(config: AlbertConfig, length: Any) -> dict[str, _Bound]:
  """By name of the input; `length` is S."""
  mask = _Bound(2, "1 is a token, 0 padding")
  bounds = {
    "input_ids": _Bound(config.vocab_size, "they are tokens of the model's own vocabulary"),
    "input_mask": mask,
    "segment_ids": _Bound(config.type_vocab_size, "0 is the first text, 1 the second"),
    "p_mask": _Bound(2, "1 is a place where no answer can be"),
  }
  bounds |= {synonym: bounds[name] for synonym, name in SYNONYMS.items()}
  return bounds | dict.fromkeys(_POSITIONS, _Bound(length, "they are places in a row"))


def _longest(limit: int) -> tuple[str, str]:
  """The message about a long row, before and after its length."""
  rule = f"A row has at most max_position_embeddings={limit} tokens. Received:"
  return rule, "tokens. Cut the rows (max_length), or take a model with more positions."


def _as_array(values: Any, name: str) -> np.ndarray:
  with contextlib.suppress(ValueError):  # Rows of different lengths.
    array = np.asarray(values)
    if array.dtype.kind in "biuf":
      return array
  _refuse_form(values, name)


def _refuse_form(values: Any, name: str) -> NoReturn:
  raise UserError(
    f"{name} must be numbers, in rows of one length. Received: {values!r:.60}. Pad with 0, in "
    "input_mask too."
  )


def _check_shapes(inputs: Mapping[str, Any], config: AlbertConfig, ranks: Collection[int]) -> None:
  """Raises `UserError` for what is known of the shapes of arrays or tensors."""
  shapes = {name: tf.TensorShape(values.shape) for name, values in inputs.items()}
  shape = shapes["input_ids"]
  if shape.rank is None:
    return
  if shape.rank not in ranks or shape[-1] == 0:
    raise UserError(
      f"input_ids must have {' or '.join(map(str, ranks))} axes, the last of tokens. Received: the "
      f"shape {shape}. Give batches of rows."
    )
  limit = config.max_position_embeddings
  if shape[-1] is not None and shape[-1] > limit:
    rule, remedy = _longest(limit)
    raise UserError(f"{rule} {shape[-1]} {remedy}")
  for name in shapes.keys() & set(_ROWS):
    if not shape.is_compatible_with(shapes[name]):
      raise UserError(
        f"{name} must have the shape of input_ids, {shape}. Received: {shapes[name]}. Give it a "
        "number for each token."
      )


def _check_range(array: np.ndarray, name: str, bound: _Bound) -> None:
  # The usual case takes no memory.
  is_whole = array.dtype.kind != "f" or np.array_equal(array, np.floor(array))
  if not array.size or (is_whole and array.min() >= 0 and array.max() < bound.count):
    return
  is_right = (array >= 0) & (array < bound.count) & (array == np.floor(array))
  position = tuple(np.argwhere(~is_right)[0])
  raise UserError(
    f"{name} must be whole numbers from 0 to {bound.count - 1}: {bound.meaning}. Received: "
    f"{array[position]} in row {position[0]}. Correct it."
  )


def _range_assertion(tensor: tf.Tensor, name: str, bound: _Bound) -> tf.Operation:
  is_whole = True
  if tensor.dtype.is_floating:
    is_whole = tf.reduce_all(tensor == tf.floor(tensor))
  else:
    tensor = tf.cast(tensor, tf.int64)
  lowest = tf.reduce_min(tensor)
  highest = tf.reduce_max(tensor)
  is_right = is_whole & (lowest >= 0) & (highest < tf.cast(bound.count, tensor.dtype))
  highest_allowed = bound.count - 1
  words = [
    f"{name} must be whole numbers from 0 to",
    highest_allowed,
    f": {bound.meaning}. Received:",
  ]
  return tf.debugging.Assert(is_right, words + [lowest, "to", highest])
