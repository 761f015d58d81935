"""Shared code of updates in pretraining and fine-tuning: micro-batches, and the depth of an update."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def count_equal_parts(values: tf.Tensor, *, at_least: int) -> int | tf.Tensor:
  """The smallest number of equal parts of a batch, at least `at_least`.

  With at least 4 parts, 32 rows are 4 parts of 8. A last batch of 30 rows is 5 parts of 6, and one
  of 7 rows 7 parts of 1. Fewer rows than parts are one part each, and none are one empty part.
  The number is a tensor where the shape is not static.

  Args:
    values: `[B, …]`, any tensor of the batch.
  """
  rows = values.shape[0]
  if rows is not None:
    most = max(1, rows)
    return next(count for count in range(min(at_least, most), most + 1) if rows % count == 0)
  rows = tf.shape(values)[0]
  most = tf.maximum(1, rows)
  counts = tf.range(tf.minimum(at_least, most), most + 1)
  return counts[tf.argmax(rows % counts == 0)]


def sum_over_micro_batches(
  compute: Callable[[Any, tf.Tensor], Sequence[tf.Tensor]],
  batch: Any,
  count: int | tf.Tensor,
  zeros: Sequence[tf.Tensor],
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
