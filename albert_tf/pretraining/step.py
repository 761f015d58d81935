"""One update of pretraining: the global loss, its exact gradient, clipping, the optimizer.

`loop.TrainingLoop` calls `TrainStep.run`; `planning` lowers `TrainStep.on_replica` for the
compiler.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from albert_tf.modeling import AlbertForPreTraining
from albert_tf.modeling.losses import (
  NUM_SUMS,
  LossSums,
  PretrainingSums,
  cross_entropy_sums,
  mean_metrics,
)
from albert_tf.modeling.micro_batches import sum_over_micro_batches
from albert_tf.optim.lamb import rate_after_steps
from albert_tf.optim.optimizer import Optimizer
from albert_tf.pipelines.batches import Batch
from albert_tf.pretraining.settings import StepConfig

WEIGHT_EPSILON = 1e-5  # Original: the masked-LM denominator is never 0.

# What the sentence loss counts during `masked_lm_only_steps`. Not 0: an update by LAMB or AdamW
# does not depend on the size of a gradient, so pooler and sentence head learn all the same, while
# the encoder follows masked LM. With 0, weight decay alone would shrink their kernels.
_HELD_BACK = 2.0**-10

# Metrics whose last value counts; the others are summed over the updates of one call.
_LAST_VALUES = ("weight_norm", "update_norm", "learning_rate")


class StepMetrics(NamedTuple):
  """Metrics of the updates of one call; float32 scalars, equal on all replicas.

  Sums over the updates: losses, right answers, weights, counts, `tokens` (without padding),
  `gradient_norm`, and `input_seconds`, the wait for a batch after the end of the step before.
  Values of the last update: `weight_norm`, `update_norm`, `learning_rate`. One update that is not
  finite leaves a sum that is not finite.
  """

  masked_lm_loss: tf.Tensor
  masked_lm_correct: tf.Tensor
  masked_lm_weight: tf.Tensor
  sentence_loss: tf.Tensor
  sentence_correct: tf.Tensor
  sentence_count: tf.Tensor
  tokens: tf.Tensor
  gradient_norm: tf.Tensor
  weight_norm: tf.Tensor
  update_norm: tf.Tensor
  learning_rate: tf.Tensor
  input_seconds: tf.Tensor  # Measured on the host; a replica computes the others.

  def add(self, later: "StepMetrics") -> "StepMetrics":
    """Joins these metrics with those of later updates."""
    joined = {}
    for name in self._fields:
      joined[name] = getattr(later, name)
      if name not in _LAST_VALUES:
        joined[name] += getattr(self, name)
    return StepMetrics(**joined)

  def averages(self, num_steps: int, sentence_task: str = "sentence_order") -> dict[str, float]:
    """Metrics of a report: means over predictions, examples and steps.

    Args:
      num_steps: updates that the sums are of.
      sentence_task: see `StepConfig.sentence_task`.
    """
    sums = PretrainingSums(
      masked_lm=LossSums(self.masked_lm_loss, self.masked_lm_correct, self.masked_lm_weight),
      sentence=LossSums(self.sentence_loss, self.sentence_correct, self.sentence_count),
    )
    metrics = mean_metrics(sums, sentence_task)
    metrics["gradient_norm"] = float(self.gradient_norm) / num_steps
    for name in ("learning_rate", "weight_norm", "update_norm"):
      metrics[name] = float(getattr(self, name))
    return metrics


_REPLICA_METRICS = StepMetrics._fields[:-1]  # In the order of the vector that a replica returns.
_IS_LAST_VALUE = [name in _LAST_VALUES for name in _REPLICA_METRICS]


class _Gradients(NamedTuple):
  """The gradient of a replica's part of the global loss, and the sums for the report."""

  of_variables: list[tf.Tensor]  # In the order of the trained variables; dense.
  sums: tf.Tensor  # `PretrainingSums.pack`, [6].


