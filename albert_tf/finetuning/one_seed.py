"""One model with one seed: built, given its weights, trained with `model.fit`, its best weights kept."""

from collections.abc import Callable, Sequence
import dataclasses
import math
import os
import sys
from typing import Any

import tensorflow as tf

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.finetuning import initialize
from albert_tf.finetuning.batching import Batching, planned_dataset, steps_per_epoch, training_plan
from albert_tf.finetuning.callbacks import EvaluateAndKeepBest, TensorBoard, WriteMetrics
from albert_tf.finetuning.features import FeatureSet
from albert_tf.finetuning.flat_features import FlatFeatures
from albert_tf.finetuning.models import make_model
from albert_tf.finetuning.prediction import Predictor
from albert_tf.finetuning.resumption import KeptTraining
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.finetuning.task import FineTuningTask
from albert_tf.modeling import named_variables
from albert_tf.optim.keras_optimizers import AdamW, Lamb, WarmupPolynomialDecay, layerwise_rate_multipliers
from albert_tf.training.distribution import host_shard
from albert_tf.training.precision import precision_policy

METRICS_FILE = "metrics.jsonl"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
  """What training leaves beside the weights: for results.json."""

  best_step: int
  train_steps: int
  train_examples: int
  train_seconds: float
  history: dict[int, dict[str, float]]


