"""A pretraining run from settings to result: where model, optimizer and input meet."""

import contextlib
import dataclasses
import os
import platform
import time
from typing import Any, NamedTuple

import tensorflow as tf

from albert_tf.checkpoints.bundle import strip_suffix
from albert_tf.compat import STACK, keras
from albert_tf.errors import UserError
from albert_tf.modeling import AlbertForPreTraining, initialize_variables, named_variables
from albert_tf.optim.build import build_optimizer
from albert_tf.optim.optimizer import Optimizer
from albert_tf.pipelines.record_index import RecordIndex
from albert_tf.training.checkpoint_store import CheckpointStore, HostState
from albert_tf.training.checkpoints import latest_checkpoint, restore_variables
from albert_tf.training.distribution import Consensus, is_chief, make_strategy
from albert_tf.training.evaluation import Evaluator
from albert_tf.training.failures import explained
from albert_tf.training.goodput import GOODPUT_FILE, Goodput, Machine
from albert_tf.training.inputs import PretrainingInput, checked_input
from albert_tf.training.interruption import stop_on_sigterm
from albert_tf.training.loop import LoopResult, TrainingLoop
from albert_tf.training.precision import set_precision
from albert_tf.training.reporting import Reporter
from albert_tf.training.run_directory import RunDirectory
from albert_tf.training.run_lock import RunLock
from albert_tf.training.settings import PretrainingSettings
from albert_tf.training.step import TrainStep
from albert_tf.training.watch import TrainingWatch, WatchConfig, check_finite, schedule_warnings


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
  set_precision(settings.mixed_precision)
  directory, lock = RunDirectory(settings.output_dir), RunLock(settings.output_dir)
  chief, consensus = is_chief(strategy), Consensus(strategy)

  def check_place() -> None:
    directory.check_place()
    lock.refuse_others()

  consensus.on_chief(chief, check_place)  # First: records without an index are read whole.
  inputs = _inputs(settings, strategy, directory.order_version(), chief, consensus, write=not check_only)
  index = inputs.index
  consensus.on_chief(chief, lambda: directory.check(settings, inputs.identity))
  trained = _build(settings, strategy)
  evaluator = inputs.evaluator(trained.model)
  store = CheckpointStore(
    directory.checkpoints,
    {**trained.variables, **trained.optimizer.slots(), "global_step": trained.optimizer.step},
    keep=settings.keep_checkpoint_max,
    may_write=lock.check,
  )
  state, origin = _start(settings, store, trained.variables)
  if not consensus.same(f"{inputs.identity} {state}"):
    raise UserError(
      "All workers must see the same records and the same output directory. Received: they differ; this worker has "
      f"{index.num_records:,} records and is {origin}. Use a file system that all of them share."
    )
  if check_only:
    explained(
      lambda: _try_out(trained, evaluator, inputs.training_iterator(state.examples_seen)), settings, index
    )
    return None
  origin = f"{origin}; {strategy.num_replicas_in_sync} replica(s)"
  with contextlib.ExitStack() as stack:
    stack.callback(lock.release)

    def prepare() -> None:
      nonlocal origin
      origin += _hold(lock, store, settings)
      directory.write(settings, inputs.identity, versions=_versions(), flags_text=flags_text)
      store.tidy()

    consensus.on_chief(chief, lambda: explained(prepare, settings, index))
    run = _Run(settings, machine or Machine(), trained, evaluator, store, lock, consensus, chief, began)
    return explained(lambda: run.train(inputs, state, origin), settings, index)


def _inputs(
  settings: PretrainingSettings,
  strategy: tf.distribute.Strategy,
  order_version: int,
  chief: bool,
  consensus: Consensus,
  *,
  write: bool,
) -> PretrainingInput:
  """The chief looks at the records first: what it must walk, the others then find an index of."""
  found: list[PretrainingInput] = []

  def look() -> None:
    found.append(
      checked_input(settings, strategy, order_version=order_version, write=chief and write, says=chief)
    )

  consensus.on_chief(chief, look)
  if not chief:
    look()
  return found[0]


def _try_out(trained: _Trained, evaluator: Evaluator | None, iterator: Any) -> None:
  """One update and one evaluation batch; their result is forgotten with the process."""
  metrics = trained.step.run(iterator, tf.constant(1)).averages(1)
  step = int(trained.optimizer.step.numpy())
  check_finite(metrics, first_step=step, last_step=step, last_checkpoint=None)
  if evaluator is not None:
    evaluator(num_steps=1)


