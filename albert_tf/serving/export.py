"""Writes a model as a SavedModel; `<folder>/<number>/` is TensorFlow Serving's layout.

Beside the functions it has files in `assets.extra/`: golden outputs for `check.py`, and warm-up
requests for servers.
"""

from collections.abc import Mapping, Sequence
import importlib.util
import os
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf import files, json_files
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import TaskSpec
from albert_tf.records import frame_record
from albert_tf.serving import precision
from albert_tf.serving.check import GOLDEN, PRECISION
from albert_tf.serving.loaded_model import Arrays
from albert_tf.serving.settings import ExportSettings
from albert_tf.serving.signatures import (
  base,
  classifier,
  encoder,
  fill_mask,
  multiple_choice,
  question_answering,
  token_classification,
)

# Kind of SavedModel → what makes its signatures.
_MODULES = {
  "encoder": encoder.EncoderModule,
  "fill_mask": fill_mask.FillMaskModule,
  "classifier": classifier.ClassifierModule,
  "question_answering": question_answering.QuestionAnsweringModule,
  "multiple_choice": multiple_choice.MultipleChoiceModule,
  "token_classification": token_classification.TokenClassificationModule,
  "sentence_encoder": classifier.ClassifierModule,
}
WARMUP = os.path.join("assets.extra", "tf_serving_warmup_requests")
BATCH_SIZES = (1, 8, 32)  # Of the warm-up requests.

# Inputs of the recorded calls of strings, three rows each; one without a name here gets _TEXTS.
_TEXTS = (
  "The capital of France is [MASK].",
  "A [MASK] of birds flew over the old [MASK] trees.",
  "Paris",
)
_CHOICES = ("Paris", "the old trees", "the sea", "the grass")
_ROTATED_CHOICES = [_CHOICES[row:] + _CHOICES[:row] for row in range(3)]
_SAMPLES = {
  "text_pair": _TEXTS[::-1],
  "context": [" ".join(_TEXTS[row:]) for row in range(3)],
  "choices": _ROTATED_CHOICES,
  "words": _ROTATED_CHOICES,
  "threshold": (1.0, 0.0, 0.7),
}


def export_model(
  model: Any,
  directory: str,
  settings: ExportSettings,
  calibration: precision.Calibration | None = None,
) -> precision.Agreement | None:
  """Exports a model with its tokenizer and configuration.

  The SavedModel holds the weights, the vocabulary, tokenizer.json, albert_config.json and, for a
  fine-tuned model, task.json. It is written under a name that servers ignore, and renamed when it
  is complete.

  Args:
    model: a built `TextModel` with a preprocessor; its `export_kind` decides the signatures.
    directory: where to write; servers need a number as its last part.
    settings: see `ExportSettings`.
    calibration: inputs of the model; bfloat16 and int8 need them.

  Returns:
    How near the answers are to those in float32; None for float32.

  Raises:
    UserError: the directory exists, the model has no preprocessor or a weight that is not finite,
      the settings do not fit the model, or the answers in `settings.precision` do not agree with
      those in float32.
  """
  # What is refused, before anything is computed.
  directory = directory.rstrip("/")
  files.check_new(directory)  # A version is exported once and never changed.
  model.check_finite_weights()
  model = precision.in_float32(model)
  config = model.config.at_depth(settings.deepest)
  measured = precision.measure(model, settings, calibration)

  with precision.computed_in(
    model, settings.precision, measured.ranges, settings.deepest
  ) as variables:
    # What a client gets, before anything is written.
    module = make_module(model, settings, model.task)
    module.model_variables = variables
    functions = all_signatures(module, settings)
    golden = recorded_calls(functions, config, eagerly=settings.precision == "float32")

    # The files. Servers load a numbered directory as soon as it has the last one.
    with (
      tempfile.TemporaryDirectory() as assets,
      files.atomic_directory(directory, last="saved_model.pb") as folder,
    ):
      # A client or a later command reads these beside the model.
      model.preprocessor.tokenizer.save_pretrained(assets)
      files.write_text(os.path.join(assets, "albert_config.json"), config.to_json_string())
      if model.task is not None:
        model.task.save(assets)
      module.assets = [
        tf.saved_model.Asset(os.path.join(assets, name)) for name in files.listdir(assets)
      ]
      tf.saved_model.save(module, folder, signatures=functions)
      write_golden(folder, golden)
      json_files.write(os.path.join(folder, PRECISION), measured.report(settings.precision))
      # Without requests to warm up, the first of each size is slower.
      if importlib.util.find_spec("tensorflow_serving"):
        _write_warmup(folder, functions, config)
  return measured.agreement


