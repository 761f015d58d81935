"""The outer loop: run a chunk of updates, check, report; at boundaries save, then evaluate."""

from collections.abc import Iterator, Mapping
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from albert_tf.training.checkpoints import CheckpointStore, HostState
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


class _Chunk(NamedTuple):
  """Updates one after the other: `metrics` of all, `timed` of the `num_timed` that took `seconds`.

  All but the one that includes the compilation are timed.
  """

  num_steps: int
  metrics: StepMetrics
  timed: StepMetrics
  num_timed: int
  seconds: float

  def add(self, later: "_Chunk") -> "_Chunk":
    """These updates and those after them."""
    return _Chunk(
      self.num_steps + later.num_steps,
      self.metrics.add(later.metrics),
      self.timed.add(later.timed),
      self.num_timed + later.num_timed,
      self.seconds + later.seconds,
    )


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
    self._traced = settings.profile_steps if store is not None else None
    self._trace_directory = f"{settings.output_dir.rstrip('/')}/tensorboard/profile"
    self._unreported: _Chunk | None = None
    self._evaluation: Mapping[str, float] | None = None

  def run(self, iterator: Iterator[Any], *, step: int, state: HostState) -> LoopResult:
    """Runs to the last update or the first return to the host after `max_train_hours`, or until SIGTERM.

    Args:
      iterator: over the batches from `state.examples_seen` on.
      step: completed updates.
      state: what was restored, or a fresh one.

    Raises:
      NonFiniteError: a loss or norm is not finite; nothing bad was saved.
      UserError: a checkpoint could not be written, or another process took the directory over.
    """
    stopping = self._stopping()
    self._goodput.mark("restart")
    over = step > 0 and self._is_over(step)  # A run that has saved nothing yet trains a little in any case.
    if not stopping:
      state = self._catch_up(step, state, over=over)
    self._goodput.mark("restart")
    while not over and not stopping:
      self._goodput.mark("report")
      chunk = next_boundary(self._settings, step) - step
      self._train(iterator, step, chunk)
      step += chunk
      examples = chunk * self._settings.step.global_batch_size
      state = dataclasses.replace(state, examples_seen=state.examples_seen + examples)
      stopping, over = self._stopping(), self._is_over(step)
      saves = stopping or over or self._saves_at(step)
      if saves:
        # First: a kill during the evaluation loses nothing. A preempted machine has seconds left for no more.
        self._save(step, state)
      if not stopping and (over or self._evaluates_at(step)):
        state = self._evaluate(step, state, saved=saves)
        stopping = not over and self._stopping()  # Asked for meanwhile.
        if stopping and not saves:
          self._save(step, state)
      if saves:
        self._reporter.draw()
    return self._end(step, state, stopping=stopping, over=over)

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

  def _evaluates_at(self, step: int) -> bool:
    return step % (self._settings.eval_steps or self._settings.save_checkpoints_steps) == 0

  def _train(self, iterator: Iterator[Any], step: int, num_steps: int) -> None:
    """Makes the updates after `step`, checks them, and reports them where a report is due."""
    self._start_trace(step)
    with tf.profiler.experimental.Trace("updates", step_num=step + 1, _r=1):  # _r: the root of a step.
      chunk = self._run_steps(iterator, num_steps)
    self._end_trace(step + num_steps)
    averages = chunk.metrics.averages(num_steps, self._settings.step.sentence_task)
    if self._store is not None:
      self._store.check()  # First: where another process took the directory over, its files stay as they are.
    saved = self._store.last if self._store is not None else None
    check_finite(averages, first_step=step + 1, last_step=step + num_steps, last_checkpoint=saved)
    self._unreported = chunk if self._unreported is None else self._unreported.add(chunk)
    every = self._settings.report_steps
    if not every or (step + num_steps) % every == 0:
      self._report(step + num_steps)
    if chunk.timed is chunk.metrics:  # The first chunk includes the compilation.
      for warning in self._watch.chunk_time(num_steps, chunk.seconds):
        self._reporter.message(warning)
    self._report_saved()

  def _start_trace(self, step: int) -> None:
    """Starts the trace of --profile_steps, whose edges are boundaries; a run does not end for want of one."""
    if self._traced is None or self._tracing or not self._traced[0] <= step + 1 <= self._traced[1]:
      return
    try:
      tf.profiler.experimental.start(self._trace_directory)
      self._tracing = True
    except tf.errors.OpError as error:
      self._traced = None  # Not tried again.
      self._reporter.message(f"no trace (--profile_steps): {error.message}")

  def _end_trace(self, step: int) -> None:
    if self._traced is None or not self._tracing or step < self._traced[1]:
      return
    self._tracing = False
    try:
      tf.profiler.experimental.stop()
      self._reporter.message(
        f"wrote a trace below {self._trace_directory} (--profile_steps); tensorboard --logdir shows it"
      )
    except tf.errors.OpError as error:
      self._reporter.message(f"no trace (--profile_steps): {error.message}")

  def _report(self, step: int) -> None:
    """Reports the updates up to `step` that were not yet."""
    chunk, self._unreported = self._unreported, None
    if chunk is None:
      return
    averages = chunk.metrics.averages(chunk.num_steps, self._settings.step.sentence_task)
    waited = {"input_share": float(chunk.timed.input_seconds) / max(chunk.seconds, 1e-9)}
    self._reporter.train(
      step,
      {**averages, **waited, **self._goodput.fields()},
      updates=chunk.num_timed,
      seconds=chunk.seconds,
      examples=chunk.num_timed * self._settings.step.global_batch_size,
      tokens=round(float(chunk.timed.tokens)),
    )
    self._goodput.write()
    for warning in self._watch.observe(step, averages):
      self._reporter.message(warning)

  def _run_steps(self, iterator: Iterator[Any], num_steps: int) -> _Chunk:
    if self._compiled:
      return self._timed(iterator, num_steps, "step")
    self._compiled = True  # One update by itself, so that the time of the others is known.
    first = self._timed(iterator, 1, "compile")
    if num_steps == 1:
      return first
    others = self._timed(iterator, num_steps - 1, "step")
    return others._replace(num_steps=num_steps, metrics=first.metrics.add(others.metrics))

  def _timed(self, iterator: Iterator[Any], num_steps: int, category: str) -> _Chunk:
    metrics = self._train_step.run(iterator, tf.constant(num_steps))
    waited = float(metrics.input_seconds)  # Waits for the device.
    return _Chunk(num_steps, metrics, metrics, num_steps, self._goodput.mark(category, waited=waited))

  def _save(self, step: int, state: HostState) -> None:
    self._report(step)  # The log first: a checkpoint is only seen with the reports up to it.
    self._reporter.flush()
    self._goodput.write(now=True)
    self._goodput.mark("report")
    if self._store is not None:
      self._store.save(step, state)
    self._goodput.mark("checkpoint")

  def _evaluate(self, step: int, state: HostState, *, saved: bool) -> HostState:
    if self._evaluator is None:
      return state
    metrics = self._evaluator()[HELD_OUT]
    self._goodput.mark("evaluation")
    self._reporter.eval(step, metrics)
    state = self._note_evaluation(step, state, metrics, saved=saved)
    if state.best_step == step:
      self._reporter.message(f"step {step:,} is the best so far")
    return state

  def _catch_up(self, step: int, state: HostState, *, over: bool) -> HostState:
    """The checkpoint a run starts from is evaluated now if the process that saved it was killed before it could."""
    if self._evaluator is None or step == 0 or not (over or self._evaluates_at(step)):
      return state
    saved = over or self._saves_at(step)  # And not between, where a run that was not stopped saves nothing.
    known = self._reporter.find(step, EVAL)
    if self._workers.any(self._store is not None and known is None):
      return self._evaluate(step, state, saved=saved)
    return state if known is None else self._note_evaluation(step, state, known, saved=saved)

  def _note_evaluation(
    self, step: int, state: HostState, metrics: Mapping[str, float], *, saved: bool
  ) -> HostState:
    self._evaluation = metrics
    if self._settings.select_best == "last" or not saved:
      return state
    state = state.evaluated(step, metrics)
    if state.best_step == step and self._store is not None:
      self._store.point_best(step)
    return state

  def _report_saved(self) -> None:
    """Says so when a checkpoint has become whole; raises what went wrong with it."""
    if self._store is not None:
      self._store.check()
      if self._store.last != self._saved:
        self._saved = self._store.last
        self._reporter.message(f"saved {self._saved}")

  def _end(self, step: int, state: HostState, *, stopping: bool, over: bool) -> LoopResult:
    self._end_trace(self._settings.num_train_steps)
    self._goodput.mark("report")
    if self._store is not None:
      self._store.wait()
    self._goodput.mark("checkpoint")
    self._report_saved()
    self._goodput.write(now=True)
    self._reporter.message(self._goodput.table())
    if over and step < self._settings.num_train_steps:
      self._reporter.message(
        f"ended at step {step:,} of {self._settings.num_train_steps:,}: the run has taken its "
        f"--max_train_hours={self._settings.max_train_hours:g}"
      )
    best = f", model.ckpt-{state.best_step} is the best" if state.best_step > 0 else ""
    self._reporter.message(
      f"the run is in {self._settings.output_dir}: metrics.jsonl, curves.png, tensorboard/, goodput.json; the last "
      f"checkpoint is {self._saved}{best}. The commands take the directory as --init_checkpoint"
    )
    interrupted = stopping and (not over or self._evaluator is not None)
    return LoopResult(step, self._saved, self._evaluation, interrupted)


def next_boundary(settings: PretrainingSettings, step: int) -> int:
  """The step at which the host is returned to after `step`.

  Boundaries are multiples of all intervals, wherever the run was resumed, and the edges of a trace.
  """
  s = settings
  intervals = filter(None, (s.iterations_per_loop, s.save_checkpoints_steps, s.report_steps, s.eval_steps))
  first, last = settings.profile_steps or (0, 0)
  edges = [edge for edge in (first - 1, last) if edge > step]
  return min(*[step // n * n + n for n in intervals], settings.num_train_steps, *edges)
