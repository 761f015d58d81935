"""The state of a seed's training on disk: a killed one goes on from its last evaluation, to the same weights."""

from collections.abc import Mapping
import dataclasses
import json
import math
import os
from typing import Any

from absl import logging
import numpy as np

from albert_tf import files
from albert_tf.checkpoints.bundle import latest_bundle, read_bundle
from albert_tf.errors import UserError
from albert_tf.finetuning.initialize import save_weights
from albert_tf.modeling import named_variables
from albert_tf.training.checkpoints import assign_exactly
from albert_tf.training.distribution import Consensus

BEST, STATE = os.path.join("checkpoints", "best"), os.path.join("checkpoints", "training")
_PROGRESS, _STEP = "albert_tf/progress", "global_step"


@dataclasses.dataclass(kw_only=True)
class Progress:
  """How far a training is.

  Attributes:
    step: updates made.
    best: value of the best metric; best_step: when it was reached, 0: never.
    since_best: evaluations since then.
    history: step → metrics.
    seconds: of training, over all its processes.
  """

  step: int = 0
  best: float = -math.inf
  best_step: int = 0
  since_best: int = 0
  history: dict[int, dict[str, float]] = dataclasses.field(default_factory=dict)
  seconds: float = 0.0

  def to_json(self) -> str:
    return json.dumps(dataclasses.asdict(self))

  @classmethod
  def from_json(cls, text: str | bytes) -> "Progress":
    values = json.loads(text)
    history = {int(step): metrics for step, metrics in values.pop("history").items()}
    return cls(**values, history=history)


class KeptTraining:
  """The best weights of a training, and its state should it be killed; each on disk whole or not at all.

  Args:
    model: compiled; its optimizer is one of `albert_tf.optim.keras_optimizers`.
    directory: the seed's.
    writes: whether this process writes there.
  """

  def __init__(self, model: Any, directory: str, *, writes: bool):
    self._weights = named_variables(model)
    self._strategy, self._optimizer = model.distribute_strategy, model.optimizer
    with self._strategy.scope():
      self._optimizer.build(model.trainable_variables)
    slots = self._optimizer.named_slots(model.trainable_variables, self._weights)
    self._variables = {**self._weights, **slots}
    self._state_dir, self._best_dir = os.path.join(directory, STATE), os.path.join(directory, BEST)
    self._writes = writes
    self._best: Mapping[str, np.ndarray] = {}

  def restore(self) -> Progress:
    """The state that was saved last, which the model gets; where none was, a fresh one.

    Raises:
      UserError: it is damaged, of another model, or not what other workers see.
    """
    prefix = latest_bundle(self._state_dir)
    progress = Progress() if prefix is None else self._read(prefix)
    if not Consensus(self._strategy).same(str(progress.step)):
      raise UserError(
        "All workers must see the same output directory. Received: they differ; this worker would go on from "
        f"update {progress.step} of {self._state_dir}. Use a file system that all of them share."
      )
    if prefix is None:
      return progress
    logging.info("goes on from update %d, where it was last evaluated", progress.step)
    if progress.best_step == progress.step:
      self.keep(progress.step)  # The process may have ended before it did.
    else:
      self._best = read_bundle(os.path.join(self._best_dir, f"model.ckpt-{progress.best_step}"))
    return progress

  def _read(self, prefix: str) -> Progress:
    try:
      tensors = read_bundle(prefix)
      progress = Progress.from_json(bytes(tensors.pop(_PROGRESS)))
      self._optimizer.iterations.assign(tensors.pop(_STEP))
      assign_exactly(self._variables, tensors, source=prefix)
    except (UserError, KeyError, ValueError, TypeError) as error:
      raise UserError(
        f"A killed training goes on from whole files. Received: {prefix} ({error}). Remove {self._state_dir} to "
        "train this seed from the beginning."
      ) from error
    return progress

  def save(self, progress: Progress) -> None:
    """Writes the state as it is, in place of an earlier one."""
    if self._writes:
      values = {name: variable.numpy() for name, variable in self._variables.items()}
      record = {_PROGRESS: np.array(progress.to_json().encode())}
      save_weights({**values, **record}, progress.step, self._state_dir)

  def keep(self, step: int) -> None:
    """Takes the weights for the best so far."""
    self._best = {name: variable.numpy() for name, variable in self._weights.items()}
    if self._writes:
      save_weights(self._best, step, self._best_dir)

  def assign_best(self) -> None:
    """The model gets the best weights."""
    for name, variable in self._weights.items():
      variable.assign(self._best[name])


def has_state(directory: str) -> bool:
  """Whether a killed training can go on in a seed's directory."""
  return latest_bundle(os.path.join(directory, STATE)) is not None


def remove_state(directory: str) -> None:
  """Removes what a finished seed needs no more: three times the size of its weights."""
  path = os.path.join(directory, STATE)
  if files.exists(path):
    files.remove(path)
