"""A run directory becomes a SavedModel in TensorFlow Serving's layout: `<output_dir>/<version>/`."""

from collections.abc import Callable
import dataclasses
import functools
import os
import re
import tempfile
from typing import Any

import tensorflow as tf

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.finetuning.models import make_model
from albert_tf.finetuning.task_spec import TaskSpec
from albert_tf.modeling import AlbertEncoder, AlbertForPreTraining, named_variables
from albert_tf.serving.classifier_module import ClassifierModule
from albert_tf.serving.conformance.golden import write_golden
from albert_tf.serving.encoder_module import EncoderModule
from albert_tf.serving.fill_mask_module import FillMaskModule
from albert_tf.serving.layout import write_layout
from albert_tf.serving.method_names import set_method_names
from albert_tf.serving.modules import Packing, Parts, ServingModule
from albert_tf.serving.multiple_choice_module import MultipleChoiceModule
from albert_tf.serving.question_answering_module import QuestionAnsweringModule
from albert_tf.serving.run_directory import CONFIG_NAME, PretrainedFiles, find_pretrained
from albert_tf.serving.token_classification_module import TokenClassificationModule
from albert_tf.serving.warmup import write_warmup
from albert_tf.tokenization import AlbertTokenizer
from albert_tf.training.checkpoints import restore_variables

# What --model may be, and of which tasks' models it is made; pretrained ones have no task.
TASK_KINDS_OF: dict[str, tuple[str, ...]] = {
  "encoder": (),
  "fill_mask": (),
  "classifier": ("classification", "regression"),
  "question_answering": ("question_answering",),
  "multiple_choice": ("multiple_choice",),
  "token_classification": ("token_classification",),
}
MODEL_KINDS = tuple(TASK_KINDS_OF)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportSettings:
  """What an export may be told beside what is exported.

  Attributes:
    top_k: answers a mask that `fill_mask` gives.
    n_best: answers that `question_answering` gives, and the starts and ends tried in a window of SQuAD 1.1.
    max_windows: of a context that `question_answering` reads.
    max_seq_length: rows are cut here; None: the length that the model was fine-tuned with, else the
      longest that it knows.
    pad_to_max_length: every row has that length; else a batch has its longest row's.
    use_ema: the averages that a run kept instead of its weights.
    model_name: under which servers offer it; None: the kind of model.
  """

  top_k: int = 10
  n_best: int = 20
  max_windows: int = 32
  max_seq_length: int | None = None
  pad_to_max_length: bool = False
  use_ema: bool = False
  model_name: str | None = None

  def __post_init__(self) -> None:
    if self.model_name is not None and not re.fullmatch(r"[A-Za-z0-9_.-]+", self.model_name):
      raise UserError(
        "model_name is part of a URL and a path: letters, digits, '_', '-' and '.'. "
        f"Received: {self.model_name!r}."
      )
    for name in ("n_best", "max_windows"):
      if getattr(self, name) < 1:
        raise UserError(f"{name} must be at least 1. Received: {getattr(self, name)}.")


