"""Layer normalisation, always in float32."""

from typing import Any

import tensorflow as tf

from albert_tf.compat import keras


def moments(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  r"""Mean and biased variance over the last axis, kept; float32.

  Of 16-bit values in one pass, $\mathrm{E}[x^2] - \mu^2$: what that loses in float32 is less than what their own
  rounding has lost. Of float32 values in two.
  """
  one_pass = x.dtype.size < 4
  x = tf.cast(x, tf.float32)
  if not one_pass:
    return tf.nn.moments(x, axes=[-1], keepdims=True)
  mean = tf.reduce_mean(x, axis=-1, keepdims=True)
  return mean, tf.maximum(tf.reduce_mean(x * x, axis=-1, keepdims=True) - mean * mean, 0.0)


@keras.saving.register_keras_serializable("albert_tf")
class LayerNorm(keras.layers.Layer):
  r"""$y = \gamma (x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta$ over the last axis.

  Biased variance. Everything is float32 under any precision policy, the result
  too: the caller casts it back.

  Args:
    epsilon: 1e-12 in ALBERT; Keras's default is 1e-3.

  Reference: arXiv 1607.06450, equation 4.
  """

  def __init__(self, *, epsilon: float = 1e-12, **kwargs: Any):
    kwargs["dtype"] = "float32"  # A float32 island: gamma and beta too.
    super().__init__(**{**kwargs, "autocast": False})  # `moments` must see the type x comes in.
    self.epsilon = epsilon

  def build(self, input_shape: Any) -> None:
    width = int(input_shape[-1])
    self.gamma = self.add_weight(name="gamma", shape=(width,), initializer="ones")
    self.beta = self.add_weight(name="beta", shape=(width,), initializer="zeros")
    self.built = True

  def call(self, x: tf.Tensor) -> tf.Tensor:
    mean, variance = moments(x)
    x = tf.cast(x, tf.float32)
    scale = self.gamma * tf.math.rsqrt(variance + self.epsilon)
    return x * scale + (self.beta - mean * scale)

  def compute_output_shape(self, input_shape: Any) -> Any:
    return input_shape

  def checkpoint_items(self) -> dict[str, Any]:
    return {"beta": self.beta, "gamma": self.gamma}

  def get_config(self) -> dict[str, Any]:
    return {**super().get_config(), "epsilon": self.epsilon}
