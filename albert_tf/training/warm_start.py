"""The weights a new run starts from: those of a checkpoint, perhaps of a model of another depth."""

from collections.abc import Mapping
import os

import tensorflow as tf

from albert_tf import files
from albert_tf.checkpoints.restore import require_bundle, restore_variables
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError

# What no variable's name or shape tells, and what decides which layer uses which variables.
_FUNCTION_FIELDS = ("num_attention_heads", "hidden_act", "layer_norm_eps")
_SHARING_FIELDS = ("sharing", "num_hidden_groups", "inner_group_num")
_CONFIG_NAME = "albert_config.json"


def warm_start(variables: Mapping[str, tf.Variable], config: AlbertConfig, checkpoint: str) -> str:
  """Gives a model the weights of a checkpoint, every one accounted for; returns in words where they are from.

  A model of another depth may take them where layers share whole blocks (`sharing="all"`): they are the same
  variables at any depth. With groups, both must have the same number, and group g gives to group g.

  Args:
    variables: checkpoint name → variable, of a model of `config`.
    config: the model's.
    checkpoint: see `restore_variables`.

  Raises:
    UserError: a weight on one side only or of another shape; or, where the checkpoint's configuration lies beside
      it, weights that would compute something else here, or layers that would have none.

  Reference: ALBERT table 11, whose deeper models start from the one before.
  """
  prefix = require_bundle(checkpoint)
  source = _config_beside(prefix)
  if source is not None:
    _check(source, config, prefix)
  restore_variables(variables, prefix)
  if source is None or source.num_hidden_layers == config.num_hidden_layers:
    return f"starting from the weights of {prefix}"
  return (
    f"starting from the weights of {prefix}, of {source.num_hidden_layers} layers; here "
    f"{config.num_hidden_layers} share them"
  )


def _config_beside(prefix: str) -> AlbertConfig | None:
  """The configuration beside a checkpoint, or up to two directories above, as in a run; None without one."""
  folder = os.path.dirname(prefix)
  for above in ("", "..", os.path.join("..", "..")):
    path = files.normpath(os.path.join(folder, above, _CONFIG_NAME))
    if files.exists(path):
      return AlbertConfig.from_json_file(path)
  return None


def _check(source: AlbertConfig, config: AlbertConfig, prefix: str) -> None:
  fields = (*_FUNCTION_FIELDS, *_SHARING_FIELDS)
  changed = [
    f"{name} {getattr(source, name)} → {getattr(config, name)}"
    for name in fields
    if getattr(source, name) != getattr(config, name)
  ]
  if changed:
    raise UserError(
      "Weights start a model in which they mean the same. Received: --init_checkpoint "
      f"{prefix}, with another {', '.join(changed)}. Give the model these values of the checkpoint's."
    )
  depths = source.num_hidden_layers, config.num_hidden_layers
  if config.sharing != "all" and depths[0] != depths[1]:
    raise UserError(
      "Only layers that share whole blocks can start from a model of another depth; where layers own weights, some "
      f"would have none, or none would have some. Received: --init_checkpoint {prefix}, of {depths[0]} layers with "
      f"sharing={config.sharing!r}, for {depths[1]}. Use --sharing=all in both, or start a model of {depths[0]} layers."
    )
