"""Fine-tunes a task from a checkpoint: a program in the Keras API, for one or several seeds.

It checks, loads the weights, calls `fit` and `predict`, and writes the run directory. All of it but
the files of a run is open to a Keras user: docs/keras.md.
"""

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import math
import os
import sys
import time
from typing import Any, NamedTuple

from absl import logging
import keras
import numpy as np
import tensorflow as tf

from albert_tf import files, json_files
from albert_tf.checkpoints.checkpoint import POOLER, Checkpoint, load_weights
from albert_tf.compat import updates_made
from albert_tf.configs.task import RESULTS_FILE, TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning import exit_table, results
from albert_tf.finetuning.directory import (
  SeedDirectory,
  differing_fields,
  splits_to_run,
  training_identity,
)
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.finetuning.tasks.base import UNNAMED_OUTPUT, FineTuningTask, Outputs
from albert_tf.keras_api.callbacks import KeepBest, SaveState, StopOnSignal
from albert_tf.keras_api.examples import Examples
from albert_tf.keras_api.predictor import Predictor
from albert_tf.keras_api.task_model import TaskModel
from albert_tf.lock import DirectoryLock
from albert_tf.modeling.encoder import Inputs
from albert_tf.optim.keras_optimizers import AdamW, WarmupPolynomialDecay
from albert_tf.runs import run_directory
from albert_tf.runs.distribution import check_one_host, make_strategy, precision_policy
from albert_tf.runs.failures import readable_errors
from albert_tf.runs.metrics_log import MetricsLog, read_metrics
from albert_tf.runs.settings import micro_batch_size

_WARMUP_SHARE = 0.1  # Of the updates, where none are named.
_ALL_BUT_ENCODER = "^(?!bert/)"
_CLIP_NORM = 1.0  # Largest norm of the gradient, as in the original.


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuning:
  """What is asked for; see `fine_tune`.

  Attributes:
    examples: split → examples, of the splits to train on, to evaluate and to predict.
    data: split → what its metrics are of; see `results.describe_data`.
  """

  task: FineTuningTask
  settings: FineTuneSettings
  start: Checkpoint
  output_dir: str
  flags_text: str
  callbacks: Sequence[Any]
  strategy: tf.distribute.Strategy
  lock: DirectoryLock
  examples: Mapping[str, Examples]
  data: Mapping[str, Mapping[str, Any]]


