"""Models from files and into files: what `from_pretrained` and `save_pretrained` do.

Of a checkpoint and a caller's options come configuration, task, preprocessor, model and weights.
"""

import dataclasses
import inspect
import os
import re
from typing import Any

from absl import logging
import numpy as np

from albert_tf import files
from albert_tf.checkpoints.bundle import write_bundle
from albert_tf.checkpoints.checkpoint import (
  ANY_HEAD,
  POOLER,
  Checkpoint,
  load_weights,
  read_checkpoint,
)
from albert_tf.compat import updates_made
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import SHORTEST_ROW, TaskSpec, default_length
from albert_tf.errors import UserError, check_names, whole_number
from albert_tf.keras_api.labels import class_names
from albert_tf.keras_api.preprocessor import AlbertPreprocessor
from albert_tf.modeling import named_variables
from albert_tf.modeling.config_model import ConfigModel

# Fields of a task that a caller may choose. The others follow from class and checkpoint.
_TASK_FIELDS = {field.name for field in dataclasses.fields(TaskSpec)}
_TASK_FIELDS -= {"format_version", "kind", "name", "max_seq_length", "exit_depths"}
# What classes with labels make `label_names` and `kind` of.
_LABEL_OPTIONS = {"num_labels", "problem"}


def load_pretrained(
  cls: Any,
  path: files.Path | Checkpoint,
  *,
  max_length: int | None = None,
  config: AlbertConfig | None = None,
  num_hidden_layers: int | None = None,
  **options: Any,
) -> Any:
  """Makes a model of the class `cls` from a checkpoint; see `TextModel.from_pretrained`."""
  # Mistakes first: reading a large checkpoint takes minutes.
  check_names(f"{cls.__name__}.from_pretrained", options, _option_names(cls))
  checkpoint = path if isinstance(path, Checkpoint) else read_checkpoint(path)
  config = (config or checkpoint.config).at_depth(num_hidden_layers)
  if max_length is not None:
    longest = config.max_position_embeddings
    max_length = whole_number(max_length, "max_length", minimum=SHORTEST_ROW, maximum=longest)

  # The task: that of a run which was fine-tuned for this class, else a new one.
  task = None
  variables = checkpoint.variables
  may_be_missing = cls.may_be_missing
  if cls.task_kinds:
    task_fields = take_task_fields(options)
    if max_length is not None:
      task_fields["max_seq_length"] = max_length
    saved_task = TaskSpec.find(checkpoint.directory)
    has_head = False
    if saved_task is not None and saved_task.kind in cls.task_kinds:
      has_head = True
      task = _continued_task(saved_task, task_fields, checkpoint.path)
      may_be_missing = ()
    else:
      task = cls.make_task(**{"max_seq_length": config.max_position_embeddings} | task_fields)
      # Fine-tuned for another class. Two heads may have the same names and shapes, so only the
      # encoder is taken.
      if saved_task is not None:
        variables = {name: value for name, value in variables.items() if name.startswith("bert/")}
    # Some models of Hugging Face have no pooler. A new head learns with a new one.
    if not (has_head and cls.reads_pooler):
      may_be_missing += (POOLER,)
    options["task"] = task

  # The preprocessor: the checkpoint's tokenizer, with the lengths of the task.
  if checkpoint.tokenizer is not None and "preprocessor" not in options:
    lengths: dict[str, Any] = {"max_length": max_length or default_length(config, task)}
    if task is not None:
      lengths |= {"max_qa_length": task.max_qa_length, "max_query_length": task.max_query_length}
    options["preprocessor"] = AlbertPreprocessor(
      checkpoint.load_tokenizer(), kind=cls.preprocessor_kind, **lengths
    )

  # The model has initial values until its weights are loaded.
  model = cls(config, **options)
  report = load_weights(
    model,
    variables,
    allow_missing="|".join(may_be_missing),
    allow_unused=ANY_HEAD,
    source=checkpoint.path,
  )
  if cls.task_kinds and cls.reads_pooler and any(re.match(POOLER, name) for name in report.missing):
    logging.warning(
      "%s has no pooler: a new one begins at random, as the head does", checkpoint.path
    )
  return model


