"""Exports LiteRT (TensorFlow Lite) files that take ids.

The converter stores equal constants once, so twelve layers that share weights take the bytes of
one.
"""

from collections.abc import Callable, Mapping, Sequence
import os
from typing import Any, NamedTuple
import warnings

import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.configs.task import default_length
from albert_tf.errors import UserError
from albert_tf.modeling import named_variables
from albert_tf.progress import native_stderr_kept_back
from albert_tf.serving.export import sample_ids
from albert_tf.serving.loaded_model import Arrays
from albert_tf.serving.settings import LiteSettings
from albert_tf.serving.signatures.base import TOKEN_KEYS

_COMPARED_ROWS = 8
_MIN_COSINE = 0.9  # Dynamic-range int8 stays above 0.99; below 0.9 a file is wrong.


class Parity(NamedTuple):
  """Closeness of a file's output to the model's.

  Attributes:
    max_difference: largest absolute difference.
    cosine: smallest cosine of two vectors.
  """

  max_difference: float
  cosine: float


def export_lite(model: Any, output: str, settings: LiteSettings) -> dict[str, Parity]:
  """Converts a built `TextModel`, compares the file with the model, and writes it.

  They are compared on random ids of many lengths.

  Returns:
    Name of each float output → its `Parity`.

  Raises:
    UserError: the file exists, a weight is not finite, or the converted file answers something
      else.
  """
  files.check_new(output)
  model.check_finite_weights()
  specs = input_specs(model, settings)
  content = to_tflite(model, specs, weights=settings.weights)
  parity = measure_parity(model, load_lite(content), specs)
  for name, parity_of_output in parity.items():
    # Not "<": a NaN is not near either.
    if not parity_of_output.cosine >= _MIN_COSINE:
      raise UserError(
        "A converted file must give the model's outputs. "
        f"Received: {settings.weights} with {name}: {parity_of_output}. "
        "Nothing was written. Take weights of higher precision."
      )
  files.makedirs(os.path.dirname(output) or ".")
  with files.atomic_writer(output) as stream:
    stream.write(content)
  return parity


def input_specs(model: Any, settings: LiteSettings) -> list[tf.TensorSpec]:
  """The inputs of a model's file in order, all int32; a free batch is None.

  `input_ids`, `input_mask`, `segment_ids` [B, S], of multiple choice [B, C, S]; fill_mask also
  `positions` [B, P]; question answering of SQuAD 2 also `p_mask` [B, S].
  """
  length = settings.max_seq_length or default_length(model.config, model.task)
  model.config.check_length(length, "the export")
  batch_size = settings.batch_size or None
  shape = [batch_size, length]
  if model.export_kind == "multiple_choice":
    shape.insert(1, settings.num_choices)
  shapes = dict.fromkeys(TOKEN_KEYS, shape)
  if model.task is not None and model.task.squad_version == "2.0":
    shapes["p_mask"] = shape
  if model.export_kind == "fill_mask":
    # The last input: `sample_ids` looks for it there.
    shapes["positions"] = [batch_size, settings.max_predictions_per_seq]
  return [tf.TensorSpec(shape, tf.int32, name=name) for name, shape in shapes.items()]


def to_tflite(model: Any, specs: Sequence[tf.TensorSpec], *, weights: str = "float32") -> bytes:
  """A LiteRT file with these inputs; its one signature is `serving_default`."""
  function = tf.function(lambda **inputs: run_model(model, inputs), autograph=False)
  concrete = function.get_concrete_function(**{spec.name: spec for spec in specs})
  holder = tf.Module()
  holder.captured = list(named_variables(model).values())  # All, else the file has no signature.
  converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], holder)
  if weights != "float32":
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
  if weights == "float16":
    converter.target_spec.supported_types = [tf.float16]
  if model.export_kind == "fill_mask":
    # With a scale per row the head would need its own copy of the word embeddings; the lookup takes
    # one scale.
    converter._experimental_disable_per_channel_quantization_for_dense_layers = True
  with native_stderr_kept_back():
    return converter.convert()


