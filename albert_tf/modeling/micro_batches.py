"""Shared code of updates in pretraining and fine-tuning: micro-batches, and the depth of an update."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def sum_over_micro_batches(
  compute: Callable[[Any, tf.Tensor], Sequence[tf.Tensor]], batch: Any, count: int, zeros: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
  """Sums of `compute(part, i)` over `count` equal parts of a batch, computed one after the other.

  Args:
    compute: returns the gradients of a part, and other tensors to sum.
    batch: nested tensors `[B, …]`; `count` divides B.
    zeros: zeros with the shapes and types of `compute`'s result.
  """

  def split(value: tf.Tensor) -> tf.Tensor:
    # An axis of its own: XLA cannot cut rows between two bounds that are both computed.
    rows, *rest = [tf.shape(value)[i] if size is None else size for i, size in enumerate(value.shape)]
    return tf.reshape(value, [count, rows // count, *rest])

  parts = tf.nest.map_structure(split, batch)

  def add(i: tf.Tensor, *sums: tf.Tensor) -> tuple[tf.Tensor, ...]:
    more = compute(tf.nest.map_structure(lambda value: value[i], parts), i)
    return i + 1, *[old + new for old, new in zip(sums, more, strict=True)]

  _, *sums = tf.while_loop(lambda i, *_: i < count, add, (0, *zeros), maximum_iterations=count)
  return list(sums)


def draw_depth(depths: Sequence[int], step_seed: tf.Tensor) -> tf.Tensor | None:
  """Draws one of `depths`, int32, by the seed int32 `[2]` of an update, equal on all replicas; None without depths."""
  if not depths:
    return None
  seed = tf.random.experimental.stateless_fold_in(step_seed, -1)  # No micro-batch has this number.
  drawn = tf.random.stateless_uniform([], seed, minval=0, maxval=len(depths), dtype=tf.int32)
  return tf.gather([*depths], drawn)