def fine_tune(
  task: FineTuningTask,
  settings: FineTuneSettings,
  *,
  start: Checkpoint,
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
    task: the task with its data, which were read with the tokenizer of `start`.
    settings: the settings of the training.
    start: weights, with their configuration.
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
  # 1. Everything is checked before anything is written.
  if strategy is None:
    strategy = make_strategy(settings.distribution)
  check_one_host(strategy)
  if settings.distribution.use_xla and strategy.num_replicas_in_sync > 1:
    raise UserError(
      "Keras' compiled step runs on one device. Received: --use_xla and "
      f"{strategy.num_replicas_in_sync} devices. Leave it out, or choose one card by "
      "CUDA_VISIBLE_DEVICES."
    )
  config = start.config.at_depth(settings.num_hidden_layers)
  config.check_train_depths(settings.train_depths)
  config.check_length(task.spec.max_seq_length, "the task")
  seeds = [SeedDirectory(output_dir, seed, settings.seeds) for seed in settings.seeds]
  for of_seed in seeds:
    of_seed.check(task.spec, start, trains=settings.do_train)
  # After the directories: to tokenize the examples may take minutes.
  examples = _read_examples(task, settings)
  answered = {name: of_split for name, of_split in examples.items() if name != "train"}
  job = FineTuning(
    task=task,
    settings=settings,
    start=dataclasses.replace(start, config=config),
    output_dir=output_dir,
    flags_text=flags_text,
    callbacks=callbacks,
    strategy=strategy,
    lock=DirectoryLock(output_dir),
    examples=examples,
    data=results.describe_data(task, answered, num_hidden_layers=config.num_hidden_layers),
  )
  identity: dict[str, Any] = {}
  if settings.do_train:
    Updates.of(job)  # Raises where the settings do not fit each other.
    micro_batch_size(
      settings.train_batch_size,
      num_replicas=strategy.num_replicas_in_sync,
      gradient_accumulation_steps=settings.gradient_accumulation_steps,
    )
    identity = training_identity(task, settings, start, examples)
  for of_seed in seeds:
    of_seed.check_content(identity, job.data, trains=settings.do_train)

  # 2. Each seed has a run of its own. From here on this process owns the directory.
  with readable_errors(), contextlib.ExitStack() as stack:
    stack.callback(job.lock.release)
    job.lock.acquire()
    results_of_seed = {of_seed.seed: _run_one_seed(job, of_seed, identity) for of_seed in seeds}
    if len(seeds) == 1:
      return results_of_seed[seeds[0].seed]
    path = os.path.join(output_dir, RESULTS_FILE)
    summary = results.summarize(
      results_of_seed, best_metric=task.best_metric, before=json_files.find(path)
    )
    json_files.write(path, summary)
    return summary


def _read_examples(task: FineTuningTask, settings: FineTuneSettings) -> dict[str, Examples]:
  """The examples of the splits that are needed."""
  names = splits_to_run(
    task, evaluates=settings.do_train or settings.do_eval, predicts=settings.do_predict
  )
  if settings.do_train:
    names = ["train"] + names
  return {name: task.features(name) for name in names}


def _run_one_seed(
  job: FineTuning, directory: SeedDirectory, identity: Mapping[str, Any]
) -> dict[str, Any]:
  """Trains unless it is finished, answers with the best weights, and returns results.json."""
  task = job.task
  results_path = os.path.join(directory.path, RESULTS_FILE)
  logging.info("seed %d: %s", directory.seed, directory.path)

  # A model with random weights by the seed, without what Keras keeps of the seed before.
  keras.backend.clear_session()
  keras.utils.set_random_seed(directory.seed)
  model = _build_model(job, directory)

  # What an earlier process has left: perhaps weights and, if it was finished, results.
  best_weights = directory.best_weights
  entries = directory.earlier_results(trains=job.settings.do_train)
  predicts = any(split.startswith("test") for split in job.examples)
  if entries and (predicts or task.has_one_set_of_predictions):
    # Their predictions are replaced.
    entries = results.without_tests(entries)
  trains = job.settings.do_train and not entries
  # Evaluation and prediction leave the record of the training as it is.
  writes_record = trains or best_weights is None
  if trains:
    _remove(results_path)
  if writes_record:
    directory.write_record(model, job, identity)

  # The best weights.
  if trains:
    entries = _train(job, directory, model)
  else:
    # Those of the run or, in a new directory, fine-tuned ones of another run.
    trained: Any = best_weights or job.start
    # A checkpoint may have heads of pretraining, too, which no task uses.
    load_weights(model, trained, allow_unused=".")

  # The answers.
  outputs = {name: _answers(job, model, name) for name in job.examples if name != "train"}
  scored = [
    name for name in outputs if name.startswith("eval") or job.examples[name].labels is not None
  ]
  # Before the metrics: overlapping labels keep the thresholds of their last evaluation.
  exit_rows = None
  if "eval" in outputs and len(model.exit_depths()) > 1:
    exit_rows = _exit_rows(job, model)
  metrics = metrics_of(task, outputs, scored)
  data = entries.get("data", {}) | job.data
  entries = results.head(task, job.start.path) | entries
  entries |= {"seed": directory.seed, "data": data} | metrics
  spec = model.task.with_thresholds(metrics)
  if exit_rows is not None:
    # Chosen on the data that chose the weights, and on no other table.
    if trains:
      chosen = exit_table.fastest_row(exit_rows)
      spec = dataclasses.replace(spec, exit_threshold=chosen.threshold)
    entries["early_exit"] = {
      "threshold": spec.exit_threshold,
      "rows": [row._asdict() for row in exit_rows],
    }

  # The files, results.json last: it says that the run is finished.
  job.lock.check()
  if writes_record:
    spec.save(directory.path)
  for name, of_split in outputs.items():
    task.write_predictions(of_split, name, directory.path)
  json_files.write(results_path, entries)
  # Three times the size of the weights.
  _remove(os.path.join(directory.path, run_directory.STATE))
  return entries


def _remove(path: str) -> None:
  """Removes a file or folder if it is there."""
  if files.exists(path):
    files.remove(path)


# ------------------------------------------------------------------ the model


def _build_model(job: FineTuning, directory: SeedDirectory) -> TaskModel:
  """Makes the task's model, with random weights by `keras.utils.set_random_seed`."""
  settings = job.settings
  config = job.start.config
  if settings.albert_dropout is not None:
    config = dataclasses.replace(
      config,
      hidden_dropout_prob=settings.albert_dropout,
      attention_probs_dropout_prob=settings.albert_dropout,
    )
  trained = directory.trained_task(job.start) or job.task.spec
  # A training stores its own threshold at its end.
  spec = dataclasses.replace(job.task.spec, exit_threshold=trained.exit_threshold)
  of_training: dict[str, Any] = {
    "train_depths": settings.train_depths,
    "depth_distillation": settings.depth_distillation,
  }
  if not settings.do_train:
    # What the head of these weights was trained to read.
    of_training = {}
    spec = dataclasses.replace(spec, exit_depths=trained.exit_depths)
  head_options = dict(job.task.head_options)
  if spec.has_head_dropout:
    head_options["classifier_dropout"] = settings.classifier_dropout
  with job.strategy.scope():
    model = job.task.model_class(
      config,
      task=spec,
      head_options=head_options,
      encoder_options={"remat": settings.remat, "padding_at_end": True},
      **of_training,
      dtype=precision_policy(settings.distribution.precision),
    )
  model.gradient_accumulation_steps = settings.gradient_accumulation_steps
  if settings.freeze_encoder:
    model.encoder.trainable = False
    if not model.trainable_variables:
      raise UserError(
        "Something must be trained. Received: --freeze_encoder for a model whose head has no "
        f"weights, {spec.kind}. Leave it out."
      )
  return model


# ------------------------------------------------------------------ training


class Updates(NamedTuple):
  """The updates of a training.

  Attributes:
    num_steps: in all.
    interval: from evaluation to evaluation.
    schedule: linear warm-up, then linear decay to 0 at the last update.
  """

  num_steps: int
  interval: int
  schedule: WarmupPolynomialDecay

  @classmethod
  def of(cls, job: FineTuning) -> "Updates":
    """Those that the settings ask for; raises `UserError` if they do not fit each other."""
    settings = job.settings
    epoch_steps = math.ceil(len(job.examples["train"]) / settings.train_batch_size)
    num_steps = settings.num_train_steps or math.ceil(epoch_steps * settings.num_train_epochs)
    num_warmup_steps = settings.num_warmup_steps
    if num_warmup_steps is None:
      num_warmup_steps = int(num_steps * _WARMUP_SHARE)
    schedule = WarmupPolynomialDecay(
      learning_rate=settings.learning_rate,
      num_train_steps=num_steps,
      num_warmup_steps=num_warmup_steps,
    )
    interval = settings.save_checkpoints_steps or epoch_steps
    return cls(num_steps, min(interval, num_steps), schedule)


def _train(job: FineTuning, directory: SeedDirectory, model: TaskModel) -> dict[str, Any]:
  """Trains with `fit`; the model has its best weights afterwards, and so has the directory.

  Returns:
    The entries of results.json about the training.

  Raises:
    StoppedError: a signal ended the training, and the state is saved.
  """
  settings = job.settings
  _load_start(model, job.start, seed=directory.seed)
  updates = Updates.of(job)
  with job.strategy.scope():
    model.compile(
      optimizer=AdamW(updates.schedule, global_clipnorm=_CLIP_NORM),
      loss=job.task.loss(),
      loss_weights=job.task.loss_weights,
      jit_compile=settings.distribution.use_xla,
    )

  evaluation = Evaluation(job, directory, updates)
  best = KeepBest(
    os.path.join(directory.path, run_directory.BEST),
    monitor=f"val_{job.task.best_metric}",
    mode="max",
  )
  state = SaveState(os.path.join(directory.path, run_directory.STATE))
  # One of Keras' epochs lasts from evaluation to evaluation.
  num_epochs = math.ceil(updates.num_steps / updates.interval)
  if state.saved_step == updates.num_steps:
    # Killed after the last update: `fit` restores the state, and nothing is left to train. After 10
    # updates, 3 an epoch, these are 3 whole epochs: a fourth would have the updates 11 and 12.
    num_epochs = updates.num_steps // updates.interval
  model.fit(
    job.examples["train"],
    batch_size=settings.train_batch_size,
    steps_per_epoch=updates.interval,
    epochs=num_epochs,
    verbose=1 if _shows_bar() else 2,  # A bar, or a line an epoch.
    callbacks=[
      evaluation,  # First: its metrics choose the best weights.
      best,
      *job.callbacks,
      state,
      StopOnSignal(),
    ],
  )
  return {
    "best_step": best.best_step,
    "train_steps": updates_made(model.optimizer),
    "train_examples": len(job.examples["train"]),
    "train_seconds": evaluation.seconds,
    "history": evaluation.history,
  }


def _load_start(model: TaskModel, start: Checkpoint, *, seed: int) -> None:
  """Loads the weights to start from into a new model.

  The head keeps its random weights, unless the start was fine-tuned for the same task, with the
  same labels. Heads of pretraining or of another task are left out, even where names and shapes
  would fit. Where weights of Hugging Face lack the pooler, a new head learns with a new one.

  Raises:
    UserError: a variable of the encoder is missing, or a shape differs.
  """
  trained = TaskSpec.find(start.directory)
  has_head = trained is not None and not differing_fields(trained, model.task)
  taken = {
    name: value for name, value in start.variables.items() if has_head or name.startswith("bert/")
  }
  may_be_new = _ALL_BUT_ENCODER
  # A frozen pooler would stay random.
  if model.encoder.trainable and not has_head:
    may_be_new = f"{_ALL_BUT_ENCODER}|{POOLER}"
  report = load_weights(model, taken, allow_missing=may_be_new, source=start.path)
  logging.info(
    "seed %d: %d variables restored from %s; new: %s; left out: %s",
    seed,
    len(report.matched),
    start.path,
    ", ".join(report.missing) or "none",
    ", ".join(sorted(start.variables.keys() - set(report.matched))) or "none",
  )


def _shows_bar() -> bool:
  return sys.stdout.isatty()


class Evaluation(keras.callbacks.Callback):
  """Evaluates the task after each of Keras' epochs, and ends the training after its last update.

  The metrics are in Keras' logs as `val_<metric>`, and in metrics.jsonl with the loss of training.

      # 10 updates, evaluated after 3, 6, 9 and 10: Keras' fourth epoch has one update.

  Attributes:
    history: step → metrics, of each evaluation.
    seconds: time of the training so far, over all processes of the run.
  """

  def __init__(self, job: FineTuning, directory: SeedDirectory, updates: Updates):
    super().__init__()
    self._job = job
    self._updates = updates
    self._log_path = os.path.join(directory.path, run_directory.METRICS_FILE)
    self.history: dict[int, dict[str, float]] = {}
    self.seconds = 0.0

  def on_train_begin(self, logs: Any = None) -> None:
    # Of an interrupted training, above 0.
    self._step = updates_made(self.model.optimizer)
    if self._step:
      self._read_history()
    self._log = MetricsLog(self._log_path, start_step=self._step)

  def _read_history(self) -> None:
    """Reads what the processes before have reported, up to the state that is restored."""
    for report in read_metrics(self._log_path):
      step = report.pop("step")
      # A killed process may have evaluated after the state was written.
      if step > self._step:
        break
      if report.pop("split") == "eval":
        self.history[step] = report
      else:
        self.seconds = report["seconds"]

  def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
    self._epoch_began = time.monotonic()
    self._epoch_first_step = self._step

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    self._step += 1
    if self._step == self._updates.num_steps:
      self.model.stop_training = True

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    self._job.lock.check()
    self._log.append(self._step, "train", self._report_of_training(logs))
    outputs = _answers(self._job, self.model, "eval")
    metrics = {name: float(value) for name, value in self._job.task.evaluate(outputs).items()}
    self._check_finite(metrics)
    message = ", ".join(
      f"{name} {results.format_metric(name, value)}" for name, value in metrics.items()
    )
    logging.info("update %d of %d: %s", self._step, self._updates.num_steps, message)
    self.history[self._step] = metrics
    self._log.append(self._step, "eval", metrics)
    self._log.flush()
    # `KeepBest` and other callbacks find them where those of Keras' own evaluation would be.
    logs |= {f"val_{name}": value for name, value in metrics.items()}

  def _report_of_training(self, logs: Mapping[str, Any]) -> dict[str, float]:
    """What metrics.jsonl has of the updates since the last evaluation; `logs` are Keras' means."""
    report = {name: float(value) for name, value in logs.items()}
    self._check_finite({"loss": report["loss"]})
    seconds = max(time.monotonic() - self._epoch_began, 1e-9)
    self.seconds += seconds
    num_examples = (self._step - self._epoch_first_step) * self._job.settings.train_batch_size
    # Of the last update: the schedule takes the number of updates before it.
    report["learning_rate"] = float(self._updates.schedule(self._step - 1))
    report["examples_per_second"] = num_examples / seconds
    report["seconds"] = self.seconds
    return report

  def _check_finite(self, values: Mapping[str, float]) -> None:
    """Ends a training that has diverged, so that its weights are never called the best."""
    wrong = [f"{name}={value}" for name, value in values.items() if not math.isfinite(value)]
    if wrong:
      raise UserError(
        f"Losses and metrics must stay finite. Received: {', '.join(wrong)} by step {self._step}. "
        "In a new --output_dir lower --learning_rate or lengthen the warm-up, and use "
        "--mixed_precision=float32 if it was bfloat16."
      )


# ------------------------------------------------------------------ answers


def _answers(job: FineTuning, model: TaskModel, split: str) -> Outputs:
  """The model's outputs for a split, by name; raises `UserError` if one is not finite."""
  outputs = model.predict(
    job.examples[split], batch_size=job.settings.eval_batch_size, verbose=int(_shows_bar())
  )
  if not isinstance(outputs, dict):
    outputs = {UNNAMED_OUTPUT: outputs}
  num_wrong = sum(int(np.count_nonzero(~np.isfinite(values))) for values in outputs.values())
  if num_wrong:
    raise UserError(
      f"A model's answers are finite numbers. Received: {num_wrong:,} that are NaN or infinite "
      f"({split}). Its weights are damaged: train with a lower --learning_rate or a longer "
      "warm-up, or take other weights."
    )
  return outputs


def metrics_of(
  task: FineTuningTask, outputs: Mapping[str, Outputs], scored: Sequence[str]
) -> dict[str, float]:
  """The metrics of "eval" under their names, those of other splits with the split's name before."""
  metrics: dict[str, float] = {}
  for split in scored:
    prefix = "" if split == "eval" else split.removeprefix("eval_") + "_"
    for name, value in task.evaluate(outputs[split], split).items():
      metrics[prefix + name] = float(value)
  return metrics


def _exit_rows(job: FineTuning, model: TaskModel) -> list[exit_table.ExitRow]:
  """The table of thresholds on the evaluation data."""
  depths = model.exit_depths()

  def at_depths(inputs: Inputs) -> list[tf.Tensor]:
    return model.outputs_at(depths, inputs)

  predict = Predictor(model, at_depths)
  outputs = predict(job.examples["eval"], batch_size=job.settings.eval_batch_size)
  return exit_table.exit_table(job.task, dict(zip(depths, outputs, strict=True)))
