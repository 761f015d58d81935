"""Initial weights of a new run, from the seed or from a checkpoint."""

from collections.abc import Mapping

import tensorflow as tf

from albert_tf.checkpoints.checkpoint import (
  FINETUNED_HEADS,
  Checkpoint,
  load_weights,
  read_checkpoint,
)
from albert_tf.errors import UserError
from albert_tf.modeling import initialize_variables
from albert_tf.pretraining.settings import PretrainingSettings
from albert_tf.tokenization import load_tokenizer

# Fields that names and shapes of variables do not show.
_FIELDS = (
  "num_attention_heads",
  "hidden_act",
  "layer_norm_eps",
  "sharing",
  "num_hidden_groups",
  "inner_group_num",
)
# A checkpoint may lack these parts: they are new then.
_OPTIONAL_PARTS = ("cls/predictions/", "cls/seq_relationship/", "bert/pooler/")


def start_weights(variables: Mapping[str, tf.Variable], settings: PretrainingSettings) -> str:
  """Sets the initial weights of a run; returns a description of their origin.

  Without `init_checkpoint` they are drawn from the seed. Pretraining heads and pooler are drawn if
  the checkpoint has none; heads of fine-tuning are ignored. With `sharing="all"` the checkpoint may
  be of another depth.

  Raises:
    UserError: names, shapes, configuration or vocabulary of checkpoint and model do not match.

  Reference: ALBERT table 11, deeper models start from the next shallower one.
  """
  seed = settings.step.seed
  initializer_range = settings.model.initializer_range
  if not settings.init_checkpoint:
    initialize_variables(variables, seed=seed, initializer_range=initializer_range)
    return "starting from scratch"

  checkpoint = read_checkpoint(settings.init_checkpoint)
  _check_config(checkpoint, settings)
  _check_vocabulary(checkpoint, settings)

  # Parts that the checkpoint has not are drawn; all others must be there completely.
  absent_parts = []
  for part in _OPTIONAL_PARTS:
    if not any(name.startswith(part) for name in checkpoint.variables):
      absent_parts.append(part)
  new = {}
  loaded = {}
  for name, variable in variables.items():
    if name.startswith(tuple(absent_parts)):
      new[name] = variable
    else:
      loaded[name] = variable
  load_weights(loaded, checkpoint, allow_unused=FINETUNED_HEADS)
  initialize_variables(new, seed=seed, initializer_range=initializer_range)

  origin = f"starting from the weights of {checkpoint.path}"
  if absent_parts:
    origin += f"; {' and '.join(absent_parts)} not in it: new, of seed {seed}"
  return origin


def _check_config(checkpoint: Checkpoint, settings: PretrainingSettings) -> None:
  fields = list(_FIELDS)
  if settings.model.sharing != "all":
    fields.append("num_hidden_layers")
  changes = []
  for field in fields:
    theirs = getattr(checkpoint.config, field)
    ours = getattr(settings.model, field)
    if theirs != ours:
      changes.append(f"{field} {theirs} → {ours}")
  if changes:
    raise UserError(
      "Checkpoint and model must agree; the depth may differ only if layers share whole blocks. "
      f"Received: --init_checkpoint {checkpoint.path}, with another {', '.join(changes)}. Give the "
      "model the values of the checkpoint."
    )


def _check_vocabulary(checkpoint: Checkpoint, settings: PretrainingSettings) -> None:
  if checkpoint.tokenizer is None or not settings.tokenizer_path:
    return  # One of them does not tell.
  path = checkpoint.tokenizer[0]
  if load_tokenizer(path).model_sha256 != load_tokenizer(settings.tokenizer_path).model_sha256:
    raise UserError(
      "Weights and records must have the same vocabulary. Received: --init_checkpoint with "
      f"{path}, records with {settings.tokenizer_path}. Make the records with the checkpoint's: "
      f"create_pretraining_data.py --spm_model_file={path}."
    )
