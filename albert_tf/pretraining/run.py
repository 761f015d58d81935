"""A pretraining run from settings to result: devices, input, model, optimizer, checkpoint, loop."""

import contextlib
import os
from typing import NamedTuple

import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.lock import DirectoryLock
from albert_tf.modeling import AlbertForPreTraining, named_variables
from albert_tf.modeling.pretraining import trained_variables
from albert_tf.optim.optimizer import build_optimizer
from albert_tf.pretraining.evaluation import Evaluator
from albert_tf.pretraining.inputs import PretrainingInput, checked_input
from albert_tf.pretraining.loop import LoopResult, TrainingLoop
from albert_tf.pretraining.reporter import EVAL, Machine, Reporter
from albert_tf.pretraining.settings import PretrainingSettings
from albert_tf.pretraining.step import TrainStep
from albert_tf.pretraining.warm_start import start_weights
from albert_tf.pretraining.watch import check_finite, not_learned, schedule_warnings
from albert_tf.runs import run_directory
from albert_tf.runs.checkpoint_store import CheckpointStore
from albert_tf.runs.distribution import Workers, make_strategy, precision_policy
from albert_tf.runs.failures import readable_errors
from albert_tf.runs.interruption import stop_on_signal
from albert_tf.runs.metrics_log import read_metrics
from albert_tf.tokenization import load_tokenizer


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
    flags_text: resolved flags of the command, saved as `flags.txt` to repeat the run.
    machine: speed of the devices, for reports.
    check_only: build everything, make one update and one evaluation batch, write nothing
      (`--dry_run`).

  Returns:
    How the run ended; None with `check_only`.

  Raises:
    UserError: a mistake in the settings, the records or the directory; before anything is written,
      except for damage inside a record.
  """
  directory = settings.output_dir

  # Devices, and the workers of the run.
  strategy = make_strategy(settings.distribution)
  settings.step.micro_batch_size(strategy.num_replicas_in_sync)
  workers = Workers(strategy)
  lock = DirectoryLock(directory)

  inputs = _open_input(settings, strategy, workers, lock)

  # Model, optimizer, update and evaluation. Nothing is computed yet.
  program = _build(settings, strategy, inputs)

  # Where the weights begin. Workers that differ would train on, each something else.
  store = CheckpointStore(
    os.path.join(directory, "checkpoints"),
    program.checkpoint_variables,
    keep=settings.keep_checkpoint_max,
    may_write=lock.check,
  )
  start = _set_weights(settings, program, store)
  # Everything that decides an update; paths may differ.
  of_all = (
    settings.model,
    settings.optimizer,
    settings.step,
    settings.masking,
    start.examples_seen,
  )
  if not workers.same(f"{inputs.index.content} {of_all}"):
    raise UserError(
      "All workers must have the same flags, and see the same records and the same output "
      f"directory. Received: they differ; this worker has {inputs.index.num_records:,} records and "
      f"is {start.origin}. Give all the same command, and use a file system that all of them share."
    )
  if check_only:
    _try_once(settings, program, inputs, start)
    return None

  # The loop. From here on this process owns the directory.
  with readable_errors(), contextlib.ExitStack() as stack:
    stack.callback(lock.release)
    with workers.all_fail_together():
      if workers.is_chief:
        with readable_errors():
          lock.acquire()
          store.tidy()
          _write_run_files(settings, inputs, flags_text)
    # A signal from here on asks the loop to save and stop.
    stop = stack.enter_context(stop_on_signal())
    # Reports after the restored step are dropped here: the run makes these updates again.
    reporter = Reporter(
      settings,
      start_step=start.step,
      machine=machine,
      is_chief=workers.is_chief,
      may_write=lock.check,
    )
    stack.enter_context(contextlib.closing(reporter))
    stack.enter_context(contextlib.closing(store))
    reporter.message(
      f"{start.origin}; {strategy.num_replicas_in_sync} replica(s); "
      f"{inputs.index.num_records:,} training records; a report every "
      f"{settings.iterations_per_loop:,} updates, the first after compilation"
    )
    for warning in schedule_warnings(settings):
      reporter.message(f"warning: {warning}")

    # Only the chief has a store: the other workers write nothing.
    loop = TrainingLoop(
      settings=settings,
      inputs=inputs,
      train_step=program.train_step,
      evaluator=program.evaluator,
      store=store if workers.is_chief else None,
      reporter=reporter,
      workers=workers,
      stop=stop,
    )
    result = loop.run(step=start.step, examples_seen=start.examples_seen)
    if result.evaluation and not result.interrupted:
      for warning in not_learned(result.evaluation, settings.to_dict()):
        reporter.message(f"warning: {warning}")
    return result


def _open_input(
  settings: PretrainingSettings,
  strategy: tf.distribute.Strategy,
  workers: Workers,
  lock: DirectoryLock,
) -> PretrainingInput:
  """The checked records; the chief also checks that the directory is free and of this run."""
  # The chief comes first: it saves missing indexes, which the other workers then read.
  with workers.all_fail_together():
    if workers.is_chief:
      lock.refuse_others()
      inputs = checked_input(settings, strategy)
      run_directory.check(settings.output_dir, settings.identity(inputs.index.content))
  if not workers.is_chief:
    inputs = checked_input(settings, strategy)
  return inputs


class _Program(NamedTuple):
  """What the devices of a run compute, and its variables."""

  train_step: TrainStep
  evaluator: Evaluator | None
  weights: dict[str, tf.Variable]  # By checkpoint name.
  # By checkpoint name: weights, slots, number of updates.
  checkpoint_variables: dict[str, tf.Variable]


def _build(
  settings: PretrainingSettings, strategy: tf.distribute.Strategy, inputs: PretrainingInput
) -> _Program:
  """Makes model and optimizer under the strategy, the update and the evaluation."""
  with strategy.scope():  # The slots must be on the devices of the weights.
    model = AlbertForPreTraining(
      settings.model,
      encoder_options={
        "remat": settings.remat,
        "layer_loop": settings.layer_loop,
        "padding_at_end": True,  # As in all records.
      },
      read_positions_only=True,
      dtype=precision_policy(settings.distribution.precision),
    )
    weights = named_variables(model)
    # Without a sentence loss the pooler and the sentence head must not decay either.
    optimizer = build_optimizer(
      settings.optimizer,
      trained_variables(model, sentence_loss=bool(settings.step.sentence_task)),
      accelerated=model.encoder.accelerated,
      use_xla=settings.distribution.use_xla,
    )
  train_step = TrainStep(
    strategy=strategy,
    model=model,
    optimizer=optimizer,
    config=settings.step,
    use_xla=settings.distribution.use_xla,
  )
  evaluator = None
  if inputs.held_out is not None:
    evaluator = Evaluator(
      strategy=strategy,
      model=model,
      sets={EVAL: inputs.held_out},
      use_xla=settings.distribution.use_xla,
    )
  return _Program(
    train_step=train_step,
    evaluator=evaluator,
    weights=weights,
    checkpoint_variables=weights | optimizer.slots() | {"global_step": optimizer.step},
  )


class _Start(NamedTuple):
  """Where the weights of a process begin."""

  step: int  # The number of updates made.
  examples_seen: int  # Those of these updates.
  origin: str  # In words.


def _set_weights(
  settings: PretrainingSettings, program: _Program, store: CheckpointStore
) -> _Start:
  """Weights come from 1. this run's last checkpoint; 2. --init_checkpoint; 3. initial values."""
  restored = store.restore_latest()
  step = int(program.checkpoint_variables["global_step"].numpy())
  examples_seen = int(restored.get("examples_seen", 0))
  if restored:
    origin = f"continuing from step {step:,} ({examples_seen:,} examples)"
  else:
    _check_no_checkpoint_is_lost(settings)
    origin = start_weights(program.weights, settings)
  return _Start(step, examples_seen, origin)


