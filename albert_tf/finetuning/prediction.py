"""The outputs of a model for every row of a split, in order, on all replicas."""

from typing import Any

import numpy as np
import tensorflow as tf
import tqdm

from albert_tf.finetuning.batching import Batching
from albert_tf.finetuning.features import FeatureSet
from albert_tf.finetuning.task import Outputs

UNNAMED_OUTPUT = "logits"
_BAR_FROM_BATCHES = 50


class Predictor:
  """Runs a model over splits; rows of similar length share a batch, every row is computed once.

  Args:
    model: returns an array or a mapping of arrays, each `[B, …]`.
    strategy: where it was built. Each worker of several computes everything for itself.
    batching: of evaluation; the batch size is split over this worker's replicas.
    verbose: whether long splits show a bar.
  """

  def __init__(
    self, model: Any, *, strategy: tf.distribute.Strategy, batching: Batching, verbose: bool = False
  ):
    self._strategy = strategy
    self._batching = batching
    self._verbose = verbose
    # Of this worker; the default strategy cannot name its one.
    self._replicas = 1 if strategy.num_replicas_in_sync == 1 else len(strategy.extended.worker_devices)

    def step(x: dict[str, tf.Tensor]) -> Any:
      return strategy.run(lambda inputs: model(inputs, training=False), args=(x,))

    self._step = tf.function(step, autograph=False, reduce_retracing=True)

  def __call__(self, features: FeatureSet, *, name: str = "") -> Outputs:
    """Output name → one array a row; see `task.Outputs`."""
    self._batching.check(features, name or "the split")
    batching, lengths = self._batching, features.lengths
    size = -(-batching.batch_size // self._replicas) * self._replicas
    order = np.argsort(lengths, kind="stable") if batching.bucket_multiple else np.arange(len(lengths))
    starts = range(0, len(order), size)
    quiet = not self._verbose or len(starts) < _BAR_FROM_BATCHES
    rows: dict[str, list[Any]] = {}
    # None: shown on a terminal alone.
    for start in tqdm.tqdm(starts, desc=name, disable=quiet or None, unit="batch", leave=False):
      indices = order[start : start + size]
      length = batching.length(int(lengths[indices].max()))
      x, _, _ = features.batch(indices, batch_size=size, length=length)
      for key, array in self._run(x, size).items():
        rows.setdefault(key, []).extend(array[: len(indices)])
    back = np.argsort(order, kind="stable")
    return {key: _stacked([column[i] for i in back]) for key, column in rows.items()}

  def _run(self, x: dict[str, np.ndarray], size: int) -> dict[str, np.ndarray]:
    share = size // self._replicas
    first = iter(range(self._replicas))

    def part(_: Any) -> dict[str, tf.Tensor]:
      start = next(first) * share
      return {key: tf.constant(array[start : start + share]) for key, array in x.items()}

    if self._replicas == 1:
      outputs = self._step({key: tf.constant(array) for key, array in x.items()})
    else:
      outputs = self._step(self._strategy.experimental_distribute_values_from_function(part))
    named = outputs if isinstance(outputs, dict) else {UNNAMED_OUTPUT: outputs}
    local = self._strategy.experimental_local_results
    return {
      key: np.concatenate([tf.cast(p, tf.float32) if p.dtype == tf.bfloat16 else p for p in local(value)])
      for key, value in named.items()
      if value is not None
    }


def _stacked(column: list[np.ndarray]) -> Any:
  return np.stack(column) if len({row.shape for row in column}) == 1 else column
