"""Tensors to and from JSON as the REST API writes them: rows or columns, `{"b64": …}` for bytes."""

import base64
import binascii
from collections.abc import Callable, Mapping
import json
import math
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.serving.local_server.errors import ApiError

_SHOWN = 200  # Characters of a value in an error message.
_MAX_RANK = 8
_INTEGERS: dict[Any, np.iinfo] = {tf.int32: np.iinfo(np.int32), tf.int64: np.iinfo(np.int64)}


def parse_json(body: bytes) -> dict[str, Any]:
  """The request's object."""
  try:
    value = json.loads(body.decode("utf-8"))
  except UnicodeDecodeError as error:
    raise ApiError(
      f"JSON Parse error: the body must be UTF-8; byte {error.start} is not. "
      'Send other bytes as {"b64": "<base64>"}.'
    ) from error
  except json.JSONDecodeError as error:
    raise ApiError(f"JSON Parse error: {error.msg} at offset: {error.pos}") from error
  except (RecursionError, ValueError) as error:  # Nesting, or an integer of thousands of digits.
    raise ApiError("JSON Parse error: nested too deep, or a number is too long") from error
  if not isinstance(value, dict):
    raise ApiError(f"JSON Value: {_shown(value)} Is not object")
  return value


def read_inputs(
  request: Mapping[str, Any], infos: Mapping[str, Any], *, max_rows: int
) -> tuple[dict[str, np.ndarray], bool]:
  """The tensors of a predict request.

  Args:
    request: with `instances` (rows) or `inputs` (columns).
    infos: TensorInfo by input name.
    max_rows: more instances are refused before they are read.

  Returns:
    Arrays by name, and whether the answer is wanted in rows.
  """
  if "instances" in request and "inputs" in request:
    raise ApiError("Expecting only one of 'inputs' or 'instances' keys to exist")
  if "instances" in request:
    instances = request["instances"]
    if not isinstance(instances, list) or not instances:
      raise ApiError("Expecting 'instances' to be a list with at least one value")
    if len(instances) > max_rows:
      raise ApiError(f"At most {max_rows} instances a request. Received: {len(instances)}.")
    return _read_rows(instances, infos), True
  if "inputs" in request:
    return _read_columns(request["inputs"], infos), False
  raise ApiError("Missing 'inputs' or 'instances' key")


def _read_rows(instances: list[Any], infos: Mapping[str, Any]) -> dict[str, np.ndarray]:
  named = isinstance(instances[0], dict) and not is_base64(instances[0])
  if not named and len(infos) > 1:
    raise ApiError(
      f"Each instance must be an object with the inputs {', '.join(sorted(infos))}. "
      f"Received: {_shown(instances[0])}."
    )
  columns: dict[str, list[Any]] = {name: [] for name in infos}
  for number, instance in enumerate(instances):
    if named != (isinstance(instance, dict) and not is_base64(instance)):
      raise ApiError(f"Instances must be all objects or all values. Received a mix, at item {number}.")
    row = instance if named else {next(iter(infos)): instance}
    if set(row) != set(infos):
      raise ApiError(
        f"Failed to process element: {number} of 'instances' list. Its keys must be equal to: "
        f"{', '.join(sorted(infos))}. Received: {_shown(sorted(row))}."
      )
    for name, value in row.items():
      columns[name].append(value)
  return {name: to_array(values, infos[name], name=name) for name, values in columns.items()}


def _read_columns(inputs: Any, infos: Mapping[str, Any]) -> dict[str, np.ndarray]:
  if not isinstance(inputs, dict) or is_base64(inputs):
    if len(infos) > 1:
      raise ApiError(
        f"'inputs' must be an object with the inputs {', '.join(sorted(infos))}. Received: {_shown(inputs)}."
      )
    inputs = {next(iter(infos)): inputs}
  missing = sorted(set(infos) - set(inputs))
  if missing:
    raise ApiError(f"Missing named input: {', '.join(missing)} in 'inputs' object.")
  unknown = sorted(set(inputs) - set(infos))
  if unknown:
    raise ApiError(f"No such input: {_shown(unknown)}. The signature has: {', '.join(sorted(infos))}.")
  return {name: to_array(value, infos[name], name=name) for name, value in inputs.items()}


def to_array(value: Any, info: Any, *, name: str) -> np.ndarray:
  """One tensor from nested lists, of the type that `info` (a TensorInfo) wants."""
  dtype = tf.dtypes.as_dtype(info.dtype)
  shape: list[int] = []
  inner = value
  while isinstance(inner, list) and len(shape) < _MAX_RANK:
    shape.append(len(inner))
    if not inner:
      break
    inner = inner[0]
  convert = _converter(dtype)
  values: list[Any] = []
  _flatten(value, shape, 0, convert, values, name)
  flat = np.empty(len(values), dtype.as_numpy_dtype)
  flat[:] = values
  return flat.reshape(shape)


