"""Fine-tunes a task from a set of weights, for one or several seeds, with Keras' `model.fit`."""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import math
import os
import sys
from typing import Any

from absl import logging
import tensorflow as tf

from albert_tf import files, json_files
from albert_tf.checkpoints.bundle import read_bundle
from albert_tf.checkpoints.load import load_weights
from albert_tf.compat import device_kind, keras
from albert_tf.configs.task import RESULTS_FILE
from albert_tf.errors import StoppedError, UserError
from albert_tf.finetuning.engine import batches, results, run_directory
from albert_tf.finetuning.engine.callbacks import TrainingProgress
from albert_tf.finetuning.engine.predict import Predictor
from albert_tf.finetuning.initialize import Start, load_encoder_weights
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.finetuning.tasks.base import FeatureSet, FineTuningTask, Outputs
from albert_tf.keras_api.tasks import make_model
from albert_tf.lock import DirectoryLock
from albert_tf.optim.keras_optimizers import AdamW, Lamb, WarmupPolynomialDecay
from albert_tf.pipelines.batches import iterators_without_autotune
from albert_tf.runs import run_directory as run_files
from albert_tf.runs.distribution import Workers, host_shard, make_strategy, precision_policy
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
  """Trains (`do_train`), evaluates (`do_eval`) and predicts (`do_predict`), and writes a fine-tuned run directory.

  A finished run is not trained again. SIGTERM and Control-C save the state; a killed run continues from its last
  evaluation. Continued runs get the weights of a run without interruption. Without `do_train` the weights are those of
  `output_dir` or, if it is new, the fine-tuned ones of `start`.
  With several seeds each has a run directory, `seed_N/`; results.json summarises them and names the best one.
  `from_pretrained` of the model's class loads the best weights of the best seed from `output_dir`.

  Args:
    task: the task with its data, made with `start.tokenizer`.
    settings: the settings of the training.
    start: configuration, tokenizer and weights; see `initialize.read_start`.
    output_dir: the run directory, new, empty, or of the same run; see `run_directory`.
    flags_text: the command's resolved flags, written to flags.txt.
    callbacks: additional Keras callbacks; an epoch of Keras lasts from evaluation to evaluation.
    strategy: a strategy to use; None: that of `settings.distribution`.

  Returns:
    The content of `results.json`.

  Raises:
    StoppedError: a signal ended the training, and the state is saved.
    UserError: the weights do not fit, or the directory contains something else or is used by another process.
  """
  strategy = strategy or make_strategy(settings.distribution)
  start = dataclasses.replace(start, config=start.config.at_depth(settings.num_hidden_layers))
  start.config.check_train_depths(settings.train_depths)
  # 1. Check everything before writing; the chief decides for all workers.
  workers = Workers(strategy)
  directories = {seed: os.path.join(output_dir, f"seed_{seed}") for seed in settings.seeds}
  if len(settings.seeds) == 1:
    directories = {settings.seeds[0]: output_dir}
  with workers.all_fail_together():
    if workers.is_chief:
      run_directory.check(output_dir, task, settings, start, output_dir=output_dir)
  start.config.check_length(task.spec.max_seq_length, "the task")
  names = answered_splits(
    task, evaluates=settings.do_train or settings.do_eval, predicts=settings.do_predict
  )
  splits = {name: task.features(name) for name in [*["train"] * settings.do_train, *names]}
  identity = {}
  with workers.all_fail_together():
    if settings.do_train:
      make_schedule(settings, num_steps=_steps(settings, len(splits["train"]))[1])
      micro_batch_size(
        settings.train_batch_size,
        num_replicas=strategy.num_replicas_in_sync,
        gradient_accumulation_steps=settings.gradient_accumulation_steps,
      )
    if settings.do_train and workers.is_chief:
      identity = run_directory.identity(task, settings, start, splits)
    for seed, directory in directories.items():
      if workers.is_chief:
        one = dataclasses.replace(settings, seeds=(seed,))
        run_directory.check(directory, task, one, start, output_dir=output_dir)
        if settings.do_train:
          run_files.check(directory, {**identity, "seed": seed})

  # 2. Each seed has a run of its own.
  lock = DirectoryLock(output_dir)
  job = _FineTuning(
    task, settings, start, splits, identity, flags_text, callbacks, strategy, lock.check
  )
  with contextlib.ExitStack() as stack:
    stack.callback(lock.release)
    with workers.all_fail_together():
      if workers.is_chief:
        lock.acquire()
    runs = {seed: job.run(seed, directory) for seed, directory in directories.items()}
    if len(runs) == 1:
      return runs[settings.seeds[0]]
    summary = results.summarize(runs, best_metric=task.best_metric)
    if workers.is_chief:
      json_files.write(os.path.join(output_dir, RESULTS_FILE), summary)
    return summary