def run_model(model: Any, inputs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
  """Computes the outputs of a LiteRT file with the Keras model; float32 unless noted.

  encoder: `pooled_output` [B, H], `sequence_output` [B, S, H].
  sentence_encoder: `vector` [B, H].
  fill_mask: `mlm_logits` [B, P, V].
  question_answering: `start_logits`, `end_logits` [B, S]; for SQuAD 2 the outputs of `Squad2Head`,
    int32 indices.
  regression: `value` [B].
  multi_label: `probabilities` [B, C], each of its own sigmoid.
  other kinds: `probabilities` [B, C]; token_classification: [B, S, C].
  """
  inputs = {name: tf.convert_to_tensor(array) for name, array in inputs.items()}
  if "positions" in inputs:
    inputs["masked_lm_positions"] = inputs.pop("positions")
  encoder = getattr(model, "encoder", model)
  # The file's shapes are fixed, so it computes padding too: its vectors are not zeros there.
  encoder.packs = False
  try:
    outputs = model(inputs, training=False)
  finally:
    encoder.packs = None
  if model.export_kind == "encoder":
    names = ("pooled_output", "sequence_output")
    return {name: tf.cast(outputs[name], tf.float32) for name in names}
  if model.export_kind == "sentence_encoder":
    return {"vector": outputs}
  if model.export_kind == "fill_mask":
    return {"mlm_logits": outputs}
  if model.export_kind == "question_answering":
    return dict(outputs)
  if model.task.kind == "regression":
    return {"value": outputs[:, 0]}
  if model.task.kind == "multi_label":
    return {"probabilities": tf.sigmoid(outputs)}
  return {"probabilities": tf.nn.softmax(outputs)}


def load_lite(content: bytes) -> Callable[..., Arrays]:
  """A LiteRT file as a function of arrays by name, by the interpreter that TensorFlow brings."""
  # TensorFlow 2.20 and later announce that the interpreter moves to the package ai-edge-litert.
  with warnings.catch_warnings(action="ignore", category=UserWarning), native_stderr_kept_back():
    interpreter = tf.lite.Interpreter(model_content=content)
    interpreter.allocate_tensors()
    return interpreter.get_signature_runner("serving_default")


def measure_parity(
  model: Any, run: Callable[..., Arrays], specs: Sequence[tf.TensorSpec]
) -> dict[str, Parity]:
  """Compares a loaded file with its model on random ids; returns the parity of each float output."""
  # A file of a fixed batch size is run several times.
  batch_size = specs[0].shape[0] or _COMPARED_ROWS
  num_batches = -(-_COMPARED_ROWS // batch_size)  # Rounded up.
  batches = [
    sample_ids(specs, model.config, rows=batch_size, seed=seed) for seed in range(num_batches)
  ]
  expected = [run_model(model, batch) for batch in batches]
  actual = [run(**batch) for batch in batches]
  parity = {}
  for name, tensor in expected[0].items():
    if tensor.dtype.is_floating:
      parity[name] = _compare(
        np.concatenate([outputs[name] for outputs in expected]),
        np.concatenate([outputs[name] for outputs in actual]),
      )
  return parity


def _compare(expected: np.ndarray, actual: np.ndarray) -> Parity:
  a = expected.reshape(-1, expected.shape[-1]).astype(np.float64)
  b = actual.reshape(a.shape).astype(np.float64)
  # The -1e30 of a masked position would hide all other values.
  is_masked = np.minimum(np.abs(a), np.abs(b)) > 1e20
  a[is_masked] = 0.0
  b[is_masked] = 0.0
  norms = np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-30)
  # Two vectors of zeros are equal, though they have no angle.
  cosine = np.where((a == b).all(axis=1), 1.0, (a * b).sum(axis=1) / norms)
  return Parity(float(np.abs(a - b).max()), float(cosine.min()))
