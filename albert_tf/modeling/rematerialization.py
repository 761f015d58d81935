"""Activations that are computed again in the backward pass, in a way that no compiler undoes."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Function = Callable[[tf.Tensor], tf.Tensor]


def rematerialize(function: Function, x: tf.Tensor) -> tf.Tensor:
  """`function(x)`, of which only `x` is kept for the gradient: the backward pass computes the rest again.

  `tf.recompute_grad` says the same, but XLA sees two equal computations, makes them one and keeps its results.
  Here the second starts from `x + 0 · dy`, which a compiler may not take for `x` (0 · ∞ is not 0), and which
  it cannot start before the gradient has arrived.

  Args:
    function: from `x` to one tensor; what else it reads, beside variables, gets no gradient.
    x: any shape, floating point.

  Reference: arXiv 1604.06174.
  """

  @tf.custom_gradient
  def run(x: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
    y = function(x)

    def gradient(dy: tf.Tensor, variables: Sequence[tf.Variable] | None = None) -> Any:
      trained = list(variables or [])
      with tf.GradientTape(watch_accessed_variables=False) as tape:
        zero = tf.reduce_sum(tf.reshape(dy, [-1])[:1]) * 0.0
        again = x + tf.cast(zero, x.dtype)
        tape.watch([again, *trained])
        result = function(again)
      dx, *rest = tape.gradient(
        result, [again, *trained], output_gradients=dy, unconnected_gradients=tf.UnconnectedGradients.ZERO
      )
      return (dx, rest) if trained else dx

    return y, gradient

  return run(x)
