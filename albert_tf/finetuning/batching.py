"""Which examples make up which batch, at which length: a function of seed and epoch alone."""

from collections.abc import Iterator
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.finetuning.features import Batch, FeatureSet
from albert_tf.finetuning.models import DROPOUT_SEED

_DROPOUT_STREAM = 1  # Numbers apart from those of the order.
# Batches are sorted by length within windows of this many, so that an epoch's order stays random across them.
_WINDOW_BATCHES = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batching:
  """How examples become batches.

  Attributes:
    batch_size: B, global.
    max_length: S at most.
    bucket_multiple: batches are of similar length and padded to a multiple of this; 0: all are padded to
      `max_length`.
  """

  batch_size: int
  max_length: int
  bucket_multiple: int = 0

  def length(self, longest: int) -> int:
    """What a batch whose longest row has this length is padded to."""
    if not self.bucket_multiple:
      return self.max_length
    return min(-(-longest // self.bucket_multiple) * self.bucket_multiple, self.max_length)

  def check(self, features: FeatureSet, what: str) -> None:
    """Raises a `UserError` where there is nothing, or a row is too long."""
    if not len(features):
      raise UserError(f"A split needs examples. Received: {what} without any. Check the file.")
    longest = int(features.lengths.max())
    if longest > self.max_length:
      raise UserError(f"No row may be longer than {self.max_length}. Received: {longest} in {what}.")


def steps_per_epoch(count: int, batch_size: int) -> int:
  """Batches of an epoch; the last one may be filled up with rows of weight 0."""
  return -(-count // batch_size)


def epoch_plan(lengths: np.ndarray, batching: Batching, *, seed: int, epoch: int) -> list[np.ndarray]:
  """The row numbers of each batch of an epoch; every row is in exactly one.

  Args:
    lengths: `[n]`.
    batching: the batch size, and whether rows of similar length come together.
    seed, epoch: the plan is a function of these.
  """
  rng = np.random.default_rng([seed, epoch])
  order = rng.permutation(len(lengths))
  size = batching.batch_size
  if batching.bucket_multiple:
    window = size * _WINDOW_BATCHES
    parts = [order[i : i + window] for i in range(0, len(order), window)]
    buckets = -(-lengths // batching.bucket_multiple)  # Rows of one bucket stay in random order.
    order = np.concatenate([part[np.argsort(buckets[part], kind="stable")] for part in parts])
  batches = [order[i : i + size] for i in range(0, len(order), size)]
  return [batches[i] for i in rng.permutation(len(batches))] if batching.bucket_multiple else batches


def training_dataset(
  features: FeatureSet, batching: Batching, *, seed: int, num_steps: int, first_step: int = 0
) -> tf.data.Dataset:
  """The batches `(x, y, weights)` of updates `first_step` to `num_steps` for `model.fit`; see `FeatureSet.batch`.

  All replicas get parts of one batch, hence one shape. Without bucketing shapes are static. x has `dropout_seed`
  `[B, 2]`, a function of seed and update, from which each replica's model takes its first row.
  """

  def batches() -> Iterator[Any]:
    epoch, done = divmod(first_step, steps_per_epoch(len(features), batching.batch_size))
    step = first_step
    while step < num_steps:
      plan = epoch_plan(features.lengths, batching, seed=seed, epoch=epoch)
      for indices in plan[done : done + num_steps - step]:
        length = batching.length(int(features.lengths[indices].max()))
        x, y, weights = features.batch(indices, batch_size=batching.batch_size, length=length)
        yield {**x, DROPOUT_SEED: _dropout_seeds(batching.batch_size, seed, step)}, y, weights
        step += 1
      epoch, done = epoch + 1, 0

  signature = _signature(features, batching)
  dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
  options = tf.data.Options()
  # Several workers make the same batches and take their parts of each.
  options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
  options.deterministic = True
  return dataset.prefetch(4).with_options(options)


def first_batch(features: FeatureSet, batching: Batching) -> Batch:
  """A batch with the shapes and types of `training_dataset`'s."""
  length = batching.length(batching.max_length)
  x, y, weights = features.batch([0], batch_size=batching.batch_size, length=length)
  return {**x, DROPOUT_SEED: _dropout_seeds(batching.batch_size, 0, 0)}, y, weights


def _dropout_seeds(count: int, seed: int, step: int) -> np.ndarray:
  rng = np.random.default_rng([_DROPOUT_STREAM, seed, step])
  return rng.integers(0, np.iinfo(np.int32).max, (count, 2), np.int32)


def _signature(features: FeatureSet, batching: Batching) -> Any:
  """Shapes and types of a batch: two of different lengths show which axes are the length."""
  longest = int(features.lengths.max())
  row = [int(features.lengths.argmax())]
  short, long = (
    features.batch(row, batch_size=batching.batch_size, length=length) for length in (longest, longest + 1)
  )

  def spec(a: np.ndarray, b: np.ndarray) -> tf.TensorSpec:
    fixed = None if batching.bucket_multiple else batching.max_length
    shape = [size if size == other else fixed for size, other in zip(a.shape, b.shape, strict=True)]
    return tf.TensorSpec(shape, a.dtype)

  x, y, weights = tf.nest.map_structure(spec, short, long)
  return {**x, DROPOUT_SEED: tf.TensorSpec([batching.batch_size, 2], tf.int32)}, y, weights