def answered_splits(task: FineTuningTask, *, evaluates: bool, predicts: bool) -> list[str]:
  """The splits to evaluate ("eval", "eval_…") and to predict ("test", "test_…"; without test data the former)."""
  tests = [name for name in task.splits if name.startswith("test")] if predicts else []
  others = [name for name in task.splits if name.startswith("eval_")]
  return [*["eval", *others] * (evaluates or not tests), *tests]


@dataclasses.dataclass(frozen=True)
class _FineTuning:
  """State shared by the runs of all seeds."""

  task: FineTuningTask
  settings: FineTuneSettings
  start: Start
  splits: Mapping[str, FeatureSet]
  identity: Mapping[str, Any]
  flags_text: str
  callbacks: Sequence[Any]
  strategy: tf.distribute.Strategy
  may_write: Callable[[], None]

  def run(self, seed: int, directory: str) -> dict[str, Any]:
    """Trains one seed unless it is finished, evaluates and predicts with its best weights; returns its results."""
    task, start = self.task, self.start
    workers = Workers(self.strategy)
    logging.info("seed %d: %s", seed, directory)
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    model = build_model(task, self.settings, start=start, strategy=self.strategy)
    model.train_depths, model.depth_seed = self.settings.train_depths, seed
    batching = make_batching(task, self.settings, self.settings.eval_batch_size, self.strategy)
    predict = Predictor(
      model,
      strategy=self.strategy,
      batching=batching,
      verbose=self.settings.verbose and workers.is_chief,
    )
    trained = run_directory.best_weights(directory)
    path = os.path.join(directory, RESULTS_FILE)
    found = json_files.read(path) if trained and files.exists(path) else {}
    # Of other test data than these, perhaps.
    found = {name: value for name, value in found.items() if not name.startswith("test")}
    # Of all workers, and before one of them writes what another still reads.
    trains = self.settings.do_train and workers.any(not found)
    describes = trains or not trained  # Else what training recorded stays.
    if workers.is_chief and describes:
      run_directory.remove(path)
      record = {
        "identity": {**self.identity, "seed": seed},
        "sources": {"init_checkpoint": start.source},
        "settings": dataclasses.replace(self.settings, seeds=(seed,)).to_dict(),
      }
      run_files.write(
        directory, record, config=model.config, tokenizer=start.tokenizer, flags=self.flags_text
      )
      task.spec.save(directory)

    outputs: dict[str, Outputs] = {}
    if trains:
      load_encoder_weights(model, start, seed=seed)
      found, best_outputs = self._train(model, predict, seed, directory)
      if best_outputs is not None:
        outputs["eval"] = best_outputs
    elif trained:
      load_weights(model, read_bundle(trained), allow_unused=".", source=trained)
    elif start.checkpoint is not None:
      load_weights(model, dict(start.checkpoint.variables), allow_unused=".", source=start.source)
    else:
      raise UserError(
        f"Without --do_train there must be weights. Received: {directory} without {run_directory.BEST}. Train first."
      )
    for name in self.splits:
      if name != "train" and name not in outputs:
        outputs[name] = predict(self.splits[name], name=name)

    scored = [n for n in outputs if n.startswith("eval") or self.splits[n].labels is not None]
    metrics = workers.of_chief(metrics_of(task, outputs, scored))
    found = {**results.head(task, start.source), **found, "seed": seed, **metrics}
    if workers.is_chief:
      spec = task.spec.with_thresholds(metrics)
      if describes:
        spec.save(directory)
      for name, of_split in outputs.items():
        task.write_predictions(of_split, name, directory)
      json_files.write(path, found)
      # Three times the size of the weights.
      run_directory.remove(os.path.join(directory, run_directory.STATE))
    return found

  def _train(
    self, model: Any, predict: Predictor, seed: int, directory: str
  ) -> tuple[dict[str, Any], Outputs | None]:
    """Trains with `model.fit`; the model has its best weights afterwards, and so has the directory.

    Returns:
      What training came to, and the outputs of the best weights if this process found them.
    """
    task, settings, features = self.task, self.settings, self.splits["train"]
    workers = Workers(self.strategy)
    epoch_steps, num_steps = _steps(settings, len(features))
    schedule = make_schedule(settings, num_steps=num_steps)
    compile_model(model, task, settings, schedule)

    def evaluate() -> tuple[Outputs, dict[str, float]]:
      outputs = predict(self.splits["eval"])
      # Each worker has its own, equal but for rounding; which weights are the best is the chief's decision.
      return outputs, workers.of_chief(task.evaluate(outputs))

    # One of Keras' epochs lasts from evaluation to evaluation.
    per_epoch = min(settings.eval_steps or epoch_steps, num_steps)
    with stop_on_signal() as stop, iterators_without_autotune():
      progress = TrainingProgress(
        model,
        directory,
        evaluate=evaluate,
        metric=task.best_metric,
        num_steps=num_steps,
        interval=per_epoch,
        batch_size=settings.train_batch_size,
        schedule=schedule,
        writes=workers.is_chief,
        may_write=self.may_write,
        stop=stop,
      )
      if progress.step < num_steps:
        model.fit(
          self._batches(seed, num_steps, progress.step),
          initial_epoch=progress.step // per_epoch,
          epochs=math.ceil(num_steps / per_epoch),
          steps_per_epoch=per_epoch,
          shuffle=False,  # The data set has its own order.
          # Keras' bar on a terminal, a line an epoch elsewhere.
          verbose=(1 if sys.stdout.isatty() else 2) if settings.verbose else 0,
          callbacks=[progress, *self.callbacks],
        )
    if progress.stopped:
      raise StoppedError(f"stopped at update {progress.step:,}, saved. The same command continues.")
    progress.assign_best()
    trained = {
      "best_step": progress.best_step,
      "train_steps": progress.step,
      "train_examples": len(features),
      "train_seconds": progress.seconds,
      "history": progress.history,
    }
    return trained, progress.best_outputs

  def _batches(self, seed: int, num_steps: int, first_step: int) -> Any:
    """The input of `model.fit`: each input host's rows of every batch."""
    batching = make_batching(
      self.task, self.settings, self.settings.train_batch_size, self.strategy
    )
    flat = batches.FlatFeatures.of(self.splits["train"])
    plan = batches.training_plan(
      flat, batching, seed=seed, num_steps=num_steps, first_step=first_step
    )

    def of_host(context: tf.distribute.InputContext) -> tf.data.Dataset:
      dataset = batches.planned_dataset(
        flat, plan, batching, shard=host_shard(self.strategy, context)
      )
      return dataset.repeat()  # Keras asks for whole epochs, and is stopped in the last.

    return self.strategy.distribute_datasets_from_function(of_host)


