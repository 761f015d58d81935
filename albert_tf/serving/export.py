"""A model in memory becomes a SavedModel; `<folder>/<number>/` is TensorFlow Serving's layout."""

import importlib
import os
import tempfile
from typing import Any

import tensorflow as tf

from albert_tf import files
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.serving.golden import write_golden, write_warmup
from albert_tf.serving.settings import ExportSettings
from albert_tf.serving.signatures.base import Parts, ServingModule
from albert_tf.tokenization import Tokenizer


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
    directory: that of the SavedModel; for servers its last part is a number.
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
  settings = settings or ExportSettings()
  with tempfile.TemporaryDirectory() as assets:
    tokenizer.save_pretrained(assets)
    files.write_text(os.path.join(assets, "albert_config.json"), model.config.to_json_string())
    if task:
      task.save(assets)
    paths = [os.path.join(assets, asset) for asset in files.listdir(assets)]
    parts = Parts(model=model, tokenizer=tokenizer, task=task, settings=settings, asset_files=paths)
    module = _module_class(kind)(parts)
    files.makedirs(os.path.dirname(directory) or ".")
    _save(module, directory)
  return directory


def _module_class(kind: str) -> type[ServingModule]:
  """`QuestionAnsweringModule` of `signatures/question_answering.py` for "question_answering"."""
  module = importlib.import_module(f"albert_tf.serving.signatures.{kind}")
  return getattr(module, "".join(word.title() for word in kind.split("_")) + "Module")


def _save(module: ServingModule, target: str) -> None:
  functions = module.signatures()
  signatures = {name: function.get_concrete_function() for name, function in functions.items()}
  # Servers take directories whose name is a number, and of those the ones with this file.
  with files.atomic_directory(target, last="saved_model.pb") as directory:
    tf.saved_model.save(module, directory, signatures=signatures)
    write_golden(directory, functions)
    write_warmup(directory, functions)
