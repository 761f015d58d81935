"""Rematerialisation: activations are computed again in the backward pass."""

from collections.abc import Callable, Sequence
import itertools
from typing import Any

import tensorflow as tf

Step = Callable[[tf.Tensor, tf.Tensor | int], tf.Tensor]


def rematerialize(
  step: Step, x: tf.Tensor, count: int | tf.Tensor = 1, *, loop: bool = False, limit: int | None = None
) -> tf.Tensor:
  """Computes $x_{l+1} = \\text{step}(x_l, l)$ `count` times; keeps only x_l, and recomputes steps in the backward pass.

  With `tf.recompute_grad` XLA joins the two equal computations to one and keeps its results. This function recomputes
  from `x + 0 · dy`, which a compiler must not replace by `x` (0 · ∞ is not 0), and which needs the gradient first.

  The backward pass of several steps is a loop, which frees the activations of a step before the next one. The loop
  also sums the gradients of shared variables. Without a loop XLA would keep all terms of these sums, which in a wide
  model take as much memory as the activations.

  Args:
    step: function of x and l (a number or a scalar tensor) that returns a tensor like x. Of other tensors that it
      uses, only variables get gradients.
    x: any shape, floating point.
    count: number of steps, at least 1; or an int32 scalar tensor from 0 to `limit`, for which a loop is made.
    loop: whether the forward pass is a loop too, which is traced and compiled faster.

  Reference: arXiv 1604.06174.
  """
  most: Any = count if limit is None else limit

  @tf.custom_gradient
  def run(x: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
    if limit is not None or (loop and count > 1):
      inputs, y = _forward_loop(step, x, count, most)
    else:
      *inputs, y = itertools.accumulate(range(count), step, initial=x)
      inputs = tf.stack(inputs) if count > 1 else inputs

    def gradient(dy: tf.Tensor, variables: Sequence[tf.Variable] | None = None) -> Any:
      trained = list(variables or [])

      def body(done: tf.Tensor, dx: tf.Tensor, sums: list[tf.Tensor]) -> Any:
        i = count - 1 - done
        dx, terms = _vector_jacobian_product(step, inputs[i], i, dx, trained)
        return done + 1, dx, [s + tf.cast(term, s.dtype) for s, term in zip(sums, terms, strict=True)]

      # XLA takes a loop that runs once apart, and would find the two computations to be one.
      if limit is None and count == 1:
        zero = tf.cast(tf.reduce_sum(tf.reshape(dy, [-1])[:1]) * 0.0, x.dtype)
        dx, sums = _vector_jacobian_product(step, x + zero, 0, dy, trained)
      else:
        zeros = [tf.zeros(variable.shape, variable.dtype) for variable in trained]
        start = (tf.constant(0), dy, zeros)
        _, dx, sums = tf.while_loop(lambda done, *_: done < count, body, start, maximum_iterations=most)
        dx = tf.ensure_shape(dx, x.shape)
      return (dx, sums) if trained else dx

    return y, gradient

  return run(x)


def _forward_loop(step: Step, x: tf.Tensor, count: int | tf.Tensor, most: int) -> tuple[tf.Tensor, tf.Tensor]:
  """The inputs of all steps, `[most, …]`, and the result of the last step."""

  def body(i: tf.Tensor, x: tf.Tensor, inputs: tf.TensorArray) -> Any:
    return i + 1, tf.ensure_shape(step(x, i), x.shape), inputs.write(i, x)

  inputs = tf.TensorArray(x.dtype, size=most, element_shape=x.shape)
  if tf.is_tensor(count):
    inputs = inputs.write(0, x)  # Without any step there would be nothing to stack.
  start = (tf.constant(0), x, inputs)
  _, y, inputs = tf.while_loop(lambda i, *_: i < count, body, start, maximum_iterations=most)
  return inputs.stack(), y


def _vector_jacobian_product(
  step: Step, x: tf.Tensor, i: tf.Tensor | int, dy: tf.Tensor, variables: Sequence[tf.Variable]
) -> tuple[tf.Tensor, list[tf.Tensor]]:
  """Gradients of `sum(dy · step(x, i))` for x and for variables."""
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch([x, *variables])
    y = step(x, i)
  dx, *rest = tape.gradient(
    y, [x, *variables], output_gradients=dy, unconnected_gradients=tf.UnconnectedGradients.ZERO
  )
  return dx, rest
