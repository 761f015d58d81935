"""Held-out evaluation on all replicas."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
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
from albert_tf.progress import track
from albert_tf.training.distribution import is_chief

_BATCHES_AT_ONCE = 100  # Between two returns to the host, which show how far it is.
DatasetFunction = Callable[[tf.distribute.InputContext], tf.data.Dataset]


class EvaluationSet(NamedTuple):
  """Held-out records of one source.

  Attributes:
    source: its name; empty where none is named.
    dataset_fn: input context → `evaluation_batches` of that host.
    num_steps: global batches of the set.
  """

  source: str
  dataset_fn: DatasetFunction
  num_steps: int


class BatchSums:
  """Sums a vector over the batches of each set, on all replicas; all sets are gone through by the same program.

  Args:
    sums: batch of one replica → float32 `[n]`, made of sums alone.
    size: n.
    use_xla: compile `sums` for GPU and CPU; a TPU does so anyway.
  """

  def __init__(
    self,
    *,
    strategy: tf.distribute.Strategy,
    sets: Sequence[EvaluationSet],
    sums: Callable[[Mapping[str, tf.Tensor]], tf.Tensor],
    size: int,
    use_xla: bool = False,
  ):
    self._strategy = strategy
    self._size = size
    self._sets = [
      (each.source, strategy.distribute_datasets_from_function(each.dataset_fn), each.num_steps)
      for each in sets
    ]
    local = tf.function(sums, autograph=False, jit_compile=True) if use_xla else sums
    self._on_replica = tf.autograph.experimental.do_not_convert(
      lambda batch: tf.distribute.get_replica_context().all_reduce(
        tf.distribute.ReduceOp.SUM, local(dict(batch))
      )
    )
    self.run = tf.function(self._sum_all)

  def __call__(self, num_steps: int | None = None) -> dict[str, np.ndarray]:
    """Name → float64 `[n]`, of the first `num_steps` batches of each set if given."""
    found = {}
    for source, dataset, steps in self._sets:
      iterator, sums, count = iter(dataset), tf.zeros([self._size]), num_steps or steps
      parts = range(0, count, _BATCHES_AT_ONCE)
      desc, shown = f"Evaluating {source}".strip(), is_chief(self._strategy) and len(parts) > 1
      for begin in track(parts, len(parts), desc=desc, unit=f"x {_BATCHES_AT_ONCE} batches", shown=shown):
        sums = self.run(iterator, tf.constant(min(_BATCHES_AT_ONCE, count - begin)), sums)
      found[source] = sums.numpy().astype(np.float64)
    return found

  def _sum_all(
    self, iterator: Iterator[Mapping[str, tf.Tensor]], num_steps: tf.Tensor, sums: tf.Tensor
  ) -> tf.Tensor:
    for _ in tf.range(num_steps):
      per_replica = self._strategy.run(self._on_replica, args=(next(iterator),))
      sums += self._strategy.experimental_local_results(per_replica)[0]
    return sums


class Evaluator:
  """Masked-LM and sentence loss and accuracy over a whole held-out set, and over each named source of it.

  The whole is the sum over the sources. `use_xla` as in `BatchSums`.

  Args:
    sentence_task: what the labels of the records say, see `StepConfig`; empty leaves the sentences out.
  """

  def __init__(
    self,
    *,
    strategy: tf.distribute.Strategy,
    model: AlbertForPreTraining,
    sets: Sequence[EvaluationSet],
    sentence_task: str = "sentence_order",
    use_xla: bool = False,
  ):
    self._model = model
    self._sentence_task = sentence_task
    self.sums = BatchSums(strategy=strategy, sets=sets, sums=self._replica_sums, size=6, use_xla=use_xla)

  def __call__(self, num_steps: int | None = None) -> dict[str, float]:
    """Evaluates the current weights, on the first `num_steps` batches of each source if given.

    Returns:
      Keys as in metrics.jsonl: `masked_lm_loss` of all records, `masked_lm_loss/NAME` of those of a named source.
    """
    sums = self.sums(num_steps)
    metrics = self._means(sum(sums.values(), np.zeros(6)))
    for source in filter(None, sums):
      metrics.update({f"{name}/{source}": value for name, value in self._means(sums[source]).items()})
    return metrics

  def _replica_sums(self, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
    outputs = self._model(batch, training=False)
    weights = batch[EXAMPLE_WEIGHTS]
    mlm = masked_lm_sums(
      outputs["mlm_logits"], batch["masked_lm_ids"], batch["masked_lm_weights"] * weights[:, tf.newaxis]
    )
    sop = SentenceOrderSums(*[tf.zeros([])] * 3)
    if self._sentence_task:
      sop = sentence_order_sums(outputs["sop_logits"], batch["sentence_order_labels"], weights)
    return tf.stack([*mlm, *sop])

  def _means(self, sums: np.ndarray) -> dict[str, float]:
    return mean_metrics(MaskedLmSums(*sums[:3]), SentenceOrderSums(*sums[3:]), self._sentence_task)
