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
from albert_tf.checkpoints.bundle import read_bundle
from albert_tf.compat import device_kind, keras
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning import initialize
from albert_tf.finetuning.engine import batches, run_directory
from albert_tf.finetuning.engine import callbacks as engine_callbacks
from albert_tf.finetuning.engine import results as reporting
from albert_tf.finetuning.engine.callbacks import Progress
from albert_tf.finetuning.engine.predict import Predictor
from albert_tf.finetuning.initialize import Start
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.finetuning.tasks.base import FeatureSet, FineTuningTask, Outputs
from albert_tf.modeling import named_variables
from albert_tf.models.task_model import TaskModel
from albert_tf.models.tasks import make_model, model_class
from albert_tf.optim.keras_optimizers import AdamW, Lamb, WarmupPolynomialDecay, layerwise_rate_multipliers
from albert_tf.training.distribution import (
  Workers,
  host_shard,
  make_strategy,
  precision_policy,
  precision_warning,
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

  A run that finished before is not trained again; one that was killed goes on from its last evaluation, to the same
  weights. Without `do_train` the weights are those of `output_dir`, or, if that is new, the fine-tuned ones of `start`.
  With several seeds there is a run directory for each, `seed_N/`, and the best one is copied to the top.

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
  if settings.do_train and (slow := precision_warning(settings.distribution.precision, strategy)):
    logging.warning("%s", slow)
  # 1. What cannot be is refused before anything is written; the chief decides for all workers.
  workers = Workers(strategy)
  with workers.together():
    if workers.is_chief:
      run_directory.check(output_dir, task, settings, start)
  check_model(task, settings, start)
  splits = _answered_splits(task, settings)
  train_features, content = None, {}
  if settings.do_train:
    train_features = _train_features(task, settings)
    check_training(task, settings, train_features, strategy=strategy)
    content = {"train": train_features.fingerprint(), "eval": splits["eval"].fingerprint()}
  with workers.together():
    if workers.is_chief:
      run_directory.check_content(output_dir, content)

  # 2. Each seed has a run of its own.
  several = len(settings.seeds) > 1
  if several and workers.is_chief and settings.do_train:
    run_directory.write_run_file(output_dir, task, settings, start, content)
  runs = {}
  for seed in settings.seeds:
    runs[seed] = _run_seed(
      task,
      dataclasses.replace(settings, seeds=(seed,)),
      start=start,
      directory=os.path.join(output_dir, f"seed_{seed}") if several else output_dir,
      train_features=train_features,
      splits=splits,
      content=content,
      flags_text=flags_text,
      callbacks=callbacks,
      strategy=strategy,
    )
  results = runs[settings.seeds[0]]
  if several:
    results = _finish_seeds(task, settings, runs, output_dir, flags_text, writes=workers.is_chief)
  elsewhere = start.checkpoint if run_directory.best_weights(output_dir) is None else None
  return FineTuned(results=results, checkpoint=elsewhere.directory if elsewhere else output_dir)


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
  train_features: FeatureSet | None,
  splits: Mapping[str, FeatureSet],
  content: Mapping[str, str],
  flags_text: str,
  callbacks: Sequence[Any],
  strategy: tf.distribute.Strategy,
) -> dict[str, Any]:
  """Trains one seed unless it is finished, evaluates and predicts with its best weights; returns its results."""
  (seed,) = settings.seeds
  workers = Workers(strategy)
  with workers.together():
    if settings.do_train and workers.is_chief:
      run_directory.check(directory, task, settings, start)
  logging.info("seed %d: %s", seed, directory)
  keras.backend.clear_session()
  keras.utils.set_random_seed(seed)
  model = build_model(task, settings, start=start, strategy=strategy)
  predict = make_predictor(model, task, settings, strategy=strategy)
  source = run_directory.recorded_source(directory) or start.source
  known = _known_results(directory, evaluates="eval" in splits)
  # Of all workers, and before one of them writes what another still reads.
  trains = settings.do_train and workers.any(not known)
  describes = trains or not known  # Else what training recorded stays.
  if (
    workers.is_chief and trains and not run_directory.has_state(directory)
  ):  # Of a training that is about to begin.
    run_directory.remove(directory, "checkpoints", run_directory.RESULTS_FILE)
  if workers.is_chief and (
    trains or (describes and not files.exists(os.path.join(directory, run_directory.RUN_FILE)))
  ):
    run_directory.write_run_file(directory, task, settings, start, content)
    run_directory.write_start(directory, task.spec, model.config, start.tokenizer, flags_text)

  outputs: dict[str, Outputs] = {}
  if trains and train_features is not None:
    initialize.load_encoder_weights(model, start, seed=seed)
    trained = train(
      model,
      task,
      settings,
      features=train_features,
      predict=lambda: predict(splits["eval"]),
      # Each worker has its own, equal but for rounding; whether training goes on is the chief's decision.
      evaluate=lambda found: workers.of_chief(task.evaluate(found)),
      strategy=strategy,
      directory=directory,
      writes=workers.is_chief,
      callbacks=callbacks,
    )
    known = trained.results()
    if trained.outputs is not None:
      outputs["eval"] = trained.outputs
  else:
    _load_finished(model, directory, start, settings)
  outputs |= {name: predict(features, name=name) for name, features in splits.items() if name not in outputs}

  metrics = workers.of_chief(_metrics(task, outputs, splits))
  results = {**reporting.head(task, source), **known, "seed": seed, **metrics}
  if workers.is_chief:
    spec = task.spec.settled(metrics)
    if describes:
      spec.save(directory)
      own = run_directory.best_weights(directory) is not None
      card = reporting.model_card(task, settings, results, own_weights=own)
      run_directory.write_text(os.path.join(directory, run_directory.CARD_FILE), card)
    for name, found in outputs.items():
      task.write_predictions(found, name, directory, spec=spec)
    run_directory.write_json(os.path.join(directory, run_directory.RESULTS_FILE), results)
    run_directory.remove(directory, run_directory.STATE)  # Three times the size of the weights.
  return results


