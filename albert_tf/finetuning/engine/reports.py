"""What training writes as it goes: metrics.jsonl and TensorBoard's files."""

from collections.abc import Callable
import os
import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints.bundle import coordinator_cpu
from albert_tf.compat import keras
from albert_tf.finetuning.engine import record
from albert_tf.finetuning.engine.resume import EvaluateAndKeepBest
from albert_tf.optim.keras_optimizers import WarmupPolynomialDecay
from albert_tf.progress import bar
from albert_tf.training.metrics_log import MetricsLog


def report_writers(
  directory: str,
  evaluation: EvaluateAndKeepBest,
  schedule: WarmupPolynomialDecay,
  tokens: Callable[[int, int], int],
  *,
  batch_size: int,
  report_steps: int,
) -> list[Any]:
  """The callbacks that write them into a run directory; `evaluation` must run before them.

  `tokens` counts those without padding of the updates after one up to another.
  """
  if not evaluation.progress.step:  # What a run left that was killed before its first evaluation.
    record.remove(directory, record.METRICS_FILE, "tensorboard")
  return [
    WriteMetrics(
      os.path.join(directory, record.METRICS_FILE),
      evaluation,
      schedule,
      tokens,
      batch_size=batch_size,
      report_steps=report_steps,
    ),
    TensorBoard(os.path.join(directory, "tensorboard"), write_graph=False, profile_batch=0),
  ]


class WriteMetrics(keras.callbacks.Callback):
  """Adds a line to metrics.jsonl every `report_steps` updates, after each epoch, and after each evaluation.

  Losses are means over the updates since the line before, speeds leave evaluations out.
  """

  def __init__(
    self,
    path: str,
    evaluation: EvaluateAndKeepBest,
    schedule: WarmupPolynomialDecay,
    tokens: Callable[[int, int], int],
    *,
    batch_size: int,
    report_steps: int,
  ):
    super().__init__()
    self._evaluation, self._schedule, self._tokens = evaluation, schedule, tokens
    self._batch_size, self._report_steps = batch_size, report_steps
    self._log = MetricsLog(path, start_step=evaluation.progress.step)
    self._epoch_begin = self._since = evaluation.progress.step
    self._sums: dict[str, float] = {}  # Of the epoch, up to the last line.
    self._clock = self._training_seconds()

  def _training_seconds(self) -> float:
    return time.monotonic() - self._evaluation.seconds_evaluating

  def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
    self._epoch_begin, self._sums = self._evaluation.progress.step, {}

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    if self._report_steps and self._evaluation.progress.step % self._report_steps == 0:
      self._write_training(logs)
    self._write_evaluations()

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    self._write_training(logs)
    self._write_evaluations()

  def _write_training(self, logs: Any) -> None:
    """Keras' logs are means over the epoch so far."""
    step, before, now = self._evaluation.progress.step, self._since, self._training_seconds()
    if step == before:
      return
    done, count = step - self._epoch_begin, step - before
    means = {n: float(np.ravel(value)[0]) for n, value in (logs or {}).items() if not n.startswith("val_")}
    sums = {name: value * done for name, value in means.items()}
    losses = means
    if before > self._epoch_begin:
      losses = {name: (value - self._sums[name]) / count for name, value in sums.items()}
    seconds = max(now - self._clock, 1e-9)
    speeds = {
      "learning_rate": float(self._schedule(step - 1)),
      "examples_per_second": count * self._batch_size / seconds,
      "tokens_per_second": self._tokens(before, step) / seconds,  # Without padding.
    }
    self._log.append(step, "train", {**losses, **speeds})
    self._since, self._sums, self._clock = step, sums, now

  def on_train_end(self, logs: Any = None) -> None:
    self._log.close()

  def _write_evaluations(self) -> None:
    for step, metrics in self._evaluation.progress.history.items():
      if self._log.find(step, "eval") is None:
        self._log.append(step, "eval", metrics)
        self._log.flush()


class ProgressLines(keras.callbacks.Callback):
  """A line now and then, where there is no terminal for Keras' bar."""

  def __init__(self, num_steps: int):
    super().__init__()
    self._shown = None if sys.stdout.isatty() else bar(num_steps, desc="training", unit="updates")

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    if self._shown is not None:
      self._shown.update(1)


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
