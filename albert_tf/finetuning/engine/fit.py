"""Fine-tunes a task from a set of weights, for one or several seeds, with Keras' `model.fit`."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import math
import os
import sys
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf

from albert_tf import files
from albert_tf.checkpoints import load_weights
from albert_tf.checkpoints.bundle import read_bundle
from albert_tf.compat import device_kind, keras
from albert_tf.configs.task import RESULTS_FILE, TaskSpec, best_run
from albert_tf.errors import UserError
from albert_tf.finetuning import initialize
from albert_tf.finetuning.engine import batches, results, run_directory
from albert_tf.finetuning.engine import callbacks as engine_callbacks
from albert_tf.finetuning.engine.predict import Predictor
from albert_tf.finetuning.initialize import Start
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.finetuning.tasks.base import FeatureSet, FineTuningTask, Outputs
from albert_tf.models.task_model import TaskModel
from albert_tf.models.tasks import make_model, model_class
from albert_tf.optim.keras_optimizers import AdamW, Lamb, WarmupPolynomialDecay
from albert_tf.training.distribution import (
  Workers,
  host_shard,
  make_strategy,
  precision_policy,
)
from albert_tf.training.settings import StepConfig

TRAINED = ("best_step", "train_steps", "train_examples", "train_seconds", "history")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuned:
  """What `fine_tune` leaves.

  Attributes:
    results: what `results.json` holds.
    checkpoint: the run directory of the best weights, or, where an earlier run's were used, that one's.
  """

  results: Mapping[str, Any]
  checkpoint: str

  @functools.cached_property
  def model(self) -> TaskModel:
    """The Keras model with these weights, read when it is first asked for; it takes texts."""
    return model_class(TaskSpec.load(self.checkpoint)).from_pretrained(self.checkpoint)


def fine_tune(
  task: FineTuningTask,
  settings: FineTuneSettings,
  *,
  start: Start,
  output_dir: str,
  flags_text: str = "",
  callbacks: Sequence[Any] = (),
  strategy: tf.distribute.Strategy | None = None,
) -> FineTuned:
  """Trains (`do_train`), evaluates (`do_eval`), predicts (`do_predict`) and leaves a fine-tuned run directory.

  A run that finished before is not trained again. One that was killed continues from its last evaluation, to the same
  weights. Without `do_train` the weights are those of `output_dir`, or, if that is new, the fine-tuned ones of `start`.
  With several seeds there is a run directory for each, `seed_N/`; results.json sums them up and names the best one.

  Args:
    task: the task on its data, made with `start.tokenizer`.
    settings: how.
    start: configuration, tokenizer and weights, of `initialize.read_start`.
    output_dir: the run directory; new, empty, or the same run's. See `run_directory`.
    flags_text: the command's resolved flags, written to flags.txt.
    callbacks: Keras callbacks beside the engine's own.
    strategy: instead of the one that `settings.distribution` says.

  Returns:
    The results and where the best weights are.

  Raises:
    UserError: the weights do not fit, or the directory holds something else.
  """
  strategy = strategy or make_strategy(settings.distribution)
  # 1. What cannot be is refused before anything is written; the chief decides for all workers.
  workers = Workers(strategy)
  several = len(settings.seeds) > 1
  directories = {
    seed: os.path.join(output_dir, f"seed_{seed}") if several else output_dir for seed in settings.seeds
  }
  with workers.together():
    if workers.is_chief:
      run_directory.check(output_dir, task, settings, start)
  check_model(task, start)
  splits = _answered_splits(task, settings)
  if settings.do_train:
    splits["train"] = _train_features(task, settings)
    check_training(task, settings, splits["train"], strategy=strategy)
  identity = {}
  with workers.together():
    if workers.is_chief:
      if settings.do_train:
        content = {"train": splits["train"], "evaluation": splits["eval"]}
        identity = run_directory.identity(task, settings, start, **content)
      for seed, directory in directories.items():
        one = dataclasses.replace(settings, seeds=(seed,))
        run_directory.check(directory, task, one, start)
        if settings.do_train:
          run_directory.check_identity(directory, {**identity, "seed": seed})

  # 2. Each seed has a run of its own.
  runs = {}
  for seed, directory in directories.items():
    runs[seed] = _run_seed(
      task,
      dataclasses.replace(settings, seeds=(seed,)),
      start=start,
      directory=directory,
      splits=splits,
      identity={**identity, "seed": seed},
      flags_text=flags_text,
      callbacks=callbacks,
      strategy=strategy,
    )
  found = runs[settings.seeds[0]]
  if several:
    found = results.summarize(runs, best_metric=task.best_metric)
    if workers.is_chief:
      files.write_json(os.path.join(output_dir, RESULTS_FILE), found)
  own = best_run(output_dir) if workers.is_chief else output_dir
  elsewhere = start.checkpoint if run_directory.best_weights(own) is None else None
  return FineTuned(results=found, checkpoint=elsewhere.directory if elsewhere else own)


def _train_features(task: FineTuningTask, settings: FineTuneSettings) -> FeatureSet:
  features = task.features("train")
  if features.labels is None:
    raise UserError("Training needs labels. Received: training examples without. Name the label column.")
  return dataclasses.replace(
    features, factors=class_factors(features.labels, task.spec.label_names, settings)
  )


def class_factors(labels: Any, names: Sequence[str], settings: FineTuneSettings) -> np.ndarray | None:
  """The weight of each example's class, float32 `[n]`, as Keras' `class_weight` has it; None without weights.

  Args:
    labels: class ids, `[n]`.
    names: of the classes, by id; none of a task without.
    settings: its `class_weights`.

  Raises:
    UserError: weights for a class that there is not, or for a task without classes of examples.
  """
  if not settings.class_weights:
    return None
  if not names or not isinstance(labels, np.ndarray):
    raise UserError("Class weights are for classification. Received: another kind of task. Leave them out.")
  weights = settings.weights_by_class()
  if not weights:  # Balanced.
    counts = np.bincount(labels, minlength=len(names))
    return (len(labels) / (len(names) * np.maximum(counts, 1)))[labels].astype(np.float32)
  unknown = sorted(weights.keys() - set(names))
  if unknown:
    raise UserError(
      f"Class weights are for classes of the task: {', '.join(names)}. Received: weights of {', '.join(unknown)}."
    )
  return np.array([weights.get(name, 1.0) for name in names], np.float32)[labels]


def _answered_splits(task: FineTuningTask, settings: FineTuneSettings) -> dict[str, FeatureSet]:
  """Every split that is to be evaluated or predicted, evaluation first."""
  names = ["eval"] if settings.do_train or settings.do_eval else []
  names += [name for name in task.splits if names and name.startswith("eval_")]
  if settings.do_predict:
    tests = [name for name in task.splits if name.startswith("test")]
    if not tests:
      raise UserError(
        f"--do_predict needs examples to predict. Received: no test data for {task.spec.name}. Name the file, or "
        "leave --do_predict out."
      )
    names += tests
  return {name: task.features(name) for name in names}


def _run_seed(
  task: FineTuningTask,
  settings: FineTuneSettings,
  *,
  start: Start,
  directory: str,
  splits: Mapping[str, FeatureSet],
  identity: Mapping[str, Any],
  flags_text: str,
  callbacks: Sequence[Any],
  strategy: tf.distribute.Strategy,
) -> dict[str, Any]:
  """Trains one seed unless it is finished, evaluates and predicts with its best weights; returns its results."""
  (seed,) = settings.seeds
  workers = Workers(strategy)
  logging.info("seed %d: %s", seed, directory)
  keras.backend.clear_session()
  keras.utils.set_random_seed(seed)
  model = build_model(task, settings, start=start, strategy=strategy)
  predict = make_predictor(model, task, settings, strategy=strategy)
  known = _known_results(directory, evaluates="eval" in splits)
  # Of all workers, and before one of them writes what another still reads.
  trains = settings.do_train and workers.any(not known)
  describes = trains or not known  # Else what training recorded stays.
  source = known.get("init_checkpoint", start.source)
  if (
    workers.is_chief and trains and not run_directory.has_state(directory)
  ):  # Of a training that is about to begin.
    run_directory.remove(directory, "checkpoints", RESULTS_FILE)
  if workers.is_chief and describes:
    run_directory.write_run_files(
      directory, task, settings, start, config=model.config, of_run=identity, flags_text=flags_text
    )

  outputs: dict[str, Outputs] = {}
  if trains:
    initialize.load_encoder_weights(model, start, seed=seed)
    progress, best_outputs = train(
      model,
      task,
      settings,
      features=splits["train"],
      predict=lambda: predict(splits["eval"]),
      # Each worker has its own, equal but for rounding; whether training goes on is the chief's decision.
      evaluate=lambda found: workers.of_chief(task.evaluate(found)),
      strategy=strategy,
      directory=directory,
      writes=workers.is_chief,
      callbacks=callbacks,
    )
    count = len(splits["train"])
    values = progress.best_step, progress.step, count, progress.seconds, progress.history
    known = dict(zip(TRAINED, values, strict=True))
    if best_outputs is not None:
      outputs["eval"] = best_outputs
  else:
    _load_finished(model, directory, start, settings)
  answered = {name: features for name, features in splits.items() if name != "train"}
  outputs |= {name: predict(answered[name], name=name) for name in answered if name not in outputs}

  metrics = workers.of_chief(_metrics(task, outputs, splits))
  found = {**results.head(task, source), **known, "seed": seed, **metrics}
  if workers.is_chief:
    spec = task.spec.settled(metrics)
    if describes:
      spec.save(directory)
      own = run_directory.best_weights(directory) is not None
      card = results.model_card(task, found, own_weights=own)
      files.write_text(os.path.join(directory, run_directory.CARD_FILE), card)
    for name, of_split in outputs.items():
      task.write_predictions(of_split, name, directory)
    files.write_json(os.path.join(directory, RESULTS_FILE), found)
    run_directory.remove(directory, run_directory.STATE)  # Three times the size of the weights.
  return found


def _known_results(directory: str, *, evaluates: bool) -> dict[str, Any]:
  """What an earlier command found of these weights and this one does not find anew; empty of an unfinished run."""
  if run_directory.best_weights(directory) is None:
    return {}
  found = run_directory.read_results(directory)
  if evaluates:
    return {key: value for key, value in found.items() if key in (*TRAINED, "init_checkpoint")}
  return {key: value for key, value in found.items() if not key.startswith("test")}


def _load_finished(model: Any, directory: str, start: Start, settings: FineTuneSettings) -> None:
  """Gives the model the directory's best weights, or those of `start`."""
  best = run_directory.best_weights(directory)
  if best is not None:
    if settings.do_train:
      logging.info("%s finished earlier and is not trained again", directory)
    variables, source = read_bundle(best), best
  elif start.checkpoint is None:
    raise UserError(
      f"Without --do_train the weights must be there. Received: {directory} without {run_directory.BEST}. Train first."
    )
  else:
    variables, source = dict(start.checkpoint.variables), start.source
  try:
    load_weights(model, variables, allow_unused=".", source=source)
  except UserError as error:
    raise UserError(
      f"Without --do_train the weights must be of a model fine-tuned for this task. {error} Train first, or name "
      "the --output_dir of such a run as --init_checkpoint."
    ) from error


