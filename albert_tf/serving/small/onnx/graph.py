"""A small builder of ONNX graphs: operations by name, each weight once, under its checkpoint name."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from albert_tf import __version__

OPSET = 20  # The first with Gelu; ONNX Runtime 1.17 and later run it.
IR_VERSION = 9  # Of the same release of ONNX.


class OnnxGraph:
  """Collects nodes and weights; every method that makes a tensor returns its name.

  Args:
    weights: checkpoint name → array; only those that are used get into the file.
    half: keep the weights, and compute, in float16 where the caller does not ask for float32.

  Example:
    >>> graph = OnnxGraph({"w": np.eye(3, dtype=np.float32)}, half=False)
    >>> product = graph.op("MatMul", "x", graph.weight("w"))
  """

  def __init__(self, weights: Mapping[str, np.ndarray], *, half: bool):
    self.dtype = np.dtype(np.float16 if half else np.float32)
    self._weights = weights
    self._initializers: dict[str, Any] = {}
    self._constants: dict[tuple[Any, ...], str] = {}
    self._nodes: list[Any] = []

  def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
    """Adds an operation with one output."""
    return self.ops(kind, 1, *inputs, **attributes)[0]

  def ops(self, kind: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
    """Adds an operation with `count` outputs."""
    stem = f"{kind}_{len(self._nodes)}"
    outputs = [stem if count == 1 else f"{stem}_{number}" for number in range(count)]
    self._nodes.append(onnx.helper.make_node(kind, list(inputs), outputs, name=stem, **attributes))
    return outputs

  def weight(self, name: str) -> str:
    """The weight called `name`; stored when first asked for."""
    if name not in self._initializers:
      array = np.ascontiguousarray(self._weights[name]).astype(self.dtype)
      self._initializers[name] = onnx.numpy_helper.from_array(array, name)
    return name

  def has_weight(self, name: str) -> bool:
    return name in self._weights

  def integers(self, *values: int) -> str:
    """A vector of int64."""
    return self._constant(np.array(values, np.int64))

  def number(self, value: float, *, like: Any = None) -> str:
    """A scalar of the graph's type, or of the type `like`."""
    return self._constant(np.array(value, self.dtype if like is None else like))

  def _constant(self, array: np.ndarray) -> str:
    key = (array.dtype.str, array.shape, array.tobytes())
    if key not in self._constants:
      name = self._constants[key] = f"constant_{len(self._constants)}"
      self._initializers[name] = onnx.numpy_helper.from_array(array, name)
    return self._constants[key]

  def cast(self, x: str, dtype: Any) -> str:
    return self.op("Cast", x, to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

  def float32(self, x: str) -> str:
    """`x`, which has the graph's type, in float32."""
    return x if self.dtype == np.float32 else self.cast(x, np.float32)

  def narrow(self, x: str) -> str:
    """`x`, which is float32, in the graph's type."""
    return x if self.dtype == np.float32 else self.cast(x, self.dtype)

  def model(
    self,
    *,
    name: str,
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Mapping[str, tuple[str, Any, Sequence[int | str]]],
  ) -> bytes:
    """The finished file.

    Args:
      name: of the graph.
      inputs: name → shape, with names for free sizes; all are int32.
      outputs: name → (tensor, dtype, shape).

    Raises:
      onnx.checker.ValidationError: the graph is not a valid one.
    """

    def info(name: str, dtype: Any, shape: Sequence[int | str]) -> Any:
      kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
      return onnx.helper.make_tensor_value_info(name, kind, list(shape))

    renamed = [
      onnx.helper.make_node("Identity", [tensor], [name]) for name, (tensor, _, _) in outputs.items()
    ]
    graph = onnx.helper.make_graph(
      [*self._nodes, *renamed],
      name,
      [info(name, np.int32, shape) for name, shape in inputs.items()],
      [info(name, dtype, shape) for name, (_, dtype, shape) in outputs.items()],
      initializer=list(self._initializers.values()),
    )
    model = onnx.helper.make_model(
      graph,
      ir_version=IR_VERSION,
      opset_imports=[onnx.helper.make_opsetid("", OPSET)],
      producer_name="albert_tf",
      producer_version=__version__,
    )
    content = bytes(model.SerializeToString())
    onnx.checker.check_model(content, full_check=True)
    return content