@dataclasses.dataclass(frozen=True)
class _Run:
  """A run whose directory is prepared."""

  settings: PretrainingSettings
  machine: Machine
  trained: _Trained
  evaluator: Evaluator | None
  store: CheckpointStore
  lock: RunLock
  consensus: Consensus
  chief: bool
  began: float

  def train(self, inputs: PretrainingInput, state: HostState, origin: str) -> LoopResult:
    step = int(self.trained.optimizer.step.numpy())
    with (
      stop_on_sigterm() as stop,
      contextlib.closing(self._reporter(step)) as reporter,
      contextlib.closing(self.store),
    ):
      _announce(self.settings, inputs.index, reporter, origin)
      loop = TrainingLoop(
        settings=self.settings,
        train_step=self.trained.step,
        evaluator=self.evaluator,
        store=self.store if self.chief else None,
        reporter=reporter,
        goodput=self._goodput(reporter, step),
        consensus=self.consensus,
        stop=stop,
        watch=_watch(self.settings),
      )
      return loop.run(inputs.training_iterator(state.examples_seen), step=step, state=state)

  def _reporter(self, step: int) -> Reporter:
    return Reporter(
      self.settings.output_dir,
      num_train_steps=self.settings.num_train_steps,
      start_step=step,
      machine=self.machine,
      is_chief=self.chief,
      baselines=self.settings.baselines,
      may_write=self.lock.check,
    )

  def _goodput(self, reporter: Reporter, step: int) -> Goodput:
    return Goodput(
      os.path.join(self.settings.output_dir, GOODPUT_FILE) if self.chief else None,
      began=self.began,
      at_checkpoint=reporter.training(step) if step else {},
      usd_per_hour=self.machine.usd_per_hour,
    )


def _hold(lock: RunLock, store: CheckpointStore, settings: PretrainingSettings) -> str:
  """Takes the lock; returns from whom it was taken over, in words, if from anybody."""
  taken_over = lock.acquire()
  if latest_checkpoint(os.path.join(settings.output_dir, "checkpoints")) != store.last:
    raise UserError(
      f"One process at a time trains in a directory. Received: {settings.output_dir}, where another one has saved a "
      "checkpoint since this one read the last. Run the command again to continue from there."
    )
  return f"; took the lock over from {taken_over}" if taken_over else ""


def _build(settings: PretrainingSettings, strategy: tf.distribute.Strategy) -> _Trained:
  with strategy.scope():  # The slots must lie where the weights lie.
    model = AlbertForPreTraining(
      settings.model, encoder_options=settings.encoder_options, read_positions_only=True
    )
    variables = named_variables(model)
    optimizer = build_optimizer(settings.optimizer, variables)
  step = TrainStep(
    strategy=strategy,
    model=model,
    optimizer=optimizer,
    optimizer_config=settings.optimizer,
    config=settings.step,
  )
  return _Trained(model, variables, optimizer, step)


def _watch(settings: PretrainingSettings) -> TrainingWatch:
  return TrainingWatch(
    WatchConfig(
      vocab_size=settings.model.vocab_size,
      num_train_steps=settings.num_train_steps,
      num_warmup_steps=settings.optimizer.num_warmup_steps,
      baseline_accuracy=settings.baselines.get("masked_lm_accuracy"),
    )
  )


def _announce(settings: PretrainingSettings, index: RecordIndex, reporter: Reporter, origin: str) -> None:
  reporter.message(f"{origin}; {index.num_records:,} training records")
  if index.num_skipped:
    reporter.message(f"left out {index.num_skipped:,} damaged records (--on_bad_record=skip)")
  for warning in schedule_warnings(
    optimizer=settings.optimizer.name,
    learning_rate=settings.optimizer.learning_rate,
    batch_size=settings.step.global_batch_size,
    num_train_steps=settings.num_train_steps,
    num_warmup_steps=settings.optimizer.num_warmup_steps,
    hidden_size=settings.model.hidden_size,
  ):
    reporter.message(f"warning: {warning}")


def _start(
  settings: PretrainingSettings, store: CheckpointStore, variables: dict[str, tf.Variable]
) -> tuple[HostState, str]:
  """Fills the variables. 1. a checkpoint of this run; 2. `--init_checkpoint`; 3. initial values."""
  restored = store.restore_latest()
  if restored is not None:
    return restored, f"continuing from {restored.examples_seen:,} examples"
  if settings.init_checkpoint:
    restore_variables(variables, settings.init_checkpoint)
    return HostState(), f"starting from the weights of {strip_suffix(settings.init_checkpoint)}"
  initialize_variables(variables, seed=settings.step.seed, initializer_range=settings.model.initializer_range)
  return HostState(), "starting from scratch"


def _versions() -> dict[str, str]:
  return {
    "python": platform.python_version(),
    "tensorflow": tf.__version__,
    "keras": keras.__version__,
    "stack": STACK,
  }
