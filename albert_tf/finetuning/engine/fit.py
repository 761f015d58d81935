"""Fine-tunes a task from a set of weights, for one or several seeds, with Keras' `model.fit`.

A run is checked, trained, given its best weights, answers the examples, and is written. The
gradient is in `keras_api/task_model.py`, which `model.fit` calls.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import math
import os
import sys
from typing import Any

from absl import logging
import keras
import numpy as np
import tensorflow as tf

from albert_tf import files, json_files
from albert_tf.checkpoints.load import load_weights
from albert_tf.configs.task import RESULTS_FILE
from albert_tf.errors import StoppedError, UserError
from albert_tf.finetuning.engine import batches, exit_table, results
from albert_tf.finetuning.engine.callbacks import TrainingProgress
from albert_tf.finetuning.engine.run import FineTuningRun, splits_to_run
from albert_tf.finetuning.initialize import Start, load_encoder_weights
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.finetuning.tasks.base import UNNAMED_OUTPUT, FineTuningTask, Outputs
from albert_tf.keras_api.task_model import TaskModel
from albert_tf.lock import DirectoryLock
from albert_tf.modeling.text_inputs import Inputs
from albert_tf.pipelines.batches import HostShard, iterators_without_autotune
from albert_tf.progress import track
from albert_tf.runs import run_directory
from albert_tf.runs.distribution import Workers, host_shard, make_strategy
from albert_tf.runs.interruption import stop_on_signal
from albert_tf.runs.settings import micro_batch_size


def fine_tune(
  task: FineTuningTask,
  settings: FineTuneSettings,
  *,
  start: Start,
  output_dir: str,
  flags_text: str = "",
  callbacks: Sequence[Any] = (),
  strategy: tf.distribute.Strategy | None = None,
) -> dict[str, Any]:
  """Trains (`do_train`), evaluates (`do_eval`), predicts (`do_predict`); writes a run directory.

  A finished run is not trained again. SIGTERM and Control-C save the state; a killed run continues
  from its last evaluation. Continued runs get the weights of a run without interruption. Without
  `do_train` the weights are those of `output_dir` or, if it is new, the fine-tuned ones of `start`.
  With several seeds each has a run directory, `seed_N/`; results.json summarises them and names the
  best one. `from_pretrained` of the model's class loads the best weights of the best seed from
  `output_dir`.

  Args:
    task: the task with its data, made with `start.tokenizer`.
    settings: the settings of the training.
    start: configuration, tokenizer and weights; see `initialize.read_start`.
    output_dir: the run directory, new, empty, or of the same run; see `runs.run_directory`.
    flags_text: the command's resolved flags, written to flags.txt.
    callbacks: additional Keras callbacks; an epoch of Keras lasts from evaluation to evaluation.
    strategy: a strategy to use; None: that of `settings.distribution`.

  Returns:
    The content of `results.json`.

  Raises:
    StoppedError: a signal ended the training, and the state is saved.
    UserError: the weights do not fit, or the directory contains something else or is used by
      another process.
  """
  if strategy is None:
    strategy = make_strategy(settings.distribution)
  config = start.config.at_depth(settings.num_hidden_layers)
  workers = Workers(strategy)
  lock = DirectoryLock(output_dir)
  run = FineTuningRun(
    task=task,
    settings=settings,
    start=dataclasses.replace(start, config=config),
    strategy=strategy,
    workers=workers,
    output_dir=output_dir,
    flags_text=flags_text,
    callbacks=callbacks,
    may_write=lock.check,
  )

  # 1. Everything is checked before anything is written.
  run = _checked(run)

  # 2. Each seed has a run of its own. From here on this process owns the directory.
  try:
    with workers.all_fail_together():
      if workers.is_chief:
        lock.acquire()
    results_of_seed = {of_seed.seed: _run_one_seed(of_seed) for of_seed in run.of_all_seeds()}
    if len(settings.seeds) == 1:
      return results_of_seed[settings.seeds[0]]
    path = os.path.join(output_dir, RESULTS_FILE)
    summary = results.summarize(
      results_of_seed, best_metric=task.best_metric, before=json_files.find(path)
    )
    if workers.is_chief:
      json_files.write(path, summary)
    return summary
  finally:
    lock.release()


def _checked(run: FineTuningRun) -> FineTuningRun:
  """The run with its examples and identity; the chief checks the directories for all workers."""
  task = run.task
  settings = run.settings
  config = run.start.config
  config.check_train_depths(settings.train_depths)
  config.check_length(task.spec.max_seq_length, "the task")
  with run.workers.all_fail_together():
    if run.workers.is_chief:
      for of_seed in run.of_all_seeds():
        of_seed.check_directory()

  # After the directories: to tokenize the examples may take minutes.
  names = splits_to_run(
    task, evaluates=settings.do_train or settings.do_eval, predicts=settings.do_predict
  )
  if settings.do_train:
    names = ["train"] + names
  features = {name: task.features(name) for name in names}
  answered = {name: of_split for name, of_split in features.items() if name != "train"}
  data = results.describe_data(task, answered, num_hidden_layers=config.num_hidden_layers)
  run = dataclasses.replace(run, features=features, data=data)

  # Sizes that do not fit, and directories of other trainings or with answers to other data.
  with run.workers.all_fail_together():
    if settings.do_train:
      _ = run.schedule
      micro_batch_size(
        settings.train_batch_size,
        num_replicas=run.strategy.num_replicas_in_sync,
        gradient_accumulation_steps=settings.gradient_accumulation_steps,
      )
      run = dataclasses.replace(run, identity=run.training_identity())
    if run.workers.is_chief:
      for of_seed in run.of_all_seeds():
        if settings.do_train:
          run_directory.check(of_seed.directory, run.identity | {"seed": of_seed.seed})
        results.check_data(of_seed.directory, of_seed.earlier_results(), data)
  # Else each would train something else, and their gradients would be added all the same.
  if not run.workers.same(f"{run.settings} {run.identity}"):
    raise UserError(
      "All workers must have the same flags, examples and weights. Received: they differ. Give all "
      "the same command, and use files that all of them share."
    )
  return run


def _run_one_seed(run: FineTuningRun) -> dict[str, Any]:
  """Trains unless it is finished, answers with the best weights, and returns results.json."""
  task = run.task
  is_chief = run.workers.is_chief
  results_path = os.path.join(run.directory, RESULTS_FILE)
  logging.info("seed %d: %s", run.seed, run.directory)

  # A model with random weights by the seed, without what Keras keeps of the seed before.
  keras.backend.clear_session()
  keras.utils.set_random_seed(run.seed)
  model = run.build_model()
  predict = Predictor(run, functools.partial(model, training=False))

  # What an earlier process has left: perhaps weights and, if it was finished, results.
  has_weights = run.best_weights is not None
  entries = run.earlier_results()
  predicts = any(split.startswith("test") for split in run.features)
  if entries and (predicts or task.has_one_set_of_predictions):
    # Their predictions are replaced.
    entries = results.without_tests(entries)
  # Of all workers, and before one of them writes what another still reads.
  trains = run.settings.do_train and run.workers.any(not entries)
  # Evaluation and prediction leave the record of the training as it is.
  writes_record = trains or not has_weights
  if is_chief and trains:
    _remove(results_path)
  if is_chief and writes_record:
    run.write_record(model)

  # The best weights.
  outputs: dict[str, Outputs] = {}
  if trains:
    progress = _train(run, model, predict)
    entries = {
      "best_step": progress.best_step,
      "train_steps": progress.step,
      "train_examples": len(run.features["train"]),
      "train_seconds": progress.seconds,
      "history": progress.history,
    }
    if progress.best_outputs is not None:
      outputs["eval"] = progress.best_outputs
  else:
    # Those of the run or, in a new directory, fine-tuned ones of another run.
    trained: Any = run.best_weights or run.start.checkpoint
    load_weights(model, trained, allow_unused=".")

  # The answers.
  for name in run.features:
    if name != "train" and name not in outputs:
      outputs[name] = predict(name)
  scored = [
    name for name in outputs if name.startswith("eval") or run.features[name].labels is not None
  ]
  # Before the metrics: overlapping labels keep the thresholds of their last evaluation.
  exit_rows = None
  if "eval" in outputs and len(model.exit_depths()) > 1:
    exit_rows = _exit_rows(run, model)
  metrics = run.workers.of_chief(metrics_of(task, outputs, scored))
  data = entries.get("data", {}) | run.data
  entries = results.head(task, run.start.source) | entries | {"seed": run.seed, "data": data}
  entries |= metrics
  spec = model.task.with_thresholds(metrics)
  if exit_rows is not None:
    # Chosen on the data that chose the weights, and on no other table.
    if trains:
      chosen = exit_table.fastest_row(exit_rows, run.settings.exit_tolerance)
      spec = dataclasses.replace(spec, exit_threshold=chosen.threshold)
    entries["early_exit"] = {
      "threshold": spec.exit_threshold,
      "rows": [row._asdict() for row in exit_rows],
    }

  # The files, results.json last: it says that the run is finished.
  if is_chief:
    if writes_record:
      spec.save(run.directory)
    for name, of_split in outputs.items():
      task.write_predictions(of_split, name, run.directory)
    json_files.write(results_path, entries)
    # Three times the size of the weights.
    _remove(os.path.join(run.directory, run_directory.STATE))
  return entries


def _train(run: FineTuningRun, model: Any, predict: "Predictor") -> TrainingProgress:
  """Trains with `model.fit`; the model has its best weights afterwards, and so has the directory.

  Raises:
    StoppedError: a signal ended the training, and the state is saved.
  """
  load_encoder_weights(model, run.start, seed=run.seed)
  run.compile_model(model)

  # Keras' bar on a terminal, a line an epoch elsewhere.
  verbose = 0
  if run.settings.verbose:
    verbose = 1 if sys.stdout.isatty() else 2
  with stop_on_signal() as stop, iterators_without_autotune():
    progress = TrainingProgress(run, model, predict, stop)
    progress.restore()
    progress.catch_up()
    if progress.step < run.num_steps:
      model.fit(
        _training_batches(run, first_step=progress.step),
        # One of Keras' epochs lasts from evaluation to evaluation.
        initial_epoch=progress.step // run.evaluation_interval,
        epochs=math.ceil(run.num_steps / run.evaluation_interval),
        steps_per_epoch=run.evaluation_interval,
        shuffle=False,  # The data set has its own order.
        verbose=verbose,
        callbacks=[progress] + list(run.callbacks),
      )
  if progress.stopped:
    raise StoppedError(f"stopped at update {progress.step:,}, saved. The same command continues.")
  progress.assign_best()
  return progress


def _training_batches(run: FineTuningRun, *, first_step: int) -> Any:
  """The input of `model.fit`: each input host's rows of every batch."""
  batching = run.batching(run.settings.train_batch_size)
  flat = batches.FlatFeatures.of(run.features["train"])
  plan = batches.training_plan(
    flat, batching, seed=run.seed, num_steps=run.num_steps, first_step=first_step
  )

  def of_host(context: tf.distribute.InputContext) -> tf.data.Dataset:
    shard = host_shard(run.strategy, context)
    # Keras asks for whole epochs, and is stopped in the last.
    return batches.planned_dataset(flat, plan, batching, shard=shard).repeat()

  return run.strategy.distribute_datasets_from_function(of_host)


