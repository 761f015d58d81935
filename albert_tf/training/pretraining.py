"""A pretraining run from settings to result: where model, optimizer and input meet."""

import contextlib
import dataclasses
import os
import platform
import time
from typing import NamedTuple

import tensorflow as tf

from albert_tf.checkpoints.bundle import latest_checkpoint
from albert_tf.compat import STACK, keras
from albert_tf.errors import UserError
from albert_tf.modeling import AlbertForPreTraining, initialize_variables, named_variables
from albert_tf.modeling.pretraining import trained_variables
from albert_tf.optim.optimizer import Optimizer, build_optimizer
from albert_tf.training.checkpoints import CheckpointStore, HostState
from albert_tf.training.distribution import (
  Consensus,
  is_chief,
  make_strategy,
  precision_warning,
  set_precision,
)
from albert_tf.training.evaluation import Evaluator
from albert_tf.training.failures import explained
from albert_tf.training.inputs import PretrainingInput, checked_input
from albert_tf.training.interruption import stop_on_signal
from albert_tf.training.loop import LoopResult, TrainingLoop
from albert_tf.training.reporting.goodput import GOODPUT_FILE, Goodput, Machine
from albert_tf.training.reporting.reporter import Reporter
from albert_tf.training.run_directory import RunDirectory
from albert_tf.training.run_lock import RunLock
from albert_tf.training.settings import PretrainingSettings
from albert_tf.training.step import TrainStep
from albert_tf.training.warm_start import warm_start
from albert_tf.training.watch import TrainingWatch, check_finite, schedule_warnings


class _Trained(NamedTuple):
  """What is trained and what trains it."""

  model: AlbertForPreTraining
  variables: dict[str, tf.Variable]
  optimizer: Optimizer
  step: TrainStep


def run_pretraining(
  settings: PretrainingSettings,
  *,
  flags_text: str = "",
  machine: Machine | None = None,
  check_only: bool = False,
) -> LoopResult | None:
  """Pretrains, or continues a run that was interrupted.

  Args:
    settings: the run.
    flags_text: resolved flags of the command, kept as `flags.txt`; the run can be repeated from it.
    machine: for the reports of what the devices achieved and cost.
    check_only: build everything, make one update and one evaluation batch, keep and write nothing (`--dry_run`).

  Returns:
    How the run ended; None with `check_only`.

  Raises:
    UserError: a mistake in the settings, the records or the directory; found before anything is written,
      but for damage inside a record, which only reading finds.
  """
  began = time.time()
  strategy = make_strategy(settings.distribution)
  settings.step.micro_batch_size(strategy.num_replicas_in_sync)
  set_precision(settings.distribution.precision)
  directory, lock = RunDirectory(settings.output_dir), RunLock(settings.output_dir)
  chief, consensus = is_chief(strategy), Consensus(strategy)

  def look() -> PretrainingInput:
    order_version, write = directory.order_version(), chief and not check_only
    return checked_input(settings, strategy, order_version=order_version, write=write, says=chief)

  consensus.on_chief(chief, directory.check_place)  # First: records without an index are read whole.
  consensus.on_chief(chief, lock.refuse_others)
  # The chief looks at the records first: what it must walk, the others then find an index of.
  inputs = consensus.on_chief(chief, look) or look()
  consensus.on_chief(chief, lambda: directory.check(settings, inputs.identity))
  trained = _build(settings, strategy)
  evaluator = inputs.evaluator(trained.model)
  store = CheckpointStore(
    directory.checkpoints,
    {**trained.variables, **trained.optimizer.slots(), "global_step": trained.optimizer.step},
    keep=settings.keep_checkpoint_max,
    keep_every=settings.keep_checkpoint_every_n_steps,
    may_write=lock.check,
  )
  state, origin = _start(settings, store, trained)
  if not consensus.same(f"{inputs.identity} {state}"):
    raise UserError(
      "All workers must see the same records and the same output directory. Received: they differ; this worker has "
      f"{inputs.index.num_records:,} records and is {origin}. Use a file system that all of them share."
    )
  run = _Run(
    settings, machine or Machine(), inputs, trained, evaluator, store, lock, consensus, chief, state, began
  )
  if check_only:
    explained(run.try_out, settings, inputs.index)
    return None
  with contextlib.ExitStack() as stack:
    stack.callback(lock.release)

    def prepare() -> str:
      taken_over = run.hold()
      directory.write(settings, inputs.identity, versions=_versions(), flags_text=flags_text)
      store.tidy()
      if settings.select_best == "last":
        store.forget_best()
      return taken_over

    taken_over = consensus.on_chief(chief, lambda: explained(prepare, settings, inputs.index)) or ""
    origin += f"; {strategy.num_replicas_in_sync} replica(s){taken_over}"
    return explained(lambda: run.train(origin), settings, inputs.index)


