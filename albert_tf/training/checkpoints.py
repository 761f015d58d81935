"""The checkpoints of a run: written while training goes on, whole or not at all; the newest stay, some for ever."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
import os
import re

import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.checkpoints import load_weights
from albert_tf.checkpoints.bundle import (
  HOST_PREFIX,
  checkpoint_steps,
  latest_checkpoint,
  read_bundle,
  strip_suffix,
  write_bundle,
)
from albert_tf.errors import UserError

_POSITION = f"{HOST_PREFIX}examples_seen"


class CheckpointStore:
  """The checkpoints of one run: `model.ckpt-<step>`; the newest `keep` and multiples of `keep_every` stay.

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

  def save(self, step: int, examples_seen: int) -> None:
    """Begins the checkpoint of `step`, once the one before is whole; then those beyond `keep` are removed.

    Args:
      examples_seen: the position in the stream of training examples, which a run must remember besides its variables.
    """
    self.wait()
    self._may_write()
    values = {name: variable.numpy() for name, variable in self._variables.items()}
    self._pending.append(
      self._writer.submit(self._write, step, {**values, _POSITION: np.array(examples_seen)})
    )

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

  def _write(self, step: int, values: Mapping[str, np.ndarray]) -> None:
    files.makedirs(self._directory)
    prefix = os.path.join(self._directory, f"model.ckpt-{step}")
    write_bundle(prefix, values)
    self.last = prefix
    for old in checkpoint_steps(self._directory)[: -self._keep]:
      if not (self._keep_every and old % self._keep_every == 0):
        _remove(os.path.join(self._directory, f"model.ckpt-{old}"))

  def restore_latest(self) -> int | None:
    """Restores the newest checkpoint and returns its `examples_seen`; None if there is none.

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
    position = tensors.pop(_POSITION, None)
    load_weights(self._variables, tensors, source=prefix)
    if position is None:
      raise UserError(
        f"A checkpoint of a run must hold its position in the data. Received: {prefix}, which was not written by "
        "run_pretrain.py. Take it away, or start a new run from it with --init_checkpoint."
      )
    return int(position)

  def tidy(self) -> None:
    """Removes the parts of checkpoints that a killed run left."""
    names = files.listdir(self._directory)
    for name in names:
      without_index = (
        re.fullmatch(r"model\.ckpt-\d+\.data-.*", name) and f"{strip_suffix(name)}.index" not in names
      )
      # TensorFlow gives what it saves its own endings, behind the name that the file module would give.
      if files.is_unfinished(name) or re.match(r"model\.ckpt-\d+\.tmp-", name) or without_index:
        files.remove(os.path.join(self._directory, name))


def _remove(prefix: str) -> None:
  # The index goes first: a kill in between leaves data nobody takes for a checkpoint.
  for path in [f"{prefix}.index", *files.glob(f"{prefix}.data-*")]:
    files.remove(path)
