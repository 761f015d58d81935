"""The outer loop: run a chunk of updates, check, report; at boundaries save, then evaluate."""

from collections.abc import Iterator, Mapping
import dataclasses
import threading
import time
from typing import Any, NamedTuple

import tensorflow as tf

from albert_tf.pretraining.evaluation import Evaluator
from albert_tf.pretraining.inputs import PretrainingInput
from albert_tf.pretraining.reporter import EVAL, Reporter
from albert_tf.pretraining.settings import PretrainingSettings
from albert_tf.pretraining.step import StepMetrics, TrainStep
from albert_tf.pretraining.watch import TrainingWatch, check_finite
from albert_tf.runs.checkpoint_store import CheckpointStore
from albert_tf.runs.distribution import Workers


class LoopResult(NamedTuple):
  """How a run ended.

  Attributes:
    step: number of completed updates.
    evaluation: the last held-out metrics, if any.
    interrupted: whether SIGTERM ended it before the last update or evaluation.
  """

  step: int
  evaluation: Mapping[str, float] | None
  interrupted: bool


class _Chunk(NamedTuple):
  """The updates between two returns to the host.

  The first update of a process includes the compilation and is not timed, if more updates follow
  it.
  """

  metrics: StepMetrics  # Of all updates.
  timed: StepMetrics  # Of the timed updates,
  num_timed: int  # their number,
  seconds: float  # and their time.


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
  workers: Workers
  stop: threading.Event

  def __post_init__(self) -> None:
    self._watch = TrainingWatch(self.settings)
    self._saved = None if self.store is None else self.store.last
    self._is_compiled = False
    self._is_tracing = False
    self._evaluation: Mapping[str, float] | None = None

  def run(self, *, step: int, examples_seen: int) -> LoopResult:
    """Runs to the last update, or until SIGTERM.

    Args:
      step: number of completed updates.
      examples_seen: examples of these updates.

    Raises:
      NonFiniteError: a loss or norm is not finite; nothing bad was saved.
      UserError: a record is damaged, a checkpoint could not be written, or another process took the
        directory.
    """
    last_step = self.settings.num_train_steps
    batch_size = self.settings.step.global_batch_size
    iterator = self.inputs.training_iterator(examples_seen)
    stopping = self._must_stop()

    # A process that was killed between a checkpoint and its evaluation left the evaluation to
    # this one.
    if step > 0 and not stopping and (step >= last_step or self._saves_at(step)):
      self._evaluate(step)

    while step < last_step and not stopping:
      self._trace(step)
      num_steps = next_boundary(self.settings, step) - step
      with self.inputs.locate_damaged_record(examples_seen, num_steps * batch_size):
        self._train(iterator, step, num_steps)
      step += num_steps
      examples_seen += num_steps * batch_size
      stopping = self._must_stop()

      if stopping or step >= last_step or self._saves_at(step):
        # Save first: a kill during the evaluation loses nothing. A preempted machine has no time to
        # evaluate.
        self._save(step, examples_seen)
        if not stopping:
          self._evaluate(step)
          # After the last update there is nothing left to stop.
          stopping = step < last_step and self._must_stop()
        self.reporter.draw()
    return self._end(step, stopping=stopping)

  def _must_stop(self) -> bool:
    return self.workers.any(self.stop.is_set())

  def _saves_at(self, step: int) -> bool:
    return step % self.settings.save_checkpoints_steps == 0

  def _train(self, iterator: Iterator[Any], step: int, num_steps: int) -> None:
    """Makes the updates after `step`, checks and reports them."""
    # _r=1 marks the root of a step for TensorBoard's profiler.
    with tf.profiler.experimental.Trace("updates", step_num=step + 1, _r=1):
      chunk = self._run_steps(iterator, num_steps)
    self._check_store()  # First: raises before a report if another process owns the directory.

    averages = chunk.metrics.averages(num_steps, self.settings.step.sentence_task)
    check_finite(
      averages,
      first_step=step + 1,
      last_step=step + num_steps,
      last_checkpoint=self._saved,
    )
    input_share = float(chunk.timed.input_seconds) / max(chunk.seconds, 1e-9)
    step += num_steps
    self.reporter.train(
      step,
      averages | {"input_share": input_share},
      updates=chunk.num_timed,
      seconds=chunk.seconds,
      examples=chunk.num_timed * self.settings.step.global_batch_size,
      tokens=round(float(chunk.timed.tokens)),
    )
    for warning in self._watch.observe(step, averages):
      self.reporter.message(warning)

  def _run_steps(self, iterator: Iterator[Any], num_steps: int) -> _Chunk:
    """Makes the updates; the first of this process alone, as it includes the compilation."""

    def run(num_steps: int) -> _Chunk:
      started = time.monotonic()
      metrics = self.train_step.run(iterator, tf.constant(num_steps))
      float(metrics.input_seconds)  # Waits for the device.
      seconds = time.monotonic() - started
      return _Chunk(metrics, timed=metrics, num_timed=num_steps, seconds=seconds)

    # Resumed runs compile too.
    if self._is_compiled:
      return run(num_steps)
    self._is_compiled = True
    compiling = run(1)
    if num_steps == 1:
      return compiling
    following = run(num_steps - 1)
    return following._replace(metrics=compiling.metrics.add(following.metrics))

  def _trace(self, step: int) -> None:
    """Starts or ends the trace of --profile_steps before the update after `step`."""
    is_traced = False
    if self.settings.profile_steps is not None and self.store is not None:
      first, last = self.settings.profile_steps
      is_traced = first <= step + 1 <= last
    directory = f"{self.settings.output_dir.rstrip('/')}/tensorboard/profile"
    if is_traced and not self._is_tracing:
      tf.profiler.experimental.start(directory)
    elif self._is_tracing and not is_traced:
      tf.profiler.experimental.stop()
      self.reporter.message(f"wrote a trace below {directory}; tensorboard --logdir shows it")
    self._is_tracing = is_traced

  def _save(self, step: int, examples_seen: int) -> None:
    self.reporter.flush()  # First: a checkpoint must not appear before its reports.
    if self.store is not None:
      self.store.save(step, examples_seen=examples_seen)

  def _check_store(self) -> None:
    """Reports a finished checkpoint; raises errors of writing it."""
    if self.store is None:
      return
    self.store.check()
    if self.store.last != self._saved:
      self._saved = self.store.last
      self.reporter.message(f"saved {self._saved}")

  def _evaluate(self, step: int) -> None:
    """Evaluates, unless the reports already have this step."""
    if self.evaluator is None:
      return
    self._evaluation = self.reporter.find(step, EVAL)
    # The chief has the reports, so it decides for all workers.
    is_missing = self.store is not None and self._evaluation is None
    if self.workers.any(is_missing):
      self._evaluation = self.evaluator()[EVAL]
      self.reporter.eval(step, self._evaluation)

  def _end(self, step: int, *, stopping: bool) -> LoopResult:
    """Waits for the last checkpoint, and says how the run went."""
    # No update follows: a trace ends here.
    self._trace(self.settings.num_train_steps)
    # The checkpoint is written by a thread, which may still be at work.
    if self.store is not None:
      self.store.wait()
    self._check_store()
    self.reporter.message(
      f"the run is in {self.settings.output_dir}: metrics.jsonl, curves.png, tensorboard/; the "
      f"last checkpoint is {self._saved}. The commands take the directory as --init_checkpoint"
    )
    # After the last update only an evaluation can be missing.
    something_is_missing = step < self.settings.num_train_steps or self.evaluator is not None
    return LoopResult(
      step=step,
      evaluation=self._evaluation,
      interrupted=stopping and something_is_missing,
    )


def next_boundary(settings: PretrainingSettings, step: int) -> int:
  """The step of the next return to the host after `step`.

  Boundaries are multiples of the intervals, wherever the run was resumed, and the edges of a trace.

  Example: with --iterations_per_loop=100 and --save_checkpoints_steps=250 they are 100, 200, 250,
  300, 400, 500.
  """
  boundaries = [settings.num_train_steps]
  for interval in (settings.iterations_per_loop, settings.save_checkpoints_steps):
    boundaries.append((step // interval + 1) * interval)
  if settings.profile_steps is not None:
    first, last = settings.profile_steps
    boundaries.extend(edge for edge in (first - 1, last) if edge > step)
  return min(boundaries)
