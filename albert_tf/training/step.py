"""One update of pretraining: global losses, exact gradient, clip, optimizer."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from albert_tf.modeling import AlbertForPreTraining
from albert_tf.modeling.losses import LossSums, cross_entropy_sums, mean_metrics
from albert_tf.modeling.micro_batches import draw_depth, sum_over_micro_batches
from albert_tf.modeling.pretraining import trained_variables
from albert_tf.optim.lamb import clip_by_global_norm, rate_after_steps
from albert_tf.optim.optimizer import Optimizer
from albert_tf.training.settings import StepConfig

WEIGHT_EPSILON = 1e-5  # Original: the masked-LM denominator is never 0.


class StepMetrics(NamedTuple):
  """Sums and last values over the steps of one call; float32, equal on all replicas.

  Sums: losses, corrects, weights, counts, `tokens` (padding left out), `gradient_norm`, `input_seconds` (wait
  for a batch after the end of the step before). Last values:
  `weight_norm`, `update_norm`, `learning_rate`. One non-finite step leaves a sum non-finite.

  A replica returns all fields but the last as one vector: one transfer from the device a step.
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
  input_seconds: tf.Tensor

  def add(self, later: "StepMetrics") -> "StepMetrics":
    """Joins these metrics with those of later steps."""
    numbers = zip(_IS_LAST_VALUE, self, later, strict=True)
    return StepMetrics._make([new if last else old + new for last, old, new in numbers])

  def averages(self, num_steps: int, sentence_task: str = "sentence_order") -> dict[str, float]:
    """Metrics of a report: means over predictions, examples and steps; `sentence_task` as in `StepConfig`."""
    masked_lm = LossSums(self.masked_lm_loss, self.masked_lm_correct, self.masked_lm_weight)
    sentence = LossSums(self.sentence_loss, self.sentence_correct, self.sentence_count)
    return {
      **mean_metrics(masked_lm, sentence, sentence_task),
      "gradient_norm": float(self.gradient_norm) / num_steps,
      **{name: float(getattr(self, name)) for name in _LAST_VALUES},
    }


_LAST_VALUES = ("learning_rate", "weight_norm", "update_norm")
_IS_LAST_VALUE = [name in _LAST_VALUES for name in StepMetrics._fields]


