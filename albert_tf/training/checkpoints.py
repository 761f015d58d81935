"""Saving and restoring the state of a run: whole or not at all, every variable accounted for."""

from collections.abc import Mapping
import dataclasses
import os
import re

import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.checkpoints.bundle import is_bundle, latest_bundle, read_bundle, strip_suffix, write_bundle
from albert_tf.errors import UserError

_HOST_PREFIX = "albert_tf/"
_SLOT = re.compile(r"/(adam_m|adam_v|ema)$")
_EMA = "/ema"


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostState:
  """What a run must remember besides its variables.

  Attributes:
    examples_seen: position in the stream of training examples.
    best_masked_lm_accuracy: best held-out accuracy so far; -1 before the first evaluation.
    best_step: updates at which it was reached.
  """

  examples_seen: int = 0
  best_masked_lm_accuracy: float = -1.0
  best_step: int = -1


def latest_checkpoint(directory: str) -> str | None:
  """Prefix of the whole checkpoint with the highest step in `directory`; None if there is none."""
  steps = _steps(directory)
  return os.path.join(directory, f"model.ckpt-{steps[-1]}") if steps else None


def _steps(directory: str) -> list[int]:
  matches = (re.fullmatch(r"model\.ckpt-(\d+)\.index", name) for name in files.listdir(directory))
  return sorted(int(match[1]) for match in matches if match)


class CheckpointStore:
  """The checkpoints of one run: `model.ckpt-<step>`, the newest `keep`, and the best.

  Files are TensorFlow bundles with the original release's names (`bert/…`, `cls/…`,
  `…/adam_m`, `…/adam_v`, `global_step`), so the original's tools read them too.

  Args:
    directory: `RUN/checkpoints`.
    variables: checkpoint name → variable: weights, slots and `global_step`.
    keep: how many of the newest stay.
  """

  def __init__(self, directory: str, variables: Mapping[str, tf.Variable], *, keep: int = 5):
    self._directory = directory
    self._variables = dict(variables)
    self._keep = keep

  def save(self, step: int, state: HostState) -> str:
    """Writes the checkpoint of `step`, then removes those beyond `keep`; returns its prefix."""
    files.makedirs(self._directory)
    prefix = os.path.join(self._directory, f"model.ckpt-{step}")
    values = {name: variable.numpy() for name, variable in self._variables.items()}
    host = {_HOST_PREFIX + key: np.array(value) for key, value in dataclasses.asdict(state).items()}
    write_bundle(prefix, {**values, **host})
    for old in _steps(self._directory)[: -self._keep]:
      _remove(os.path.join(self._directory, f"model.ckpt-{old}"))
    return prefix

  def save_best(self, prefix: str) -> None:
    """Copies the checkpoint of `prefix` to `best/`, in place of what was there."""
    best = os.path.join(self._directory, "best")
    files.makedirs(best)
    before = _steps(best)
    write_bundle(os.path.join(best, os.path.basename(prefix)), read_bundle(prefix))
    for old in before:
      if f"model.ckpt-{old}" != os.path.basename(prefix):
        _remove(os.path.join(best, f"model.ckpt-{old}"))

  def restore_latest(self) -> HostState | None:
    """Restores the newest checkpoint; None if there is none.

    Raises:
      UserError: it is damaged, or its variables are not exactly those of the run.
    """
    prefix = latest_checkpoint(self._directory)
    if prefix is None:
      return None
    try:
      tensors = read_bundle(prefix)
    except UserError as error:
      older = [f"model.ckpt-{step}" for step in _steps(self._directory)[:-1]]
      choice = f"continue from {older[-1]}" if older else "start again"
      raise UserError(f"{error} Or take the files of {os.path.basename(prefix)} away to {choice}.") from error
    host = {name: tensors.pop(name) for name in list(tensors) if name.startswith(_HOST_PREFIX)}
    assign_exactly(self._variables, tensors, source=prefix)
    missing = sorted(
      field.name for field in dataclasses.fields(HostState) if _HOST_PREFIX + field.name not in host
    )
    if missing:
      raise UserError(
        f"A checkpoint of a run must hold its position in the data. Received: {prefix} without {', '.join(missing)}: "
        "it was not written by run_pretrain.py. Take it away, or start a new run from it with --init_checkpoint."
      )
    return HostState(
      examples_seen=int(host[_HOST_PREFIX + "examples_seen"]),
      best_masked_lm_accuracy=float(host[_HOST_PREFIX + "best_masked_lm_accuracy"]),
      best_step=int(host[_HOST_PREFIX + "best_step"]),
    )

  def tidy(self, state: HostState) -> None:
    """Ends what a killed run left unfinished: removes parts of checkpoints, makes a missing best copy.

    Args:
      state: what `restore_latest` returned, or a fresh one.
    """
    best = os.path.join(self._directory, "best")
    for folder in (self._directory, best):
      _remove_parts(folder)
    latest = latest_checkpoint(self._directory)
    name = f"model.ckpt-{state.best_step}"
    if latest and os.path.basename(latest) == name and not is_bundle(os.path.join(best, name)):
      self.save_best(latest)  # The run was killed between the checkpoint and its copy.


def _remove_parts(folder: str) -> None:
  names = files.listdir(folder)
  for name in names:
    without_index = (
      re.fullmatch(r"model\.ckpt-\d+\.data-.*", name) and f"{strip_suffix(name)}.index" not in names
    )
    if re.match(r"model\.ckpt-\d+\.tmp-", name) or without_index:
      files.remove(os.path.join(folder, name))


def _remove(prefix: str) -> None:
  # The index goes first: a kill in between leaves data nobody takes for a checkpoint.
  for path in [f"{prefix}.index", *files.glob(f"{prefix}.data-*")]:
    files.remove(path)


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
    if not (name.startswith(_HOST_PREFIX) or _SLOT.search(name) or name == "global_step")
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