def _option_names(cls: Any) -> set[str]:
  """Names of the arguments of `from_pretrained`: its own, those of the class and its bases, Keras'."""
  names = {"max_length", "num_hidden_layers", "dtype", "name"}
  takers = [base.__init__ for base in cls.__mro__ if issubclass(base, ConfigModel)]
  if cls.task_kinds:
    names |= {*cls.encoder_option_names, *cls.head_option_names, *_TASK_FIELDS}
    takers.append(cls.make_task)
  else:
    names.add("trainable")
  for taker in takers:
    names.update(inspect.signature(taker).parameters)
  return names - {"self", "args", "kwargs", "fields", "task"}


def take_task_fields(options: dict[str, Any]) -> dict[str, Any]:
  """Takes those options of a model out that are of its task; returns them for `make_task`."""
  of_task = _TASK_FIELDS | _LABEL_OPTIONS
  fields = {name: options.pop(name) for name in of_task.intersection(options)}
  # The number of labels is the task's, which gives it to the head.
  head_options = dict(options.get("head_options") or {})
  if "num_labels" in head_options:
    fields["num_labels"] = head_options.pop("num_labels")
    options["head_options"] = head_options

  fields = {name: value for name, value in fields.items() if value is not None}
  if "label_names" in fields:
    fields["label_names"] = class_names(fields["label_names"])
  if "thresholds" in fields:
    fields["thresholds"] = tuple(fields["thresholds"])  # Also of an array.
  return fields


def _continued_task(saved: TaskSpec, requested: dict[str, Any], path: str) -> TaskSpec:
  """The task of a fine-tuned run with the requested changes.

  Labels that have only numbers may get names.

  Raises:
    UserError: labels are requested that are not those of the run.
  """
  of_run: dict[str, Any] = {
    "num_labels": saved.num_labels,
    "problem": saved.kind,
    "label_names": saved.label_names,
    "squad_version": saved.squad_version,
  }
  names = requested.get("label_names", ())
  # The names 1 0 for the labels 0 1 would be another order.
  are_new = len(names) == saved.num_labels and not set(names).intersection(saved.label_names)
  if saved.labels_are_numbered and are_new:
    del of_run["label_names"]
  for name, value in of_run.items():
    if requested.get(name, value) != value:
      raise UserError(
        f"A fine-tuned run has its own labels. Received: {name}={requested[name]!r}, and {path} "
        f"with {value!r}. Leave {name} out; for other labels name pretrained weights."
      )
  changes = {name: value for name, value in requested.items() if name not in _LABEL_OPTIONS}
  return dataclasses.replace(saved, **changes)


def save_pretrained(model: Any, directory: files.Path) -> None:
  """Writes a run directory of a model; see `TextModel.save_pretrained`."""
  directory = files.text_of(directory)
  files.check_new(directory)
  step = 0
  if getattr(model, "optimizer", None) is not None:
    # No variable where Keras accumulates gradients itself.
    step = updates_made(model.optimizer)
  with files.atomic_directory(directory) as folder:
    files.write_text(os.path.join(folder, "albert_config.json"), model.config.to_json_string())
    if model.preprocessor is not None:
      model.preprocessor.tokenizer.save_pretrained(folder)
    if model.task is not None:
      task = model.task
      if model.preprocessor is not None:
        # A preprocessor that the model was made with has a length of its own.
        task = dataclasses.replace(task, max_seq_length=model.preprocessor.max_length)
      task.save(folder)
    prefix = os.path.join(folder, "checkpoints", f"model.ckpt-{step}")
    files.makedirs(os.path.dirname(prefix))
    write_bundle(prefix, weight_values(model))


def weight_values(model: Any) -> dict[str, np.ndarray]:
  """All weights of a model, by the original's names."""
  return {name: variable.numpy() for name, variable in named_variables(model).items()}