def _flatten(
  value: Any, shape: list[int], level: int, convert: Callable[[Any], Any], values: list[Any], name: str
) -> None:
  if level == len(shape):
    if isinstance(value, list):
      raise ApiError(f'Input "{name}": encountered list at unexpected level: {level}. Rows must be alike.')
    values.append(convert(value))
    return
  if not isinstance(value, list):
    raise ApiError(f'Input "{name}": JSON Value: {_shown(value)} found where a list is expected.')
  if len(value) != shape[level]:
    raise ApiError(
      f'Input "{name}": encountered list at unexpected size: {len(value)} at level: {level} '
      f"expected size: {shape[level]}. Pad rows to one length."
    )
  for item in value:
    _flatten(item, shape, level + 1, convert, values, name)


def _converter(dtype: tf.DType) -> Callable[[Any], Any]:
  def wrong(value: Any) -> ApiError:
    return ApiError(
      f"JSON Value: {_shown(value)} Type: {_json_type(value)} is not of expected type: {dtype.name}"
    )

  def integer(value: Any) -> int:
    bounds = _INTEGERS[dtype]
    if type(value) is not int or not bounds.min <= value <= bounds.max:
      raise wrong(value)
    return value

  def number(value: Any) -> float:
    if type(value) not in (int, float):
      raise wrong(value)
    if math.isfinite(value) and abs(value) > float(np.finfo(dtype.as_numpy_dtype).max):
      raise ApiError(f"Cannot convert JSON value: {_shown(value)} to {dtype.name} without loss of precision.")
    return float(value)

  def boolean(value: Any) -> bool:
    if not isinstance(value, bool):
      raise wrong(value)
    return value

  def string(value: Any) -> bytes:
    if isinstance(value, dict):
      return decode_base64(value)
    if not isinstance(value, str):
      raise wrong(value)
    return encode_utf8(value)

  if dtype in _INTEGERS:
    return integer
  kinds = {tf.float32: number, tf.float64: number, tf.bool: boolean, tf.string: string}
  if dtype not in kinds:
    raise ApiError(f"Conversion of JSON to type {dtype.name} is not offered.", code="UNIMPLEMENTED")
  return kinds[dtype]


def is_base64(value: Any) -> bool:
  return isinstance(value, dict) and set(value) == {"b64"} and isinstance(value["b64"], str)


def decode_base64(value: Any) -> bytes:
  """The bytes of `{"b64": "…"}`; missing padding is forgiven."""
  if not is_base64(value):
    raise ApiError(f"JSON Value: {_shown(value)} not formatted correctly for base64 data")
  text = value["b64"].rstrip("=")
  try:
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
  except (binascii.Error, ValueError) as error:
    raise ApiError("Unable to base64 decode") from error


def encode_utf8(text: str) -> bytes:
  try:
    return text.encode()
  except UnicodeEncodeError as error:
    raise ApiError("JSON Parse error: The surrogate pair in string is invalid.") from error


def write_outputs(outputs: Mapping[str, np.ndarray], *, rows: bool) -> dict[str, Any]:
  """The answer's object: `predictions` in rows, `outputs` in columns."""
  if not rows:
    columns = {name: from_array(array, name=name) for name, array in outputs.items()}
    return {"outputs": columns if len(columns) > 1 else next(iter(columns.values()))}
  sizes = {name: array.shape[0] if array.ndim else None for name, array in outputs.items()}
  if len(set(sizes.values())) != 1 or None in sizes.values():
    raise ApiError(f"Outputs have inconsistent batch sizes: {sizes}. Ask in columns, with 'inputs'.")
  lists = {name: from_array(array, name=name) for name, array in outputs.items()}
  if len(lists) == 1:
    return {"predictions": next(iter(lists.values()))}
  return {"predictions": [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]}


def from_array(array: np.ndarray, *, name: str = "") -> Any:
  """Nested lists; strings as text, or as `{"b64": …}` where the output's name ends in `_bytes`."""
  if array.dtype == object:
    flat = [_string(value, as_base64=name.endswith("_bytes")) for value in array.reshape(-1)]
  elif array.dtype.kind == "f":
    flat = [float(str(value)) for value in array.reshape(-1)]  # 0.2, not 0.20000000298023224.
  else:
    flat = array.reshape(-1).tolist()
  nested = np.empty(array.shape, object)
  nested.reshape(-1)[:] = flat
  return nested.tolist()


def _string(value: bytes, *, as_base64: bool) -> Any:
  return {"b64": base64.b64encode(value).decode()} if as_base64 else value.decode("utf-8", "replace")


def _shown(value: Any) -> str:
  try:
    text = json.dumps(value)
  except (RecursionError, ValueError):
    text = "…"
  return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _json_type(value: Any) -> str:
  names = {type(None): "Null", bool: "Bool", dict: "Object", list: "Array", str: "String"}
  return names.get(type(value), "Number")