def build_model(
  task: FineTuningTask,
  settings: FineTuneSettings,
  *,
  start: initialize.Start,
  strategy: tf.distribute.Strategy,
) -> Any:
  """The task's model on the strategy, with random weights that `keras.utils.set_random_seed` decides."""
  config = start.config
  if task.spec.max_seq_length > config.max_position_embeddings:
    raise UserError(
      "max_seq_length must not exceed the model's positions. Received: "
      f"max_seq_length={task.spec.max_seq_length}, max_position_embeddings={config.max_position_embeddings} in "
      f"{start.source}. Use --max_seq_length={config.max_position_embeddings}."
    )
  if settings.dropout is not None:
    config = config.replace(
      hidden_dropout_prob=settings.dropout, attention_probs_dropout_prob=settings.dropout
    )
  head_options = dict(task.head_options)
  if task.spec.squad_version != "1.1":  # The one head without dropout.
    head_options["classifier_dropout"] = settings.classifier_dropout
  on_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
  with strategy.scope():
    return make_model(
      task.spec,
      config,
      head_options=head_options,
      encoder_options={"use_one_hot_embeddings": on_tpu},
      dtype=precision_policy(settings.mixed_precision),
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


def make_optimizer(model: Any, settings: FineTuneSettings, *, num_steps: int) -> Any:
  """AdamW or LAMB with warm-up, decay, clipping and the layers' rates."""
  multipliers = None
  if settings.layer_decay != 1.0:
    multipliers = layerwise_rate_multipliers(
      model.trainable_variables, named_variables(model), layer_decay=settings.layer_decay
    )
  return {"adamw": AdamW, "lamb": Lamb}[settings.optimizer](
    make_schedule(settings, num_steps=num_steps),
    weight_decay_rate=settings.weight_decay,
    global_clipnorm=settings.clip_norm or None,
    rate_multipliers=multipliers,
  )


def make_batching(
  settings: FineTuneSettings, *, batch_size: int, max_length: int, strategy: tf.distribute.Strategy
) -> Batching:
  """Lengths as `settings.bucket_multiple` says; on a TPU one static length unless it says otherwise."""
  on_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
  multiple = settings.bucket_multiple
  return Batching(
    batch_size=batch_size,
    max_length=max_length,
    bucket_multiple=(0 if on_tpu else 32) if multiple is None else multiple,
  )


def train(
  model: Any,
  task: FineTuningTask,
  settings: FineTuneSettings,
  *,
  seed: int,
  features: FeatureSet,
  evaluate: Callable[[], dict[str, float]],
  strategy: tf.distribute.Strategy,
  directory: str,
  writes: bool = True,
  callbacks: Sequence[Any] = (),
) -> Trained:
  """Trains with `model.fit`; the model has its best weights afterwards, and so has `directory`.

  A training that was killed goes on from its last evaluation, to the weights it would have had.

  Args:
    model: of `build_model`, with the weights to start from.
    task: gives the loss and the metric.
    settings: how.
    seed: of the order of examples.
    features: the training examples.
    evaluate: → metrics of the model as it is.
    strategy: the one the model was built on.
    directory: the seed's.
    writes: whether this process writes there; else another one does.
    callbacks: Keras callbacks beside the engine's.
  """
  batching = make_batching(
    settings, batch_size=settings.train_batch_size, max_length=task.spec.max_seq_length, strategy=strategy
  )
  batching.check(features, "the training data")
  if batching.batch_size % strategy.num_replicas_in_sync:
    raise UserError(
      f"train_batch_size is split evenly over the replicas. Received: {batching.batch_size} for "
      f"{strategy.num_replicas_in_sync} replicas."
    )
  epoch_steps = steps_per_epoch(len(features), batching.batch_size)
  num_steps = settings.num_train_steps or math.ceil(epoch_steps * settings.num_train_epochs)
  _compile(model, task, settings, num_steps=num_steps, strategy=strategy)
  kept = KeptTraining(model, directory, writes=writes)
  progress = kept.restore()
  evaluation = EvaluateAndKeepBest(
    evaluate=evaluate,
    keep=kept.keep,
    save=kept.save,
    best_metric=task.best_metric,
    num_steps=num_steps,
    eval_steps=settings.eval_steps,
    patience=settings.early_stopping_patience,
    progress=progress,
  )
  writers = _writers(directory, evaluation, settings, num_steps) if writes else []
  _fit(
    model,
    _training_data(FlatFeatures.of(features), batching, seed=seed, num_steps=num_steps, strategy=strategy),
    evaluation,
    epoch_steps=epoch_steps,
    num_steps=num_steps,
    verbose=_verbosity(settings.verbose),
    callbacks=[evaluation, *writers, *callbacks],
  )
  kept.assign_best()
  return Trained(
    best_step=evaluation.progress.best_step,
    train_steps=evaluation.progress.step,
    train_examples=len(features),
    train_seconds=evaluation.progress.seconds,
    history=evaluation.progress.history,
  )


def _training_data(
  flat: FlatFeatures, batching: Batching, *, seed: int, num_steps: int, strategy: tf.distribute.Strategy
) -> Callable[[int], Any]:
  """First update → what `model.fit` reads: on each input host its own rows of every batch."""

  def dataset_from(first_step: int) -> Any:
    plan = training_plan(flat, batching, seed=seed, num_steps=num_steps, first_step=first_step)
    return strategy.distribute_datasets_from_function(
      lambda context: planned_dataset(flat, plan, batching, shard=host_shard(strategy, context))
    )

  return dataset_from


def _fit(
  model: Any,
  dataset_from: Callable[[int], Any],
  evaluation: EvaluateAndKeepBest,
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


def _compile(
  model: Any,
  task: FineTuningTask,
  settings: FineTuneSettings,
  *,
  num_steps: int,
  strategy: tf.distribute.Strategy,
) -> None:
  """Loss and optimizer join the model."""
  with strategy.scope():
    model.compile(
      optimizer=make_optimizer(model, settings, num_steps=num_steps),
      loss=task.loss(),
      loss_weights=task.loss_weights(),
      jit_compile=settings.jit_compile,
    )


def _verbosity(verbose: bool) -> int:
  """Keras' bar on a terminal, a line an epoch elsewhere."""
  return (1 if sys.stdout.isatty() else 2) if verbose else 0


def _writers(
  directory: str, evaluation: EvaluateAndKeepBest, settings: FineTuneSettings, num_steps: int
) -> list[Any]:
  for left in (METRICS_FILE, "tensorboard"):  # Of a run that was killed before its first evaluation.
    if not evaluation.progress.step and files.exists(os.path.join(directory, left)):
      files.remove(os.path.join(directory, left))
  schedule = make_schedule(settings, num_steps=num_steps)
  return [
    WriteMetrics(
      os.path.join(directory, METRICS_FILE),
      evaluation=evaluation,
      learning_rate=lambda step: float(schedule(step)),
      examples_per_step=settings.train_batch_size,
    ),
    TensorBoard(os.path.join(directory, "tensorboard"), write_graph=False, profile_batch=0),
  ]


def make_predictor(
  model: Any, task: FineTuningTask, settings: FineTuneSettings, *, strategy: tf.distribute.Strategy
) -> Predictor:
  """Predicts whole splits with the settings' batch size."""
  batching = make_batching(
    settings, batch_size=settings.eval_batch_size, max_length=task.spec.max_seq_length, strategy=strategy
  )
  return Predictor(model, strategy=strategy, batching=batching, verbose=settings.verbose)
