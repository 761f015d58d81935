"""ONNX files: ids in, every weight stored once under its checkpoint name."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from albert_tf.errors import optional_package
from albert_tf.serving.small.ids_model import Arrays, IdsModel, Sizes

_LOG_ERRORS_ONLY = 3
_ALL_FREE = Sizes()


def require(package: str) -> Any:
  """The package onnx, a part of it, or onnxruntime."""
  return optional_package(package, extra="onnx", purpose="ONNX files need")


def to_onnx(model: IdsModel, sizes: Sizes = _ALL_FREE, *, half: bool = False) -> bytes:
  """Converts a model to an ONNX file.

  The graph is built from the model's weights operation by operation. A translation of the TensorFlow graph
  (tf2onnx) keeps a second, transposed copy of the word embeddings for the masked-LM head and takes LayerNorm
  and GELU apart.

  Args:
    model: what to convert.
    sizes: of the inputs; None leaves one free.
    half: weights and products in float16; softmax, statistics of LayerNorm and outputs stay float32.

  Returns:
    The file's content, checked by ONNX's own checker; inputs and outputs are those of `IdsModel`.

  Raises:
    UserError: the package onnx is not installed.
  """
  require("onnx")
  from albert_tf.serving.small.onnx.graph import OnnxGraph
  from albert_tf.serving.small.onnx.heads import B, P, S, model_outputs

  graph = OnnxGraph({name: variable.numpy() for name, variable in model.variables.items()}, half=half)
  named = {B: sizes.batch_size, S: sizes.max_seq_length, P: sizes.max_predictions_per_seq}

  def fixed(shape: list[int | str]) -> list[int | str]:
    return [named.get(size) or size if isinstance(size, str) else size for size in shape]

  names = [spec.name for spec in model.input_specs(sizes)]
  outputs = model_outputs(model, graph)
  return graph.model(
    name=f"albert_{model.kind}",
    inputs={name: fixed([B, P if name == "positions" else S]) for name in names},
    outputs={name: (tensor, dtype, fixed(shape)) for name, (tensor, dtype, shape) in outputs.items()},
  )


class OnnxRunner:
  """Runs an ONNX file with ONNX Runtime on the CPU.

  Args:
    content: of the file.
    num_threads: of one operation; 0: as many as there are cores.

  Raises:
    UserError: the package onnxruntime is not installed.
  """

  def __init__(self, content: bytes, *, num_threads: int = 0):
    runtime = require("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = _LOG_ERRORS_ONLY
    options.intra_op_num_threads = num_threads
    self._session: Any = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    self._names = [output.name for output in self._session.get_outputs()]

  def __call__(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
    """Outputs by name."""
    return dict(zip(self._names, self._session.run(None, dict(inputs)), strict=True))
