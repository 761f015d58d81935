"""Activations that are computed again in the backward pass, in a way that no compiler undoes."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Function = Callable[[tf.Tensor], tf.Tensor]
Step = Callable[[tf.Tensor, tf.Tensor | int], tf.Tensor]


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
      zero = tf.reduce_sum(tf.reshape(dy, [-1])[:1]) * 0.0
      dx, rest = _vector_jacobian_product(function, x + tf.cast(zero, x.dtype), dy, trained)
      return (dx, rest) if trained else dx

    return y, gradient

  return run(x)


def rematerialize_repeated(step: Step, x: tf.Tensor, count: int, *, loop: bool = False) -> tf.Tensor:
  """x_count of $x_{l+1} = \\text{step}(x_l, l)$, of which only the inputs x_l are kept for the gradient.

  The backward pass is a loop. What one step computes again is gone before the next begins, and the gradients of
  variables that all steps share are sums that the loop carries: written one after the other, XLA first computes
  all their terms and keeps them, in a wide model as much memory as the activations that were saved.

  Args:
    step: from x and l, a number or a scalar tensor, to a tensor like x; what else it reads, beside variables, gets
      no gradient.
    x: any shape, floating point.
    count: steps, at least 1.
    loop: whether the forward pass is a loop too, which is traced and compiled faster.
  """
  if count == 1:  # XLA takes a loop that runs once apart, and would find the two computations to be one.
    return rematerialize(lambda x: step(x, 0), x)

  @tf.custom_gradient
  def run(x: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
    inputs, y = (_forward_loop if loop else _forward)(step, x, count)

    def gradient(dy: tf.Tensor, variables: Sequence[tf.Variable] | None = None) -> Any:
      trained = list(variables or [])

      def body(done: tf.Tensor, dx: tf.Tensor, sums: list[tf.Tensor]) -> Any:
        i = count - 1 - done
        dx, terms = _vector_jacobian_product(lambda x: step(x, i), inputs[i], dx, trained)
        return done + 1, dx, [s + tf.cast(term, s.dtype) for s, term in zip(sums, terms, strict=True)]

      zeros = [tf.zeros(variable.shape, variable.dtype) for variable in trained]
      _, dx, sums = tf.while_loop(
        lambda done, *_: done < count, body, (tf.constant(0), dy, zeros), maximum_iterations=count
      )
      dx = tf.ensure_shape(dx, x.shape)
      return (dx, sums) if trained else dx

    return y, gradient

  return run(x)


def _forward(step: Step, x: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
  """The inputs of all steps, `[count, …]`, and the last one's result."""
  inputs = []
  for i in range(count):
    inputs.append(x)
    x = step(x, i)
  return tf.stack(inputs), x


def _forward_loop(step: Step, x: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
  """`_forward` as a loop."""

  def body(i: tf.Tensor, x: tf.Tensor, inputs: tf.TensorArray) -> Any:
    return i + 1, tf.ensure_shape(step(x, i), x.shape), inputs.write(i, x)

  kept = tf.TensorArray(x.dtype, size=count, element_shape=x.shape)
  _, y, kept = tf.while_loop(
    lambda i, *_: i < count, body, (tf.constant(0), x, kept), maximum_iterations=count
  )
  return kept.stack(), y


def _vector_jacobian_product(
  function: Function, x: tf.Tensor, dy: tf.Tensor, variables: Sequence[tf.Variable]
) -> tuple[tf.Tensor, list[tf.Tensor]]:
  """Gradients of `sum(dy · function(x))` for x and for variables."""
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch([x, *variables])
    y = function(x)
  dx, *rest = tape.gradient(
    y, [x, *variables], output_gradients=dy, unconnected_gradients=tf.UnconnectedGradients.ZERO
  )
  return dx, rest
