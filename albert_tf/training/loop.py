"""The outer loop: run a chunk of updates, check, report; at boundaries save, then evaluate."""

from collections.abc import Iterator, Mapping
import dataclasses
from typing import Any

import tensorflow as tf

from albert_tf.training.checkpoints import CheckpointStore
from albert_tf.training.distribution import Workers
from albert_tf.training.evaluation import Evaluator
from albert_tf.training.inputs import HELD_OUT
from albert_tf.training.interruption import StopRequest
from albert_tf.training.reporting.goodput import Goodput
from albert_tf.training.reporting.reporter import EVAL, Reporter
from albert_tf.training.settings import PretrainingSettings
from albert_tf.training.step import StepMetrics, TrainStep
from albert_tf.training.watch import TrainingWatch, check_finite


@dataclasses.dataclass(frozen=True)
class LoopResult:
  """How a run ended.

  Attributes:
    step: completed updates.
    checkpoint: prefix of the last checkpoint; None where this process writes none.
    evaluation: the last held-out metrics, if any.
    interrupted: whether SIGTERM ended it early: updates or the last evaluation are still to be made.
  """

  step: int
  checkpoint: str | None
  evaluation: Mapping[str, float] | None
  interrupted: bool


class TrainingLoop:
  """Trains from a step to the last one.

  Args:
    evaluator: held-out evaluation, or None.
    store: where checkpoints go; None on a process that writes none.
    workers: the processes of the run; `stop` is asked once after every chunk, on all of them.
  """

  def __init__(
    self,
    *,
    settings: PretrainingSettings,
    train_step: TrainStep,
    evaluator: Evaluator | None,
    store: CheckpointStore | None,
    reporter: Reporter,
    goodput: Goodput,
    workers: Workers,
    stop: StopRequest,
  ):
    self._settings = settings
    self._train_step = train_step
    self._evaluator = evaluator
    self._store = store
    self._reporter = reporter
    self._goodput = goodput
    self._workers = workers
    self._stop = stop
    self._watch = TrainingWatch(settings)
    self._saved = store.last if store is not None else None
    self._compiled = self._tracing = False
    self._evaluation: Mapping[str, float] | None = None

  def run(self, iterator: Iterator[Any], *, step: int, examples_seen: int) -> LoopResult:
    """Runs to the last update or the first return to the host after `max_train_hours`, or until SIGTERM.

    Args:
      iterator: over the batches from `examples_seen` on.
      step: completed updates.

    Raises:
      NonFiniteError: a loss or norm is not finite; nothing bad was saved.
      UserError: a checkpoint could not be written, or another process took the directory over.
    """
    stopping = self._stopping()
    over = step > 0 and self._is_over(step)  # A run that has saved nothing yet trains a little in any case.
    if step > 0 and not stopping and (over or self._saves_at(step)):  # Killed before it could.
      self._goodput.mark("restart")
      self._evaluate(step)
    self._goodput.mark("restart")
    while not (over or stopping):
      self._goodput.mark("report")
      self._trace(step)
      num_steps = next_boundary(self._settings, step) - step
      self._train(iterator, step, num_steps)
      step += num_steps
      examples_seen += num_steps * self._settings.step.global_batch_size
      stopping, over = self._stopping(), self._is_over(step)
      if stopping or over or self._saves_at(step):
        # First: a kill during the evaluation loses nothing. A preempted machine has seconds left for no more.
        self._save(step, examples_seen)
        if not stopping:
          self._evaluate(step)
          stopping = not over and self._stopping()  # Asked for meanwhile.
        self._reporter.draw()
    return self._end(step, stopping=stopping, over=over)

  def _stopping(self) -> bool:
    return self._workers.any(self._stop.received)

  def _is_over(self, step: int) -> bool:
    """Whether `step` is the run's last: of the schedule, or of the time that it may take."""
    if step >= self._settings.num_train_steps:
      return True
    hours = self._settings.max_train_hours  # The chief's clock knows of earlier lives.
    return hours is not None and self._workers.any(self._goodput.running >= hours * 3600)

  def _saves_at(self, step: int) -> bool:
    return step % self._settings.save_checkpoints_steps == 0

  def _train(self, iterator: Iterator[Any], step: int, num_steps: int) -> None:
    """Makes the updates after `step`, checks and reports them."""
    with tf.profiler.experimental.Trace("updates", step_num=step + 1, _r=1):  # _r: the root of a step.
      metrics, timed, seconds = self._run_steps(iterator, num_steps)
    step += num_steps
    self._check_store()  # First: where another process took the directory over, its files stay as they are.
    averages = metrics.averages(num_steps, self._settings.step.sentence_task)
    saved = self._store.last if self._store is not None else None
    check_finite(averages, first_step=step - num_steps + 1, last_step=step, last_checkpoint=saved)
    num_timed = num_steps if timed is metrics else num_steps - 1
    waited = {"input_share": float(timed.input_seconds) / max(seconds, 1e-9)}
    self._reporter.train(
      step,
      {**averages, **waited, **self._goodput.fields()},
      updates=num_timed,
      seconds=seconds,
      examples=num_timed * self._settings.step.global_batch_size,
      tokens=round(float(timed.tokens)),
    )
    for warning in [*self._watch.chunk_time(num_timed, seconds), *self._watch.observe(step, averages)]:
      self._reporter.message(warning)

  def _run_steps(self, iterator: Iterator[Any], num_steps: int) -> tuple[StepMetrics, StepMetrics, float]:
    """Metrics of all updates, and of those that are timed, with their seconds.

    The first update of a process includes the compilation: it is made by itself, and timed only where it is alone.
    """

    def run(num_steps: int, category: str) -> tuple[StepMetrics, float]:
      metrics = self._train_step.run(iterator, tf.constant(num_steps))
      waited = float(metrics.input_seconds)  # Waits for the device.
      return metrics, self._goodput.mark(category, waited=waited)

    first, self._compiled = not self._compiled, True
    if first and num_steps > 1:
      compiled, _ = run(1, "compile")
      timed, seconds = run(num_steps - 1, "step")
      return compiled.add(timed), timed, seconds
    metrics, seconds = run(num_steps, "compile" if first else "step")
    return metrics, metrics, seconds

  def _trace(self, step: int) -> None:
    """Starts or ends the trace of --profile_steps, whose edges are boundaries."""
    first, last = self._settings.profile_steps or (0, 0)
    traced = self._store is not None and first <= step + 1 <= last
    directory = f"{self._settings.output_dir.rstrip('/')}/tensorboard/profile"
    if traced and not self._tracing:
      tf.profiler.experimental.start(directory)
    elif self._tracing and not traced:
      tf.profiler.experimental.stop()
      self._reporter.message(f"wrote a trace below {directory}; tensorboard --logdir shows it")
    self._tracing = traced

  def _save(self, step: int, examples_seen: int) -> None:
    self._reporter.flush()  # First: a checkpoint is only seen with the reports up to it.
    self._goodput.mark("report")
    if self._store is not None:
      self._store.save(step, examples_seen)
    self._goodput.mark("checkpoint")

  def _check_store(self) -> None:
    """Says so when a checkpoint has become whole; raises what went wrong with it."""
    if self._store is not None:
      self._store.check()
      if self._store.last != self._saved:
        self._saved = self._store.last
        self._reporter.message(f"saved {self._saved}")

  def _evaluate(self, step: int) -> None:
    """Evaluates, unless that was done before a kill."""
    if self._evaluator is None:
      return
    self._evaluation = self._reporter.find(step, EVAL)
    if self._workers.any(self._store is not None and self._evaluation is None):
      self._evaluation = self._evaluator()[HELD_OUT]
      self._goodput.mark("evaluation")
      self._reporter.eval(step, self._evaluation)

  def _end(self, step: int, *, stopping: bool, over: bool) -> LoopResult:
    self._trace(self._settings.num_train_steps)
    self._goodput.mark("report")
    if self._store is not None:
      self._store.wait()
    self._goodput.mark("checkpoint")
    self._check_store()
    self._reporter.message(self._goodput.table())
    settings = self._settings
    if over and step < settings.num_train_steps:
      self._reporter.message(
        f"ended at step {step:,} of {settings.num_train_steps:,}: the run has taken its "
        f"--max_train_hours={settings.max_train_hours:g}"
      )
    self._reporter.message(
      f"the run is in {settings.output_dir}: metrics.jsonl, curves.png, tensorboard/; the last "
      f"checkpoint is {self._saved}. The commands take the directory as --init_checkpoint"
    )
    interrupted = stopping and (not over or self._evaluator is not None)
    return LoopResult(step, self._saved, self._evaluation, interrupted)


def next_boundary(settings: PretrainingSettings, step: int) -> int:
  """The step at which the host is returned to after `step`.

  Boundaries are multiples of the intervals, wherever the run was resumed, and the edges of a trace.
  """
  intervals = (settings.iterations_per_loop, settings.save_checkpoints_steps)
  first, last = settings.profile_steps or (0, 0)
  edges = [edge for edge in (first - 1, last) if edge > step]
  return min(*[step // n * n + n for n in intervals], settings.num_train_steps, *edges)
