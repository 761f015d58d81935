"""Layer normalisation, always in float32."""

from typing import Any

import tensorflow as tf

from albert_tf.compat import keras


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
    kwargs["dtype"] = "float32"  # A float32 island: no autocasting of x, gamma or beta.
    super().__init__(**kwargs)
    self.epsilon = epsilon

  def build(self, input_shape: Any) -> None:
    width = int(input_shape[-1])
    self.gamma = self.add_weight(name="gamma", shape=(width,), initializer="ones")
    self.beta = self.add_weight(name="beta", shape=(width,), initializer="zeros")
    self.built = True

  def call(self, x: tf.Tensor) -> tf.Tensor:
    x = tf.cast(x, tf.float32)
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    scale = self.gamma * tf.math.rsqrt(variance + self.epsilon)
    return x * scale + (self.beta - mean * scale)

  def compute_output_shape(self, input_shape: Any) -> Any:
    return input_shape

  def checkpoint_items(self) -> dict[str, Any]:
    return {"beta": self.beta, "gamma": self.gamma}

  def get_config(self) -> dict[str, Any]:
    return {**super().get_config(), "epsilon": self.epsilon}
