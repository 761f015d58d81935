"""Write a model as a SavedModel; `<folder>/<number>/` is TensorFlow Serving's layout."""

import os
import tempfile
from typing import Any

import tensorflow as tf

from albert_tf import files
from albert_tf.serving.golden import write_golden, write_warmup
from albert_tf.serving.settings import ExportSettings
from albert_tf.serving.signatures.base import Parts, make_module


def export_model(model: Any, directory: str, settings: ExportSettings) -> None:
  """Exports a model with its tokenizer and configuration.

  The SavedModel holds the weights, the vocabulary, tokenizer.json, albert_config.json and, for a fine-tuned model,
  task.json. It is written under a name that servers ignore, and renamed when it is complete.

  Args:
    model: a built `TextModel` with a preprocessor; `signatures/<export_kind>.py` makes its signatures.
    directory: where to write; servers need a number as its last part.
    settings: see `ExportSettings`.

  Raises:
    UserError: the directory exists, or the settings do not fit the model.
  """
  directory = directory.rstrip("/")
  files.check_new(directory)  # A version is exported once and never changed.
  task, depth = getattr(model, "task", None), max(settings.depths, default=None)
  with tempfile.TemporaryDirectory() as assets:
    model.preprocessor.tokenizer.save_pretrained(assets)
    files.write_text(
      os.path.join(assets, "albert_config.json"), model.config.at_depth(depth).to_json_string()
    )
    if task:
      task.save(assets)
    paths = [os.path.join(assets, asset) for asset in files.listdir(assets)]
    parts = Parts(model=model, task=task, settings=settings, asset_files=paths, depth=depth)
    module = make_module(parts)
    functions = module.signatures()
    for each in settings.depths:
      functions[f"depth_{each}"] = module.at_depth(each).signatures()["serving_default"]
    signatures = {name: function.get_concrete_function() for name, function in functions.items()}
    files.makedirs(os.path.dirname(directory) or ".")
    # Servers load a numbered directory as soon as it has this file.
    with files.atomic_directory(directory, last="saved_model.pb") as folder:
      tf.saved_model.save(module, folder, signatures=signatures)
      write_golden(folder, functions, model.config)
      write_warmup(folder, functions, model.config)
