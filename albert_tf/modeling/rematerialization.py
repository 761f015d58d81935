"""Rematerialisation: activations are computed again in the backward pass.

The encoder uses it with `remat=True`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Step = Callable[[tf.Tensor, tf.Tensor | int], tf.Tensor]


def rematerialize(
  step: Step,
  x: tf.Tensor,
  count: int = 1,
  *,
  loop: bool = False,
) -> tf.Tensor:
  """Computes $x_{l+1} = \\text{step}(x_l, l)$ `count` times, and again in the backward pass.

  It keeps only the inputs x_l. With `tf.recompute_grad` XLA joins the two equal computations to one
  and keeps its results. This function recomputes from `x + 0 · dy`, which a compiler must not
  replace by `x` (0 · ∞ is not 0), and which needs the gradient first.

  The backward pass of several steps is a loop, which frees the activations of a step before the next
  one. The loop also sums the gradients of shared variables. Without a loop XLA would keep all terms
  of these sums, which in a wide model take as much memory as the activations.

  Args:
    step: function of x and l (a number or a scalar tensor) that returns a tensor like x. Of other
      tensors that it uses, only variables get gradients.
    x: any shape, floating point.
    count: number of steps, at least 1.
    loop: whether the forward pass is a loop too, which is traced and compiled faster.

  Reference: arXiv 1604.06174.
  """

  @tf.custom_gradient
  def run(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
    if loop and count > 1:
      inputs, y = _forward_loop(step, x, count)
    else:
      inputs, y = _forward_unrolled(step, x, count)

    def gradient(dy: tf.Tensor, variables: Sequence[tf.Variable] | None = None) -> Any:
      trained = list(variables or [])
      if count == 1:
        # XLA takes a loop that runs once apart, and would find the two computations to be one.
        zero = tf.cast(tf.reduce_sum(tf.reshape(dy, [-1])[:1]) * 0.0, x.dtype)
        dx, sums = _vector_jacobian_product(step, x + zero, 0, dy, trained)
      else:
        dx, sums = _backward_loop(step, inputs, count, dy, trained)
        dx = tf.ensure_shape(dx, x.shape)
      if not trained:
        return dx
      return dx, sums

    return y, gradient

  return run(x)


def _forward_unrolled(step: Step, x: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
  """The inputs of all steps, `[count, …]`, and the result of the last step."""
  inputs = []
  for i in range(count):
    inputs.append(x)
    x = step(x, i)
  return tf.stack(inputs), x


def _forward_loop(step: Step, x: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
  """The inputs of all steps, `[count, …]`, and the result of the last step."""

  def body(i: tf.Tensor, x: tf.Tensor, inputs: tf.TensorArray) -> Any:
    return i + 1, tf.ensure_shape(step(x, i), x.shape), inputs.write(i, x)

  inputs = tf.TensorArray(x.dtype, size=count, element_shape=x.shape)
  start = (tf.constant(0), x, inputs)
  _, y, inputs = tf.while_loop(lambda i, *_: i < count, body, start, maximum_iterations=count)
  return inputs.stack(), y


def _backward_loop(
  step: Step,
  inputs: tf.Tensor,
  count: int,
  dy: tf.Tensor,
  variables: Sequence[tf.Variable],
) -> tuple[tf.Tensor, list[tf.Tensor]]:
  """Gradients for x and for the variables, from the last step to the first: l = count - 1, …, 0."""

  def body(done: tf.Tensor, dx: tf.Tensor, sums: list[tf.Tensor]) -> Any:
    i = count - 1 - done
    dx, terms = _vector_jacobian_product(step, inputs[i], i, dx, variables)
    sums = [total + tf.cast(term, total.dtype) for total, term in zip(sums, terms, strict=True)]
    return done + 1, dx, sums

  # A gradient for each variable, summed as the loop goes back through the steps.
  zeros = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
  start = (tf.constant(0), dy, zeros)
  _, dx, sums = tf.while_loop(lambda done, *_: done < count, body, start, maximum_iterations=count)
  return dx, sums


def _vector_jacobian_product(
  step: Step, x: tf.Tensor, i: tf.Tensor | int, dy: tf.Tensor, variables: Sequence[tf.Variable]
) -> tuple[tf.Tensor, list[tf.Tensor]]:
  """Gradients of `sum(dy · step(x, i))` for x and for variables."""
  sources = [x] + list(variables)
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(sources)
    y = step(x, i)
  gradients = tape.gradient(
    y, sources, output_gradients=dy, unconnected_gradients=tf.UnconnectedGradients.ZERO
  )
  return gradients[0], gradients[1:]
