"""Signatures, ops and tensors of a SavedModel, read from its file without loading it."""

from collections.abc import Mapping
import dataclasses
import os
from typing import Any

import numpy as np
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import saved_model_pb2

from albert_tf import files
from albert_tf.errors import UserError

CLASSIFY = "tensorflow/serving/classify"
REGRESS = "tensorflow/serving/regress"
PREDICT = "tensorflow/serving/predict"
_HIDDEN = "__saved_model_init_op"


@dataclasses.dataclass(frozen=True)
class TensorSpec:
  """An input or output.

  Args:
    tensor: its name in the graph.
    dtype: TensorFlow's number.
    shape: -1 where free; None where the rank is unknown.
  """

  tensor: str
  dtype: int
  shape: tuple[int, ...] | None

  @property
  def is_string(self) -> bool:
    return self.dtype == types_pb2.DT_STRING


@dataclasses.dataclass(frozen=True)
class Signature:
  """What clients can call.

  Args:
    name: the signature's name.
    method: one of `PREDICT`, `CLASSIFY`, `REGRESS`.
    inputs: by name.
    outputs: by name.
  """

  name: str
  method: str
  inputs: Mapping[str, TensorSpec]
  outputs: Mapping[str, TensorSpec]

  def tensors(self) -> dict[str, str]:
    """The graph's tensor for each `in:NAME` and `out:NAME`."""
    return {
      **{f"in:{name}": spec.tensor for name, spec in self.inputs.items()},
      **{f"out:{name}": spec.tensor for name, spec in self.outputs.items()},
    }

  def free_batch(self) -> bool:
    """Whether the first dimension of every input is free."""
    return all(spec.shape is not None and spec.shape[:1] == (-1,) for spec in self.inputs.values())


def read_meta_graph(directory: str) -> Any:
  """The graph with the tag `serve`.

  Raises:
    UserError: there is no SavedModel, or none for serving.
  """
  path = os.path.join(directory, "saved_model.pb")
  try:
    with files.open_binary(path) as stream:
      proto = saved_model_pb2.SavedModel.FromString(stream.read())
  except (OSError, ValueError, saved_model_pb2_error()) as error:
    raise UserError(
      f"A SavedModel is needed. Received: {directory}, whose saved_model.pb cannot be read ({error}). "
      "Make one with tpu_scripts/export_saved_model.py."
    ) from error
  for meta_graph in proto.meta_graphs:
    if "serve" in meta_graph.meta_info_def.tags:
      return meta_graph
  raise UserError(f"A SavedModel with the tag `serve` is needed. Received: {path}, which has none.")


def saved_model_pb2_error() -> type[Exception]:
  """What parsing a file that is no protocol buffer raises."""
  from google.protobuf import message

  return message.DecodeError


def read_signatures(directory: str) -> dict[str, Signature]:
  """The signatures by name, sorted."""
  definitions = read_meta_graph(directory).signature_def
  return {
    name: Signature(name, definition.method_name, _specs(definition.inputs), _specs(definition.outputs))
    for name, definition in sorted(definitions.items())
    if name != _HIDDEN
  }


def _specs(infos: Mapping[str, object]) -> dict[str, TensorSpec]:
  specs = {}
  for name in sorted(infos):
    info = infos[name]
    shape = info.tensor_shape  # type: ignore[attr-defined]
    dims = None if shape.unknown_rank else tuple(int(dim.size) for dim in shape.dim)
    specs[name] = TensorSpec(info.name, info.dtype, dims)  # type: ignore[attr-defined]
  return specs


def read_ops(directory: str) -> set[str]:
  """Every op of the graph and of its functions."""
  graph = read_meta_graph(directory).graph_def
  functions = {function.signature.name for function in graph.library.function}
  ops = {node.op for node in graph.node}
  ops |= {node.op for function in graph.library.function for node in function.node_def}
  return ops - functions


def numpy_dtype(dtype: int) -> np.dtype:
  """NumPy's type for TensorFlow's number."""
  numbers = {
    types_pb2.DT_FLOAT: np.float32,
    types_pb2.DT_INT32: np.int32,
    types_pb2.DT_INT64: np.int64,
    types_pb2.DT_BOOL: np.bool_,
    types_pb2.DT_STRING: object,
  }
  return np.dtype(numbers[dtype])
