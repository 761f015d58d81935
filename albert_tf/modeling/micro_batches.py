"""Gradient accumulation: a batch in equal parts, one after the other."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def sum_over_micro_batches(
  compute: Callable[[Any, tf.Tensor], Sequence[tf.Tensor]], batch: Any, count: int, zeros: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
  """Sums of `compute(part, i)` over `count` equal parts of a batch, computed one after the other.

  Args:
    compute: a part's gradients and whatever else is summed.
    batch: nested tensors `[B, …]`; `count` divides B.
    zeros: of the shapes and types that `compute` returns.
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
