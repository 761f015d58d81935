"""A run directory becomes one small file for LiteRT or ONNX Runtime, compared with the model it came from."""

from collections.abc import Callable, Mapping
import dataclasses
import os
from typing import Any, NamedTuple

import numpy as np

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.serving.from_ids import Arrays, IdsModel, Parity, compare, load_ids_model
from albert_tf.serving.lite import LiteModel, to_tflite
from albert_tf.serving.onnx import OnnxModel, require, to_onnx
from albert_tf.serving.run_directory import find_pretrained

_COMPARED_ROWS = 8
_MIN_LENGTH = 8
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
  """The sizes of a file's inputs; None stands for a format's default, 0 for a free size.

  Attributes:
    batch_size: B; default 1 for TFLite, free for ONNX.
    max_seq_length: S; default for TFLite that of the task, else of the model; free for ONNX.
    max_predictions_per_seq: P of fill_mask; default 1 for TFLite, free for ONNX.
  """

  batch_size: int | None = None
  max_seq_length: int | None = None
  max_predictions_per_seq: int | None = None

  def resolve(self, model: IdsModel, *, is_onnx: bool) -> dict[str, int | None]:
    """The arguments of `to_tflite` and `to_onnx`, None where a size is free.

    Raises:
      UserError: the length is not one that the model knows, or must be fixed.
    """
    limit = model.config.max_position_embeddings
    longest = min(model.task.max_seq_length, limit) if model.task else limit
    defaults = (0, 0, 0) if is_onnx else (1, longest, 1)
    given = (self.batch_size, self.max_seq_length, self.max_predictions_per_seq)
    batch, length, predictions = (d if g is None else g for g, d in zip(given, defaults, strict=True))
    if not is_onnx and not (length and predictions):
      raise UserError(
        "A TFLite file has a fixed max_seq_length and max_predictions_per_seq. Received: 0. "
        "Give a number; only the batch may be free."
      )
    if length and not _MIN_LENGTH <= length <= limit:
      raise UserError(
        f"max_seq_length must be between {_MIN_LENGTH} and the model's max_position_embeddings={limit}. "
        f"Received: {length}."
      )
    return {"batch_size": batch or None, "length": length or None, "predictions": predictions or None}


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
    model: one of `from_ids.KINDS`.
    init_checkpoint: run directory or checkpoint prefix; see `find_pretrained`.
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
  files.makedirs(os.path.dirname(output) or ".")
  kind = FORMATS[format]
  if kind.is_onnx:
    require("onnx")
    require("onnxruntime")
  ids_model = load_ids_model(model, find_pretrained(init_checkpoint), use_ema=use_ema)
  resolved = (sizes or Sizes()).resolve(ids_model, is_onnx=kind.is_onnx)
  content = _convert(ids_model, kind, resolved)
  run: Callable[[Arrays], Arrays] = (OnnxModel if kind.is_onnx else LiteModel)(content)
  parity = measure_parity(ids_model, run, **resolved)
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


def _convert(model: IdsModel, kind: _Format, sizes: Mapping[str, Any]) -> bytes:
  if kind.is_onnx:
    return to_onnx(model, half=kind.weights == "float16", **sizes)
  return to_tflite(model, weights=kind.weights, **sizes)


def measure_parity(
  model: IdsModel,
  run: Callable[[Arrays], Arrays],
  *,
  batch_size: int | None,
  length: int | None,
  predictions: int | None,
) -> dict[str, Parity]:
  """Compares a loaded file with its model on random ids.

  Args:
    model: the Python model.
    run: `LiteModel` or `OnnxModel` of the file.
    batch_size, length, predictions: as the file was made.

  Returns:
    The parity of each output, by name.
  """
  rows = batch_size or _COMPARED_ROWS
  length = length or min(model.config.max_position_embeddings, 128)
  expected: list[Arrays] = []
  actual: list[Arrays] = []
  for seed in range(-(-_COMPARED_ROWS // rows)):
    inputs = model.sample(rows=rows, length=length, predictions=predictions or 2, seed=seed)
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
