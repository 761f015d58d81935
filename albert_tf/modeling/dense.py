"""A linear map over the last axis, with the original's initialisation and precision rules."""

from typing import Any

import tensorflow as tf

from albert_tf.compat import keras
from albert_tf.modeling.activations import get_activation


def keeps_rows_apart(dtype: tf.DType) -> bool:
  """Whether a product of this type leaves the axes of rows as they are, or makes them one; see `Dense`."""
  return dtype.size < tf.float32.size


@keras.saving.register_keras_serializable("albert_tf")
class Dense(keras.layers.Layer):
  r"""Linear map and activation: $y = f(x W + b)$.

  The product is one matrix multiplication over all rows whatever the rank of `x`: a
  broadcast batch product would form one weight gradient an example and sum them.
  In 16-bit types, which TPUs compute in, the axes of rows stay apart: joining them costs
  a TPU copies. In float32 they are joined: on a CPU product, bias and activation are then
  one kernel.

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
    if x.shape.rank == 3 and keeps_rows_apart(kernel.dtype):
      return self._activation(self._plus_bias(tf.einsum("bsi,io->bso", x, kernel)))
    y = self._activation(self._plus_bias(tf.matmul(tf.reshape(x, [-1, kernel.shape[0]]), kernel)))
    if x.shape.rank == 2:
      return y
    return tf.reshape(y, tf.concat([tf.shape(x)[:-1], [self.units]], axis=0))

  def _plus_bias(self, y: tf.Tensor) -> tf.Tensor:
    return y if self.bias is None else tf.nn.bias_add(y, tf.cast(self.bias, self.compute_dtype))

  def to_heads(self, x: tf.Tensor, num_heads: int) -> tf.Tensor:
    """`call` with the result's last axis split: `[B, S, H]` → `[B, S, N, D]`."""
    heads = [num_heads, self.units // num_heads]
    kernel = tf.cast(self.kernel, self.compute_dtype)
    if not keeps_rows_apart(kernel.dtype):
      return tf.reshape(self(x), tf.concat([tf.shape(x)[:-1], heads], axis=0))
    y = tf.einsum("bsh,hnd->bsnd", tf.cast(x, kernel.dtype), tf.reshape(kernel, [-1, *heads]))
    return y + tf.reshape(tf.cast(self.bias, kernel.dtype), heads)

  def from_heads(self, x: tf.Tensor) -> tf.Tensor:
    """`call` for an input whose last axis is split: `[B, S, N, D]` → `[B, S, units]`."""
    kernel = tf.cast(self.kernel, self.compute_dtype)
    if not keeps_rows_apart(kernel.dtype):
      return self(tf.reshape(x, tf.concat([tf.shape(x)[:-2], [kernel.shape[0]]], axis=0)))
    kernel = tf.reshape(kernel, [*x.shape[2:], self.units])
    return self._plus_bias(tf.einsum("bsnd,ndh->bsh", tf.cast(x, kernel.dtype), kernel))

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