def _metrics(
  task: FineTuningTask, outputs: Mapping[str, Outputs], splits: Mapping[str, FeatureSet]
) -> dict[str, float]:
  """Those of "eval" under their names, those of other splits behind the split's."""
  metrics = task.evaluate(outputs["eval"]) if "eval" in outputs else {}
  for name, of_split in outputs.items():
    if name != "eval" and (name.startswith("eval") or splits[name].labels is not None):
      found = task.evaluate(of_split, name)
      metrics |= {f"{name.removeprefix('eval_')}_{key}": value for key, value in found.items()}
  return {key: float(value) for key, value in metrics.items()}


# ------------------------------------------------------------------ one training


def check_model(task: FineTuningTask, start: Start) -> None:
  """Raises a `UserError` where rows may be longer than what the model reads."""
  limit = start.config.max_position_embeddings
  if task.spec.max_seq_length > limit:
    raise UserError(
      f"max_seq_length must not exceed the model's positions. Received: max_seq_length={task.spec.max_seq_length}, "
      f"max_position_embeddings={limit} in {start.source}. Use --max_seq_length={limit}; in Python "
      "it is the task's argument of that name."
    )


def check_training(
  task: FineTuningTask, settings: FineTuneSettings, features: FeatureSet, *, strategy: tf.distribute.Strategy
) -> None:
  """Raises a `UserError` where these examples cannot be trained on with these settings."""
  make_batching(task, settings, settings.train_batch_size, strategy).check(features, "the training data")
  make_schedule(settings, num_steps=_num_steps(settings, len(features)))
  parts = StepConfig(
    global_batch_size=settings.train_batch_size,
    gradient_accumulation_steps=settings.gradient_accumulation_steps,
  )
  parts.micro_batch_size(strategy.num_replicas_in_sync)


