"""Computes the outputs of a model for every row of a split, in order, on all replicas."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.finetuning.engine.batches import Batching, FlatFeatures, Plan, planned_dataset
from albert_tf.finetuning.tasks.base import UNNAMED_OUTPUT, FeatureSet, Outputs
from albert_tf.pipelines.batches import HostShard, iterators_without_autotune
from albert_tf.progress import track
from albert_tf.runs.distribution import host_shard


class Predictor:
  """Runs a model on splits; rows of similar length share a batch.

  Args:
    model: the model; it returns an array or a mapping of arrays, each `[B, …]`.
    strategy: the model's strategy. Each worker computes all rows.
    batching: sizes for evaluation; the batch size is divided over this worker's replicas.
    verbose: whether long splits show a progress bar.
  """

  def __init__(
    self, model: Any, *, strategy: tf.distribute.Strategy, batching: Batching, verbose: bool = False
  ):
    self._strategy, self._verbose = strategy, verbose
    # The default strategy cannot name its one device.
    devices = 1 if strategy.num_replicas_in_sync == 1 else len(strategy.extended.worker_devices)
    self._worker = HostShard(num_replicas=devices)
    self._batching = dataclasses.replace(
      batching, batch_size=-(-batching.batch_size // devices) * devices
    )
    # A split is evaluated many times: its batches, by its `id`, with the split, so that the `id` stays its own.
    self._splits: dict[int, tuple[FeatureSet, list[np.ndarray], Any]] = {}

    def step(x: dict[str, tf.Tensor]) -> Any:
      return strategy.run(lambda inputs: model(inputs, training=False), args=(x,))

    self._step = tf.function(step, autograph=False, reduce_retracing=True)

  def __call__(self, features: FeatureSet, *, name: str = "evaluating") -> Outputs:
    """Returns output name → an array for each row; see `task.Outputs`. Raises `UserError` for NaN and infinity."""
    if id(features) not in self._splits:
      self._splits[id(features)] = (features, *self._batches(features))
    _, parts, batches = self._splits[id(features)]
    rows: dict[str, list[Any]] = {}
    num_wrong = 0
    # To the end of the batches: TensorFlow 2.21 crashes where a distributed iterator is dropped that still reads ahead.
    with iterators_without_autotune():
      paired = zip(parts, batches, strict=True)
    for indices, (x, _, _) in track(
      paired, len(parts), desc=name, unit="batches", shown=self._verbose
    ):
      for key, array in self._run(x).items():
        num_wrong += int(np.count_nonzero(~np.isfinite(array)))
        rows.setdefault(key, []).extend(array[: len(indices)])
    if num_wrong:
      raise UserError(
        f"A model's answers are finite numbers. Received: {num_wrong:,} that are NaN or infinite "
        f"({name}). Its weights are damaged: train with a lower --learning_rate or a longer warm-up, "
        "or take other weights."
      )
    back = np.argsort(np.concatenate(parts), kind="stable")
    return {key: _stacked([column[i] for i in back]) for key, column in rows.items()}

  def _batches(self, features: FeatureSet) -> tuple[list[np.ndarray], Any]:
    """The row numbers `[at most B]` of each batch, and the batches `(x, y, weights)`."""
    batching, lengths = self._batching, features.lengths
    order = (
      np.argsort(lengths, kind="stable") if batching.bucket_multiple else np.arange(len(lengths))
    )
    parts = np.split(order, range(batching.batch_size, len(order), batching.batch_size))
    flat = FlatFeatures.of(FeatureSet(features.rows, pad_values=features.pad_values))
    plan = Plan.of(parts, flat, batching)
    several = self._strategy.num_replicas_in_sync > self._worker.num_replicas

    def of_host(context: tf.distribute.InputContext) -> tf.data.Dataset:
      shard = self._worker if several else host_shard(self._strategy, context)
      return planned_dataset(flat, plan, batching, shard=shard)

    return parts, self._strategy.distribute_datasets_from_function(of_host)

  def _run(self, x: dict[str, tf.Tensor]) -> dict[str, np.ndarray]:
    outputs = self._step(x)
    named = outputs if isinstance(outputs, dict) else {UNNAMED_OUTPUT: outputs}
    local = self._strategy.experimental_local_results
    return {
      key: np.concatenate(
        [tf.cast(p, tf.float32) if p.dtype == tf.bfloat16 else p for p in local(value)]
      )
      for key, value in named.items()
      if value is not None
    }


def _stacked(column: list[np.ndarray]) -> Any:
  return np.stack(column) if len({row.shape for row in column}) == 1 else column
