"""Initial weights of a new run, from the seed or from a checkpoint."""

from collections.abc import Mapping

import tensorflow as tf

from albert_tf.checkpoints import FINETUNED_HEADS, load_weights, read_checkpoint
from albert_tf.errors import UserError
from albert_tf.modeling import initialize_variables
from albert_tf.tokenization import load_tokenizer
from albert_tf.training.settings import PretrainingSettings

# Fields that names and shapes of variables do not show.
_FIELDS = "num_attention_heads hidden_act layer_norm_eps sharing num_hidden_groups inner_group_num".split()
_HEADS = ("cls/predictions/", "cls/seq_relationship/", "bert/pooler/")  # A checkpoint may lack these parts.


def start_weights(variables: Mapping[str, tf.Variable], settings: PretrainingSettings) -> str:
  """Sets the initial weights of a run; returns a description of their origin.

  Without `init_checkpoint` they are drawn from the seed. Pretraining heads and pooler are drawn if the checkpoint has
  none; heads of fine-tuning are ignored. With `sharing="all"` the checkpoint may be of another depth.

  Raises:
    UserError: names, shapes, configuration or vocabulary of checkpoint and model do not match.

  Reference: ALBERT table 11, deeper models start from the next shallower one.
  """
  seed, config = settings.step.seed, settings.model
  if not settings.init_checkpoint:
    initialize_variables(variables, seed=seed, initializer_range=config.initializer_range)
    return "starting from scratch"
  source = read_checkpoint(settings.init_checkpoint)
  changed = [
    f"{name} {getattr(source.config, name)} → {getattr(config, name)}"
    for name in (*_FIELDS, *(("num_hidden_layers",) if config.sharing != "all" else ()))
    if getattr(source.config, name) != getattr(config, name)
  ]
  if changed:
    raise UserError(
      "Checkpoint and model must agree; the depth may differ only if layers share whole blocks. "
      f"Received: --init_checkpoint {source.path}, with another {', '.join(changed)}. Give the model the "
      "values of the checkpoint."
    )
  if source.tokenizer is not None and settings.tokenizer_path:
    own, records = (load_tokenizer(path) for path in (source.tokenizer[0], settings.tokenizer_path))
    if own.model_sha256 != records.model_sha256:
      raise UserError(
        "Weights and records must have the same vocabulary. Received: --init_checkpoint "
        f"with {source.tokenizer[0]}, records with {settings.tokenizer_path}. Make the records with the checkpoint's: "
        f"create_pretraining_data.py --spm_model_file={source.tokenizer[0]}."
      )
  absent = [head for head in _HEADS if not any(name.startswith(head) for name in source.variables)]
  new = {name: v for name, v in variables.items() if name.startswith(tuple(absent))}
  rest = {name: v for name, v in variables.items() if name not in new}
  load_weights(rest, source, allow_unused=FINETUNED_HEADS)
  initialize_variables(new, seed=seed, initializer_range=config.initializer_range)
  told = f"starting from the weights of {source.path}"
  return f"{told}; {' and '.join(absent)} not in it: new, of seed {seed}" if absent else told