def make_module(model: Any, settings: ExportSettings, task: TaskSpec | None) -> base.ServingModule:
  """The module that makes the signatures of a model's kind; see `base.ServedModel`."""
  return _MODULES[model.export_kind](base.ServedModel(model, settings, task))


def all_signatures(module: base.ServingModule, settings: ExportSettings) -> base.Signatures:
  """The functions of a SavedModel by the names that clients use: those of its kind, and of each depth."""
  functions = module.signatures(settings.deepest)
  for depth in settings.depths:
    at_depth = functions if depth == settings.deepest else module.signatures(depth)
    functions[f"depth_{depth}"] = at_depth["serving_default"]
  return functions


def recorded_calls(
  signatures: base.Signatures, config: AlbertConfig, *, eagerly: bool = True
) -> dict[str, tf.Tensor]:
  """Inputs and outputs of each function, for three rows and for none, by the keys of `check.GOLDEN`.

  Calls run eagerly, so that the Keras model in this process answers, not the saved graph. Products of 8
  bits are in graphs alone.
  """
  tensors: dict[str, tf.Tensor] = {}
  for name, function in signatures.items():
    rows = sample_inputs(function, config)
    for call, num_rows in enumerate((3, 0)):
      inputs = {key: tensor[:num_rows] for key, tensor in rows.items()}
      answer = function.python_function if eagerly else function
      sides = {"inputs": inputs, "outputs": answer(**inputs)}
      for side, batch in sides.items():
        for key, tensor in batch.items():
          tensors[f"{call}/{name}/{side}/{key}"] = tensor
  return tensors


def write_golden(directory: str, tensors: Mapping[str, tf.Tensor]) -> None:
  """Writes recorded calls beside a SavedModel, where `check.py` reads them."""
  tf.raw_ops.SaveV2(
    prefix=os.path.join(directory, GOLDEN),
    tensor_names=list(tensors),
    shape_and_slices=[""] * len(tensors),
    tensors=list(tensors.values()),
  )


def _write_warmup(directory: str, signatures: base.Signatures, config: AlbertConfig) -> None:
  """Writes requests of each signature and batch size, which a server answers before all others."""
  from tensorflow_serving.apis import prediction_log_pb2

  path = os.path.join(directory, WARMUP)
  with files.atomic_writer(path) as stream:
    for name, function in sorted(signatures.items()):
      inputs = sample_inputs(function, config)
      for size in BATCH_SIZES:
        log = prediction_log_pb2.PredictionLog()
        request = log.predict_log.request
        request.model_spec.signature_name = name
        for key, tensor in inputs.items():
          rows = tf.gather(tensor, np.arange(size) % 3)
          request.inputs[key].CopyFrom(tf.make_tensor_proto(rows))
        stream.write(frame_record(log.SerializeToString(deterministic=True)))


def sample_inputs(function: Any, config: AlbertConfig) -> dict[str, tf.Tensor]:
  """A batch of three different rows, chosen by the names and types of the inputs."""
  specs = function.input_signature
  arrays: Any
  if specs[0].dtype == tf.string:
    arrays = {spec.name: _SAMPLES.get(spec.name, _TEXTS) for spec in specs}
  else:
    arrays = sample_ids(specs, config, rows=3)
  return {name: tf.constant(array) for name, array in arrays.items()}


def sample_ids(
  specs: Sequence[tf.TensorSpec], config: AlbertConfig, *, rows: int, seed: int = 0
) -> Arrays:
  """Random int32 inputs of many lengths, by names and shapes.

  Each row has two segments, and the first rows are full.
  """
  rng = np.random.default_rng(seed)
  # Sizes that a signature leaves open, of [B, S] or [B, C, S].
  shape = [rows] + specs[0].shape[1:].as_list()
  shape[-1] = shape[-1] or 12
  shape[1] = shape[1] or len(_CHOICES)
  length = shape[-1]
  sizes = rng.integers(1, length + 1, shape[:-1] + [1])
  sizes[0] = length

  position = np.broadcast_to(np.arange(length), shape)
  is_token = position < sizes
  is_second = is_token & (position >= sizes // 2) & (config.type_vocab_size > 1)
  arrays = {
    "input_ids": np.where(is_token, rng.integers(0, config.vocab_size, shape), 0),
    "input_mask": is_token,
    "segment_ids": is_second,
    # 0 at [CLS] and in the second segment, the text.
    "p_mask": ~is_second & (position > 0),
  }
  if specs[-1].name == "positions":
    shape = [rows, specs[-1].shape[1] or 2]
    arrays["positions"] = rng.integers(0, length, shape) % sizes
  return {spec.name: arrays[spec.name].astype(np.int32) for spec in specs}
