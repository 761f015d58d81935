"""A run directory becomes one small file for LiteRT or ONNX Runtime, compared with the model it came from."""

from collections.abc import Callable, Mapping
import dataclasses
import os
from typing import NamedTuple

import numpy as np

from albert_tf import files
from albert_tf.checkpoints import read_checkpoint
from albert_tf.errors import UserError
from albert_tf.serving.small.ids_model import Arrays, IdsModel, Parity, Sizes, compare, load_ids_model
from albert_tf.serving.small.lite import LiteRunner, to_tflite
from albert_tf.serving.small.onnx.convert import OnnxRunner, require, to_onnx

_COMPARED_ROWS = 8
_MIN_COSINE = 0.9  # Dynamic-range int8 stays above 0.99; below this a file answers something else.


class _Format(NamedTuple):
  is_onnx: bool
  weights: str
  bytes_a_parameter: int


FORMATS = {
  "tflite": _Format(False, "float32", 4),
  "tflite_float16": _Format(False, "float16", 2),
  "tflite_int8": _Format(False, "int8", 1),
  "onnx": _Format(True, "float32", 4),
  "onnx_float16": _Format(True, "float16", 2),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmallModelReport:
  """What was written.

  Attributes:
    path: the file.
    num_bytes: its size.
    num_parameters: weights that its outputs depend on; a shared one counts once.
    parameter_bytes: their size in the file's precision.
    parity: output → how near it is to the Python model's, on random ids of many lengths.
  """

  path: str
  num_bytes: int
  num_parameters: int
  parameter_bytes: int
  parity: Mapping[str, Parity]

  @property
  def ratio(self) -> float:
    """The file's size over the parameters'; well below 2 where each is stored once."""
    return self.num_bytes / self.parameter_bytes


def export_small_model(
  *,
  model: str,
  init_checkpoint: str,
  format: str,
  output: str,
  sizes: Sizes | None = None,
  use_ema: bool = False,
) -> SmallModelReport:
  """Converts, compares with the Python model, and writes; a file that answers something else is not written.

  Args:
    model: one of `ids_model.KINDS`.
    init_checkpoint: see `interop.read_checkpoint`.
    format: one of `FORMATS`.
    output: the file, which must not exist.
    sizes: of the inputs.
    use_ema: take the averages that a run with `ema_decay` kept instead of the weights.

  Raises:
    UserError: a format or model that does not exist, a file that does, a missing package.
  """
  if format not in FORMATS:
    raise UserError(f"format must be one of {', '.join(FORMATS)}. Received: {format!r}.")
  if files.exists(output):
    raise UserError(
      f"The output file must not exist. Received: {output}, which does. Choose another name, or remove it."
    )
  kind = FORMATS[format]
  if kind.is_onnx:
    require("onnx")
    require("onnxruntime")
  ids_model = load_ids_model(model, read_checkpoint(init_checkpoint), use_ema=use_ema)
  resolved = ids_model.resolve(sizes or Sizes(), is_onnx=kind.is_onnx)
  files.makedirs(os.path.dirname(output) or ".")
  if kind.is_onnx:
    content = to_onnx(ids_model, resolved, half=kind.weights == "float16")
  else:
    content = to_tflite(ids_model, resolved, weights=kind.weights)
  run: Callable[[Arrays], Arrays] = (OnnxRunner if kind.is_onnx else LiteRunner)(content)
  parity = measure_parity(ids_model, run, resolved)
  _check(parity, format)
  _write(content, output)
  return SmallModelReport(
    path=output,
    num_bytes=len(content),
    num_parameters=ids_model.num_parameters,
    parameter_bytes=ids_model.num_parameters * kind.bytes_a_parameter,
    parity=parity,
  )


def _write(content: bytes, output: str) -> None:
  try:
    with files.atomic_writer(output) as stream:
      stream.write(content)
  except OSError as error:
    raise UserError(
      f"The output file must be writable. Received: {output} ({error.strerror or error}). "
      "Free disk space, mend the permissions or choose another place; nothing was written."
    ) from error


def measure_parity(model: IdsModel, run: Callable[[Arrays], Arrays], sizes: Sizes) -> dict[str, Parity]:
  """Compares a loaded file, made with `sizes`, with its model on random ids; the parity of each output."""
  rows = sizes.batch_size or _COMPARED_ROWS
  length = sizes.max_seq_length or min(model.config.max_position_embeddings, 128)
  expected: list[Arrays] = []
  actual: list[Arrays] = []
  for seed in range(-(-_COMPARED_ROWS // rows)):
    inputs = model.sample(rows=rows, length=length, predictions=sizes.max_predictions_per_seq or 2, seed=seed)
    expected.append({name: tensor.numpy() for name, tensor in model(inputs).items()})
    actual.append(run(inputs))
  return compare(_joined(expected), _joined(actual))


def _joined(batches: list[Arrays]) -> Arrays:
  return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def _check(parity: Mapping[str, Parity], format: str) -> None:
  bad = [
    name for name, p in parity.items() if not (np.isfinite(p.max_difference) and p.cosine >= _MIN_COSINE)
  ]
  if bad:
    shown = "; ".join(f"{name}: {parity[name]}" for name in bad)
    raise UserError(
      f"A converted file must give the model's outputs. Received: {format} with {shown}. Nothing was written. "
      "Take a format of higher precision, or check the weights for very large values."
    )
