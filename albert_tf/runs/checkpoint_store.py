"""Checkpoints of pretraining and fine-tuning, written atomically while training continues."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
import os
import re
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.checkpoints.bundle import (
  HOST_PREFIX,
  checkpoint_steps,
  latest_checkpoint,
  read_bundle,
  strip_suffix,
  write_bundle,
)
from albert_tf.checkpoints.checkpoint import load_weights
from albert_tf.errors import UserError


class CheckpointStore:
  """The checkpoints of one run: `model.ckpt-<step>`, of which the newest `keep` stay.

  Files are TensorFlow bundles with the original release's names (`bert/…`, `cls/…`, `…/adam_m`,
  `…/adam_v`, `global_step`), so the original's tools read them too. `tf.train.Checkpoint` would use
  other names.

  A thread writes one checkpoint at a time from a copy in host memory. The next `check`, `wait` or
  `save` raises its errors.

  Args:
    directory: `RUN/checkpoints`.
    variables: checkpoint name → variable: weights, slots and `global_step`.
    may_write: raises if this process must not save any more; called by `check` and before each
      checkpoint.

  Attributes:
    last: prefix of the newest complete checkpoint; None before the first.
  """

  def __init__(
    self,
    directory: str,
    variables: Mapping[str, tf.Variable],
    *,
    keep: int = 5,
    may_write: Callable[[], None] = lambda: None,
  ):
    self._directory = directory
    self._variables = dict(variables)
    self._keep = keep
    self._may_write = may_write
    # One thread: checkpoints appear in the order of their steps.
    self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
    self._pending: Future[None] | None = None
    self.last = latest_checkpoint(directory)

  def save(self, step: int, **state: float) -> None:
    """Waits for the last checkpoint, starts the one of `step`, and removes those beyond `keep`.

    `state` are numbers by name that `restore_latest` returns, such as the position in the stream of
    examples.
    """
    self.wait()
    self._may_write()
    # A copy: training changes the variables while the thread writes.
    values = {name: variable.numpy() for name, variable in self._variables.items()}
    for name, value in state.items():
      values[HOST_PREFIX + name] = np.array(value)
    self._pending = self._writer.submit(self._write, step, values)

  def check(self) -> None:
    """Raises errors of finished writes and of `may_write`; does not wait."""
    self._may_write()
    if self._pending is not None and self._pending.done():
      self.wait()

  def wait(self) -> None:
    """Waits until the started checkpoint is on the disk."""
    pending = self._pending
    self._pending = None  # Its error is raised once.
    if pending is not None:
      pending.result()

  def close(self) -> None:
    """Waits for the writer without raising its errors: an error of the run is not hidden."""
    self._writer.shutdown()

  def _write(self, step: int, values: Mapping[str, np.ndarray]) -> None:
    files.makedirs(self._directory)
    prefix = os.path.join(self._directory, f"model.ckpt-{step}")
    write_bundle(prefix, values)
    self.last = prefix
    for old_step in checkpoint_steps(self._directory)[: -self._keep]:
      self._remove(old_step)

  def _remove(self, step: int) -> None:
    prefix = os.path.join(self._directory, f"model.ckpt-{step}")
    # The index first: without it, data files are not a checkpoint.
    files.remove(f"{prefix}.index")
    for path in files.glob(f"{prefix}.data-*"):
      files.remove(path)

  def restore_latest(self) -> dict[str, Any]:
    """Restores the newest checkpoint and returns its `state`; empty if there is none.

    Raises:
      UserError: it is damaged, or its variables are not exactly those of the run.
    """
    prefix = self.last
    if prefix is None:  # A new run.
      return {}
    try:
      tensors = read_bundle(prefix)
    except UserError as error:
      raise UserError(
        f"{error} Remove these files to continue from the checkpoint before."
      ) from error
    # Numbers of the host are stored beside the weights, under a prefix.
    state = {}
    variables = {}
    for name, value in tensors.items():
      if name.startswith(HOST_PREFIX):
        state[name.removeprefix(HOST_PREFIX)] = value
      else:
        variables[name] = value
    load_weights(self._variables, variables, source=prefix)
    if not state:
      raise UserError(
        f"A checkpoint of a run must hold its position in the data. Received: {prefix}, which no "
        "run has written. Remove it, or start a new run from it with --init_checkpoint."
      )
    return state

  def tidy(self) -> None:
    """Removes incomplete checkpoints of a killed run.

    Raises:
      UserError: another process has saved a checkpoint since this one read the last.
    """
    if latest_checkpoint(self._directory) != self.last:
      raise UserError(
        f"One process at a time writes in a directory. Received: {self._directory}, where another "
        "process has saved a checkpoint. Run the command again to continue from there."
      )
    # A kill leaves data files without an index, or names that say that they are unfinished.
    names = files.listdir(self._directory)
    for name in names:
      is_data = re.fullmatch(r"model\.ckpt-\d+\.data-.*", name) is not None
      lacks_index = is_data and f"{strip_suffix(name)}.index" not in names
      # TensorFlow adds suffixes of its own to names of unfinished files.
      is_unfinished = (
        files.is_temporary(name) or re.match(r"model\.ckpt-\d+\.tmp-", name) is not None
      )
      if lacks_index or is_unfinished:
        files.remove(os.path.join(self._directory, name))