def metrics_of(
  task: FineTuningTask, outputs: Mapping[str, Outputs], scored: Sequence[str]
) -> dict[str, float]:
  """The metrics of "eval" under their names, those of other splits with the split's name before."""
  metrics: dict[str, float] = {}
  for split in scored:
    prefix = ""
    if split != "eval":
      prefix = split.removeprefix("eval_") + "_"
    for name, value in task.evaluate(outputs[split], split).items():
      metrics[prefix + name] = float(value)
  return metrics


def _exit_rows(run: FineTuningRun, model: TaskModel) -> list[exit_table.ExitRow]:
  """The table of thresholds on the evaluation data."""
  depths = model.exit_depths()

  def at_depths(inputs: Inputs) -> dict[str, tf.Tensor]:
    return dict(zip(map(str, depths), model.outputs_at(depths, inputs), strict=True))

  outputs = Predictor(run, at_depths)("eval")
  outputs_of_depth = {depth: np.asarray(outputs[str(depth)]) for depth in depths}
  return exit_table.exit_table(run.task, outputs_of_depth)


def _remove(path: str) -> None:
  """Removes a file or folder if it is there."""
  if files.exists(path):
    files.remove(path)


# ------------------------------------------------------------------ prediction


class Predictor:
  """Computes outputs for every row of a split, on all replicas.

  Rows of similar length share a batch:

      # 5 rows of 9, 20, 12, 30 and 7 tokens in batches of 2: 4 0 | 2 1 | 3.
      # The outputs are put back in the order 0 1 2 3 4.

  Args:
    run: the run, whose splits are predicted. Each worker computes all rows, on its own replicas.
    compute: from inputs to an array or a mapping of arrays, each `[B, …]`.
  """

  def __init__(self, run: FineTuningRun, compute: Callable[[Inputs], Any]):
    self._run = run
    # The default strategy cannot name its one device.
    num_devices = 1
    if run.strategy.num_replicas_in_sync > 1:
      num_devices = len(run.strategy.extended.worker_devices)
    self._worker = HostShard(num_replicas=num_devices)
    batch_size = math.ceil(run.settings.eval_batch_size / num_devices) * num_devices
    self._batching = run.batching(batch_size)
    # Made once: the evaluation data are predicted many times.
    self._batches = functools.cache(self._make_batches)

    def step(x: dict[str, tf.Tensor]) -> Any:
      return run.strategy.run(compute, args=(x,))

    self._step = tf.function(step, autograph=False, reduce_retracing=True)

  def __call__(self, split: str) -> Outputs:
    """Returns output name → an array for each row, in the order of the rows; see `Outputs`.

    Raises:
      UserError: a value is NaN or infinite.
    """
    rows_of_batch, dataset = self._batches(split)
    with iterators_without_autotune():
      # To the end of the batches: TensorFlow 2.21 crashes where a distributed iterator is dropped
      # that still reads ahead.
      steps = zip(rows_of_batch, dataset, strict=True)
    is_shown = self._run.settings.verbose and self._run.workers.is_chief
    columns: dict[str, list[Any]] = {}
    num_wrong = 0
    for rows, (x, _, _) in track(
      steps, len(rows_of_batch), desc=split, unit="batches", shown=is_shown
    ):
      outputs_of_batch = self._step(x)
      if not isinstance(outputs_of_batch, dict):
        outputs_of_batch = {UNNAMED_OUTPUT: outputs_of_batch}
      for key, per_replica in outputs_of_batch.items():
        values = np.concatenate(self._run.strategy.experimental_local_results(per_replica))
        num_wrong += int(np.count_nonzero(~np.isfinite(values)))
        # Without the rows that fill up the last batch.
        columns.setdefault(key, []).extend(values[: len(rows)])
    if num_wrong:
      raise UserError(
        f"A model's answers are finite numbers. Received: {num_wrong:,} that are NaN or infinite "
        f"({split}). Its weights are damaged: train with a lower --learning_rate or a longer "
        "warm-up, or take other weights."
      )
    original_order = np.argsort(np.concatenate(rows_of_batch), kind="stable")
    outputs: dict[str, Any] = {}
    for key, column in columns.items():
      outputs[key] = [column[i] for i in original_order]
      # Rows of tokens have the lengths of their batches.
      if len({values.shape for values in column}) == 1:
        outputs[key] = np.stack(outputs[key])
    return outputs

  def _make_batches(self, split: str) -> tuple[list[np.ndarray], Any]:
    """The row numbers `[at most B]` of each batch, and the batches `(x, y, weights)`."""
    features = self._run.features[split]
    batching = self._batching
    order = np.arange(len(features))
    if batching.bucket_multiple:
      order = np.argsort(features.lengths, kind="stable")
    rows_of_batch = np.split(order, range(batching.batch_size, len(order), batching.batch_size))
    flat = batches.FlatFeatures.of(features)
    plan = batches.BatchPlan.of(rows_of_batch, flat, batching)

    def of_host(context: tf.distribute.InputContext) -> tf.data.Dataset:
      # Of several workers each computes all rows; the hosts of a TPU share them.
      shard = self._worker
      if self._run.strategy.num_replicas_in_sync == self._worker.num_replicas:
        shard = host_shard(self._run.strategy, context)
      return batches.planned_dataset(flat, plan, batching, shard=shard)

    return rows_of_batch, self._run.strategy.distribute_datasets_from_function(of_host)