class TrainStep:
  r"""Runs updates: gradient of the global loss, clip, optimizer.

  $L = \sum w \ell_{mlm} / \sum w + \sum \ell_{sop} / B$, all sums over the global batch; if
  `config.sentence_task` is empty, without the second term and without updates of pooler and
  sentence head. The second term counts a thousandth in the first `config.masked_lm_only_steps`.

  Any number of replicas and micro-batches makes the same update; gradients are summed over replicas
  before they are clipped. Model and optimizer were made under the strategy's scope. `use_xla`
  compiles forward and backward pass on CPU and GPU, and the optimizer its update; a TPU compiles
  the whole step.

  Reference: ALBERT section 4.1; PAPER_MAP.md, the loss over the global batch.
  """

  def __init__(
    self,
    *,
    strategy: tf.distribute.Strategy,
    model: AlbertForPreTraining,
    optimizer: Optimizer,
    config: StepConfig,
    use_xla: bool = False,
  ):
    self._strategy = strategy
    self._model = model
    self._variables = optimizer.named_variables
    self._optimizer = optimizer
    self._config = config
    # Only `_run` needs AutoGraph; converting the model takes longer than tracing it.
    self._micro_batch_gradients = tf.function(
      self._compute_gradients,
      autograph=False,
      jit_compile=use_xla or None,  # None leaves a TPU its choice; False would forbid it.
    )
    # One function for the device, which `planning` lowers as it is.
    self.on_replica = tf.autograph.experimental.do_not_convert(
      self._replica_step
    )  # (batch) -> [11]
    self.run = tf.function(self._run)

  def _run(self, iterator: Iterator[Batch], num_steps: tf.Tensor) -> StepMetrics:
    """Makes `num_steps` updates without returning to the host in between."""
    metrics = tf.zeros([len(_REPLICA_METRICS)])
    # In float64: a float32 of seconds since 1970 is exact to two minutes.
    waited = tf.zeros([], tf.float64)
    step_ended = tf.timestamp()
    for _ in tf.range(num_steps):
      # The input is late by the time from the end of the step before to the arrival of the batch.
      asked = tf.timestamp()
      with tf.control_dependencies([asked]):
        batch = next(iterator)
      with tf.control_dependencies([self._of_first_replica(value) for value in batch.values()]):
        waited += tf.maximum(tf.timestamp() - tf.maximum(asked, step_ended), 0.0)

      # One thread might otherwise run the step before it reads the clock.
      with tf.control_dependencies([waited]):
        update = self._of_first_replica(self._strategy.run(self.on_replica, args=(batch,)))
      metrics = tf.where(_IS_LAST_VALUE, update, metrics + update)
      # The device has finished when its metrics are there.
      with tf.control_dependencies([metrics]):
        step_ended = tf.timestamp()
    input_seconds = tf.cast(waited, tf.float32)
    return StepMetrics._make(tf.unstack(metrics) + [input_seconds])

  def _of_first_replica(self, per_replica: Any) -> tf.Tensor:
    return self._strategy.experimental_local_results(per_replica)[0]

  def _replica_step(self, batch: Batch) -> tf.Tensor:
    """One update on one replica; returns `_REPLICA_METRICS` as a vector, in one transfer."""
    context = tf.distribute.get_replica_context()

    # The gradient of the global loss, summed over the replicas.
    global_weight = context.all_reduce(
      tf.distribute.ReduceOp.SUM, tf.reduce_sum(batch["masked_lm_weights"])
    )
    local = self._accumulate(batch, global_weight, context.replica_id_in_sync_group)
    summed = context.all_reduce(tf.distribute.ReduceOp.SUM, local.of_variables)
    gradients = dict(zip(self._variables, summed, strict=True))

    # The sums for the report, in one reduction.
    tokens = tf.reduce_sum(tf.cast(batch["input_mask"], tf.float32))
    sums = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.concat([local.sums, [tokens]], axis=0))

    # Every replica makes the same update of its copy.
    learning_rate = rate_after_steps(self._optimizer.step, self._optimizer.config)
    norms = self._optimizer.apply(gradients, learning_rate)
    return tf.concat([sums, [*norms, learning_rate]], axis=0)

  def _accumulate(
    self, batch: Batch, global_weight: tf.Tensor, replica: tf.Tensor | int
  ) -> _Gradients:
    """The gradient of this replica's part of the global loss, in micro-batches."""
    num_micro_batches = self._config.gradient_accumulation_steps
    # The seed of an update is (seed, step): a continued run draws what the killed one would have
    # drawn.
    run_seed = tf.constant(self._config.seed % 2**31, tf.int32)
    step_seed = tf.stack([run_seed, tf.cast(self._optimizer.step, tf.int32)])
    # The deepest and one of the others are trained in the same forward pass.
    drawn = None
    if len(self._config.train_depths) > 1:
      drawn = _draw_shallower(len(self._config.train_depths) - 1, step_seed)
    # Micro-batches are numbered over all replicas, so each has dropout of its own: with 2 replicas
    # of 4 micro-batches, the second replica has the numbers 4 to 7.
    first_number = tf.cast(replica, tf.int32) * num_micro_batches

    sentence_weight = None
    if self._config.masked_lm_only_steps:
      is_held_back = self._optimizer.step < self._config.masked_lm_only_steps
      sentence_weight = tf.where(is_held_back, _HELD_BACK, 1.0)

    def compute(micro_batch: Batch, number: tf.Tensor | int) -> _Gradients:
      seed = tf.random.experimental.stateless_fold_in(step_seed, first_number + number)
      return self._micro_batch_gradients(micro_batch, global_weight, sentence_weight, seed, drawn)

    if num_micro_batches == 1:
      return compute(batch, 0)

    zeros = _Gradients(
      of_variables=[tf.zeros(variable.shape) for variable in self._variables.values()],
      sums=tf.zeros([NUM_SUMS]),
    )
    summed = sum_over_micro_batches(
      lambda micro_batch, number: tf.nest.flatten(compute(micro_batch, number)),
      batch,
      num_micro_batches,
      tf.nest.flatten(zeros),
    )
    return tf.nest.pack_sequence_as(zeros, summed)

  def _compute_gradients(
    self,
    batch: Batch,
    global_weight: tf.Tensor,
    sentence_weight: tf.Tensor | None,
    seed: tf.Tensor,
    drawn: tf.Tensor | None,
  ) -> _Gradients:
    """Forward and backward pass of one micro-batch."""
    depths = sorted(self._config.train_depths)
    weights = (global_weight, sentence_weight)
    with tf.GradientTape() as tape:
      outputs = self._model(batch, training=True, seed=seed, depths=depths, drawn=drawn)
      loss, sums = self._loss(batch, outputs["mlm_logits"], outputs["sop_logits"], *weights)
      if drawn is not None:
        drawn_loss, _ = self._loss(
          batch, outputs["drawn_mlm_logits"], outputs["drawn_sop_logits"], *weights
        )
        # By depth: 12 and 4 layers count 3/4 and 1/4.
        drawn_depth = tf.cast(tf.gather(depths, drawn), tf.float32)
        drawn_share = drawn_depth / (drawn_depth + depths[-1])
        loss += drawn_share * (drawn_loss - loss)
    gradients = tape.gradient(loss, list(self._variables.values()))
    # A lookup's gradient comes as rows that may repeat; clipping needs the norm of their sum.
    dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
    return _Gradients(dense, sums.pack())

  def _loss(
    self,
    batch: Batch,
    mlm_logits: tf.Tensor,
    sop_logits: tf.Tensor,
    global_weight: tf.Tensor,
    sentence_weight: tf.Tensor | None,
  ) -> tuple[tf.Tensor, PretrainingSums]:
    """This micro-batch's part of the global loss, and its sums for the report.

    `sentence_weight` is what the sentence loss counts; None is 1.
    """
    masked_lm = cross_entropy_sums(mlm_logits, batch["masked_lm_ids"], batch["masked_lm_weights"])
    loss = masked_lm.loss / (global_weight + WEIGHT_EPSILON)
    zero = tf.zeros([])
    sentence = LossSums(zero, zero, zero)
    if self._config.sentence_task:
      sentence = cross_entropy_sums(sop_logits, batch["sentence_order_labels"])
      sentence_part = sentence.loss / self._config.global_batch_size
      if sentence_weight is not None:
        sentence_part *= sentence_weight
      loss += sentence_part
    return loss, PretrainingSums(masked_lm, sentence)


def _draw_shallower(count: int, step_seed: tf.Tensor) -> tf.Tensor:
  """Draws the number of one of `count` depths, int32, by the seed int32 `[2]` of an update.

  The seed is equal on all replicas, and so is the depth.
  """
  seed = tf.random.experimental.stateless_fold_in(step_seed, -1)  # No micro-batch has this number.
  return tf.random.stateless_uniform([], seed, minval=0, maxval=count, dtype=tf.int32)
