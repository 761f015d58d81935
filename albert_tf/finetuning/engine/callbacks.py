"""The Keras callback of fine-tuning: evaluation, best weights, the state of a stopped training.

`fit` restores it, lets it catch up, and gives it to `model.fit`.
"""

from collections.abc import Callable, Mapping
import math
import os
import threading
import time
from typing import Any

from absl import logging
import keras
import numpy as np

from albert_tf.checkpoints.bundle import read_bundle
from albert_tf.compat import raw_variable
from albert_tf.errors import UserError
from albert_tf.finetuning.engine.results import format_metric
from albert_tf.finetuning.engine.run import FineTuningRun
from albert_tf.finetuning.tasks.base import Outputs
from albert_tf.modeling import named_variables
from albert_tf.runs.checkpoint_store import CheckpointStore
from albert_tf.runs.metrics_log import MetricsLog, read_metrics
from albert_tf.runs.run_directory import BEST, METRICS_FILE, STATE


class TrainingProgress(keras.callbacks.Callback):
  """Evaluates after each of Keras' epochs, keeps the best weights, lets a stopped run continue.

  An epoch of Keras lasts from evaluation to evaluation. The state is written before an evaluation,
  and after an update with a signal to stop. An evaluation writes its line of metrics.jsonl and, if
  it is the best, the weights. All files are written atomically, by the chief alone. Keras' logs
  get the metrics as `val_<metric>`.

      # 10 updates, evaluated after 3, 6, 9 and 10; a signal in update 5 writes the state of 5.
      # The next process has a first epoch of one update, 6, and evaluates.

  Args:
    run: the run, whose chief writes.
    model: the compiled model.
    predict: returns the model's outputs for a split.
    stop: set by a signal; read after every update.

  Attributes:
    step: updates made.
    stopped: whether a signal ended the training; the next process continues it.
    history: step → metrics, of each evaluation.
    best_outputs: outputs of the best weights; None if an earlier process has found the weights.
  """

  def __init__(
    self,
    run: FineTuningRun,
    model: Any,
    predict: Callable[[str], Outputs],
    stop: threading.Event,
  ):
    super().__init__()
    self.set_model(model)
    self._run = run
    self._is_chief = run.workers.is_chief
    self._predict = predict
    self._stop = stop
    self._weights = named_variables(model)
    self._log_path = os.path.join(run.directory, METRICS_FILE)
    self._best: Mapping[str, np.ndarray] = {}
    self.step = 0
    self.stopped = False
    self.history: dict[int, dict[str, float]] = {}
    self._began = time.monotonic()
    self.best_outputs: Outputs | None = None

  # ------------------------------------------------------------------ before training

  def restore(self) -> None:
    """Restores the newest state of an earlier process, if there is one.

    Raises:
      UserError: the state is damaged, of another model, or different on other workers.
    """
    run = self._run
    optimizer = self.model.optimizer
    # Now, because Keras would make the optimizer's variables only in the first update.
    with run.strategy.scope():
      optimizer.build(self.model.trainable_variables)
    variables = self._weights | {"global_step": raw_variable(optimizer.iterations)}
    slots = optimizer.named_slots(self.model.trainable_variables, self._weights)

    def make_store(folder: str, stored: Mapping[str, Any]) -> CheckpointStore:
      path = os.path.join(run.directory, folder)
      return CheckpointStore(path, stored, keep=1, may_write=run.may_write)

    self._best_store = make_store(BEST, variables)
    self._state_store = make_store(STATE, variables | slots)

    restored = self._state_store.restore_latest()
    if restored:
      self.step = int(optimizer.iterations.numpy())
      self._began -= float(restored["seconds"])
      for report in read_metrics(self._log_path):
        step = report.pop("step")
        # A killed process may have evaluated after the state was written.
        if report.pop("split") == "eval" and step <= self.step:
          self.history[step] = report
    if not run.workers.same(f"{self.step} {len(self.history)}"):
      raise UserError(
        "All workers must see the same output directory. Received: they differ; this worker would "
        f"continue from update {self.step} of {self._log_path}. Use a file system that all of them "
        "share."
      )
    if not restored:
      return
    logging.info("continuing from update %d", self.step)
    if self.best_step == self.step:
      # The process may have ended before it kept them.
      self._keep_best()
    elif self._best_store.last:
      self._best = read_bundle(self._best_store.last)

  def catch_up(self) -> None:
    """Removes what a killed process left unfinished, and makes the evaluation it did not make."""
    # The end of this process's first epoch: after update 5, with evaluations at 3, 6, 9, it is 6.
    self._first_end = self.step + -self.step % self._run.evaluation_interval
    if self._is_chief:
      self._log = MetricsLog(self._log_path, start_step=self.step)
      self._state_store.tidy()
      self._best_store.tidy()
    if self._is_evaluated() and self.step not in self.history:
      self._score()

  # ------------------------------------------------------------------ Keras calls these

  def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
    self._epoch_began = time.monotonic()
    self._epoch_first_step = self.step

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    self.step += 1
    # All workers stop after the same update.
    self.stopped = self._run.workers.any(self._stop.is_set())
    if self.stopped or self.step in (self._first_end, self._run.num_steps):
      self.model.stop_training = True

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    if not self.stopped or self._is_evaluated():
      self._report(logs)
    self._write(self._state_store, seconds=self.seconds)
    if self.stopped:
      self._run.workers.any(False)  # None leaves before the state is written.
      return
    metrics = self._score()
    if self.step == self._first_end < self._run.num_steps:
      # Only the first, short epoch is over.
      self.model.stop_training = False
    # Other callbacks find them where those of Keras' own evaluation would be.
    logs |= {f"val_{name}": value for name, value in metrics.items()}

  # ------------------------------------------------------------------ evaluation and best weights

  @property
  def seconds(self) -> float:
    """Time of the training so far, over all processes of the run."""
    return time.monotonic() - self._began

  @property
  def best_step(self) -> int:
    """The step of the first evaluation with the best value; 0 if there is none."""
    metric = self._run.task.best_metric
    return max(self.history, key=lambda step: self.history[step][metric], default=0)

  def assign_best(self) -> None:
    """Assigns the best weights to the model."""
    for name, variable in self._weights.items():
      variable.assign(self._best[name])

  def _is_evaluated(self) -> bool:
    """Whether an evaluation follows the update."""
    is_end = self.step == self._run.num_steps
    return self.step > 0 and (is_end or self.step % self._run.evaluation_interval == 0)

  def _report(self, logs: Mapping[str, Any]) -> None:
    """Reports the training of this process since the last evaluation."""
    means = {name: float(np.ravel(value)[0]) for name, value in logs.items()}
    self._check_finite({"loss": means["loss"]})
    if not self._is_chief:
      return
    seconds = max(time.monotonic() - self._epoch_began, 1e-9)
    num_examples = (self.step - self._epoch_first_step) * self._run.settings.train_batch_size
    means["learning_rate"] = float(self._run.schedule(self.step - 1))
    means["examples_per_second"] = num_examples / seconds
    self._log.append(self.step, "train", means)
    self._log.flush()

  def _score(self) -> dict[str, float]:
    """Evaluates, reports the metrics, and keeps the weights if they are the best."""
    outputs = self._predict("eval")
    # Each worker has its own metrics, equal but for rounding: the chief's decide what is the best.
    metrics = self._run.workers.of_chief(self._run.task.evaluate(outputs))
    self._check_finite(metrics)
    self.history[self.step] = metrics
    is_best = self.best_step == self.step
    message = ", ".join(f"{name} {format_metric(name, value)}" for name, value in metrics.items())
    if is_best:
      message += ", the best"
    logging.info("update %d of %d: %s", self.step, self._run.num_steps, message)
    if self._is_chief:
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
        "Lower --learning_rate or lengthen the warm-up, and use --mixed_precision=float32 if it "
        "was bfloat16."
      )

  def _keep_best(self) -> None:
    self._best = {name: variable.numpy() for name, variable in self._weights.items()}
    self._write(self._best_store)

  def _write(self, store: CheckpointStore, **state: float) -> None:
    if self._is_chief:
      store.save(self.step, **state)
      # A process that is killed in the evaluation must find it.
      store.wait()
