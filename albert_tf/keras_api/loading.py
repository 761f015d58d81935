"""`from_pretrained`: from a checkpoint and a caller's options to configuration, task, weights and model."""

from collections.abc import Collection, Mapping
import dataclasses
import inspect
from typing import Any

from albert_tf import files
from albert_tf.checkpoints.checkpoint import Checkpoint, read_checkpoint
from albert_tf.checkpoints.load import ANY_HEAD, load_weights
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import SHORTEST_ROW, TaskSpec
from albert_tf.errors import UserError, whole_number
from albert_tf.keras_api.preprocessor import AlbertPreprocessor
from albert_tf.modeling.config_model import ConfigModel


def load_pretrained(
  cls: Any,
  path: files.Path | Checkpoint,
  *,
  max_length: int | None,
  config: AlbertConfig | None,
  num_hidden_layers: int | None,
  options: Mapping[str, Any],
) -> Any:
  """Makes a model of the class `cls` from a checkpoint; see `TextModel.from_pretrained`."""
  check_names(f"{cls.__name__}.from_pretrained", options, _option_names(cls))
  checkpoint = path
  if not isinstance(checkpoint, Checkpoint):
    checkpoint = read_checkpoint(checkpoint)
  config = (config or checkpoint.config).at_depth(num_hidden_layers)
  positions = checkpoint.config.max_position_embeddings
  if max_length is not None:
    longest = config.max_position_embeddings
    max_length = whole_number(max_length, "max_length", minimum=SHORTEST_ROW, maximum=longest)

  # A model without a task: all weights are the checkpoint's.
  arguments = dict(options)
  variables = checkpoint.variables
  may_be_missing = cls.may_be_missing
  lengths: dict[str, Any] = {"max_length": max_length or positions}

  # The task: that of a run which was fine-tuned for this class, else a new one.
  if cls.task_kinds:
    task_fields, arguments = cls.task_and_arguments(options)
    if max_length is not None:
      task_fields["max_seq_length"] = max_length
    saved_task = TaskSpec.find(checkpoint.directory)
    if saved_task is not None and saved_task.kind in cls.task_kinds:
      task = _continued_task(saved_task, task_fields, checkpoint.path)
      may_be_missing = ()
    else:
      task = cls.make_task(**{"max_seq_length": positions} | task_fields)
      # Fine-tuned for another class. Two heads may have the same names and shapes, so only the
      # encoder is taken.
      if saved_task is not None:
        variables = {name: value for name, value in variables.items() if name.startswith("bert/")}
    # Some models of Hugging Face have no pooler.
    if not cls.reads_pooler:
      may_be_missing += ("^bert/pooler/",)
    arguments["task"] = task
    lengths = {
      # A task of Hugging Face may name a greater length than the model has positions.
      "max_length": min(task.max_seq_length, positions),
      "max_qa_length": task.max_qa_length,
      "max_query_length": task.max_query_length,
    }

  if checkpoint.tokenizer is not None and "preprocessor" not in arguments:
    arguments["preprocessor"] = AlbertPreprocessor(
      checkpoint.load_tokenizer(), kind=cls.preprocessor_kind, **lengths
    )
  model = cls(config, **arguments)
  load_weights(
    model,
    variables,
    allow_missing="|".join(may_be_missing),
    allow_unused=ANY_HEAD,
    source=checkpoint.path,
  )
  return model


def check_names(taker: str, arguments: Mapping[str, Any], names: Collection[str]) -> None:
  """Raises `UserError` for an argument that is not one of the names."""
  for name in arguments:
    if name not in names:
      raise UserError(
        f"{taker} takes {', '.join(sorted(names))}. Received: {name}. Correct the name."
      )


def _option_names(cls: Any) -> set[str]:
  """Names of the arguments of `from_pretrained`: its own, those of the class and its bases, Keras'."""
  names = {"max_length", "num_hidden_layers", "dtype", "name"}
  for base in cls.__mro__:
    if issubclass(base, ConfigModel):
      names.update(inspect.signature(base.__init__).parameters)
  names -= {"self", "args", "kwargs"}
  if not cls.task_kinds:
    return names | {"trainable"}
  return names.difference(["task"]).union(cls.task_options())


def _continued_task(saved: TaskSpec, requested: Mapping[str, Any], path: str) -> TaskSpec:
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
        f"with {value!r}. Leave {name} out, or name the run that this one was fine-tuned from."
      )
  changes = {
    name: value for name, value in requested.items() if name not in ("num_labels", "problem")
  }
  return dataclasses.replace(saved, **changes)
