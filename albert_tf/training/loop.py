"""The outer loop: run a chunk of updates, check, report; at boundaries evaluate and save."""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import time
from typing import Any, Protocol

import tensorflow as tf

from albert_tf.training.checkpoints import CheckpointStore, HostState
from albert_tf.training.evaluation import Evaluator
from albert_tf.training.step import TrainStep
from albert_tf.training.watch import TrainingWatch, check_finite


class LoopReporter(Protocol):
  """What the loop tells; `reporting.Reporter` writes it."""

  def train(
    self, step: int, metrics: Mapping[str, float], seconds: float, examples: int, tokens: int
  ) -> None: ...

  def eval(self, step: int, metrics: Mapping[str, float]) -> None: ...

  def message(self, text: str) -> None: ...

  def refresh(self) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopConfig:
  """When the loop does what, in updates.

  Attributes:
    num_train_steps: where the run ends.
    iterations_per_loop: between returns to the host.
    save_checkpoints_steps: between checkpoints.
    global_batch_size, max_seq_length: for the rates in reports.
  """

  num_train_steps: int
  iterations_per_loop: int
  save_checkpoints_steps: int
  global_batch_size: int
  max_seq_length: int

  def chunk(self, step: int) -> int:
    """Updates from `step` to the next boundary.

    Boundaries are multiples of the two intervals, wherever the run was resumed.
    """
    nexts = [step // n * n + n for n in (self.iterations_per_loop, self.save_checkpoints_steps)]
    return min(*nexts, self.num_train_steps) - step


@dataclasses.dataclass(frozen=True)
class LoopResult:
  """How a run ended.

  Attributes:
    step: completed updates.
    checkpoint: prefix of the last checkpoint; None where this process writes none.
    evaluation: the last held-out metrics, if any.
    interrupted: whether SIGTERM ended it early.
  """

  step: int
  checkpoint: str | None
  evaluation: dict[str, float] | None
  interrupted: bool


class TrainingLoop:
  """Trains from a step to the last one.

  Args:
    config: intervals.
    train_step: makes updates.
    evaluator: held-out evaluation, or None.
    store: where checkpoints go; None on a process that writes none.
    reporter: where reports go.
    stop: whether the run shall end now; asked once after every chunk, on all processes.
    watch: reads the reports and warns.
  """

  def __init__(
    self,
    *,
    config: LoopConfig,
    train_step: TrainStep,
    evaluator: Evaluator | None,
    store: CheckpointStore | None,
    reporter: LoopReporter,
    stop: Callable[[], bool],
    watch: TrainingWatch,
  ):
    self._config = config
    self._train_step = train_step
    self._evaluator = evaluator
    self._store = store
    self._reporter = reporter
    self._stop = stop
    self._watch = watch

  def run(
    self, iterator: Iterator[Any], *, step: int, state: HostState, checkpoint: str | None
  ) -> LoopResult:
    """Runs to the end, or until SIGTERM.

    Args:
      iterator: over the batches from `state.examples_seen` on.
      step: completed updates.
      state: what was restored, or a fresh one.
      checkpoint: prefix of the checkpoint restored from, if any.

    Raises:
      NonFiniteError: a loss or norm is not finite; nothing bad was saved.
    """
    config, evaluation, first_step = self._config, None, step
    stopping = self._stop()
    while step < config.num_train_steps and not stopping:
      chunk = config.chunk(step)
      started = time.perf_counter()
      metrics = self._train_step.run(iterator, tf.constant(chunk))
      averages = metrics.averages(chunk)  # Waits for the device.
      seconds = time.perf_counter() - started
      check_finite(averages, first_step=step + 1, last_step=step + chunk, last_checkpoint=checkpoint)
      step += chunk
      examples = chunk * config.global_batch_size
      state = dataclasses.replace(state, examples_seen=state.examples_seen + examples)
      self._reporter.train(
        step, averages, seconds=seconds, examples=examples, tokens=examples * config.max_seq_length
      )
      words = self._watch.observe(step, averages)
      if step - chunk > first_step:  # The first chunk includes the compilation.
        words += self._watch.chunk_time(chunk, seconds)
      for word in words:
        self._reporter.message(word)
      at_boundary = step % config.save_checkpoints_steps == 0 or step == config.num_train_steps
      stopping = self._stop()
      if at_boundary or stopping:
        # A preempted machine has seconds left: no evaluation.
        evaluation, state, checkpoint = self._evaluate_and_save(step, state, evaluate=not stopping)
    return LoopResult(step, checkpoint, evaluation, interrupted=step < config.num_train_steps)

  def _evaluate_and_save(
    self, step: int, state: HostState, *, evaluate: bool
  ) -> tuple[dict[str, float] | None, HostState, str | None]:
    evaluation, is_best = None, False
    if self._evaluator is not None and evaluate:
      evaluation = self._evaluator()
      self._reporter.eval(step, evaluation)
      is_best = evaluation["masked_lm_accuracy"] > state.best_masked_lm_accuracy
    if is_best and evaluation is not None:
      state = dataclasses.replace(
        state, best_masked_lm_accuracy=evaluation["masked_lm_accuracy"], best_step=step
      )
    if self._store is None:
      return evaluation, state, None
    checkpoint = self._store.save(step, state)
    if is_best:
      self._store.save_best(checkpoint)
    self._reporter.message(f"step {step:,}: saved {checkpoint}" + (" (best so far)" if is_best else ""))
    self._reporter.refresh()
    return evaluation, state, checkpoint