def _known_results(directory: str, *, evaluates: bool) -> dict[str, Any]:
  """What an earlier command found of these weights and this one does not find anew; empty of an unfinished run."""
  if run_directory.best_weights(directory) is None:
    return {}
  results = run_directory.read_results(directory)
  if evaluates:
    return {key: value for key, value in results.items() if key in TRAINED}
  return {key: value for key, value in results.items() if not key.startswith("test")}


def _load_finished(model: Any, directory: str, start: Start, settings: FineTuneSettings) -> None:
  best = run_directory.best_weights(directory)
  if best is not None:
    if settings.do_train:
      logging.info("%s finished earlier and is not trained again", directory)
    initialize.load_all_weights(model, read_bundle(best), source=best)
  elif start.checkpoint is None:
    raise UserError(
      f"Without --do_train the weights must be there. Received: {directory} without {run_directory.BEST}. Train first."
    )
  else:
    initialize.load_all_weights(model, start.checkpoint.variables, source=start.source)


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


def _finish_seeds(
  task: FineTuningTask,
  settings: FineTuneSettings,
  runs: Mapping[int, Mapping[str, Any]],
  output_dir: str,
  flags_text: str,
  *,
  writes: bool,
) -> dict[str, Any]:
  """The results of several seeds (seed → its own), and copies of the best one's files for the whole directory."""
  before = run_directory.read_results(output_dir).get("best_seed", -1)
  if settings.do_train or before not in runs:
    best_seed = max(runs, key=lambda seed: runs[seed].get(task.best_metric, -math.inf))
  else:
    best_seed = before
  results = reporting.summarize(runs, reporting.head(task, ""), best_seed=best_seed)
  if writes:
    new = settings.do_train or best_seed != before
    directory = os.path.join(output_dir, f"seed_{best_seed}")
    run_directory.copy_run(directory, output_dir, with_weights=new)
    if flags_text and new:
      run_directory.write_text(os.path.join(output_dir, run_directory.FLAGS_FILE), flags_text)
    run_directory.write_json(os.path.join(output_dir, run_directory.RESULTS_FILE), results)
  return results


# ------------------------------------------------------------------ one training


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
  """What training leaves beside the weights; `outputs` are those of the best ones, if this process found them."""

  progress: Progress
  train_examples: int
  outputs: Outputs | None

  def results(self) -> dict[str, Any]:
    """For results.json; the names are `TRAINED`."""
    progress = self.progress
    values = progress.best_step, progress.step, self.train_examples, progress.seconds, progress.history
    return dict(zip(TRAINED, values, strict=True))


