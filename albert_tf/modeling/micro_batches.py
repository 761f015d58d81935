"""Micro-batches of an update in pretraining and fine-tuning: equal parts, one after the other."""

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
  num_rows = values.shape[0]
  if num_rows is not None:
    count = min(at_least, max(1, num_rows))
    while num_rows % count:
      count += 1
    return count

  # The same in the graph: the first of all possible numbers that divides the rows.
  num_rows = tf.shape(values)[0]
  max_count = tf.maximum(1, num_rows)
  counts = tf.range(tf.minimum(at_least, max_count), max_count + 1)
  return counts[tf.argmax(num_rows % counts == 0)]


def sum_over_micro_batches(
  compute: Callable[[Any, tf.Tensor], Sequence[tf.Tensor]],
  batch: Any,
  count: int | tf.Tensor,
  zeros: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
  """Sums of `compute(micro_batch, i)` over `count` equal parts of a batch, one after the other.

  Args:
    compute: returns the gradients of a micro-batch, and other tensors to sum.
    batch: nested tensors `[B, …]`; `count` divides B.
    zeros: zeros with the shapes and types of `compute`'s result.
  """

  def split(value: tf.Tensor) -> tf.Tensor:
    # An axis of its own: XLA cannot cut rows between two bounds that are both computed.
    # 2 micro-batches of a batch [6, S] are [2, 3, S].
    return tf.reshape(value, tf.concat([[count, -1], tf.shape(value)[1:]], axis=0))

  micro_batches = tf.nest.map_structure(split, batch)

  def add(i: tf.Tensor, sums: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
    micro_batch = tf.nest.map_structure(lambda value: value[i], micro_batches)
    terms = compute(micro_batch, i)
    return i + 1, [total + term for total, term in zip(sums, terms, strict=True)]

  # A loop, so that the activations of a micro-batch are freed before the next.
  _, sums = tf.while_loop(lambda i, _: i < count, add, (0, list(zeros)), maximum_iterations=count)
  return sums
