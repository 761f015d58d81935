"""Held-out evaluation on all replicas."""

from collections.abc import Callable, Iterator, Mapping

import tensorflow as tf

from albert_tf.modeling import AlbertForPreTraining
from albert_tf.modeling.losses import (
  MaskedLmSums,
  SentenceOrderSums,
  masked_lm_sums,
  mean_metrics,
  sentence_order_sums,
)
from albert_tf.pipelines.batches import EXAMPLE_WEIGHTS

DatasetFunction = Callable[[tf.distribute.InputContext], tf.data.Dataset]


class Evaluator:
  """Masked-LM and sentence-order loss and accuracy over a whole held-out set.

  Args:
    dataset_fn: input context → `evaluation_batches` of that host.
    num_steps: global batches of the set.
  """

  def __init__(
    self,
    *,
    strategy: tf.distribute.Strategy,
    model: AlbertForPreTraining,
    dataset_fn: DatasetFunction,
    num_steps: int,
  ):
    self._strategy = strategy
    self._model = model
    self._dataset = strategy.distribute_datasets_from_function(dataset_fn)
    self._num_steps = num_steps
    self._on_replica = tf.autograph.experimental.do_not_convert(self._replica_sums)
    self._run = tf.function(self._sum_all)

  def __call__(self, num_steps: int | None = None) -> dict[str, float]:
    """Evaluates the current weights, on the first `num_steps` batches if given; keys as in metrics.jsonl."""
    sums = self._run(iter(self._dataset), tf.constant(num_steps or self._num_steps))
    return mean_metrics(MaskedLmSums(*sums[:3]), SentenceOrderSums(*sums[3:]))

  def _sum_all(self, iterator: Iterator[Mapping[str, tf.Tensor]], num_steps: tf.Tensor) -> tf.Tensor:
    sums = tf.zeros([6])
    for _ in tf.range(num_steps):
      per_replica = self._strategy.run(self._on_replica, args=(next(iterator),))
      sums += self._strategy.experimental_local_results(per_replica)[0]
    return sums

  def _replica_sums(self, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
    outputs = self._model(batch, training=False)
    weights = batch[EXAMPLE_WEIGHTS]
    mlm = masked_lm_sums(
      outputs["mlm_logits"], batch["masked_lm_ids"], batch["masked_lm_weights"] * weights[:, tf.newaxis]
    )
    sop = sentence_order_sums(outputs["sop_logits"], batch["sentence_order_labels"], weights)
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.stack([*mlm, *sop]))