def build_model(
  task: FineTuningTask, settings: FineTuneSettings, *, start: Start, strategy: tf.distribute.Strategy
) -> Any:
  """The task's model on the strategy, with random weights that `keras.utils.set_random_seed` decides."""
  config = start.config
  if settings.dropout is not None:
    config = config.replace(
      hidden_dropout_prob=settings.dropout, attention_probs_dropout_prob=settings.dropout
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


def make_predictor(
  model: Any, task: FineTuningTask, settings: FineTuneSettings, *, strategy: tf.distribute.Strategy
) -> Predictor:
  """Predicts whole splits with the settings' batch size."""
  batching = make_batching(task, settings, settings.eval_batch_size, strategy)
  return Predictor(model, strategy=strategy, batching=batching, verbose=settings.verbose)


def train(
  model: Any,
  task: FineTuningTask,
  settings: FineTuneSettings,
  *,
  features: FeatureSet,
  predict: Callable[[], Outputs],
  evaluate: Callable[[Outputs], dict[str, float]],
  strategy: tf.distribute.Strategy,
  directory: str,
  writes: bool,
  callbacks: Sequence[Any],
) -> tuple[engine_callbacks.Progress, Outputs | None]:
  """Trains with `model.fit`; the model has its best weights afterwards, and so has `directory`.

  A training that was killed continues from its last evaluation, to the weights it would have had.

  Args:
    model: of `build_model` on this `strategy`, with the weights to start from.
    task, settings: the loss and the metric; how, and the seed of the order of examples.
    features: the training examples.
    predict, evaluate: → the outputs of the model as it is for the evaluation data → metrics.
    directory: the run's; `writes`: whether this process writes there, or another one does.
    callbacks: Keras callbacks beside the engine's.

  Returns:
    The progress, and the outputs of the best weights if this process found them.
  """
  batching = make_batching(task, settings, settings.train_batch_size, strategy)
  num_steps = _num_steps(settings, len(features))
  schedule = make_schedule(settings, num_steps=num_steps)
  compile_model(model, task, settings, schedule, strategy=strategy)
  state = engine_callbacks.TrainingState(model, directory, writes=writes)
  progress = state.restore(task.best_metric)
  evaluation = engine_callbacks.EvaluateAndKeepBest(
    predict=predict,
    evaluate=evaluate,
    state=state,
    progress=progress,
    num_steps=num_steps,
    settings=settings,
  )
  joined: list[Any] = [evaluation]
  if writes:
    if not progress.step:  # What a run left that was killed before its first evaluation.
      run_directory.remove(directory, run_directory.METRICS_FILE, "tensorboard")
    events = os.path.join(directory, "tensorboard")
    joined += [
      engine_callbacks.WriteMetrics(directory, evaluation, schedule, settings),
      engine_callbacks.TensorBoard(events, write_graph=False, profile_batch=0),
    ]
    if settings.verbose:
      joined.append(engine_callbacks.ProgressLines(num_steps - progress.step))

  # Of an epoch begun before the kill first the rest, then whole epochs.
  epoch_steps = batches.steps_per_epoch(len(features), batching.batch_size)
  epoch, done = divmod(progress.step, epoch_steps)
  per_epoch = min(epoch_steps, num_steps)
  parts = [(epoch, epoch + 1, per_epoch - done)] if done else []
  parts.append((epoch + len(parts), math.ceil(num_steps / epoch_steps), per_epoch))
  flat = batches.FlatFeatures.of(features)
  for first, last, steps in parts:
    if evaluation.ended or model.stop_training:  # A callback of the user may end it too.
      break
    plan = batches.training_plan(
      flat, batching, seed=settings.seeds[0], num_steps=num_steps, first_step=progress.step
    )
    model.fit(
      _distributed(flat, plan, batching, strategy),
      initial_epoch=first,
      epochs=last,
      steps_per_epoch=steps,
      shuffle=False,  # The data set has its own order.
      # Keras' bar on a terminal, a line an epoch elsewhere.
      verbose=(1 if sys.stdout.isatty() else 2) if settings.verbose else 0,
      callbacks=[*joined, *callbacks],
    )
  state.assign_best()
  return progress, evaluation.best_outputs


def _distributed(
  flat: batches.FlatFeatures, plan: batches.Plan, batching: batches.Batching, strategy: tf.distribute.Strategy
) -> Any:
  """What `model.fit` reads: on each input host its own rows of every batch."""

  def of_host(context: tf.distribute.InputContext) -> tf.data.Dataset:
    dataset = batches.planned_dataset(flat, plan, batching, shard=host_shard(strategy, context))
    return dataset.repeat()  # Keras asks for whole epochs, and is stopped in the last.

  return strategy.distribute_datasets_from_function(of_host)


def _num_steps(settings: FineTuneSettings, count: int) -> int:
  epoch_steps = batches.steps_per_epoch(count, settings.train_batch_size)
  return settings.num_train_steps or math.ceil(epoch_steps * settings.num_train_epochs)


def make_schedule(settings: FineTuneSettings, *, num_steps: int) -> WarmupPolynomialDecay:
  """Linear warm-up, then polynomial decay to 0 at the last update."""
  warmup = settings.num_warmup_steps
  return WarmupPolynomialDecay(
    learning_rate=settings.learning_rate,
    num_train_steps=num_steps,
    num_warmup_steps=warmup if warmup >= 0 else int(num_steps * settings.warmup_proportion),
    poly_power=settings.poly_power,
  )


def compile_model(
  model: Any,
  task: FineTuningTask,
  settings: FineTuneSettings,
  schedule: WarmupPolynomialDecay,
  *,
  strategy: tf.distribute.Strategy,
) -> None:
  """The task's loss, and AdamW or LAMB with clipping, join the model."""
  optimizer = {"adamw": AdamW, "lamb": Lamb}[settings.optimizer]
  with strategy.scope():
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


def make_batching(
  task: FineTuningTask, settings: FineTuneSettings, batch_size: int, strategy: tf.distribute.Strategy
) -> batches.Batching:
  """Lengths as `settings.bucket_multiple` says; on a TPU one static length unless it says otherwise."""
  multiple = settings.bucket_multiple
  return batches.Batching(
    batch_size=batch_size,
    max_length=task.spec.max_seq_length,
    bucket_multiple=(0 if device_kind(strategy) == "tpu" else 32) if multiple is None else multiple,
  )
