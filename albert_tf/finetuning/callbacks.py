"""Keras callbacks of a fine-tuning run: evaluation, the best weights, early stopping, metrics.jsonl."""

from collections.abc import Callable
import math
import time
from typing import Any

import tensorflow as tf

from albert_tf.checkpoints.bundle import coordinator_cpu
from albert_tf.compat import keras
from albert_tf.errors import UserError
from albert_tf.finetuning.resumption import Progress
from albert_tf.training.metrics_log import MetricsLog


class EvaluateAndKeepBest(keras.callbacks.Callback):
  """Evaluates every epoch or every N updates, keeps the best weights, ends the run when it is time.

  The metrics join Keras' epoch logs as `val_<metric>`, so that its progress bar, TensorBoard and any callback
  of the user see them.

  Args:
    evaluate: → the metrics of the model as it is.
    keep: called with the step when the metric is better than ever before.
    save: called with the progress after every evaluation, before `keep`.
    best_metric: which one; higher is better, the first of equal ones stays.
    num_steps: updates of the run.
    eval_steps: updates between evaluations; 0: after every epoch.
    patience: evaluations without a better one before training ends; 0: never.
    progress: where a killed training was; None: at the beginning.

  Attributes:
    progress: how far training is.
  """

  def __init__(
    self,
    *,
    evaluate: Callable[[], dict[str, float]],
    keep: Callable[[int], None],
    save: Callable[[Progress], None],
    best_metric: str,
    num_steps: int,
    eval_steps: int = 0,
    patience: int = 0,
    progress: Progress | None = None,
  ):
    super().__init__()
    self._evaluate = evaluate
    self._keep = keep
    self._save = save
    self._best_metric = best_metric
    self._num_steps = num_steps
    self._eval_steps = eval_steps
    self._patience = patience
    self.progress = progress or Progress()
    self._began, self._seconds_before = time.monotonic(), self.progress.seconds

  @property
  def ended(self) -> bool:
    """Whether no update is left: all are made, or patience is at its end."""
    progress = self.progress
    return progress.step >= self._num_steps or bool(self._patience and progress.since_best >= self._patience)

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    del batch
    self.progress.step += 1
    if self._eval_steps and self.progress.step % self._eval_steps == 0:
      self._check_loss(logs)
      self._evaluate_now()
    if self.ended:
      self.model.stop_training = True

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    del epoch
    self._check_loss(logs)
    if not self._eval_steps or self.progress.step >= self._num_steps:
      self._evaluate_now()
    if self.ended:
      self.model.stop_training = True
    history = self.progress.history
    if logs is not None and history:
      logs |= {f"val_{name}": value for name, value in history[max(history)].items()}

  def on_train_end(self, logs: Any = None) -> None:
    del logs
    if not self.progress.history:  # A user's callback ended training before the first evaluation.
      self._evaluate_now()

  def _check_loss(self, logs: Any) -> None:
    loss = (logs or {}).get("loss", 0.0)
    if not math.isfinite(float(loss)):
      raise UserError(
        f"The loss must stay finite. Received: loss={loss} by step {self.progress.step}. Lower --learning_rate or "
        "lengthen the warm-up, and use --mixed_precision=float32 if it was bfloat16."
      )

  def _evaluate_now(self) -> None:
    progress = self.progress
    if progress.step in progress.history:
      return
    metrics = progress.history[progress.step] = self._evaluate()
    if self._best_metric not in metrics:
      raise KeyError(f"evaluate() must return {self._best_metric!r}. Received: {sorted(metrics)}.")
    value = metrics[self._best_metric]
    better = value > progress.best or not progress.best_step
    if better:
      progress.best, progress.best_step = value if math.isfinite(value) else -math.inf, progress.step
    progress.since_best = 0 if better else progress.since_best + 1
    progress.seconds = self._seconds_before + time.monotonic() - self._began
    # First: should `keep` not come to its end, the best weights are those of the state.
    self._save(progress)
    if better:
      self._keep(progress.step)


class WriteMetrics(keras.callbacks.Callback):
  """Adds a line for training and one for evaluation to metrics.jsonl after each epoch and evaluation.

  Args:
    path: of metrics.jsonl.
    evaluation: the callback that evaluates; it must run before this one.
    learning_rate: update's number, from 0 → the rate.
    examples_per_step: the global batch.
  """

  def __init__(
    self,
    path: str,
    *,
    evaluation: EvaluateAndKeepBest,
    learning_rate: Callable[[int], float],
    examples_per_step: int,
  ):
    super().__init__()
    progress = evaluation.progress
    self._log = MetricsLog(path, start_step=progress.step)
    self._evaluation = evaluation
    self._learning_rate = learning_rate
    self._examples_per_step = examples_per_step
    self._written = {record["step"] for record in self._log.records if record["split"] == "eval"}
    self._since = (time.monotonic(), progress.step)

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    del batch
    self._write_evaluations(logs)

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    del epoch
    self._write_training(logs or {})
    self._write_evaluations(logs)

  def on_train_end(self, logs: Any = None) -> None:
    del logs
    self._log.close()

  def _write_training(self, logs: dict[str, Any]) -> None:
    step, (then, before) = self._evaluation.progress.step, self._since
    now = time.monotonic()
    rate = (step - before) * self._examples_per_step / max(now - then, 1e-9)
    self._since = (now, step)
    losses = {name: float(value) for name, value in logs.items() if not name.startswith("val_")}
    values = {**losses, "learning_rate": self._learning_rate(step - 1), "examples_per_second": rate}
    self._log.append(step, "train", values)

  def _write_evaluations(self, logs: Any) -> None:
    for step, metrics in self._evaluation.progress.history.items():
      if step not in self._written:
        self._written.add(step)
        self._log.append(step, "eval", metrics)
        self._log.flush()


class TensorBoard(keras.callbacks.TensorBoard):
  """Keras' own, written by this process: by default the first host of a slice would, to its own disk."""

  def on_train_begin(self, logs: Any = None) -> None:
    with tf.device(coordinator_cpu()):
      super().on_train_begin(logs)

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    with tf.device(coordinator_cpu()):
      super().on_epoch_end(epoch, logs)

  def on_train_end(self, logs: Any = None) -> None:
    with tf.device(coordinator_cpu()):
      super().on_train_end(logs)
