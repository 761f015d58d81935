"""Tensors and tf.Examples to and from JSON as the REST API has them: rows or columns, `{"b64": …}` for bytes."""

import base64
import binascii
from collections.abc import Iterable, Mapping
import json
import math
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.serving.layout import MAX_BATCH_SIZE
from albert_tf.serving.server.servable import ApiError

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


def read_inputs(request: Mapping[str, Any], infos: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], bool]:
  """The tensors of a predict request, and whether the answer is wanted in rows.

  Args:
    request: with `instances` (rows) or `inputs` (columns).
    infos: TensorInfo by input name.
  """
  if "instances" in request and "inputs" in request:
    raise ApiError("Expecting only one of 'inputs' or 'instances' keys to exist")
  if "instances" in request:
    instances = request["instances"]
    if not isinstance(instances, list) or not instances:
      raise ApiError("Expecting 'instances' to be a list with at least one value")
    if len(instances) > MAX_BATCH_SIZE:
      raise ApiError(f"At most {MAX_BATCH_SIZE} instances a request. Received: {len(instances)}.")
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
  values: list[Any] = []
  _flatten(value, shape, 0, dtype, values, name)
  flat = np.empty(len(values), dtype.as_numpy_dtype)
  flat[:] = values
  return flat.reshape(shape)


def _flatten(value: Any, shape: list[int], level: int, dtype: tf.DType, values: list[Any], name: str) -> None:
  if level == len(shape):
    if isinstance(value, list):
      raise ApiError(f'Input "{name}": encountered list at unexpected level: {level}. Rows must be alike.')
    values.append(_convert(value, dtype))
    return
  if not isinstance(value, list):
    raise ApiError(f'Input "{name}": JSON Value: {_shown(value)} found where a list is expected.')
  if len(value) != shape[level]:
    raise ApiError(
      f'Input "{name}": encountered list at unexpected size: {len(value)} at level: {level} '
      f"expected size: {shape[level]}. Pad rows to one length."
    )
  for item in value:
    _flatten(item, shape, level + 1, dtype, values, name)


def _convert(value: Any, dtype: tf.DType) -> Any:
  """A value as `dtype`; JSON's types are not mixed, and none loses precision but in rounding."""
  if dtype == tf.string:
    if isinstance(value, str | dict):
      return _to_bytes(value)
  elif dtype in _INTEGERS:
    if type(value) is int and _INTEGERS[dtype].min <= value <= _INTEGERS[dtype].max:
      return value
  elif dtype in (tf.float32, tf.float64):
    if type(value) in (int, float):
      if math.isfinite(value) and abs(value) > float(np.finfo(dtype.as_numpy_dtype).max):
        raise ApiError(
          f"Cannot convert JSON value: {_shown(value)} to {dtype.name} without loss of precision."
        )
      return float(value)
  elif dtype == tf.bool:
    if isinstance(value, bool):
      return value
  else:
    raise ApiError(f"Conversion of JSON to type {dtype.name} is not offered.", code="UNIMPLEMENTED")
  raise ApiError(
    f"JSON Value: {_shown(value)} Type: {_json_type(value)} is not of expected type: {dtype.name}"
  )


def _to_bytes(value: Any) -> bytes:
  return encode_utf8(value) if isinstance(value, str) else decode_base64(value)


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
    flat = [
      {"b64": base64.b64encode(value).decode()}
      if name.endswith("_bytes")
      else value.decode("utf-8", "replace")
      for value in array.reshape(-1)
    ]
  elif array.dtype.kind == "f":
    flat = [float(str(value)) for value in array.reshape(-1)]  # 0.2, not 0.20000000298023224.
  else:
    flat = array.reshape(-1).tolist()
  nested = np.empty(array.shape, object)
  nested.reshape(-1)[:] = flat
  return nested.tolist()


def examples_from_json(request: Mapping[str, Any]) -> list[bytes]:
  """The examples of a classify or regress request in JSON."""
  rows = request.get("examples")
  if not isinstance(rows, list) or not rows:
    raise ApiError("The key 'examples' must hold a list with at least one example")
  if len(rows) > MAX_BATCH_SIZE:
    raise ApiError(f"At most {MAX_BATCH_SIZE} examples a request. Received: {len(rows)}.")
  context = _example_from_json(request.get("context", {}))
  return merge_context(map(_example_from_json, rows), context)


def merge_context(examples: Iterable[Any], context: Any) -> list[bytes]:
  """Serialized `tf.train.Example`s, each with the features of the example `context` that it has not itself."""
  merged = []
  for example in examples:
    whole = tf.train.Example()
    whole.CopyFrom(context)
    whole.MergeFrom(example)
    merged.append(whole.SerializeToString())
  return merged


def _example_from_json(row: Any) -> Any:
  if not isinstance(row, dict):
    raise ApiError(f"Example must be JSON object but got {type(row).__name__}")
  example = tf.train.Example()
  for name, content in row.items():
    values = content if isinstance(content, list) else [content]
    encode_utf8(name)  # A lone surrogate is refused.
    feature = example.features.feature[name]
    try:
      _fill_feature(feature, values)
    except ApiError as error:
      raise ApiError(f"Feature: {name}: {error.message}") from error
  return example


def _fill_feature(feature: Any, values: list[Any]) -> None:
  if not values:
    return
  if all(isinstance(value, str) or is_base64(value) for value in values):
    feature.bytes_list.value.extend(_to_bytes(value) for value in values)
  elif all(isinstance(value, int) and -(2**63) <= value < 2**63 for value in values):
    feature.int64_list.value.extend(map(int, values))  # Booleans too.
  elif all(isinstance(value, float) for value in values):
    feature.float_list.value.extend(values)
  else:
    raise ApiError("values must be all strings, all integers or all floats")


def _shown(value: Any) -> str:
  try:
    text = json.dumps(value)
  except (RecursionError, ValueError):
    text = "…"
  return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _json_type(value: Any) -> str:
  names = {type(None): "Null", bool: "Bool", dict: "Object", list: "Array", str: "String"}
  return names.get(type(value), "Number")
