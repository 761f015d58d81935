"""What training writes as it goes: metrics.jsonl and TensorBoard's files."""

import os
import time
from typing import Any

import tensorflow as tf

from albert_tf.checkpoints.bundle import coordinator_cpu
from albert_tf.compat import keras
from albert_tf.finetuning.engine import record
from albert_tf.finetuning.engine.resume import EvaluateAndKeepBest
from albert_tf.optim.keras_optimizers import WarmupPolynomialDecay
from albert_tf.training.metrics_log import MetricsLog


def report_writers(
  directory: str, evaluation: EvaluateAndKeepBest, schedule: WarmupPolynomialDecay, batch_size: int
) -> list[Any]:
  """The callbacks that write them into a run directory; `evaluation` must run before them."""
  if not evaluation.progress.step:  # What a run left that was killed before its first evaluation.
    record.remove(directory, record.METRICS_FILE, "tensorboard")
  return [
    WriteMetrics(os.path.join(directory, record.METRICS_FILE), evaluation, schedule, batch_size),
    TensorBoard(os.path.join(directory, "tensorboard"), write_graph=False, profile_batch=0),
  ]


class WriteMetrics(keras.callbacks.Callback):
  """Adds a line to metrics.jsonl after each epoch and each evaluation."""

  def __init__(
    self, path: str, evaluation: EvaluateAndKeepBest, schedule: WarmupPolynomialDecay, batch_size: int
  ):
    super().__init__()
    self._evaluation, self._schedule, self._batch_size = evaluation, schedule, batch_size
    self._log = MetricsLog(path, start_step=evaluation.progress.step)
    self._since = (time.monotonic(), evaluation.progress.step)

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    self._write_evaluations()

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    step, now, (then, before) = self._evaluation.progress.step, time.monotonic(), self._since
    self._since = (now, step)
    losses = {name: float(value) for name, value in (logs or {}).items() if not name.startswith("val_")}
    rate = (step - before) * self._batch_size / max(now - then, 1e-9)
    speeds = {"learning_rate": float(self._schedule(step - 1)), "examples_per_second": rate}
    self._log.append(step, "train", {**losses, **speeds})
    self._write_evaluations()

  def on_train_end(self, logs: Any = None) -> None:
    self._log.close()

  def _write_evaluations(self) -> None:
    for step, metrics in self._evaluation.progress.history.items():
      if self._log.find(step, "eval") is None:
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
