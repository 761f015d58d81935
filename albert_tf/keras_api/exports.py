"""Loads the model of a checkpoint for export, and writes its SavedModel; commands use it."""

import dataclasses
import os
from typing import Any

from albert_tf.checkpoints.checkpoint import read_checkpoint
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.keras_api.pretrained import AlbertEncoder, AlbertMaskedLM
from albert_tf.keras_api.tasks import CLASS_OF_KIND
from albert_tf.keras_api.text_model import TextModel
from albert_tf.serving.settings import ExportSettings

# Export kinds of checkpoints without a task.
_PRETRAINED: dict[str, type[TextModel]] = {"encoder": AlbertEncoder, "fill_mask": AlbertMaskedLM}

_DEFAULTS = ExportSettings()


def open_model(kind: str, init_checkpoint: str, *, spm_model_file: str = "", **options: Any) -> Any:
  """Loads a model of one export kind with all weights of a checkpoint.

  Args:
    kind: one of `configs.task.EXPORT_KINDS`.
    init_checkpoint: see `read_checkpoint`.
    spm_model_file: a SentencePiece model or WordPiece vocabulary (.txt); empty: the checkpoint's.
    **options: see `TextModel.from_pretrained`.
  """
  checkpoint = read_checkpoint(init_checkpoint, vocabulary_file=spm_model_file)
  if kind in _PRETRAINED:
    return _PRETRAINED[kind].from_pretrained(checkpoint, **options)
  task = TaskSpec.load(checkpoint.directory)
  if task.export_kind != kind:
    raise UserError(
      f"--model {kind} needs a model that was fine-tuned for it. Received: {checkpoint.directory}, "
      f"fine-tuned for {task.kind}. Export it with --model {task.export_kind}."
    )
  return CLASS_OF_KIND[task.kind].from_pretrained(checkpoint, **options)


def export_saved_model(
  *,
  model: str,
  output_dir: str,
  version: int = 1,
  settings: ExportSettings = _DEFAULTS,
  **options: Any,
) -> str:
  """Exports the model of a run directory; returns the path `<output_dir>/<version>`.

  Args:
    model: the kind; `options` are the other arguments of `open_model`.
    output_dir: the folder of all versions, as TensorFlow Serving reads it.
  """
  path = os.path.join(output_dir, str(version))
  open_model(model, **options).export(path, **dataclasses.asdict(settings))
  return path
