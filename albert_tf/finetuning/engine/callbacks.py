"""The Keras callback of a fine-tuning: evaluation, the best weights, the state of a killed training, and reports."""

from collections.abc import Callable, Mapping
import json
import math
import os
import time
from typing import Any

from absl import logging
import numpy as np

from albert_tf import files
from albert_tf.checkpoints import load_weights
from albert_tf.checkpoints.bundle import latest_bundle, read_bundle, write_bundle
from albert_tf.compat import keras
from albert_tf.errors import UserError
from albert_tf.finetuning.engine.results import shown
from albert_tf.finetuning.engine.run_directory import BEST, METRICS_FILE, STATE
from albert_tf.modeling import named_variables
from albert_tf.optim.keras_optimizers import WarmupPolynomialDecay
from albert_tf.training.distribution import Workers
from albert_tf.training.metrics_log import MetricsLog

_PROGRESS, _STEP = "albert_tf/progress", "global_step"


class TrainingProgress(keras.callbacks.Callback):
  """Evaluates after each of Keras' epochs, keeps the best weights, and lets a killed training continue.

  An evaluation writes its line of metrics.jsonl, the state, and, if it is the best, the weights, each whole or not at
  all. The metrics join Keras' logs as `val_<metric>`.

  Args:
    model: compiled; it gets the state that was saved last, if there is one.
    directory: the run's.
    evaluate: → the outputs of the model as it is for the evaluation data, and their metrics.
    metric: the one that chooses the best weights; higher is better.
    num_steps: updates of the run.
    batch_size: of an update.
    schedule: of the learning rate, for the reports.
    writes: whether this process writes in the directory, or another worker does.

  Attributes:
    step: updates made.
    history: step → metrics, of each evaluation.
    seconds: of training, over all its processes.
    best_outputs: of the best weights; None also where an earlier process has found them.

  Raises:
    UserError: the state is damaged, of another model, or not what other workers see.
  """

  def __init__(
    self,
    model: Any,
    directory: str,
    *,
    evaluate: Callable[[], tuple[Any, dict[str, float]]],
    metric: str,
    num_steps: int,
    batch_size: int,
    schedule: WarmupPolynomialDecay,
    writes: bool,
  ):
    super().__init__()
    self._evaluate, self._metric, self._num_steps = evaluate, metric, num_steps
    self._batch_size, self._schedule, self._writes = batch_size, schedule, writes
    self._state_dir, self._best_dir = os.path.join(directory, STATE), os.path.join(directory, BEST)
    self._weights, self._optimizer = named_variables(model), model.optimizer
    with model.distribute_strategy.scope():
      self._optimizer.build(model.trainable_variables)
    slots = self._optimizer.named_slots(model.trainable_variables, self._weights)
    self._variables = {**self._weights, **slots}
    self.step, self.seconds = 0, 0.0
    self.history: dict[int, dict[str, float]] = {}
    self.best_outputs: Any = None
    self._best: Mapping[str, np.ndarray] = {}
    self._restore(Workers(model.distribute_strategy))
    self._began = time.monotonic() - self.seconds
    if writes:
      files.makedirs(directory)
      self._log = MetricsLog(os.path.join(directory, METRICS_FILE), start_step=self.step)

  def _restore(self, workers: Workers) -> None:
    prefix = latest_bundle(self._state_dir)
    if prefix is not None:
      tensors = read_bundle(prefix)
      self.step, self.seconds, history = json.loads(bytes(tensors.pop(_PROGRESS)))
      self.history = {int(step): metrics for step, metrics in history.items()}
      self._optimizer.iterations.assign(tensors.pop(_STEP))
      load_weights(self._variables, tensors, source=prefix)
    if not workers.same(str(self.step)):
      raise UserError(
        "All workers must see the same output directory. Received: they differ; this worker would continue from "
        f"update {self.step} of {self._state_dir}. Use a file system that all of them share."
      )
    if prefix is not None:
      logging.info("continuing from update %d, where it was last evaluated", self.step)
      if self.best_step == self.step:
        self._keep_best()  # The process may have ended before it did.
      else:
        self._best = read_bundle(os.path.join(self._best_dir, f"model.ckpt-{self.best_step}"))

  @property
  def best_step(self) -> int:
    """The first evaluation with the best value; 0 before any."""

    def value(step: int) -> float:
      found = self.history[step][self._metric]
      return found if math.isfinite(found) else -math.inf

    return max(self.history, key=lambda step: (value(step), -step), default=0)

  def assign_best(self) -> None:
    """The model gets the best weights."""
    for name, variable in self._weights.items():
      variable.assign(self._best[name])

  def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
    self._epoch = self.step, time.monotonic()

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    self.step += 1
    if self.step >= self._num_steps:
      self.model.stop_training = True

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    means = {name: float(np.ravel(value)[0]) for name, value in (logs or {}).items()}
    if not math.isfinite(means["loss"]):
      raise UserError(
        f"The loss must stay finite. Received: loss={means['loss']} by step {self.step}. Lower --learning_rate or "
        "lengthen the warm-up, and use --mixed_precision=float32 if it was bfloat16."
      )
    first, began = self._epoch
    speed = (self.step - first) * self._batch_size / max(time.monotonic() - began, 1e-9)
    rate = float(self._schedule(self.step - 1))
    outputs, metrics = self._evaluate()
    self.history[self.step] = metrics
    self.seconds = time.monotonic() - self._began
    is_best = self.best_step == self.step
    scores = ", ".join(f"{name} {shown(name, score)}" for name, score in metrics.items())
    logging.info("update %d of %d: %s%s", self.step, self._num_steps, scores, ", the best" * is_best)
    if self._writes:
      self._log.append(self.step, "train", {**means, "learning_rate": rate, "examples_per_second": speed})
      self._log.append(self.step, "eval", metrics)
      self._log.flush()
    progress = json.dumps([self.step, self.seconds, self.history]).encode()
    # Before the best weights: should the process end between the two, they are those of the state.
    self._write(self._state_dir, {**_values(self._variables), _PROGRESS: np.array(progress)})
    if is_best:
      self.best_outputs = outputs
      self._keep_best()
    if logs is not None:
      logs |= {f"val_{name}": value for name, value in metrics.items()}

  def _keep_best(self) -> None:
    self._best = _values(self._weights)
    self._write(self._best_dir, self._best)

  def _write(self, directory: str, values: Mapping[str, np.ndarray]) -> None:
    """Writes a checkpoint of this step in place of earlier ones."""
    if not self._writes:
      return
    files.makedirs(directory)
    before = files.listdir(directory)
    write_bundle(os.path.join(directory, f"model.ckpt-{self.step}"), {**values, _STEP: np.int64(self.step)})
    for name in before:
      if not name.startswith(f"model.ckpt-{self.step}."):
        files.remove(os.path.join(directory, name))


def _values(variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
  return {name: variable.numpy() for name, variable in variables.items()}
