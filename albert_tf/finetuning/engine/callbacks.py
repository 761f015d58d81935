"""Keras callbacks of a fine-tuning: evaluation, the best weights, the state of a killed training, and reports."""

from collections.abc import Callable, Iterator, Mapping
import contextlib
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


class TrainingState:
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
    self._averages = {name: slots[f"{name}/ema"] for name in self._weights if f"{name}/ema" in slots}
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
    if not Workers(self._strategy).same(str(progress.step)):
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
      load_weights(self._variables, tensors, source=prefix)
    except (UserError, KeyError, ValueError, TypeError) as error:
      raise UserError(
        f"A killed training goes on from whole files. Received: {prefix} ({error}). Remove {self._state_dir} to "
        "train this seed from the beginning."
      ) from error
    return progress

  def save(self, progress: Progress) -> None:
    """Writes the state as it is, in place of an earlier one."""
    values = {name: variable.numpy() for name, variable in self._variables.items()}
    self._write({**values, _PROGRESS: np.array(progress.to_json().encode())}, progress.step, self._state_dir)

  def keep(self, step: int) -> None:
    """Takes the weights, where they are averaged the averages, for the best so far."""
    best = {**self._weights, **self._averages}
    self._best = {name: variable.numpy() for name, variable in best.items()}
    self._write(self._best, step, self._best_dir)

  @contextlib.contextmanager
  def averaged(self) -> Iterator[None]:
    """Within it the model has the averages of its weights, where the optimizer keeps them."""
    trained = {name: self._weights[name].numpy() for name in self._averages}
    for name, average in self._averages.items():
      self._weights[name].assign(average.numpy())
    try:
      yield
    finally:
      for name, value in trained.items():
        self._weights[name].assign(value)

  def _write(self, values: Mapping[str, np.ndarray], step: int, directory: str) -> None:
    """`model.ckpt-<step>`; what the directory held before goes."""
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

  The metrics join Keras' epoch logs as `val_<metric>`, so that its progress bar, TensorBoard and any callback
  of the user see them.

  Args:
    predict: → the outputs of the model as it is for the evaluation data.
    evaluate: outputs → metrics.
    state: where it and the best weights go.
    best_metric: which one; higher is better, the first of equal ones stays.
    num_steps: updates of the run.
    settings: eval_steps and early_stopping_patience.
    progress: where a killed training was.

  Attributes:
    progress: how far training is.
    seconds_evaluating: of this process.
    best_outputs: of the best weights; None also where an earlier process has found them.
  """

  def __init__(
    self,
    *,
    predict: Callable[[], Any],
    evaluate: Callable[[Any], dict[str, float]],
    state: Any,
    best_metric: str,
    num_steps: int,
    settings: FineTuneSettings,
    progress: Progress,
  ):
    super().__init__()
    self._predict, self._evaluate = predict, evaluate
    self._state = state
    self._best_metric = best_metric
    self._num_steps = num_steps
    self._eval_steps = settings.eval_steps
    self._patience = settings.early_stopping_patience
    self.progress = progress
    self.seconds_evaluating = 0.0
    self.best_outputs: Any = None
    self._began, self._seconds_before = time.monotonic(), progress.seconds

  @property
  def ended(self) -> bool:
    """Whether no update is left: all are made, or patience is at its end."""
    progress = self.progress
    return progress.step >= self._num_steps or bool(self._patience and progress.since_best >= self._patience)

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    self.progress.step += 1
    if self._eval_steps and self.progress.step % self._eval_steps == 0:
      self._check_loss(logs)
      self._evaluate_now()
    if self.ended:
      self.model.stop_training = True

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    self._check_loss(logs)
    if not self._eval_steps or self.progress.step >= self._num_steps:
      self._evaluate_now()
    if self.ended:
      self.model.stop_training = True
    history = self.progress.history
    if logs is not None and history:
      logs |= {f"val_{name}": value for name, value in history[max(history)].items()}

  def on_train_end(self, logs: Any = None) -> None:
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
    began = time.monotonic()
    with self._state.averaged():
      outputs = self._predict()
      metrics = progress.history[progress.step] = self._evaluate(outputs)
    self.seconds_evaluating += time.monotonic() - began
    if self._best_metric not in metrics:
      raise KeyError(f"evaluate() must return {self._best_metric!r}. Received: {sorted(metrics)}.")
    value = metrics[self._best_metric]
    better = value > progress.best or not progress.best_step
    if better:
      progress.best, progress.best_step = value if math.isfinite(value) else -math.inf, progress.step
    progress.since_best = 0 if better else progress.since_best + 1
    progress.seconds = self._seconds_before + time.monotonic() - self._began
    scores = ", ".join(f"{name} {shown(name, score)}" for name, score in metrics.items())
    logging.info("update %d of %d: %s%s", progress.step, self._num_steps, scores, ", the best" * better)
    # First: should `keep` not come to its end, the best weights are those of the state.
    self._state.save(progress)
    if better:
      self.best_outputs = outputs
      self._state.keep(progress.step)


class WriteMetrics(keras.callbacks.Callback):
  """Adds a line to metrics.jsonl every `report_steps` updates, after each epoch, and after each evaluation.

  Losses are means over the updates since the line before, speeds leave evaluations out.
  """

  def __init__(
    self,
    directory: str,
    evaluation: EvaluateAndKeepBest,
    schedule: WarmupPolynomialDecay,
    tokens: Callable[[int, int], int],
    settings: FineTuneSettings,
  ):
    """`evaluation` must run before; `tokens` counts those without padding of the updates after one up to another."""
    super().__init__()
    self._evaluation, self._schedule, self._tokens = evaluation, schedule, tokens
    self._batch_size, self._report_steps = settings.train_batch_size, settings.report_steps
    self._log = MetricsLog(os.path.join(directory, METRICS_FILE), start_step=evaluation.progress.step)
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