def export_saved_model(
  *, model: str, init_checkpoint: str, output_dir: str, version: int = 1, **settings: Any
) -> str:
  """Exports a trained model with its tokenizer and configuration.

  The weights, the SentencePiece model, tokenizer.json, albert_config.json and, of a
  fine-tuned model, task.json all travel in the SavedModel; nothing else is needed to
  use it. It is written under a name that servers ignore and renamed when whole.

  Args:
    model: one of `MODEL_KINDS`.
    init_checkpoint: run directory or checkpoint prefix; see `find_pretrained`.
    output_dir: the folder that servers watch.
    version: the version's number; servers take the highest.
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
  if files.exists(target):
    raise UserError(
      f"A version is exported once and never changed. Received: {target}, which exists. "
      "Choose a higher --version, or remove the directory."
    )
  pretrained = find_pretrained(init_checkpoint)
  tokenizer = pretrained.load_tokenizer()
  _check_top_k(options.top_k, tokenizer)
  task = load_task(model, pretrained)
  built = restore_model(model, pretrained, task=task, use_ema=options.use_ema)
  files.makedirs(output_dir)
  with tempfile.TemporaryDirectory() as assets_dir:
    limit = pretrained.config.max_position_embeddings
    length = options.max_seq_length or (min(task.max_seq_length, limit) if task else limit)
    parts = Parts(
      model=built,
      tokenizer=tokenizer,
      packing=Packing(length, fixed=options.pad_to_max_length),
      limit=limit,
      asset_files=_write_assets(assets_dir, pretrained, tokenizer, task),
    )
    name = options.model_name or model
    _save_atomically(_make_module(model, parts, task, options), target, model_name=name)
  write_layout(output_dir, model_name=name, version_dir=target)
  return target


def load_task(kind: str, pretrained: PretrainedFiles) -> TaskSpec | None:
  """The task of a fine-tuned model, if `kind` is one of those.

  Raises:
    UserError: the directory holds no task, or another kind of it.
  """
  if not TASK_KINDS_OF[kind]:
    return None
  task = TaskSpec.load(pretrained.directory)
  if task.kind not in TASK_KINDS_OF[kind]:
    fitting = next(name for name, kinds in TASK_KINDS_OF.items() if task.kind in kinds)
    raise UserError(
      f"--model {kind} needs a model fine-tuned for {' or '.join(TASK_KINDS_OF[kind])}. Received: "
      f"{pretrained.directory}, fine-tuned for {task.kind}. Export it with --model {fitting}."
    )
  return task


def restore_model(
  kind: str, pretrained: PretrainedFiles, *, task: TaskSpec | None = None, use_ema: bool = False
) -> Any:
  """Builds the Keras model that `kind` needs, with the checkpoint's weights."""
  if task is not None:
    built = make_model(task, pretrained.config)
  else:
    built = (AlbertEncoder if kind == "encoder" else AlbertForPreTraining)(pretrained.config)
  restore_variables(named_variables(built), pretrained.checkpoint, use_ema=use_ema)
  return built


def _make_module(kind: str, parts: Parts, task: TaskSpec | None, options: ExportSettings) -> ServingModule:
  if task is None:
    return EncoderModule(parts) if kind == "encoder" else FillMaskModule(parts, top_k=options.top_k)
  modules: dict[str, Callable[[Parts, TaskSpec], ServingModule]] = {
    "classifier": ClassifierModule,
    "question_answering": functools.partial(
      QuestionAnsweringModule, n_best=options.n_best, max_windows=options.max_windows
    ),
    "multiple_choice": MultipleChoiceModule,
    "token_classification": TokenClassificationModule,
  }
  return modules[kind](parts, task)


def _write_assets(
  directory: str, pretrained: PretrainedFiles, tokenizer: AlbertTokenizer, task: TaskSpec | None
) -> list[str]:
  tokenizer.save_pretrained(directory)
  with files.atomic_writer(os.path.join(directory, CONFIG_NAME), "w") as stream:
    stream.write(pretrained.config.to_json_string())
  if task:
    task.save(directory)
  return [os.path.join(directory, name) for name in files.listdir(directory)]


def _save_atomically(module: ServingModule, target: str, *, model_name: str) -> None:
  functions = module.signatures()
  signatures = {name: function.get_concrete_function() for name, function in functions.items()}
  # Servers take directories whose name is a number, and of those the ones with this file.
  with files.atomic_directory(target, last="saved_model.pb") as directory:
    tf.saved_model.save(module, directory, signatures=signatures)
    set_method_names(directory, module.method_names())
    write_golden(directory, functions)
    write_warmup(directory, model_name=model_name)


def _check_top_k(top_k: int, tokenizer: AlbertTokenizer) -> None:
  if not 1 <= top_k <= tokenizer.vocab_size - 5:
    raise UserError(
      f"top_k must be between 1 and the number of ordinary pieces. Received: {top_k}, with "
      f"{tokenizer.vocab_size} pieces of which 5 are special."
    )
