"""Keras callbacks of a fine-tuning: evaluation, the best weights, the state of a killed training, and reports."""

from collections.abc import Callable, Mapping
import dataclasses
import json
import math
import os
import sys
import time
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.checkpoints import load_weights
from albert_tf.checkpoints.bundle import coordinator_cpu, latest_bundle, read_bundle, write_bundle
from albert_tf.compat import keras
from albert_tf.errors import UserError
from albert_tf.finetuning.engine.results import shown
from albert_tf.finetuning.engine.run_directory import BEST, METRICS_FILE, STATE
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.modeling import named_variables
from albert_tf.optim.keras_optimizers import WarmupPolynomialDecay
from albert_tf.progress import bar
from albert_tf.training.distribution import Workers
from albert_tf.training.metrics_log import MetricsLog

_PROGRESS, _STEP = "albert_tf/progress", "global_step"


@dataclasses.dataclass(kw_only=True)
class Progress:
  """How far a training is.

  Attributes:
    metric: the one that chooses the best weights; higher is better.
    step: updates made.
    history: step → metrics, of each evaluation.
    seconds: of training, over all its processes.
  """

  metric: str
  step: int = 0
  history: dict[int, dict[str, float]] = dataclasses.field(default_factory=dict)
  seconds: float = 0.0

  @property
  def best_step(self) -> int:
    """The first evaluation with the best value; 0 before any."""

    def value(step: int) -> float:
      found = self.history[step][self.metric]
      return found if math.isfinite(found) else -math.inf

    return max(self.history, key=lambda step: (value(step), -step), default=0)

  @property
  def evaluations_since_best(self) -> int:
    return sum(step > self.best_step for step in self.history)