class TrainStep:
  r"""Runs updates: gradient of the global loss, clip, optimizer.

  $L = \sum w \ell_{mlm} / \sum w + \sum \ell_{sop} / B$, all sums over the global batch; if `config.sentence_task` is
  empty, without the second term and without updates of pooler and sentence head.

  Any number of replicas and micro-batches makes the same update; gradients are summed over replicas before they are
  clipped. Model and optimizer were made under the strategy's scope. `use_xla` compiles forward and backward pass on
  CPU and GPU; a TPU always does.

  Reference: DESIGN decisions 6 and 8 (PAPER_MAP.md); ALBERT section 4.1.
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
    self._variables = trained_variables(model, sentence_loss=bool(config.sentence_task))
    self._optimizer = optimizer
    self._config = config
    config.micro_batch_size(strategy.num_replicas_in_sync)  # Raises if the batch cannot be split.
    # Only `_run` needs AutoGraph; converting the model takes longer than tracing it.
    self._micro_gradients = tf.function(
      self._compute_micro_gradients, autograph=False, jit_compile=True if use_xla else None
    )
    self.on_replica = tf.autograph.experimental.do_not_convert(self._replica_step)  # (batch) -> [11]
    self.run = tf.function(self._run)

  def _run(self, iterator: Iterator[Mapping[str, tf.Tensor]], num_steps: tf.Tensor) -> StepMetrics:
    """Makes `num_steps` updates without returning to the host in between."""
    metrics = tf.zeros([len(StepMetrics._fields) - 1])
    waited, done = tf.zeros([], tf.float64), tf.timestamp()
    for _ in tf.range(num_steps):
      asked = tf.timestamp()
      with tf.control_dependencies([asked]):
        batch = next(iterator)
      with tf.control_dependencies([self._of_first_replica(value) for value in batch.values()]):
        waited += tf.maximum(tf.timestamp() - tf.maximum(asked, done), 0.0)
      step = self._of_first_replica(self._strategy.run(self.on_replica, args=(batch,)))
      metrics = tf.where(_IS_LAST_VALUE[:-1], step, metrics + step)
      with tf.control_dependencies([metrics]):
        done = tf.timestamp()
    return StepMetrics._make([*tf.unstack(metrics), tf.cast(waited, tf.float32)])

  def _of_first_replica(self, per_replica: Any) -> tf.Tensor:
    return self._strategy.experimental_local_results(per_replica)[0]

  def _replica_step(self, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
    context = tf.distribute.get_replica_context()
    weight = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(batch["masked_lm_weights"]))
    gradients, sums = self._accumulate(batch, weight, context.replica_id_in_sync_group)
    summed = context.all_reduce(tf.distribute.ReduceOp.SUM, list(gradients.values()))
    gradients = dict(zip(gradients, summed, strict=True))
    tokens = tf.reduce_sum(tf.cast(batch["input_mask"], tf.float32))
    sums = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.concat([sums, [tokens]], axis=0))
    gradients, norm = clip_by_global_norm(gradients, self._optimizer.config.clip_norm)
    learning_rate = rate_after_steps(self._optimizer.step, self._optimizer.config)
    norms = self._optimizer.apply(gradients, learning_rate)
    return tf.concat([sums, [norm, norms.weight_norm, norms.update_norm, learning_rate]], axis=0)

  def _accumulate(
    self, batch: Mapping[str, tf.Tensor], weight: tf.Tensor, replica: tf.Tensor | int
  ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Gradient of this replica's part of the global loss, and `[6]` sums for the report."""
    count = self._config.gradient_accumulation_steps
    step_seed = tf.stack(
      [tf.constant(self._config.seed % 2**31, tf.int32), tf.cast(self._optimizer.step, tf.int32)]
    )
    first_micro_batch = tf.cast(replica, tf.int32) * count
    depth = draw_depth(self._config.train_depths, step_seed)

    def micro_seed(i: tf.Tensor | int) -> tf.Tensor:
      return tf.random.experimental.stateless_fold_in(step_seed, first_micro_batch + i)

    if count == 1:
      gradients, sums = self._micro_gradients(dict(batch), weight, micro_seed(0), depth)
      return dict(zip(self._variables, gradients, strict=True)), sums

    def micro_batch(part: dict[str, tf.Tensor], i: tf.Tensor) -> list[tf.Tensor]:
      gradients, sums = self._micro_gradients(part, weight, micro_seed(i), depth)
      return [sums, *gradients]

    zeros = [tf.zeros([6]), *[tf.zeros(variable.shape) for variable in self._variables.values()]]
    sums, *gradients = sum_over_micro_batches(micro_batch, dict(batch), count, zeros)
    return dict(zip(self._variables, gradients, strict=True)), sums

  def _compute_micro_gradients(
    self, batch: dict[str, tf.Tensor], weight: tf.Tensor, seed: tf.Tensor, depth: tf.Tensor | None
  ) -> tuple[list[tf.Tensor], tf.Tensor]:
    with tf.GradientTape() as tape:
      outputs = self._model(batch, training=True, seed=seed, depth=depth)
      mlm = cross_entropy_sums(outputs["mlm_logits"], batch["masked_lm_ids"], batch["masked_lm_weights"])
      loss = mlm.loss / (weight + WEIGHT_EPSILON)
      sop = LossSums(*[tf.zeros([])] * 3)
      if self._config.sentence_task:
        sop = cross_entropy_sums(outputs["sop_logits"], batch["sentence_order_labels"])
        loss += sop.loss / self._config.global_batch_size
    gradients = tape.gradient(loss, list(self._variables.values()))
    dense = [tf.convert_to_tensor(gradient) for gradient in gradients]  # Clipping needs the true norm.
    return dense, tf.stack([*mlm, *sop])