def metrics_of(
  task: FineTuningTask, outputs: Mapping[str, Outputs], scored: Sequence[str]
) -> dict[str, float]:
  """The metrics of "eval" under their names, those of other splits with the split's name before them."""
  metrics: dict[str, float] = {}
  for name in scored:
    prefix = "" if name == "eval" else f"{name.removeprefix('eval_')}_"
    metrics |= {
      f"{prefix}{key}": float(value) for key, value in task.evaluate(outputs[name], name).items()
    }
  return metrics


# ------------------------------------------------------------------ parts of a training


def build_model(
  task: FineTuningTask,
  settings: FineTuneSettings,
  *,
  start: Start,
  strategy: tf.distribute.Strategy,
) -> Any:
  """Makes the task's model under the strategy, with random weights by `keras.utils.set_random_seed`."""
  config = start.config
  if settings.dropout is not None:
    config = dataclasses.replace(
      config, hidden_dropout_prob=settings.dropout, attention_probs_dropout_prob=settings.dropout
    )
  head_options = dict(task.head_options)
  if task.spec.has_head_dropout:
    head_options["classifier_dropout"] = settings.classifier_dropout
  with strategy.scope():
    model = make_model(
      task.spec,
      config,
      head_options=head_options,
      encoder_options={"remat": settings.remat},
      dtype=precision_policy(settings.distribution.precision),
    )
  model.gradient_accumulation_steps = settings.gradient_accumulation_steps
  return model


def compile_model(
  model: Any, task: FineTuningTask, settings: FineTuneSettings, schedule: WarmupPolynomialDecay
) -> None:
  """Compiles the model with the task's loss, and AdamW or LAMB with clipping."""
  optimizer = {"adamw": AdamW, "lamb": Lamb}[settings.optimizer]
  with model.distribute_strategy.scope():
    model.compile(
      optimizer=optimizer(
        schedule,
        weight_decay_rate=settings.weight_decay,
        global_clipnorm=settings.clip_norm or None,
      ),
      loss=task.loss(),
      loss_weights=task.loss_weights,
      jit_compile=settings.distribution.use_xla,
    )


def make_schedule(settings: FineTuneSettings, *, num_steps: int) -> WarmupPolynomialDecay:
  """Linear warm-up, then polynomial decay to 0 at the last update."""
  warmup = settings.num_warmup_steps
  return WarmupPolynomialDecay(
    learning_rate=settings.learning_rate,
    num_train_steps=num_steps,
    num_warmup_steps=warmup if warmup >= 0 else int(num_steps * settings.warmup_proportion),
    poly_power=settings.poly_power,
  )


def make_batching(
  task: FineTuningTask,
  settings: FineTuneSettings,
  batch_size: int,
  strategy: tf.distribute.Strategy,
) -> batches.Batching:
  """Batches by `settings.bucket_multiple`; by default one static length on a TPU."""
  multiple = settings.bucket_multiple
  return batches.Batching(
    batch_size=batch_size,
    max_length=task.spec.max_seq_length,
    bucket_multiple=(0 if device_kind(strategy) == "tpu" else 32) if multiple is None else multiple,
  )


def _steps(settings: FineTuneSettings, count: int) -> tuple[int, int]:
  """Updates of an epoch of so many examples, and of the run."""
  epoch = math.ceil(count / settings.train_batch_size)
  return epoch, settings.num_train_steps or math.ceil(epoch * settings.num_train_epochs)