def check_model(task: FineTuningTask, settings: FineTuneSettings, start: Start) -> None:
  """Raises a `UserError` where rows may be longer than what the model reads, or layers are not frozen apart."""
  if settings.freeze_layers is not None:
    start.config.check_separable(settings.freeze_layers)
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
  if settings.freeze_layers is not None:
    model.encoder.freeze_layers(settings.freeze_layers)
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
  writes: bool = True,
  callbacks: Sequence[Any] = (),
) -> Trained:
  """Trains with `model.fit`; the model has its best weights afterwards, and so has `directory`.

  A training that was killed goes on from its last evaluation, to the weights it would have had.

  Args:
    model: of `build_model` on this `strategy`, with the weights to start from.
    task, settings: the loss and the metric; how, and the seed of the order of examples.
    features: the training examples.
    predict, evaluate: → the outputs of the model as it is for the evaluation data → metrics.
    directory: the seed's; `writes`: whether this process writes there, or another one does.
    callbacks: Keras callbacks beside the engine's.
  """
  batching = make_batching(task, settings, settings.train_batch_size, strategy)
  num_steps = _num_steps(settings, len(features))
  schedule = make_schedule(settings, num_steps=num_steps)
  data = _TrainingData(features, batching, seed=settings.seeds[0], num_steps=num_steps, strategy=strategy)
  compile_model(model, task, settings, schedule, strategy=strategy)
  state = engine_callbacks.TrainingState(model, directory, writes=writes)
  evaluation = engine_callbacks.EvaluateAndKeepBest(
    predict=predict,
    evaluate=evaluate,
    state=state,
    best_metric=task.best_metric,
    num_steps=num_steps,
    settings=settings,
    progress=state.restore(),
  )
  writers = []
  if writes:
    if not evaluation.progress.step:  # What a run left that was killed before its first evaluation.
      run_directory.remove(directory, run_directory.METRICS_FILE, "tensorboard")
    writers = [
      engine_callbacks.WriteMetrics(directory, evaluation, schedule, data.tokens, settings),
      engine_callbacks.TensorBoard(
        os.path.join(directory, "tensorboard"), write_graph=False, profile_batch=0
      ),
    ]
    if settings.verbose:
      writers.append(engine_callbacks.ProgressLines(num_steps - evaluation.progress.step))
  _fit(
    model,
    data.dataset,
    evaluation,
    epoch_steps=batches.steps_per_epoch(len(features), batching.batch_size),
    num_steps=num_steps,
    # Keras' bar on a terminal, a line an epoch elsewhere.
    verbose=(1 if sys.stdout.isatty() else 2) if settings.verbose else 0,
    callbacks=[evaluation, *writers, *callbacks],
  )
  state.assign_best()
  return Trained(progress=evaluation.progress, train_examples=len(features), outputs=evaluation.best_outputs)


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
  """The task's loss, and AdamW or LAMB with clipping and the layers' rates, join the model."""
  multipliers = None
  if settings.layer_decay != 1.0:
    multipliers = layerwise_rate_multipliers(
      model.trainable_variables, named_variables(model), layer_decay=settings.layer_decay
    )
  optimizer = {"adamw": AdamW, "lamb": Lamb}[settings.optimizer]
  with strategy.scope():
    model.compile(
      optimizer=optimizer(
        schedule,
        weight_decay_rate=settings.weight_decay,
        global_clipnorm=settings.clip_norm or None,
        ema_decay=settings.ema_decay,
        rate_multipliers=multipliers,
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


class _TrainingData:
  """The batches of a training, from any update on."""

  def __init__(
    self,
    features: FeatureSet,
    batching: batches.Batching,
    *,
    seed: int,
    num_steps: int,
    strategy: tf.distribute.Strategy,
  ):
    self._flat, self._batching, self._strategy = batches.FlatFeatures.of(features), batching, strategy
    self._options = {"seed": seed, "num_steps": num_steps}
    self._first, self._tokens = 0, np.zeros(0, np.int64)

  def dataset(self, first_step: int) -> Any:
    """What `model.fit` reads from an update on: on each input host its own rows of every batch."""
    flat, batching, strategy = self._flat, self._batching, self._strategy
    plan = batches.training_plan(flat, batching, **self._options, first_step=first_step)
    self._first, self._tokens = first_step, plan.tokens

    def of_host(context: tf.distribute.InputContext) -> tf.data.Dataset:
      dataset = batches.planned_dataset(flat, plan, batching, shard=host_shard(strategy, context))
      return dataset.repeat()  # Keras asks for whole epochs, and is stopped in the last.

    return strategy.distribute_datasets_from_function(of_host)

  def tokens(self, before: int, step: int) -> int:
    """Tokens without padding of the updates after `before` up to `step`, of those that were asked for last."""
    return int(self._tokens[max(before - self._first, 0) : step - self._first].sum())


def _fit(
  model: Any,
  dataset_from: Callable[[int], Any],
  evaluation: engine_callbacks.EvaluateAndKeepBest,
  *,
  epoch_steps: int,
  num_steps: int,
  **options: Any,
) -> None:
  """`model.fit` up to `num_steps` updates, from where `evaluation` is: of an epoch begun before, first the rest."""
  epoch, done = divmod(evaluation.progress.step, epoch_steps)
  per_epoch = min(epoch_steps, num_steps)
  parts = [(epoch, epoch + 1, per_epoch - done)] if done else []
  parts.append((epoch + len(parts), math.ceil(num_steps / epoch_steps), per_epoch))
  for first, last, steps in parts:
    if evaluation.ended:
      return
    model.fit(
      dataset_from(evaluation.progress.step),
      initial_epoch=first,
      epochs=last,
      steps_per_epoch=steps,
      shuffle=False,  # The data set has its own order.
      **options,
    )
    if model.stop_training:  # A callback of the user may end it too.
      return