def _check_no_checkpoint_is_lost(settings: PretrainingSettings) -> None:
  """Raises `UserError` if a run without checkpoints reported steps after which it had saved one.

  It would begin again at step 0, and drop the reports. A run that was killed before its first
  checkpoint does so.
  """
  reports = read_metrics(os.path.join(settings.output_dir, run_directory.METRICS_FILE))
  last_step = max((report["step"] for report in reports), default=0)
  if last_step > settings.save_checkpoints_steps:
    raise UserError(
      f"A run goes on from its checkpoints. Received: {settings.output_dir}, with reports up to "
      f"step {last_step:,} and without a checkpoint. Put its folder checkpoints/ back, or begin "
      "anew in another --output_dir."
    )


def _try_once(
  settings: PretrainingSettings, program: _Program, inputs: PretrainingInput, start: _Start
) -> None:
  """Makes one update and evaluates one batch, for `--dry_run`."""
  batch_size = settings.step.global_batch_size
  with readable_errors(), inputs.locate_damaged_record(start.examples_seen, batch_size):
    iterator = inputs.training_iterator(start.examples_seen)
    metrics = program.train_step.run(iterator, tf.constant(1))
    averages = metrics.averages(1, settings.step.sentence_task)
    first_step = start.step + 1
    check_finite(averages, first_step=first_step, last_step=first_step, last_checkpoint=None)
    if program.evaluator is not None:
      program.evaluator(num_steps=1)


def _write_run_files(
  settings: PretrainingSettings, inputs: PretrainingInput, flags_text: str
) -> None:
  """Writes run.json, configuration, vocabulary and flags.txt: the directory is self-contained."""
  tokenizer = load_tokenizer(settings.tokenizer_path) if settings.tokenizer_path else None
  run_directory.write(
    settings.output_dir,
    {"identity": settings.identity(inputs.index.content), "settings": settings.to_dict()},
    config=settings.model,
    tokenizer=tokenizer,
    flags=flags_text,
  )