@dataclasses.dataclass(frozen=True)
class _Run:
  """All that a run needs, built and checked; nothing is written yet."""

  settings: PretrainingSettings
  machine: Machine
  inputs: PretrainingInput
  trained: _Trained
  evaluator: Evaluator | None
  store: CheckpointStore
  lock: RunLock
  consensus: Consensus
  chief: bool
  state: HostState
  began: float

  @property
  def step(self) -> int:
    """Completed updates."""
    return int(self.trained.optimizer.step.numpy())

  def try_out(self) -> None:
    """One update and one evaluation batch; their result is forgotten with the process."""
    iterator = self.inputs.training_iterator(self.state.examples_seen)
    metrics = self.trained.step.run(iterator, tf.constant(1)).averages(1, self.settings.step.sentence_task)
    check_finite(metrics, first_step=self.step, last_step=self.step, last_checkpoint=None)
    if self.evaluator is not None:
      self.evaluator(num_steps=1)

  def hold(self) -> str:
    """Takes the lock; returns from whom it was taken over, in words, if from anybody."""
    taken_over = self.lock.acquire()
    directory = self.settings.output_dir
    if latest_checkpoint(os.path.join(directory, "checkpoints")) != self.store.last:
      raise UserError(
        f"One process at a time trains in a directory. Received: {directory}, where another one has saved a "
        "checkpoint since this one read the last. Run the command again to continue from there."
      )
    return f"; took the lock over from {taken_over}" if taken_over else ""

  def train(self, origin: str) -> LoopResult:
    """Trains to the end, or until SIGTERM; `origin` says where the weights are from."""
    settings, step = self.settings, self.step
    with (
      stop_on_signal() as stop,
      contextlib.closing(
        Reporter(
          settings.output_dir,
          num_train_steps=settings.num_train_steps,
          start_step=step,
          machine=self.machine,
          is_chief=self.chief,
          baselines=settings.baselines,
          may_write=self.lock.check,
        )
      ) as reporter,
      contextlib.closing(self.store),
    ):
      _announce(settings, self.inputs, reporter, origin)
      loop = TrainingLoop(
        settings=settings,
        train_step=self.trained.step,
        evaluator=self.evaluator,
        store=self.store if self.chief else None,
        reporter=reporter,
        goodput=Goodput(
          os.path.join(settings.output_dir, GOODPUT_FILE) if self.chief else None,
          began=self.began,
          at_checkpoint=reporter.training(step) if step else {},
          usd_per_hour=self.machine.usd_per_hour,
        ),
        consensus=self.consensus,
        stop=stop,
        watch=TrainingWatch(settings),
      )
      return loop.run(self.inputs.training_iterator(self.state.examples_seen), step=step, state=self.state)


def _build(settings: PretrainingSettings, strategy: tf.distribute.Strategy) -> _Trained:
  with strategy.scope():  # The slots must lie where the weights lie.
    model = AlbertForPreTraining(
      settings.model, encoder_options=settings.encoder_options, read_positions_only=True
    )
    variables = named_variables(model)
    trained = trained_variables(model, sentence_loss=bool(settings.step.sentence_task))
    optimizer = build_optimizer(settings.optimizer, trained)
  step = TrainStep(
    strategy=strategy,
    model=model,
    optimizer=optimizer,
    config=settings.step,
    use_xla=settings.distribution.use_xla,
  )
  return _Trained(model, variables, optimizer, step)


def _announce(
  settings: PretrainingSettings, inputs: PretrainingInput, reporter: Reporter, origin: str
) -> None:
  index, slow = inputs.index, precision_warning(settings.distribution.precision, inputs.strategy)
  reporter.message(f"{origin}; {index.num_records:,} training records")
  if index.num_skipped:
    reporter.message(f"left out {index.num_skipped:,} damaged records (--on_bad_record=skip)")
  for warning in [*schedule_warnings(settings), *filter(None, [slow])]:
    reporter.message(f"warning: {warning}")


def _start(settings: PretrainingSettings, store: CheckpointStore, trained: _Trained) -> tuple[HostState, str]:
  """Fills the variables. 1. a checkpoint of this run; 2. `--init_checkpoint`; 3. initial values."""
  restored = store.restore_latest()
  if restored is not None:
    step = int(trained.optimizer.step.numpy())
    if settings.select_best == "last":  # Should it be "held_out" again, the best is looked for anew.
      restored = HostState(examples_seen=restored.examples_seen)
    return restored, f"continuing from step {step:,} ({restored.examples_seen:,} examples)"
  if settings.init_checkpoint:
    said = warm_start(
      trained.variables,
      settings.model,
      settings.init_checkpoint,
      seed=settings.step.seed,
      tokenizer_path=settings.tokenizer_path,
    )
    return HostState(), said
  initialize_variables(
    trained.variables, seed=settings.step.seed, initializer_range=settings.model.initializer_range
  )
  return HostState(), "starting from scratch"


def _versions() -> dict[str, str]:
  return {
    "python": platform.python_version(),
    "tensorflow": tf.__version__,
    "keras": keras.__version__,
    "stack": STACK,
  }
