"""A pretraining run from settings to result: where model, optimizer and input meet."""

import contextlib
import platform
from typing import Any, NamedTuple

import tensorflow as tf

from albert_tf.checkpoints.bundle import strip_suffix
from albert_tf.compat import STACK, keras
from albert_tf.errors import UserError
from albert_tf.modeling import AlbertForPreTraining, initialize_variables, named_variables
from albert_tf.optim.build import build_optimizer
from albert_tf.optim.optimizer import Optimizer
from albert_tf.pipelines.checks import check_enough_records, check_records
from albert_tf.pipelines.pretraining import evaluation_batches, training_batches
from albert_tf.pipelines.record_index import RecordIndex, build_record_index
from albert_tf.records.parse import parse_pretraining_batch
from albert_tf.training.checkpoints import CheckpointStore, HostState, latest_checkpoint, restore_variables
from albert_tf.training.distribution import Consensus, host_shard, is_chief, make_strategy
from albert_tf.training.evaluation import Evaluator
from albert_tf.training.failures import explained
from albert_tf.training.interruption import stop_on_sigterm
from albert_tf.training.loop import LoopConfig, LoopResult, TrainingLoop
from albert_tf.training.precision import set_precision
from albert_tf.training.reporting import Reporter
from albert_tf.training.run_directory import RunDirectory
from albert_tf.training.settings import PretrainingSettings
from albert_tf.training.step import TrainStep
from albert_tf.training.watch import TrainingWatch, WatchConfig, schedule_warnings


class _Input:
  """The records of a run as distributed datasets."""

  def __init__(self, settings: PretrainingSettings, index: RecordIndex, strategy: tf.distribute.Strategy):
    self._settings = settings
    self._index = index
    self._strategy = strategy

  def _parse(self, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    return parse_pretraining_batch(serialized, self._settings.spec)

  def training_iterator(self, start_position: int) -> Any:
    settings = self._settings
    return iter(
      self._strategy.distribute_datasets_from_function(
        lambda context: training_batches(
          self._index,
          self._parse,
          seed=settings.step.seed,
          global_batch_size=settings.step.global_batch_size,
          start_position=start_position,
          shard=host_shard(self._strategy, context),
        )
      )
    )

  def evaluator(self, model: AlbertForPreTraining) -> Evaluator | None:
    """Of all held-out files; None where the run has none."""
    settings = self._settings
    if not settings.eval_input_files:
      return None
    num_records = build_record_index(settings.eval_input_files).num_records
    steps = min(-(-num_records // settings.eval_batch_size), settings.max_eval_steps)
    return Evaluator(
      strategy=self._strategy,
      model=model,
      dataset_fn=lambda context: evaluation_batches(
        settings.eval_input_files,
        self._parse,
        global_batch_size=settings.eval_batch_size,
        max_steps=steps,
        shard=host_shard(self._strategy, context),
      ),
      num_steps=steps,
    )


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
  model_flops_per_example: float = 0.0,
  check_only: bool = False,
) -> LoopResult | None:
  """Pretrains, or continues a run that was interrupted.

  Args:
    settings: the run.
    flags_text: resolved flags of the command, kept as `flags.txt`; the run can be repeated from it.
    model_flops_per_example: for the report of model FLOP/s; 0 leaves it out.
    check_only: build everything, read one batch and make no update (`--dry_run`).

  Returns:
    How the run ended; None with `check_only`.

  Raises:
    UserError: a mistake in the settings, the records or the directory; found before anything is written,
      but for damage inside a record, which only reading finds.
  """
  strategy = make_strategy(settings.distribution)
  settings.step.micro_batch_size(strategy.num_replicas_in_sync)
  set_precision(settings.mixed_precision)
  index = _checked_records(settings)
  directory = RunDirectory(settings.output_dir)
  chief, consensus = is_chief(strategy), Consensus(strategy)
  consensus.on_chief(chief, lambda: directory.check(settings, index.fingerprint))
  trained = _build(settings, strategy)
  inputs = _Input(settings, index, strategy)
  store = CheckpointStore(
    directory.checkpoints,
    {**trained.variables, **trained.optimizer.slots(), "global_step": trained.optimizer.step},
    keep=settings.keep_checkpoint_max,
  )
  state, origin = _start(settings, store, trained.variables)
  if not consensus.same(f"{index.fingerprint} {state}"):
    raise UserError(
      "All workers must see the same records and the same output directory. Received: they differ; this worker has "
      f"{index.num_records:,} records and is {origin}. Use a file system that all of them share."
    )
  if check_only:
    explained(lambda: next(inputs.training_iterator(state.examples_seen)), settings, index)
    return None

  def prepare() -> None:
    directory.write(settings, index.fingerprint, versions=_versions(), flags_text=flags_text)
    store.tidy(state)

  consensus.on_chief(chief, prepare)
  step = int(trained.optimizer.step.numpy())
  with (
    stop_on_sigterm() as stop,
    contextlib.closing(_reporter(settings, step, model_flops_per_example, chief)) as reporter,
  ):
    _announce(settings, index, reporter, f"{origin}; {strategy.num_replicas_in_sync} replica(s)")
    loop = TrainingLoop(
      config=_loop_config(settings),
      train_step=trained.step,
      evaluator=inputs.evaluator(trained.model),
      store=store if chief else None,
      reporter=reporter,
      stop=lambda: consensus.any(stop.received),
      watch=_watch(settings),
    )
    iterator = inputs.training_iterator(state.examples_seen)
    checkpoint = latest_checkpoint(directory.checkpoints)
    return explained(
      lambda: loop.run(iterator, step=step, state=state, checkpoint=checkpoint), settings, index
    )


def _checked_records(settings: PretrainingSettings) -> RecordIndex:
  index = build_record_index(settings.input_files, on_bad_record=settings.on_bad_record)
  check_enough_records(index.num_records, settings.step.global_batch_size)
  check_records(
    settings.input_files,
    spec=settings.spec,
    vocab_size=settings.model.vocab_size,
    skip_damaged=settings.on_bad_record == "skip",
  )
  return index


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


def _reporter(settings: PretrainingSettings, step: int, flops: float, chief: bool) -> Reporter:
  return Reporter(
    settings.output_dir,
    num_train_steps=settings.num_train_steps,
    start_step=step,
    model_flops_per_example=flops,
    is_chief=chief,
    baselines=settings.baselines,
  )


def _loop_config(settings: PretrainingSettings) -> LoopConfig:
  return LoopConfig(
    num_train_steps=settings.num_train_steps,
    iterations_per_loop=settings.iterations_per_loop,
    save_checkpoints_steps=settings.save_checkpoints_steps,
    global_batch_size=settings.step.global_batch_size,
    max_seq_length=settings.max_seq_length,
  )


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
