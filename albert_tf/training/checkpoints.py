"""The checkpoints of a run: written while training goes on, whole or not at all; the newest and the best stay, some
for ever."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
import dataclasses
import math
import os
import re
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.checkpoints import load_weights
from albert_tf.checkpoints.bundle import (
  HOST_PREFIX,
  checkpoint_steps,
  is_bundle,
  latest_checkpoint,
  read_bundle,
  strip_suffix,
  write_bundle,
  write_pointer,
)
from albert_tf.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostState:
  """What a run must remember besides its variables.

  A checkpoint is saved before it is evaluated: its own result is in metrics.jsonl, and the next checkpoint's state.

  Attributes:
    examples_seen: position in the stream of training examples.
    best_masked_lm_accuracy: best held-out accuracy so far; -1 before the first evaluation.
    best_masked_lm_loss: the loss beside it.
    best_step: updates at which it was reached.
  """

  examples_seen: int = 0
  best_masked_lm_accuracy: float = -1.0
  best_masked_lm_loss: float = math.inf
  best_step: int = -1

  def evaluated(self, step: int, metrics: Mapping[str, Any]) -> "HostState":
    """The state after the held-out evaluation of `step`; of equal accuracies the lower loss is better."""
    accuracy, loss = float(metrics["masked_lm_accuracy"]), metrics["masked_lm_loss"]
    loss = math.inf if loss is None else float(loss)  # metrics.jsonl has nothing for what is not finite.
    if not (accuracy, -loss) > (self.best_masked_lm_accuracy, -self.best_masked_lm_loss):
      return self
    return dataclasses.replace(
      self, best_masked_lm_accuracy=accuracy, best_masked_lm_loss=loss, best_step=step
    )


class CheckpointStore:
  """The checkpoints of one run: `model.ckpt-<step>`; the newest `keep`, the best, and multiples of `keep_every` stay.

  Files are TensorFlow bundles with the original release's names (`bert/…`, `cls/…`, `…/adam_m`, `…/adam_v`,
  `global_step`), so the original's tools read them too. `tf.train.Checkpoint` would give them names of its own.

  One checkpoint at a time is written, by a thread of its own, from a copy in host memory. What goes wrong there is
  raised by the next `check`, `wait` or `save`.

  Args:
    directory: `RUN/checkpoints`.
    variables: checkpoint name → variable: weights, slots and `global_step`.
    may_write: raises where this process must not save any more; asked by `check` and before each checkpoint.

  Attributes:
    last: prefix of the newest checkpoint that is whole; None before the first.
  """

  def __init__(
    self,
    directory: str,
    variables: Mapping[str, tf.Variable],
    *,
    keep: int = 5,
    keep_every: int = 0,
    may_write: Callable[[], None] = lambda: None,
  ):
    self._directory = directory
    self._variables = dict(variables)
    self._keep = keep
    self._keep_every = keep_every
    self._may_write = may_write
    self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
    self._pending: list[Future[None]] = []
    self.last = latest_checkpoint(directory)

  def save(self, step: int, state: HostState) -> None:
    """Begins the checkpoint of `step`, once the one before is whole; then those beyond `keep` are removed."""
    self.wait()
    self._may_write()
    values = {name: variable.numpy() for name, variable in self._variables.items()}
    host = {HOST_PREFIX + key: np.array(value) for key, value in dataclasses.asdict(state).items()}
    self._pending.append(self._writer.submit(self._write, step, {**values, **host}, state.best_step))

  def point_best(self, step: int) -> None:
    """Makes `best/` stand for the checkpoint of `step`, once it is whole."""
    self._pending.append(self._writer.submit(self._point, f"model.ckpt-{step}"))

  def check(self) -> None:
    """Raises what went wrong in the writing so far, or what `may_write` does; waits for nothing."""
    self._may_write()
    while self._pending and self._pending[0].done():
      self._pending.pop(0).result()

  def wait(self) -> None:
    """Returns when all that was begun is on the disk."""
    while self._pending:
      self._pending.pop(0).result()

  def close(self) -> None:
    """Ends what was begun; after an error of the run, the writing's own is left unsaid."""
    self._writer.shutdown()

  def _write(self, step: int, values: Mapping[str, np.ndarray], best_step: int) -> None:
    files.makedirs(self._directory)
    prefix = os.path.join(self._directory, f"model.ckpt-{step}")
    write_bundle(prefix, values)
    self.last = prefix
    for old in checkpoint_steps(self._directory)[: -self._keep]:
      if old != best_step and not (self._keep_every and old % self._keep_every == 0):
        _remove(os.path.join(self._directory, f"model.ckpt-{old}"))

  def _point(self, name: str) -> None:
    if is_bundle(os.path.join(self._directory, name)):  # Else its writing failed, as `check` says.
      write_pointer(os.path.join(self._directory, "best"), name)

  def forget_best(self) -> None:
    """Removes `best/`: whoever is given the run then takes the newest checkpoint."""
    best = os.path.join(self._directory, "best")
    if files.exists(best):
      files.remove(best)

  def restore_latest(self) -> HostState | None:
    """Restores the newest checkpoint; None if there is none.

    Raises:
      UserError: it is damaged, or its variables are not exactly those of the run.
    """
    prefix = self.last
    if prefix is None:
      return None
    try:
      tensors = read_bundle(prefix)
    except UserError as error:
      raise UserError(f"{error} Without these files the run continues from the checkpoint before.") from error
    host = {
      name.removeprefix(HOST_PREFIX): tensors.pop(name).item()
      for name in list(tensors)
      if name.startswith(HOST_PREFIX)
    }
    load_weights(self._variables, tensors, source=prefix)
    if "examples_seen" not in host:
      raise UserError(
        f"A checkpoint of a run must hold its position in the data. Received: {prefix}, which was not written by "
        "run_pretrain.py. Take it away, or start a new run from it with --init_checkpoint."
      )
    return HostState(**host)

  def tidy(self) -> None:
    """Removes the parts of checkpoints that a killed run left."""
    for folder in (self._directory, os.path.join(self._directory, "best")):
      names = files.listdir(folder)
      for name in names:
        without_index = (
          re.fullmatch(r"model\.ckpt-\d+\.data-.*", name) and f"{strip_suffix(name)}.index" not in names
        )
        # TensorFlow gives what it saves its own endings, behind the name that the file module would give.
        if files.is_unfinished(name) or re.match(r"model\.ckpt-\d+\.tmp-", name) or without_index:
          files.remove(os.path.join(folder, name))


def _remove(prefix: str) -> None:
  # The index goes first: a kill in between leaves data nobody takes for a checkpoint.
  for path in [f"{prefix}.index", *files.glob(f"{prefix}.data-*")]:
    files.remove(path)
