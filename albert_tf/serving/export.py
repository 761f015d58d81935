"""A run directory becomes a SavedModel in TensorFlow Serving's layout: `<output_dir>/<version>/`."""

from collections.abc import Mapping
import dataclasses
import os
import tempfile
from typing import Any

import tensorflow as tf
from tensorflow.python.saved_model import fingerprinting_utils

from albert_tf import files
from albert_tf.checkpoints import ANY_HEAD, Checkpoint, load_weights, read_checkpoint
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import EXPORT_KINDS, TaskSpec, task_kinds_of
from albert_tf.errors import UserError
from albert_tf.modeling import AlbertForPreTraining
from albert_tf.models.pretrained import AlbertEncoder, AlbertMaskedLM
from albert_tf.models.tasks import make_model
from albert_tf.models.text_model import TextModel
from albert_tf.serving.golden import write_golden
from albert_tf.serving.layout import write_layout
from albert_tf.serving.signatures.base import ExportSettings, Parts, ServingModule
from albert_tf.serving.signatures.classifier import ClassifierModule
from albert_tf.serving.signatures.encoder import EncoderModule
from albert_tf.serving.signatures.fill_mask import FillMaskModule
from albert_tf.serving.signatures.multiple_choice import MultipleChoiceModule
from albert_tf.serving.signatures.question_answering import QuestionAnsweringModule
from albert_tf.serving.signatures.token_classification import TokenClassificationModule
from albert_tf.serving.warmup import write_warmup
from albert_tf.tokenization import AlbertTokenizer, Tokenizer

MODEL_KINDS = EXPORT_KINDS  # What --model may be.
CONFIG_NAME = "albert_config.json"
_MODULES: dict[str, type[ServingModule]] = {
  "encoder": EncoderModule,
  "fill_mask": FillMaskModule,
  "classifier": ClassifierModule,
  "question_answering": QuestionAnsweringModule,
  "multiple_choice": MultipleChoiceModule,
  "token_classification": TokenClassificationModule,
}
_WITH_WORDPIECE = ("encoder", "fill_mask", "classifier", "token_classification")


def export_saved_model(
  *,
  model: str,
  init_checkpoint: str,
  output_dir: str,
  version: int = 1,
  spm_model_file: str = "",
  **settings: Any,
) -> str:
  """Exports a trained model with its tokenizer and configuration.

  The weights, the vocabulary, tokenizer.json, albert_config.json and, of a
  fine-tuned model, task.json all travel in the SavedModel; nothing else is needed to
  use it. It is written under a name that servers ignore and renamed when whole.

  Args:
    model: one of `MODEL_KINDS`.
    init_checkpoint: see `interop.read_checkpoint`.
    output_dir: the folder that servers watch.
    version: the version's number; servers take the highest.
    spm_model_file: a SentencePiece model, or a WordPiece vocabulary (.txt), instead of the one beside the checkpoint.
    **settings: of `ExportSettings`.

  Returns:
    The path of the version's directory.

  Raises:
    UserError: the checkpoint does not fit, or the version is there already.
  """
  options = ExportSettings(**settings)
  if model not in MODEL_KINDS:
    raise UserError(f"model must be one of {', '.join(MODEL_KINDS)}. Received: {model!r}.")
  target = os.path.join(output_dir, str(version))
  _refuse_existing(target)
  pretrained = read_checkpoint(init_checkpoint)
  tokenizer = pretrained.load_tokenizer(spm_model_file)
  if model not in _WITH_WORDPIECE and not isinstance(tokenizer, AlbertTokenizer):
    raise UserError(
      f"With a WordPiece vocabulary --model is {', '.join(_WITH_WORDPIECE)}; the others need a SentencePiece model, "
      f"as their training does. Received: {model}, with {spm_model_file or pretrained.directory}. Export the model of "
      "ids with export_small_model.py."
    )
  task = load_task(model, pretrained)
  built = restore_model(model, pretrained, task=task, use_ema=options.use_ema)
  return _export(built, target, kind=model, tokenizer=tokenizer, task=task, options=options)


