"""A model in memory becomes a SavedModel; `<folder>/<number>/` is TensorFlow Serving's layout."""

from collections.abc import Mapping
import importlib
import os
import tempfile
from typing import Any

import tensorflow as tf
from tensorflow.python.saved_model import fingerprinting_utils

from albert_tf import files
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.serving.golden import write_golden
from albert_tf.serving.layout import write_layout
from albert_tf.serving.settings import ExportSettings
from albert_tf.serving.signatures.base import Parts, ServingModule
from albert_tf.serving.warmup import write_warmup
from albert_tf.tokenization import Tokenizer

CONFIG_NAME = "albert_config.json"


def export_model(
  model: Any,
  directory: str,
  *,
  kind: str,
  tokenizer: Tokenizer,
  task: TaskSpec | None = None,
  settings: ExportSettings | None = None,
) -> str:
  """Exports a model with its tokenizer and configuration.

  The weights, the vocabulary, tokenizer.json, albert_config.json and, of a fine-tuned model, task.json all travel in
  the SavedModel; nothing else is needed to use it. It is written under a name that servers ignore, and renamed when it
  is complete.

  Args:
    model: a built model of this package.
    directory: that of the SavedModel; for servers its last part is a number, and what they want lies beside it.
    kind: one of `configs.task.EXPORT_KINDS`; `signatures/<kind>.py` makes its signatures.
    tokenizer: the one that the weights were trained with.
    task: what the model was fine-tuned for; None for a pretrained model.
    settings: of the export.

  Returns:
    The directory.

  Raises:
    UserError: something is there already, or the settings do not fit the model.
  """
  directory = directory.rstrip("/")
  if files.exists(directory):
    raise UserError(
      f"A version is exported once and never changed. Received: {directory}, which exists. "
      "Choose a higher --version, or remove the directory."
    )
  output_dir, version = os.path.split(directory)
  settings = settings or ExportSettings()
  name = settings.model_name or kind
  with tempfile.TemporaryDirectory() as assets:
    tokenizer.save_pretrained(assets)
    with files.atomic_writer(os.path.join(assets, CONFIG_NAME), "w") as stream:
      stream.write(model.config.to_json_string())
    if task:
      task.save(assets)
    paths = [os.path.join(assets, asset) for asset in files.listdir(assets)]
    parts = Parts(model=model, tokenizer=tokenizer, task=task, settings=settings, asset_files=paths)
    module = _module_class(kind)(parts)
    files.makedirs(output_dir or ".")
    _save(module, directory, model_name=name)
  if version.isdigit():
    write_layout(output_dir, model_name=name, version_dir=directory)
  return directory


def _module_class(kind: str) -> type[ServingModule]:
  """`QuestionAnsweringModule` of `signatures/question_answering.py` for "question_answering"."""
  module = importlib.import_module(f"albert_tf.serving.signatures.{kind}")
  return getattr(module, "".join(word.title() for word in kind.split("_")) + "Module")


def _save(module: ServingModule, target: str, *, model_name: str) -> None:
  functions = module.signatures()
  signatures = {name: function.get_concrete_function() for name, function in functions.items()}
  # Servers take directories whose name is a number, and of those the ones with this file.
  with files.atomic_directory(target, last="saved_model.pb") as directory:
    tf.saved_model.save(module, directory, signatures=signatures)
    _set_methods(directory, module.method_names())
    write_golden(directory, functions)
    write_warmup(directory, model_name=model_name)


def _set_methods(directory: str, names: Mapping[str, str]) -> None:
  """Rewrites saved_model.pb: TensorFlow saves every signature as Predict, which Classify and Regress refuse."""
  if not names:
    return
  updater = tf.compat.v1.saved_model.signature_def_utils.MethodNameUpdater(directory)
  for signature, method in names.items():
    updater.replace_method_name(signature_key=signature, method_name=method)
  updater.save()
  fingerprinting_utils.write_fingerprint(directory)  # It covers the signatures.
