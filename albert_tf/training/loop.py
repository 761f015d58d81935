"""The outer loop: run a chunk of updates, check, report; at boundaries save, then evaluate."""

from collections.abc import Iterator, Mapping
import dataclasses
import threading
from typing import Any

import tensorflow as tf

from albert_tf.training.checkpoints import CheckpointStore
from albert_tf.training.distribution import Workers
from albert_tf.training.evaluation import Evaluator
from albert_tf.training.inputs import PretrainingInput
from albert_tf.training.reporting.goodput import Goodput
from albert_tf.training.reporting.reporter import EVAL, Reporter
from albert_tf.training.settings import PretrainingSettings
from albert_tf.training.step import StepMetrics, TrainStep
from albert_tf.training.watch import TrainingWatch, check_finite


@dataclasses.dataclass(frozen=True)
class LoopResult:
  """How a run ended.

  Attributes:
    step: number of completed updates.
    checkpoint: prefix of the last checkpoint; None if this process writes none.
    evaluation: the last held-out metrics, if any.
    interrupted: whether SIGTERM ended it before the last update or evaluation.
  """

  step: int
  checkpoint: str | None
  evaluation: Mapping[str, float] | None
  interrupted: bool


@dataclasses.dataclass(kw_only=True)
class TrainingLoop:
  """Trains from a step to the last one.

  Args:
    evaluator: held-out evaluation, or None.
    store: the checkpoints; None on a process that writes none.
    workers: the processes of the run; all of them read `stop` once after every chunk.
  """

  settings: PretrainingSettings
  inputs: PretrainingInput
  train_step: TrainStep
  evaluator: Evaluator | None
  store: CheckpointStore | None
  reporter: Reporter
  goodput: Goodput
  workers: Workers
  stop: threading.Event

  def __post_init__(self) -> None:
    self._watch = TrainingWatch(self.settings)
    self._saved = self.store.last if self.store is not None else None
    self._compiled = self._tracing = False
    self._evaluation: Mapping[str, float] | None = None

  def run(self, *, step: int, examples_seen: int) -> LoopResult:
    """Runs to the last update, or until SIGTERM.

    Args:
      step: number of completed updates.
      examples_seen: examples of these updates.

    Raises:
      NonFiniteError: a loss or norm is not finite; nothing bad was saved.
      UserError: a record is damaged, a checkpoint could not be written, or another process took the directory over.
    """
    last, batch_size = self.settings.num_train_steps, self.settings.step.global_batch_size
    iterator = self.inputs.training_iterator(examples_seen)
    stopping = self._stopping()
    if step > 0 and not stopping and (step >= last or self._saves_at(step)):  # Killed before its evaluation.
      self.goodput.mark("restart")
      self._evaluate(step)
    self.goodput.mark("restart")
    while step < last and not stopping:
      self.goodput.mark("report")
      self._trace(step)
      num_steps = next_boundary(self.settings, step) - step
      with self.inputs.naming_damage(examples_seen, num_steps * batch_size):
        self._train(iterator, step, num_steps)
      step += num_steps
      examples_seen += num_steps * batch_size
      stopping = self._stopping()
      if stopping or step >= last or self._saves_at(step):
        # Save first: a kill during the evaluation loses nothing. A preempted machine has no time to evaluate.
        self._save(step, examples_seen)
        if not stopping:
          self._evaluate(step)
          stopping = step < last and self._stopping()
        self.reporter.draw()
    return self._end(step, stopping=stopping)

  def _stopping(self) -> bool:
    return self.workers.any(self.stop.is_set())

  def _saves_at(self, step: int) -> bool:
    return step % self.settings.save_checkpoints_steps == 0

  def _train(self, iterator: Iterator[Any], step: int, num_steps: int) -> None:
    """Makes the updates after `step`, checks and reports them."""
    with tf.profiler.experimental.Trace("updates", step_num=step + 1, _r=1):  # _r: the root of a step.
      metrics, timed, seconds = self._run_steps(iterator, num_steps)
    step += num_steps
    self._check_store()  # First: raises before a report if another process owns the directory.
    averages = metrics.averages(num_steps, self.settings.step.sentence_task)
    saved = self.store.last if self.store is not None else None
    check_finite(averages, first_step=step - num_steps + 1, last_step=step, last_checkpoint=saved)
    num_timed = num_steps if timed is metrics else num_steps - 1
    waited = {"input_share": float(timed.input_seconds) / max(seconds, 1e-9)}
    self.reporter.train(
      step,
      {**averages, **waited, **self.goodput.fields()},
      updates=num_timed,
      seconds=seconds,
      examples=num_timed * self.settings.step.global_batch_size,
      tokens=round(float(timed.tokens)),
    )
    for warning in self._watch.observe(step, averages):
      self.reporter.message(warning)

  def _run_steps(self, iterator: Iterator[Any], num_steps: int) -> tuple[StepMetrics, StepMetrics, float]:
    """Returns metrics of all updates, metrics of the timed updates, and their seconds.

    The first update of a process includes the compilation. It runs alone, and is not timed if more updates follow.
    """

    def run(num_steps: int, category: str) -> tuple[StepMetrics, float]:
      metrics = self.train_step.run(iterator, tf.constant(num_steps))
      waited = float(metrics.input_seconds)  # Waits for the device.
      return metrics, self.goodput.mark(category, waited=waited)

    first, self._compiled = not self._compiled, True
    if first and num_steps > 1:
      compiled, _ = run(1, "compile")
      timed, seconds = run(num_steps - 1, "step")
      return compiled.add(timed), timed, seconds
    metrics, seconds = run(num_steps, "compile" if first else "step")
    return metrics, metrics, seconds

  def _trace(self, step: int) -> None:
    """Starts or ends the trace of --profile_steps."""
    first, last = self.settings.profile_steps or (0, 0)
    traced = self.store is not None and first <= step + 1 <= last
    directory = f"{self.settings.output_dir.rstrip('/')}/tensorboard/profile"
    if traced and not self._tracing:
      tf.profiler.experimental.start(directory)
    elif self._tracing and not traced:
      tf.profiler.experimental.stop()
      self.reporter.message(f"wrote a trace below {directory}; tensorboard --logdir shows it")
    self._tracing = traced

  def _save(self, step: int, examples_seen: int) -> None:
    self.reporter.flush()  # First: a checkpoint must not appear before its reports.
    self.goodput.mark("report")
    if self.store is not None:
      self.store.save(step, examples_seen=examples_seen)
    self.goodput.mark("checkpoint")

  def _check_store(self) -> None:
    """Reports a finished checkpoint; raises errors of writing it."""
    if self.store is not None:
      self.store.check()
      if self.store.last != self._saved:
        self._saved = self.store.last
        self.reporter.message(f"saved {self._saved}")

  def _evaluate(self, step: int) -> None:
    """Evaluates, unless the reports already have this step."""
    if self.evaluator is None:
      return
    self._evaluation = self.reporter.find(step, EVAL)
    if self.workers.any(self.store is not None and self._evaluation is None):
      self._evaluation = self.evaluator()[EVAL]
      self.goodput.mark("evaluation")
      self.reporter.eval(step, self._evaluation)

  def _end(self, step: int, *, stopping: bool) -> LoopResult:
    self._trace(self.settings.num_train_steps)
    self.goodput.mark("report")
    if self.store is not None:
      self.store.wait()
    self.goodput.mark("checkpoint")
    self._check_store()
    self.reporter.message(self.goodput.table())
    self.reporter.message(
      f"the run is in {self.settings.output_dir}: metrics.jsonl, curves.png, tensorboard/; the last checkpoint is "
      f"{self._saved}. The commands take the directory as --init_checkpoint"
    )
    interrupted = stopping and (step < self.settings.num_train_steps or self.evaluator is not None)
    return LoopResult(step, self._saved, self._evaluation, interrupted)


def next_boundary(settings: PretrainingSettings, step: int) -> int:
  """The step of the next return to the host after `step`.

  Boundaries are multiples of the intervals, wherever the run was resumed, and the edges of a trace.
  """
  intervals = (settings.iterations_per_loop, settings.save_checkpoints_steps)
  first, last = settings.profile_steps or (0, 0)
  edges = [edge for edge in (first - 1, last) if edge > step]
  return min(*[step // n * n + n for n in intervals], settings.num_train_steps, *edges)