def export_model(model: TextModel, directory: str, **settings: Any) -> str:
  """The same for a model in memory, with its preprocessor's tokenizer: `model.export(directory)`.

  Args:
    model: with a preprocessor.
    directory: that of the SavedModel; for servers its last part is a number, and what they want lies beside it.
    **settings: of `ExportSettings`.

  Raises:
    UserError: something is there already.
  """
  directory = directory.rstrip("/")
  _refuse_existing(directory)
  preprocessor = model.preprocessor
  known = [field.name for field in dataclasses.fields(ExportSettings)]
  unknown = sorted(settings.keys() - set(known))
  if unknown:
    raise UserError(
      f"export takes {', '.join(known)} beside the path. Received: {', '.join(unknown)}. Leave it out; signatures are "
      "those of the kind of model."
    )
  settings = {"max_seq_length": preprocessor.max_length, **settings}
  return _export(
    model,
    directory,
    kind=model.export_kind,
    tokenizer=preprocessor.tokenizer,
    task=getattr(model, "task", None),
    options=ExportSettings(**settings),
  )


def _refuse_existing(target: str) -> None:
  if files.exists(target):
    raise UserError(
      f"A version is exported once and never changed. Received: {target}, which exists. "
      "Choose a higher --version, or remove the directory."
    )


def _export(
  model: Any,
  target: str,
  *,
  kind: str,
  tokenizer: Tokenizer,
  task: TaskSpec | None,
  options: ExportSettings,
) -> str:
  """Writes `target`, and beside it what servers want where its name is a version's."""
  output_dir, version = os.path.split(target)
  with tempfile.TemporaryDirectory() as assets_dir:
    parts = Parts(
      model=model,
      tokenizer=tokenizer,
      limit=model.config.max_position_embeddings,
      task=task,
      settings=options,
      asset_files=_write_assets(assets_dir, model.config, tokenizer, task),
    )
    module = _MODULES[kind](parts)
    files.makedirs(output_dir or ".")
    name = options.model_name or kind
    _save_atomically(module, target, model_name=name)
  if version.isdigit():
    write_layout(output_dir, model_name=name, version_dir=target)
  return target


def load_task(kind: str, pretrained: Checkpoint) -> TaskSpec | None:
  """The task of a fine-tuned model, if `kind` is one of those.

  Raises:
    UserError: the directory holds no task, or another kind of it.
  """
  kinds = task_kinds_of(kind)
  if not kinds:
    return None
  task = TaskSpec.load(pretrained.directory)
  if task.kind not in kinds:
    raise UserError(
      f"--model {kind} needs a model fine-tuned for {' or '.join(kinds)}. Received: "
      f"{pretrained.directory}, fine-tuned for {task.kind}. Export it with --model {task.export_kind}."
    )
  return task


def restore_model(
  kind: str, pretrained: Checkpoint, *, task: TaskSpec | None = None, use_ema: bool = False
) -> Any:
  """Builds the Keras model that `kind` needs, with the checkpoint's weights."""
  if task is not None:
    built = make_model(task, pretrained.config)
  else:
    # Hugging Face's masked-LM models have neither a sentence-order head nor, where it is not read, a pooler.
    has_order = any(name.startswith("cls/seq_relationship/") for name in pretrained.variables)
    masked_lm = AlbertForPreTraining if has_order else AlbertMaskedLM
    built = (AlbertEncoder if kind == "encoder" else masked_lm)(pretrained.config)
  load_weights(
    built,
    pretrained.averaged() if use_ema else pretrained,
    allow_missing=AlbertMaskedLM.new_variables if isinstance(built, AlbertMaskedLM) else "",
    allow_unused=ANY_HEAD if kind == "encoder" else "",
  )
  return built


def _write_assets(
  directory: str, config: AlbertConfig, tokenizer: Tokenizer, task: TaskSpec | None
) -> list[str]:
  tokenizer.save_pretrained(directory)
  with files.atomic_writer(os.path.join(directory, CONFIG_NAME), "w") as stream:
    stream.write(config.to_json_string())
  if task:
    task.save(directory)
  return [os.path.join(directory, name) for name in files.listdir(directory)]


def _save_atomically(module: ServingModule, target: str, *, model_name: str) -> None:
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
