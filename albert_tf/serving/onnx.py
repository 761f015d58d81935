"""ONNX files: ids in, every weight stored once under its checkpoint name."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from albert_tf.errors import UserError
from albert_tf.serving.from_ids import Arrays, IdsModel

_LOG_ERRORS_ONLY = 3


def require(package: str) -> Any:
  """The package; a `UserError` that names the extra where it is not installed."""
  import importlib

  try:
    return importlib.import_module(package)
  except ImportError as error:
    raise UserError(
      f"ONNX files need the packages onnx and onnxruntime. Received: {package} is not installed ({error}). "
      'Run pip install "albert-tf[onnx]".'
    ) from error


def to_onnx(
  model: IdsModel,
  *,
  half: bool = False,
  batch_size: int | None = None,
  length: int | None = None,
  predictions: int | None = None,
) -> bytes:
  """Converts a model to an ONNX file.

  The graph is built from the model's weights operation by operation. A translation of the TensorFlow graph
  (tf2onnx) keeps a second, transposed copy of the word embeddings for the masked-LM head and takes LayerNorm
  and GELU apart.

  Args:
    model: what to convert.
    half: weights and products in float16; softmax, statistics of LayerNorm and outputs stay float32.
    batch_size, length, predictions: B, S, P; None leaves a size free.

  Returns:
    The file's content, checked by ONNX's own checker; inputs and outputs are those of `IdsModel`.

  Raises:
    UserError: the package onnx is not installed.
  """
  require("onnx")
  from albert_tf.serving.onnx_graph import OnnxGraph
  from albert_tf.serving.onnx_heads import B, P, S
  from albert_tf.serving.onnx_model import OnnxEncoder

  graph = OnnxGraph({name: variable.numpy() for name, variable in model.variables.items()}, half=half)
  outputs = _outputs(model, graph, OnnxEncoder(graph, model.config))
  sizes = {B: batch_size, S: length, P: predictions}

  def fixed(shape: list[int | str]) -> list[int | str]:
    return [sizes.get(size) or size if isinstance(size, str) else size for size in shape]

  specs = model.input_specs(batch_size=None, length=None, predictions=None)
  return graph.model(
    name=f"albert_{model.kind}",
    inputs={spec.name: fixed([B, P if spec.name == "positions" else S]) for spec in specs},
    outputs={name: (tensor, dtype, fixed(shape)) for name, (tensor, dtype, shape) in outputs.items()},
  )


def _outputs(model: IdsModel, graph: Any, encoder: Any) -> Any:
  from albert_tf.serving import onnx_heads

  if model.kind == "encoder":
    return onnx_heads.encoder_outputs(graph, encoder, model.config)
  if model.kind == "fill_mask":
    return onnx_heads.fill_mask_outputs(graph, encoder, model.config)
  assert model.task is not None
  if model.kind == "classifier":
    regression = model.task.kind == "regression"
    return onnx_heads.classifier_outputs(
      graph, encoder, num_labels=model.task.num_labels, regression=regression
    )
  if model.has_p_mask:
    tops = {name: getattr(model.model.head, name) for name in ("start_n_top", "end_n_top")}
    return onnx_heads.squad2_outputs(graph, encoder, model.config, **tops)
  return onnx_heads.span_outputs(graph, encoder)


class OnnxModel:
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
