"""A run directory becomes the model that `--model` of the exporting commands names, and its SavedModel."""

import os
from typing import Any, NamedTuple

from albert_tf.checkpoints import ANY_HEAD, Checkpoint, load_weights, read_checkpoint
from albert_tf.configs.task import PRETRAINED_KINDS, TaskSpec
from albert_tf.errors import UserError
from albert_tf.modeling import AlbertForPreTraining
from albert_tf.models.pretrained import AlbertEncoder, AlbertMaskedLM
from albert_tf.models.tasks import make_model
from albert_tf.serving.export import export_model
from albert_tf.serving.settings import ExportSettings


class Restored(NamedTuple):
  """A built model, what it was fine-tuned for (None: pretrained), and where its weights come from."""

  model: Any
  task: TaskSpec | None
  checkpoint: Checkpoint


def restore(kind: str, init_checkpoint: str, *, use_ema: bool = False) -> Restored:
  """The model of a kind of export, with all of its weights from a checkpoint.

  Args:
    kind: one of `configs.task.EXPORT_KINDS`.
    init_checkpoint: see `read_checkpoint`.
    use_ema: take the averages that a run kept instead of its weights.

  Raises:
    UserError: the checkpoint is of another kind, or lacks a weight.
  """
  checkpoint = read_checkpoint(init_checkpoint)
  if use_ema:
    checkpoint = checkpoint.averaged()
  if kind == "encoder":
    model = AlbertEncoder(checkpoint.config)
    load_weights(model, checkpoint, allow_unused=ANY_HEAD)
    return Restored(model, None, checkpoint)
  if kind not in PRETRAINED_KINDS:
    task = TaskSpec.load(checkpoint.directory)
    if task.export_kind != kind:
      raise UserError(
        f"--model {kind} needs a model that was fine-tuned for it. Received: {checkpoint.directory}, fine-tuned for "
        f"{task.kind}. Export it with --model {task.export_kind}."
      )
    model = make_model(task, checkpoint.config)
    load_weights(model, checkpoint)
    return Restored(model, task, checkpoint)
  # Hugging Face's masked-LM models have neither a sentence-order head nor, where it is not read, a pooler.
  if any(name.startswith("cls/seq_relationship/") for name in checkpoint.variables):
    model = AlbertForPreTraining(checkpoint.config)
    load_weights(model, checkpoint)
  else:
    model = AlbertMaskedLM(checkpoint.config)
    load_weights(model, checkpoint, allow_missing=AlbertMaskedLM.new_variables)
  return Restored(model, None, checkpoint)


def export_saved_model(
  *,
  model: str,
  init_checkpoint: str,
  output_dir: str,
  version: int = 1,
  spm_model_file: str = "",
  use_ema: bool = False,
  settings: ExportSettings | None = None,
) -> str:
  """Exports the model of a run directory; returns `<output_dir>/<version>`.

  Args:
    model, init_checkpoint, use_ema: see `restore`.
    output_dir: the folder that servers watch.
    version: the version's number; servers take the highest.
    spm_model_file: a SentencePiece model, or a WordPiece vocabulary (.txt), instead of the one beside the checkpoint.
    settings: of the export.

  Raises:
    UserError: see `restore` and `serving.export.export_model`.
  """
  restored = restore(model, init_checkpoint, use_ema=use_ema)
  return export_model(
    restored.model,
    os.path.join(output_dir, str(version)),
    kind=model,
    tokenizer=restored.checkpoint.load_tokenizer(spm_model_file),
    task=restored.task,
    settings=settings,
  )
