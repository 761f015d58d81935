r"""Blocks whose products are of 8 or 16 bits, for answers on a CPU.

A product of 8 bits is $x W + b \approx s_x s_W (\hat{x} \hat{W}) + b$ with integers
$\hat{x} = \mathrm{round}(x / s_x)$ and $\hat{W} = \mathrm{round}(W / s_W)$. A scale $s_W$ belongs to an
output column of W, and $s_x$ to a product *of a pass*: the passes through a shared block have ranges of
their own. Ranges are constants, so that an answer does not depend on the other texts of its batch.
Embeddings, attention, LayerNorm and heads stay float32.

`serving/precision.py` puts these blocks in the place of the encoder's own while it traces an export.

Reference: arXiv 1712.05877, section 2.1.
"""

import abc
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_library

from albert_tf.configs import AlbertConfig
from albert_tf.modeling.attention import PackedLayout, TextLayout
from albert_tf.modeling.dropout import Seed
from albert_tf.modeling.encoder import Block
from albert_tf.modeling.layers import ACTIVATIONS, LayerNorm

_MAX_INPUT = 127
# Weights take 7 bits. A processor without VNNI adds pairs of products in 16 bits, which two of 8-bit weights
# overflow: 2 · 255 · 127 is above 2¹⁵. A product of extreme numbers was 6 there in place of 768.
_MAX_WEIGHT = 63
# Activations that are one kernel with the product.
_FUSED_ACTIVATIONS = {"gelu": "GeluApproximate", "gelu_exact": "GeluExact", "relu": "Relu"}


class LinearMap(tf.Module):
  """The weights of a linear map, or of several with the same input, side by side."""

  def __init__(self, *layers: Any):
    super().__init__()
    kernels = [tf.convert_to_tensor(layer.kernel).numpy() for layer in layers]
    biases = [tf.convert_to_tensor(layer.bias).numpy() for layer in layers]
    self.set_weights(np.concatenate(kernels, axis=1), np.concatenate(biases))

  def set_weights(self, kernel: np.ndarray, bias: np.ndarray) -> None:
    """Makes the variables of float32 weights `[inputs, units]` and `[units]`."""
    self.kernel = tf.Variable(kernel, trainable=False)
    self.bias = tf.Variable(bias, trainable=False)


class Bfloat16Map(LinearMap):
  """Weights of 16 bits."""

  def set_weights(self, kernel: np.ndarray, bias: np.ndarray) -> None:
    self.kernel = tf.Variable(tf.cast(kernel, tf.bfloat16), trainable=False)
    self.bias = tf.Variable(tf.cast(bias, tf.bfloat16), trainable=False)


class Int8Map(LinearMap):
  """Weights of 7 bits, with a scale for each output column."""

  def set_weights(self, kernel: np.ndarray, bias: np.ndarray) -> None:
    largest = np.abs(kernel).max(axis=0)
    scale = np.where(largest > 0, largest, 1.0) / _MAX_WEIGHT  # A column of zeros stays zeros.
    self.kernel = tf.Variable(np.round(kernel / scale).astype(np.int8), trainable=False)
    # oneDNN takes a scale as the number that 127 stands for.
    self.kernel_range = tf.Variable((scale * _MAX_INPUT).astype(np.float32), trainable=False)
    self.bias = tf.Variable(bias, trainable=False)


class BlockMaps(tf.Module):
  """The four linear maps of a block. Blocks that share weights share these."""

  def __init__(self, block: Block, kind: type[LinearMap]):
    super().__init__()
    attention = block.attention
    self.query_key_value = kind(attention.query, attention.key, attention.value)
    self.attention_output = kind(attention.output_dense)
    self.intermediate = kind(block.feed_forward.intermediate)
    self.output = kind(block.feed_forward.output_dense)


class ServedBlock(abc.ABC):
  """A block of the encoder that computes packed texts; it takes and gives what `Block` does.

  Args:
    block: the block.
    maps: its linear maps.
    config: the model's configuration.
    ranges: the largest absolute input of each map in this pass, by its name.
  """

  kind: type[LinearMap] = LinearMap

  def __init__(
    self, block: Block, maps: Any, config: AlbertConfig, ranges: Mapping[str, float] | None = None
  ):
    self.block = block
    self.maps = maps
    self.config = config
    self.ranges = dict(ranges or {})

  def __call__(
    self, x: tf.Tensor, layout: TextLayout, seed: Seed, positions: tf.Tensor | None = None
  ) -> tf.Tensor:
    """See `Block`; there is no dropout."""
    del seed
    if not isinstance(layout, PackedLayout):
      raise TypeError(f"A block of {self.kind.__name__} takes packed texts, not {layout}.")
    width = self.config.hidden_size
    projected = self.product("query_key_value", x)  # [T, 3 H]
    context = layout.attend_joined(projected, self.config.num_attention_heads, positions)
    if positions is not None:
      x = layout.at(x, positions)  # [B, Q, H]
    shape = tf.shape(x)
    x = tf.reshape(x, [-1, width])
    context = tf.reshape(context, [-1, width])

    x = self.product("attention_output", context, summand=x)
    x = self.layer_norm(self.block.attention.layer_norm, x)
    hidden = self.product("intermediate", x, activation=self.config.hidden_act)
    x = self.product("output", hidden, summand=x)
    x = self.layer_norm(self.block.feed_forward.layer_norm, x)
    return tf.reshape(x, shape)

  @abc.abstractmethod
  def product(
    self,
    name: str,
    x: tf.Tensor,
    *,
    activation: str = "linear",
    summand: tf.Tensor | None = None,
  ) -> tf.Tensor:
    """$f(x W + b)$ + summand, of rows `[T, inputs]` and the map of this name."""

  def layer_norm(self, layer: LayerNorm, x: tf.Tensor) -> tf.Tensor:
    """LayerNorm of `[T, H]`."""
    return layer(x)


