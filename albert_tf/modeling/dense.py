"""A linear map over the last axis, with the original's initialisation and precision rules."""

from typing import Any

import tensorflow as tf

from albert_tf.compat import keras
from albert_tf.modeling.activations import get_activation


@keras.saving.register_keras_serializable("albert_tf")
class Dense(keras.layers.Layer):
  r"""Linear map and activation: $y = f(x W + b)$.

  The product runs as one `[rows, in] x [in, out]` matrix multiplication whatever
  the rank of `x`: a broadcast batch product would form one weight gradient an
  example and sum them.

  Args:
    units: size of the last axis of the result.
    activation: a name known to `get_activation`.
    use_bias: whether `b` exists (the SQuAD 2 answerability logit has none).
    initializer_range: standard deviation of the normal, cut at two deviations.

  Reference: REFERENCE of the original code, `dense_layer_2d` and `dense_layer_3d`.
  """

  def __init__(
    self,
    units: int,
    *,
    activation: str = "linear",
    use_bias: bool = True,
    initializer_range: float = 0.02,
    **kwargs: Any,
  ):
    super().__init__(**kwargs)
    self.units = units
    self.activation = activation
    self.use_bias = use_bias
    self.initializer_range = initializer_range
    self._activation = get_activation(activation)
    self.bias = None

  def build(self, input_shape: Any) -> None:
    self.kernel = self.add_weight(
      name="kernel",
      shape=(int(input_shape[-1]), self.units),
      initializer=keras.initializers.TruncatedNormal(stddev=self.initializer_range),
    )
    if self.use_bias:
      self.bias = self.add_weight(name="bias", shape=(self.units,), initializer="zeros")
    self.built = True

  def call(self, x: tf.Tensor) -> tf.Tensor:
    x = tf.cast(x, self.compute_dtype)
    kernel = tf.cast(self.kernel, self.compute_dtype)
    y = tf.matmul(tf.reshape(x, [-1, kernel.shape[0]]), kernel)
    if self.bias is not None:
      y = tf.nn.bias_add(y, tf.cast(self.bias, self.compute_dtype))
    y = self._activation(y)
    if x.shape.rank == 2:
      return y
    return tf.reshape(y, tf.concat([tf.shape(x)[:-1], [self.units]], axis=0))

  def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
    return (*input_shape[:-1], self.units)

  def checkpoint_items(self) -> dict[str, Any]:
    return {"kernel": self.kernel} | ({"bias": self.bias} if self.bias is not None else {})

  def get_config(self) -> dict[str, Any]:
    return {
      **super().get_config(),
      "units": self.units,
      "activation": self.activation,
      "use_bias": self.use_bias,
      "initializer_range": self.initializer_range,
    }
