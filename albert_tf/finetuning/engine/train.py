"""One model with one seed: built, given its weights, trained with `model.fit`, its best weights kept."""

from collections.abc import Callable, Sequence
import dataclasses
import math
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.compat import device_kind
from albert_tf.errors import UserError
from albert_tf.finetuning.engine import batches
from albert_tf.finetuning.engine.features import FeatureSet
from albert_tf.finetuning.engine.flat import FlatFeatures
from albert_tf.finetuning.engine.predict import Predictor
from albert_tf.finetuning.engine.reports import ProgressLines, report_writers
from albert_tf.finetuning.engine.resume import EvaluateAndKeepBest, KeptTraining
from albert_tf.finetuning.initialize import Start
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.finetuning.tasks.base import FineTuningTask
from albert_tf.modeling import named_variables
from albert_tf.models.tasks import make_model
from albert_tf.optim.keras_optimizers import AdamW, Lamb, WarmupPolynomialDecay, layerwise_rate_multipliers
from albert_tf.training.distribution import host_shard, precision_policy
from albert_tf.training.settings import StepConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
  """What training leaves beside the weights: for results.json."""

  best_step: int
  train_steps: int
  train_examples: int
  train_seconds: float
  history: dict[int, dict[str, float]]


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


def check(
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
      dtype=precision_policy(settings.mixed_precision),
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
  seed: int,
  features: FeatureSet,
  evaluate: Callable[[], dict[str, float]],
  on_best: Callable[[], None] = lambda: None,
  strategy: tf.distribute.Strategy,
  directory: str,
  writes: bool = True,
  callbacks: Sequence[Any] = (),
) -> Trained:
  """Trains with `model.fit`; the model has its best weights afterwards, and so has `directory`.

  A training that was killed goes on from its last evaluation, to the weights it would have had.

  Args:
    model: of `build_model` on this `strategy`, with the weights to start from.
    task, settings: the loss and the metric; how.
    seed: of the order of examples.
    features: the training examples.
    evaluate: → metrics of the model as it is.
    on_best: called where what was evaluated last is the best so far.
    directory: the seed's; `writes`: whether this process writes there, or another one does.
    callbacks: Keras callbacks beside the engine's.
  """
  batching = make_batching(task, settings, settings.train_batch_size, strategy)
  num_steps = _num_steps(settings, len(features))
  schedule = make_schedule(settings, num_steps=num_steps)
  data = _TrainingData(features, batching, seed=seed, num_steps=num_steps, strategy=strategy)
  compile_model(model, task, settings, schedule, strategy=strategy)
  kept = KeptTraining(model, directory, writes=writes)
  evaluation = EvaluateAndKeepBest(
    evaluate=evaluate,
    on_best=on_best,
    kept=kept,
    best_metric=task.best_metric,
    num_steps=num_steps,
    settings=settings,
    progress=kept.restore(),
  )
  writers = []
  if writes:
    size, every = settings.train_batch_size, settings.report_steps
    writers = report_writers(
      directory, evaluation, schedule, data.tokens, batch_size=size, report_steps=every
    )
    if settings.verbose:
      writers.append(ProgressLines(num_steps - evaluation.progress.step))
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
  kept.assign_best()
  return Trained(
    best_step=evaluation.progress.best_step,
    train_steps=evaluation.progress.step,
    train_examples=len(features),
    train_seconds=evaluation.progress.seconds,
    history=evaluation.progress.history,
  )


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
      loss_weights=task.loss_weights(),
      jit_compile=settings.jit_compile,
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
    self._flat, self._batching, self._strategy = FlatFeatures.of(features), batching, strategy
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
