"""The Keras callback of fine-tuning: evaluation, best weights, state of a stopped training, and reports."""

from collections.abc import Callable, Mapping
import math
import os
import threading
import time
from typing import Any

from absl import logging
import numpy as np

from albert_tf import files
from albert_tf.checkpoints.bundle import read_bundle
from albert_tf.compat import keras, raw_variable
from albert_tf.errors import UserError
from albert_tf.finetuning.engine.results import shown
from albert_tf.finetuning.engine.run_directory import BEST, METRICS_FILE, STATE
from albert_tf.modeling import named_variables
from albert_tf.optim.keras_optimizers import WarmupPolynomialDecay
from albert_tf.runs.checkpoint_store import CheckpointStore
from albert_tf.runs.distribution import Workers
from albert_tf.runs.metrics_log import MetricsLog, read_metrics


class TrainingProgress(keras.callbacks.Callback):
  """Evaluates after each of Keras' epochs, keeps the best weights, and lets a stopped training continue.

  The state is written before an evaluation, and after an update with a signal to stop. An evaluation writes its line
  of metrics.jsonl and, if it is the best, the weights. All files are written atomically. Keras' logs get the metrics
  as `val_<metric>`.

  Args:
    model: the compiled model; the newest saved state, if any, is restored to it.
    directory: the run directory.
    evaluate: returns the model's outputs for the evaluation data, and their metrics.
    metric: name of the metric that chooses the best weights; higher is better.
    num_steps: updates of the run.
    interval: updates between two evaluations, which is one epoch of Keras.
    batch_size, schedule: batch size and learning rate schedule, for the reports.
    writes: whether this process writes in the directory; of several workers one does.
    may_write: raises if another process has taken the directory.
    stop: function that is called after every update, on all workers, and returns whether to stop.

  Attributes:
    step: updates made.
    stopped: whether a signal ended the training; the next process continues it.
    history: step → metrics, of each evaluation.
    seconds: time of training, over all processes of the run.
    best_outputs: outputs of the best weights; None if an earlier process has found the weights.

  Raises:
    UserError: the state is damaged, of another model, or different on other workers.
  """

  def __init__(
    self,
    model: Any,
    directory: str,
    *,
    evaluate: Callable[[], tuple[Any, dict[str, float]]],
    metric: str,
    num_steps: int,
    interval: int,
    batch_size: int,
    schedule: WarmupPolynomialDecay,
    writes: bool,
    may_write: Callable[[], None],
    stop: threading.Event,
  ):
    super().__init__()
    self._evaluate, self._metric, self._num_steps, self._interval = (
      evaluate,
      metric,
      num_steps,
      interval,
    )
    self._batch_size, self._schedule, self._stop = batch_size, schedule, stop
    self._writes = writes
    self._log_path = os.path.join(directory, METRICS_FILE)
    self._workers = Workers(model.distribute_strategy)
    self._weights, optimizer = named_variables(model), model.optimizer
    with model.distribute_strategy.scope():
      optimizer.build(model.trainable_variables)
    variables = {**self._weights, "global_step": raw_variable(optimizer.iterations)}
    slots = optimizer.named_slots(model.trainable_variables, self._weights)
    self._state, self._kept = (
      CheckpointStore(os.path.join(directory, folder), values, keep=1, may_write=may_write)
      for folder, values in ((STATE, {**variables, **slots}), (BEST, variables))
    )
    self.step, self.seconds, self.stopped = 0, 0.0, False
    self.history: dict[int, dict[str, float]] = {}
    self.best_outputs: Any = None
    self._best: Mapping[str, np.ndarray] = {}
    self._restore(optimizer)
    # End of this process's first epoch, which may be shorter.
    self._first_end = self.step + -self.step % interval
    self._began = time.monotonic() - self.seconds
    if writes:
      files.makedirs(directory)
      self._log = MetricsLog(self._log_path, start_step=self.step)
      self._state.tidy()
      self._kept.tidy()
    if self._evaluates() and self.step not in self.history:
      self._score()  # An earlier process ended before it could.

  def _restore(self, optimizer: Any) -> None:
    restored = self._state.restore_latest()
    if restored:
      self.seconds, self.step = float(restored["seconds"]), int(optimizer.iterations.numpy())
      for report in read_metrics(self._log_path):
        if report.pop("split") == "eval" and (step := report.pop("step")) <= self.step:
          self.history[step] = report
    if not self._workers.same(f"{self.step} {len(self.history)}"):
      raise UserError(
        "All workers must see the same output directory. Received: they differ; this worker would continue from "
        f"update {self.step} of {self._log_path}. Use a file system that all of them share."
      )
    if restored:
      logging.info("continuing from update %d", self.step)
      if self.best_step == self.step:
        self._keep_best()  # The process may have ended before it did.
      elif self._kept.last:
        self._best = read_bundle(self._kept.last)

  @property
  def best_step(self) -> int:
    """The step of the first evaluation with the best value; 0 if there is none."""
    values = {step: metrics[self._metric] for step, metrics in self.history.items()}
    return max(values, key=lambda step: (values[step], -step), default=0)

  def assign_best(self) -> None:
    """Assigns the best weights to the model."""
    for name, variable in self._weights.items():
      variable.assign(self._best[name])

  def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
    self._epoch = self.step, time.monotonic()

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    self.step += 1
    self.stopped = self._workers.any(self._stop.is_set())
    if self.stopped or self.step in (self._first_end, self._num_steps):
      self.model.stop_training = True

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    if not self.stopped or self._evaluates():
      self._report({name: float(np.ravel(value)[0]) for name, value in (logs or {}).items()})
    self.seconds = time.monotonic() - self._began
    self._write(self._state, seconds=self.seconds)
    if self.stopped:
      self._workers.any(False)  # None leaves before the state is written.
      return
    metrics = self._score()
    if self.step == self._first_end < self._num_steps:
      self.model.stop_training = False
    if logs is not None:
      logs |= {f"val_{name}": value for name, value in metrics.items()}

  def _evaluates(self) -> bool:
    return self.step > 0 and (self.step % self._interval == 0 or self.step == self._num_steps)

  def _report(self, means: dict[str, float]) -> None:
    """Reports the training of this process since the last evaluation."""
    self._check_finite({"loss": means["loss"]})
    first, began = self._epoch
    speed = (self.step - first) * self._batch_size / max(time.monotonic() - began, 1e-9)
    rate = float(self._schedule(self.step - 1))
    if self._writes:
      self._log.append(
        self.step, "train", {**means, "learning_rate": rate, "examples_per_second": speed}
      )
      self._log.flush()

  def _score(self) -> dict[str, float]:
    """Evaluates, reports the metrics, and keeps the weights if they are the best."""
    outputs, metrics = self._evaluate()
    self._check_finite(metrics)
    self.history[self.step] = metrics
    self.seconds = time.monotonic() - self._began
    is_best = self.best_step == self.step
    scores = ", ".join(f"{name} {shown(name, score)}" for name, score in metrics.items())
    logging.info(
      "update %d of %d: %s%s", self.step, self._num_steps, scores, ", the best" * is_best
    )
    if self._writes:
      self._log.append(self.step, "eval", metrics)
      self._log.flush()
    if is_best:
      self.best_outputs = outputs
      self._keep_best()
    return metrics

  def _check_finite(self, values: Mapping[str, float]) -> None:
    """Ends a training that has diverged, so that its weights are never called the best."""
    wrong = [f"{name}={value}" for name, value in values.items() if not math.isfinite(value)]
    if wrong:
      raise UserError(
        f"Losses and metrics must stay finite. Received: {', '.join(wrong)} by step {self.step}. "
        "Lower --learning_rate or lengthen the warm-up, and use --mixed_precision=float32 if it was "
        "bfloat16."
      )

  def _keep_best(self) -> None:
    self._best = {name: variable.numpy() for name, variable in self._weights.items()}
    self._write(self._kept)

  def _write(self, store: CheckpointStore, **state: float) -> None:
    if self._writes:
      store.save(self.step, **state)
      store.wait()
