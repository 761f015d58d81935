"""Finding checkpoints and restoring from them, every variable accounted for."""

from collections.abc import Mapping
import os
import re

import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.checkpoints.bundle import is_bundle, latest_bundle, read_bundle, strip_suffix, write_bundle
from albert_tf.errors import UserError

HOST_PREFIX = "albert_tf/"
_SLOT = re.compile(r"/(adam_m|adam_v|ema)$")
_EMA = "/ema"


def latest_checkpoint(directory: str) -> str | None:
  """Prefix of the whole checkpoint with the highest step in `directory`; None if there is none."""
  steps = checkpoint_steps(directory)
  return os.path.join(directory, f"model.ckpt-{steps[-1]}") if steps else None


def checkpoint_steps(directory: str) -> list[int]:
  """Steps of the whole checkpoints in `directory`, ascending."""
  matches = (re.fullmatch(r"model\.ckpt-(\d+)\.index", name) for name in files.listdir(directory))
  return sorted(int(match[1]) for match in matches if match)


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


def restore_variables(
  variables: Mapping[str, tf.Variable], checkpoint: str, *, use_ema: bool = False
) -> None:
  """Assigns a checkpoint's weights to a model; optimizer slots and host state in it are left aside.

  Args:
    variables: checkpoint name → variable, from `named_variables`.
    checkpoint: prefix of a bundle (a file name of it is taken for the prefix), or a
      directory: its `checkpoints/best`, `checkpoints`, or itself.
    use_ema: take the averages that a run with `ema_decay` kept instead of the weights.

  Raises:
    UserError: no checkpoint there, no averages in it, or a weight on one side only.
  """
  prefix = find_checkpoint(checkpoint)
  tensors = read_bundle(prefix)
  weights = {
    name: value
    for name, value in tensors.items()
    if not (name.startswith(HOST_PREFIX) or _SLOT.search(name) or name == "global_step")
  }
  tensors = _averages(tensors, prefix) if use_ema else weights
  wanted = set(variables)
  if wanted < set(tensors):  # An encoder alone leaves the heads aside, never part of a group of its own.
    groups = {name.split("/")[0] for name in wanted}
    tensors = {name: value for name, value in tensors.items() if name.split("/")[0] in groups}
  assign_exactly(variables, tensors, source=prefix)


def save_averages(checkpoint: str, target: str) -> None:
  """Writes a checkpoint whose weights are the averages that another one keeps beside its own.

  Args:
    checkpoint: as for `restore_variables`; of a run with `ema_decay`.
    target: prefix of the new checkpoint, which holds weights only.

  Raises:
    UserError: no checkpoint there, or no averages in it.

  Example:
    >>> save_averages("run", "run/averaged/model.ckpt-best")
  """
  prefix = find_checkpoint(checkpoint)
  averages = _averages(read_bundle(prefix), prefix)
  files.makedirs(os.path.dirname(target) or ".")
  write_bundle(target, averages)


def _averages(tensors: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
  found = {name.removesuffix(_EMA): value for name, value in tensors.items() if name.endswith(_EMA)}
  if not found:
    raise UserError(
      f"Averaged weights are only in checkpoints of a run with --ema_decay. Received: {prefix}, which has none. "
      "Take the weights themselves."
    )
  return found


def find_checkpoint(path: str) -> str:
  """The bundle that `path` means; see `restore_variables`."""
  prefix = strip_suffix(path.rstrip("/"))
  if is_bundle(prefix):
    return prefix
  for folder in (os.path.join(path, "checkpoints", "best"), os.path.join(path, "checkpoints"), path):
    found = latest_bundle(folder)
    if found:
      return found
  raise UserError(
    f"A checkpoint must exist. Received: {path}, which is neither a prefix with an .index file nor a run directory "
    "with checkpoints. Give RUN or RUN/checkpoints/model.ckpt-STEP."
  )
