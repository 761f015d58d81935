"""Loads models for export, and writes SavedModels."""

import dataclasses
import os
from typing import Any

from albert_tf.checkpoints.checkpoint import read_checkpoint
from albert_tf.configs.task import PRETRAINED_KINDS, TaskSpec
from albert_tf.errors import UserError
from albert_tf.keras_api.pretrained import AlbertEncoder, AlbertMaskedLM
from albert_tf.keras_api.tasks import model_class
from albert_tf.keras_api.text_model import TextModel
from albert_tf.serving.settings import ExportSettings
from albert_tf.tokenization.config import find_tokenizer


def open_model(kind: str, init_checkpoint: str, *, spm_model_file: str = "", **options: Any) -> Any:
  """Loads a model of one export kind with all weights of a checkpoint.

  Args:
    kind: one of `configs.task.EXPORT_KINDS`.
    init_checkpoint: see `read_checkpoint`.
    spm_model_file: a SentencePiece model or WordPiece vocabulary (.txt); empty: the checkpoint's own.
    **options: see `TextModel.from_pretrained`.
  """
  checkpoint = read_checkpoint(init_checkpoint)
  if spm_model_file:
    checkpoint = dataclasses.replace(checkpoint, tokenizer=find_tokenizer(spm_model_file))
  opened: type[TextModel] = AlbertEncoder if kind == "encoder" else AlbertMaskedLM
  if kind not in PRETRAINED_KINDS:
    task = TaskSpec.load(checkpoint.directory)
    if task.export_kind != kind:
      raise UserError(
        f"--model {kind} needs a model that was fine-tuned for it. Received: {checkpoint.directory}, fine-tuned for "
        f"{task.kind}. Export it with --model {task.export_kind}."
      )
    opened = model_class(task)
  return opened.from_pretrained(checkpoint, **options)


def export_saved_model(
  *,
  model: str,
  output_dir: str,
  version: int = 1,
  settings: ExportSettings | None = None,
  **options: Any,
) -> str:
  """Exports the model of a run directory; returns the path of the SavedModel, `<output_dir>/<version>`.

  Args:
    model: the kind; `options` are the other arguments of `open_model`.
  """
  path = os.path.join(output_dir, str(version))
  open_model(model, **options).export(path, **dataclasses.asdict(settings or ExportSettings()))
  return path