class TrainingState:
  """The best weights of a training, and its state should it be killed; each is on disk whole or not at all.

  Args:
    model: compiled; its optimizer is one of `albert_tf.optim.keras_optimizers`.
    directory: the run's.
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

  def restore(self, metric: str) -> Progress:
    """Gives the model the state that was saved last; without one the progress is that of a new training.

    Raises:
      UserError: the state is damaged, of another model, or not what other workers see.
    """
    prefix = latest_bundle(self._state_dir)
    progress = Progress(metric=metric)
    if prefix is not None:
      try:
        tensors = read_bundle(prefix)
        values = json.loads(bytes(tensors.pop(_PROGRESS)))
        values["history"] = {int(step): metrics for step, metrics in values["history"].items()}
        progress = Progress(**values)
        self._optimizer.iterations.assign(tensors.pop(_STEP))
        load_weights(self._variables, tensors, source=prefix)
      except (UserError, KeyError, ValueError, TypeError) as error:
        raise UserError(
          f"A killed training continues from whole files. Received: {prefix} ({error}). Remove {self._state_dir} to "
          "train this seed from the beginning."
        ) from error
    if not Workers(self._strategy).same(str(progress.step)):
      raise UserError(
        "All workers must see the same output directory. Received: they differ; this worker would continue from "
        f"update {progress.step} of {self._state_dir}. Use a file system that all of them share."
      )
    if prefix is not None:
      logging.info("continuing from update %d, where it was last evaluated", progress.step)
      if progress.best_step == progress.step:
        self.keep_best(progress.step)  # The process may have ended before it did.
      else:
        self._best = read_bundle(os.path.join(self._best_dir, f"model.ckpt-{progress.best_step}"))
    return progress

  def save(self, progress: Progress) -> None:
    """Writes the state, in place of an earlier one."""
    values = {name: variable.numpy() for name, variable in self._variables.items()}
    progress_json = np.array(json.dumps(dataclasses.asdict(progress)).encode())
    self._write({**values, _PROGRESS: progress_json}, progress.step, self._state_dir)

  def keep_best(self, step: int) -> None:
    """Writes the weights as the best so far."""
    self._best = {name: variable.numpy() for name, variable in self._weights.items()}
    self._write(self._best, step, self._best_dir)

  def _write(self, values: Mapping[str, np.ndarray], step: int, directory: str) -> None:
    if not self._writes:
      return
    files.makedirs(directory)
    before = files.listdir(directory)
    write_bundle(os.path.join(directory, f"model.ckpt-{step}"), {**values, _STEP: np.int64(step)})
    for name in before:
      if not name.startswith(f"model.ckpt-{step}."):
        files.remove(os.path.join(directory, name))

  def assign_best(self) -> None:
    """The model gets the best weights."""
    for name, variable in self._weights.items():
      variable.assign(self._best[name])


class EvaluateAndKeepBest(keras.callbacks.Callback):
  """Evaluates every epoch or every `eval_steps` updates, keeps the best weights, ends the run when it is time.

  The metrics join Keras' epoch logs as `val_<metric>`, for its progress bar, TensorBoard and callbacks of the user.

  Args:
    predict: → the outputs of the model as it is for the evaluation data.
    evaluate: outputs → metrics.
    state: where the best weights and the state go.
    progress: how far training is.
    num_steps: updates of the run.
    settings: eval_steps and early_stopping_patience.

  Attributes:
    seconds_evaluating: of this process.
    best_outputs: of the best weights; None also where an earlier process has found them.
  """

  def __init__(
    self,
    *,
    predict: Callable[[], Any],
    evaluate: Callable[[Any], dict[str, float]],
    state: TrainingState,
    progress: Progress,
    num_steps: int,
    settings: FineTuneSettings,
  ):
    super().__init__()
    self._predict, self._evaluate, self._state = predict, evaluate, state
    self._num_steps = num_steps
    self._eval_steps, self._patience = settings.eval_steps, settings.early_stopping_patience
    self.progress = progress
    self.seconds_evaluating = 0.0
    self.best_outputs: Any = None
    self._began = time.monotonic() - progress.seconds

  @property
  def ended(self) -> bool:
    """Whether no update is left: all are made, or patience is at its end."""
    progress = self.progress
    out_of_patience = 0 < self._patience <= progress.evaluations_since_best
    return progress.step >= self._num_steps or out_of_patience

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    self.progress.step += 1
    if self._eval_steps and self.progress.step % self._eval_steps == 0:
      self._evaluate_now(logs)
    if self.ended:
      self.model.stop_training = True

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    history = self.progress.history
    if not self._eval_steps or self.progress.step >= self._num_steps:
      self._evaluate_now(logs)
    if self.ended:
      self.model.stop_training = True
    if logs is not None and history:
      logs |= {f"val_{name}": value for name, value in history[max(history)].items()}

  def on_train_end(self, logs: Any = None) -> None:
    if not self.progress.history:  # A user's callback ended training before the first evaluation.
      self._evaluate_now(logs)

  def _evaluate_now(self, logs: Any) -> None:
    progress = self.progress
    if progress.step in progress.history:
      return
    loss = float((logs or {}).get("loss", 0.0))
    if not math.isfinite(loss):
      raise UserError(
        f"The loss must stay finite. Received: loss={loss} by step {progress.step}. Lower --learning_rate or "
        "lengthen the warm-up, and use --mixed_precision=float32 if it was bfloat16."
      )
    began = time.monotonic()
    outputs = self._predict()
    metrics = progress.history[progress.step] = self._evaluate(outputs)
    self.seconds_evaluating += time.monotonic() - began
    progress.seconds = time.monotonic() - self._began
    is_best = progress.best_step == progress.step
    scores = ", ".join(f"{name} {shown(name, score)}" for name, score in metrics.items())
    logging.info("update %d of %d: %s%s", progress.step, self._num_steps, scores, ", the best" * is_best)
    # First: should `keep_best` not come to its end, the best weights are those of the state.
    self._state.save(progress)
    if is_best:
      self.best_outputs = outputs
      self._state.keep_best(progress.step)


class WriteMetrics(keras.callbacks.Callback):
  """Adds a line to metrics.jsonl after each epoch and after each evaluation; `evaluation` must run before it.

  Losses are means over the epoch, or over what was left of it after a kill. Speeds leave evaluations out.
  """

  def __init__(
    self,
    directory: str,
    evaluation: EvaluateAndKeepBest,
    schedule: WarmupPolynomialDecay,
    settings: FineTuneSettings,
  ):
    super().__init__()
    self._evaluation, self._schedule, self._batch_size = evaluation, schedule, settings.train_batch_size
    self._log = MetricsLog(os.path.join(directory, METRICS_FILE), start_step=evaluation.progress.step)

  def _now(self) -> tuple[int, float]:
    """Updates made, and seconds of training without evaluations."""
    return self._evaluation.progress.step, time.monotonic() - self._evaluation.seconds_evaluating

  def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
    self._begin = self._now()

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    self._write_evaluations()

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    (step, now), (step_before, before) = self._now(), self._begin
    means = {name: float(np.ravel(v)[0]) for name, v in (logs or {}).items() if not name.startswith("val_")}
    speed = (step - step_before) * self._batch_size / max(now - before, 1e-9)
    rate = float(self._schedule(step - 1))
    self._log.append(step, "train", {**means, "learning_rate": rate, "examples_per_second": speed})
    self._write_evaluations()

  def on_train_end(self, logs: Any = None) -> None:
    self._log.flush()

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
