"""Weights from a checkpoint into a model, every variable accounted for; see `interop` for other formats than ours."""

from collections.abc import Mapping
import re

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints.bundle import find_bundle, read_bundle
from albert_tf.errors import UserError

HOST_PREFIX = "albert_tf/"  # Of what a run remembers besides its variables.
_SLOT = re.compile(r"/(adam_m|adam_v|ema)$")
_EMA = "/ema"


def assign_exactly(
  variables: Mapping[str, tf.Variable], tensors: Mapping[str, np.ndarray], *, source: str
) -> None:
  """Assigns every tensor to the variable of its name.

  Raises:
    UserError: a name on one side only, or a shape that differs; nothing is assigned then.
  """
  missing = [f"{name} is missing" for name in sorted(set(variables) - set(tensors))]
  unknown = [f"{name} is unknown to the model" for name in sorted(set(tensors) - set(variables))]
  misshapen = [
    f"{name} has shape {tuple(tensors[name].shape)}, the model's {tuple(variable.shape)}"
    for name, variable in variables.items()
    if name in tensors and tuple(tensors[name].shape) != tuple(variable.shape)
  ]
  if missing or unknown or misshapen:
    shown = "; ".join(_some(faults) for faults in (missing, unknown, misshapen) if faults)
    raise UserError(
      f"The checkpoint must hold exactly the model's variables. Received: {source}: {shown}. "
      "Use the configuration and optimizer it was made with."
    )
  for name, variable in variables.items():
    variable.assign(tf.cast(tensors[name], variable.dtype))


def _some(faults: list[str], limit: int = 4) -> str:
  more = [f"and {len(faults) - limit} more of these"] if len(faults) > limit else []
  return "; ".join(faults[:limit] + more)


def restore_variables(variables: Mapping[str, tf.Variable], checkpoint: str) -> None:
  """Assigns a checkpoint's weights to a model; optimizer slots and host state in it are left aside.

  Args:
    variables: checkpoint name → variable, from `named_variables`.
    checkpoint: prefix of a bundle (a file name of it is taken for the prefix), or a
      directory: its `checkpoints/best`, `checkpoints`, or itself.

  Raises:
    UserError: no checkpoint there, or a weight on one side only.
  """
  prefix = require_bundle(checkpoint)
  weights = _weights(read_bundle(prefix))
  wanted = set(variables)
  if wanted < set(weights):  # An encoder alone leaves the heads aside, never part of a group of its own.
    groups = {name.split("/")[0] for name in wanted}
    weights = {name: value for name, value in weights.items() if name.split("/")[0] in groups}
  assign_exactly(variables, weights, source=prefix)


def _weights(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The tensors of a checkpoint without slots, step and host state."""
  return {
    name: value
    for name, value in tensors.items()
    if not (name.startswith(HOST_PREFIX) or _SLOT.search(name) or name == "global_step")
  }


def averages_of(tensors: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
  """The averaged weights among the tensors of a checkpoint; `UserError` where there are none.

  What was not trained has no average: it is as it was.
  """
  found = {name.removesuffix(_EMA): value for name, value in tensors.items() if name.endswith(_EMA)}
  if not found:
    raise UserError(
      f"Averaged weights are only in checkpoints of a run with --ema_decay. Received: {prefix}, which has none. "
      "Take the weights themselves."
    )
  return {**_weights(tensors), **found}


def require_bundle(path: str) -> str:
  """The bundle that `path` means; see `restore_variables`."""
  found = find_bundle(path)
  if found is None:
    raise UserError(
      f"A checkpoint must exist. Received: {path}, which is neither a prefix with an .index file nor a run directory "
      "with checkpoints. Give RUN or RUN/checkpoints/model.ckpt-STEP."
    )
  return found