class ObservedBlock(ServedBlock):
  """Computes in float32, eagerly, and keeps the largest absolute input of each map in `ranges`."""

  def product(
    self,
    name: str,
    x: tf.Tensor,
    *,
    activation: str = "linear",
    summand: tf.Tensor | None = None,
  ) -> tf.Tensor:
    largest = float(np.abs(x.numpy()).max(initial=0.0))
    self.ranges[name] = max(largest, self.ranges.get(name, 0.0))
    weights = getattr(self.maps, name)
    y = ACTIVATIONS[activation](tf.matmul(x, weights.kernel) + weights.bias)
    return y if summand is None else y + summand


class Bfloat16Block(ServedBlock):
  """Products of 16 bits with 16-bit results; LayerNorm in float32."""

  kind = Bfloat16Map

  def product(
    self,
    name: str,
    x: tf.Tensor,
    *,
    activation: str = "linear",
    summand: tf.Tensor | None = None,
  ) -> tf.Tensor:
    weights = getattr(self.maps, name)
    y = tf.matmul(tf.cast(x, tf.bfloat16), weights.kernel)
    y = ACTIVATIONS[activation](tf.nn.bias_add(y, weights.bias))
    return y if summand is None else y + tf.cast(summand, y.dtype)


class Int8Block(ServedBlock):
  """Products of inputs of 8 bits and weights of 7, added in 32 bits, by oneDNN's kernels. Graphs only."""

  kind = Int8Map

  def product(
    self,
    name: str,
    x: tf.Tensor,
    *,
    activation: str = "linear",
    summand: tf.Tensor | None = None,
  ) -> tf.Tensor:
    weights = getattr(self.maps, name)
    max_input = self._range(name)
    if x.dtype != tf.qint8:
      # The narrow range is -127 to 127. For the other, oneDNN's kernel multiplies by 128, and the product
      # divides by 127.
      x, _, _ = tf.raw_ops.QuantizeV2(
        input=x,
        min_range=-max_input,
        max_range=max_input,
        T=tf.qint8,
        mode="SCALED",
        round_mode="HALF_TO_EVEN",
        narrow_range=True,
      )
    # Bounds of the input, of each column, and of a result of 8 bits.
    bounds = [-max_input, max_input, -weights.kernel_range, weights.kernel_range]
    device_inputs = [x, tf.bitcast(weights.kernel, tf.qint8), weights.bias]
    steps = ["BiasAdd"]
    if activation in _FUSED_ACTIVATIONS:
      steps.append(_FUSED_ACTIVATIONS[activation])
    if summand is not None:
      steps.append("Add")
      device_inputs.append(summand)
    result = tf.float32
    range_outputs = []
    if name == "intermediate" and activation in _FUSED_ACTIVATIONS:
      # Only the next product reads it, as 8 bits.
      max_result = self._range("output")
      steps.append("Requantize")
      bounds += [-max_result, max_result]
      result = tf.qint8
      range_outputs = [tf.float32, tf.float32]
    else:
      steps.append("Dequantize")

    y = _operation(
      "_QuantizedMatMul",
      device_inputs=device_inputs,
      host_inputs=[tf.convert_to_tensor(bound, tf.float32) for bound in bounds],
      Tdevice_outputs=[result],
      Thost_outputs=range_outputs,
      T1=tf.qint8,
      T2=tf.qint8,
      Tbias=tf.float32,
      U=tf.float32,
      Tout=result,
      fused_ops=steps,
      is_weight_const=True,
      is_bias_const=True,
      input_quant_mode="SCALED",
      output_quant_mode="SCALED",
      transpose_a=False,
      transpose_b=False,
      leakyrelu_alpha=0.0,
    )
    y = tf.ensure_shape(y, [None, weights.kernel.shape[1]])
    if activation not in _FUSED_ACTIVATIONS:
      y = ACTIVATIONS[activation](y)
    return y

  def _range(self, name: str) -> float:
    """What 127 stands for; 1 where all inputs were zeros."""
    return self.ranges[name] or 1.0

  def layer_norm(self, layer: LayerNorm, x: tf.Tensor) -> tf.Tensor:
    y = _operation(
      "_MklLayerNorm",
      x=x,
      scale=tf.convert_to_tensor(layer.gamma),
      offset=tf.convert_to_tensor(layer.beta),
      epsilon=layer.epsilon,
    )
    return tf.ensure_shape(y, x.shape)


def _operation(name: str, **inputs_and_attributes: Any) -> tf.Tensor:
  """The first output of an op of TensorFlow that has no function in Python."""
  added = op_def_library._apply_op_helper(name, name=name.strip("_"), **inputs_and_attributes)
  operation = added[2]
  return operation.outputs[0]
