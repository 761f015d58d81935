"""Write a model as a SavedModel; `<folder>/<number>/` is TensorFlow Serving's layout."""

from collections.abc import Mapping
import os
import tempfile
from typing import Any

import tensorflow as tf

from albert_tf import files
from albert_tf.serving.golden import write_golden, write_warmup
from albert_tf.serving.settings import ExportSettings
from albert_tf.serving.signatures.base import Parts, ServingModule
from albert_tf.serving.signatures.classifier import ClassifierModule
from albert_tf.serving.signatures.encoder import EncoderModule
from albert_tf.serving.signatures.fill_mask import FillMaskModule
from albert_tf.serving.signatures.multiple_choice import MultipleChoiceModule
from albert_tf.serving.signatures.question_answering import QuestionAnsweringModule
from albert_tf.serving.signatures.sentence_encoder import SentenceEncoderModule
from albert_tf.serving.signatures.token_classification import TokenClassificationModule

# Kind of SavedModel → what makes its signatures.
_MODULES: Mapping[str, type[ServingModule]] = {
  "encoder": EncoderModule,
  "fill_mask": FillMaskModule,
  "classifier": ClassifierModule,
  "question_answering": QuestionAnsweringModule,
  "multiple_choice": MultipleChoiceModule,
  "token_classification": TokenClassificationModule,
  "sentence_encoder": SentenceEncoderModule,
}


def export_model(model: Any, directory: str, settings: ExportSettings) -> None:
  """Exports a model with its tokenizer and configuration.

  The SavedModel holds the weights, the vocabulary, tokenizer.json, albert_config.json and, for a fine-tuned model,
  task.json. It is written under a name that servers ignore, and renamed when it is complete.

  Args:
    model: a built `TextModel` with a preprocessor; its `export_kind` decides the signatures.
    directory: where to write; servers need a number as its last part.
    settings: see `ExportSettings`.

  Raises:
    UserError: the directory exists, or the settings do not fit the model.
  """
  directory = directory.rstrip("/")
  files.check_new(directory)  # A version is exported once and never changed.
  task = getattr(model, "task", None)
  # The whole model is the deepest that is served.
  depth = max(settings.depths, default=None)
  with tempfile.TemporaryDirectory() as assets:
    # Files that a client or a later command reads beside the model.
    model.preprocessor.tokenizer.save_pretrained(assets)
    config = model.config.at_depth(depth)
    files.write_text(os.path.join(assets, "albert_config.json"), config.to_json_string())
    if task is not None:
      task.save(assets)
    asset_files = [os.path.join(assets, name) for name in files.listdir(assets)]

    # The signatures, traced once each.
    module = make_module(
      Parts(model=model, task=task, settings=settings, asset_files=asset_files, depth=depth)
    )
    functions = module.signatures()
    for number_of_layers in settings.depths:
      at_depth = module.at_depth(number_of_layers)
      functions[f"depth_{number_of_layers}"] = at_depth.signatures()["serving_default"]
    signatures = {name: function.get_concrete_function() for name, function in functions.items()}

    files.makedirs(os.path.dirname(directory) or ".")
    # Servers load a numbered directory as soon as it has this file.
    with files.atomic_directory(directory, last="saved_model.pb") as folder:
      tf.saved_model.save(module, folder, signatures=signatures)
      write_golden(folder, functions, model.config)
      write_warmup(folder, functions, model.config)


def make_module(parts: Parts) -> ServingModule:
  """The module that makes the signatures of a model's kind."""
  return _MODULES[parts.model.export_kind](parts)
