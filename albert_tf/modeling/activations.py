"""The activation functions a configuration may name."""

from collections.abc import Callable
import math

import tensorflow as tf

from albert_tf.errors import UserError


def gelu(x: tf.Tensor) -> tf.Tensor:
  r"""Gaussian error linear unit, tanh form, as ALBERT v1 and v2 were trained.

  $0.5 x (1 + \tanh(\sqrt{2/\pi} (x + 0.044715 x^3)))$

  Reference: arXiv 1606.08415, section 2; Keras's default is the exact form.
  """
  return tf.nn.gelu(x, approximate=True)


def gelu_exact(x: tf.Tensor) -> tf.Tensor:
  r"""$0.5 x (1 + \mathrm{erf}(x / \sqrt 2))$, for checkpoints trained elsewhere with it."""
  return 0.5 * x * (1.0 + tf.math.erf(x / math.sqrt(2.0)))


ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
  "gelu": gelu,
  "gelu_exact": gelu_exact,
  "relu": tf.nn.relu,
  "tanh": tf.tanh,
  "linear": tf.identity,
}


def get_activation(name: str) -> Callable[[tf.Tensor], tf.Tensor]:
  """The function called `name`; a `UserError` that lists the names otherwise."""
  if name not in ACTIVATIONS:
    raise UserError(f"The activation must be one of {', '.join(ACTIVATIONS)}. Received: {name!r}.")
  return ACTIVATIONS[name]
