"""Keras callbacks of a fine-tuning run: evaluation, the best weights, early stopping, metrics.jsonl."""

from collections.abc import Callable
import math
import time
from typing import Any

from albert_tf.compat import keras
from albert_tf.errors import UserError
from albert_tf.training.metrics_log import MetricsLog


class EvaluateAndKeepBest(keras.callbacks.Callback):
  """Evaluates every epoch or every N updates, keeps the best weights, ends the run when it is time.

  The metrics join Keras' epoch logs as `val_<metric>`, so that its progress bar, TensorBoard and any callback
  of the user see them.

  Args:
    evaluate: → the metrics of the model as it is.
    keep: called with the step when the metric is better than ever before.
    best_metric: which one; higher is better, the first of equal ones stays.
    num_steps: updates of the run.
    eval_steps: updates between evaluations; 0: after every epoch.
    patience: evaluations without a better one before training ends; 0: never.

  Attributes:
    step: updates made.
    best: value of the best metric; best_step: when it was reached.
    history: step → metrics.
  """

  def __init__(
    self,
    *,
    evaluate: Callable[[], dict[str, float]],
    keep: Callable[[int], None],
    best_metric: str,
    num_steps: int,
    eval_steps: int = 0,
    patience: int = 0,
  ):
    super().__init__()
    self._evaluate = evaluate
    self._keep = keep
    self._best_metric = best_metric
    self._num_steps = num_steps
    self._eval_steps = eval_steps
    self._patience = patience
    self.step = 0
    self.best, self.best_step = -math.inf, 0
    self.history: dict[int, dict[str, float]] = {}
    self._since_best = 0

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    del batch
    self.step += 1
    if self._eval_steps and self.step % self._eval_steps == 0:
      self._check_loss(logs)
      self._evaluate_now()
    if self.step >= self._num_steps:
      self.model.stop_training = True

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    del epoch
    self._check_loss(logs)
    if not self._eval_steps or self.step >= self._num_steps:
      self._evaluate_now()
    if logs is not None and self.history:
      logs |= {f"val_{name}": value for name, value in self.history[max(self.history)].items()}

  def _check_loss(self, logs: Any) -> None:
    loss = (logs or {}).get("loss", 0.0)
    if not math.isfinite(float(loss)):
      raise UserError(
        f"The loss must stay finite. Received: loss={loss} by step {self.step}. Lower --learning_rate or "
        "lengthen the warm-up, and use --mixed_precision=float32 if it was bfloat16."
      )

  def _evaluate_now(self) -> None:
    if self.step in self.history:
      return
    metrics = self.history[self.step] = self._evaluate()
    if self._best_metric not in metrics:
      raise KeyError(f"evaluate() must return {self._best_metric!r}. Received: {sorted(metrics)}.")
    value = metrics[self._best_metric]
    if value > self.best or not self.best_step:
      self.best, self.best_step, self._since_best = (
        (value if math.isfinite(value) else -math.inf),
        self.step,
        0,
      )
      self._keep(self.step)
    else:
      self._since_best += 1
      if self._patience and self._since_best >= self._patience:
        self.model.stop_training = True


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
    self._log = MetricsLog(path)
    self._evaluation = evaluation
    self._learning_rate = learning_rate
    self._examples_per_step = examples_per_step
    self._written: set[int] = set()
    self._since = (time.monotonic(), 0)

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    del batch
    self._write_evaluations(logs)

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    del epoch
    self._write_training(logs or {})
    self._write_evaluations(logs)

  def _write_training(self, logs: dict[str, Any]) -> None:
    step, (then, before) = self._evaluation.step, self._since
    now = time.monotonic()
    rate = (step - before) * self._examples_per_step / max(now - then, 1e-9)
    self._since = (now, step)
    losses = {name: float(value) for name, value in logs.items() if not name.startswith("val_")}
    values = {**losses, "learning_rate": self._learning_rate(step - 1), "examples_per_second": rate}
    self._log.append(step, "train", values)

  def _write_evaluations(self, logs: Any) -> None:
    for step, metrics in self._evaluation.history.items():
      if step not in self._written:
        self._written.add(step)
        self._log.append(step, "eval", metrics)
