r"""A block whose products are of 8 or 16 bits, for answers on a CPU.

A product of 8 bits is $x W + b \approx s_x s_W (\hat{x} \hat{W}) + b$ with integers
$\hat{x} = \mathrm{round}(x / s_x)$ and $\hat{W} = \mathrm{round}(W / s_W)$. A scale $s_W$ belongs to an output column
of W, and $s_x$ to a product *of a pass*: the twelve passes through one block have ranges of their own. They are
constants, so that an answer does not depend on the other texts of its batch. Embeddings, attention, LayerNorm and
heads stay float32.

`serving` exports models with these blocks in place of the encoder's own.

Reference: arXiv 1712.05877, section 2.1.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_library

from albert_tf.configs import AlbertConfig
from albert_tf.modeling.dropout import Seed
from albert_tf.modeling.encoder import Block
from albert_tf.modeling.layers import ACTIVATIONS, LayerNorm
from albert_tf.modeling.text_layout import PackedLayout, TextLayout

# The products of a block, in the order of the equations. Query, key and value are one.
PRODUCTS = ("query_key_value", "attention_output", "intermediate", "output")

_MAX_INPUT = 127
# Weights take 7 bits. Without VNNI a processor adds pairs of products in 16 bits, which 8-bit weights overflow:
# 2 · 255 · 127 is above 2¹⁵. On it a product of extreme 8-bit numbers was 6 in place of 768.
_MAX_WEIGHT = 63
# Activations that are one kernel with the product.
_FUSED_ACTIVATIONS = {"gelu": "GeluApproximate", "gelu_exact": "GeluExact", "relu": "Relu"}


@dataclasses.dataclass(frozen=True)
class Weights:
  """A linear map of a block, float32 `[inputs, units]` and `[units]`."""

  kernel: np.ndarray
  bias: np.ndarray

  @classmethod
  def of(cls, *layers: Any) -> "Weights":
    """Of layers with the same input: one map to the units of all, side by side."""
    kernels = [tf.convert_to_tensor(layer.kernel).numpy() for layer in layers]
    biases = [tf.convert_to_tensor(layer.bias).numpy() for layer in layers]
    return cls(np.concatenate(kernels, axis=1), np.concatenate(biases))


def weights_of(block: Block) -> dict[str, Weights]:
  """The maps of a block, by the names of `PRODUCTS`."""
  attention = block.attention
  feed_forward = block.feed_forward
  maps = (
    Weights.of(attention.query, attention.key, attention.value),
    Weights.of(attention.output_dense),
    Weights.of(feed_forward.intermediate),
    Weights.of(feed_forward.output_dense),
  )
  return dict(zip(PRODUCTS, maps, strict=True))


class Product(tf.Module):
  """A linear map in another precision. The passes through a shared block share its variables."""

  def __call__(
    self,
    x: tf.Tensor,
    number: int,
    *,
    activation: str = "linear",
    summand: tf.Tensor | None = None,
  ) -> tf.Tensor:
    """$f(x W + b)$ + summand of rows `[T, inputs]`, in the pass of this number."""
    raise NotImplementedError


class Bfloat16Product(Product):
  """Weights and inputs of 16 bits; the result is bfloat16."""

  def __init__(self, weights: Weights, ranges: Sequence[float]):
    super().__init__()
    del ranges  # 16 bits have the exponents of float32.
    self.kernel = tf.Variable(tf.cast(weights.kernel, tf.bfloat16), trainable=False)
    self.bias = tf.Variable(tf.cast(weights.bias, tf.bfloat16), trainable=False)

  def __call__(
    self,
    x: tf.Tensor,
    number: int,
    *,
    activation: str = "linear",
    summand: tf.Tensor | None = None,
  ) -> tf.Tensor:
    del number
    y = tf.nn.bias_add(tf.matmul(tf.cast(x, tf.bfloat16), self.kernel), self.bias)
    y = ACTIVATIONS[activation](y)
    if summand is not None:
      y += tf.cast(summand, y.dtype)
    return y


class ObservedProduct(Product):
  """The product in float32, which records the largest absolute input of each pass.

  Attributes:
    ranges: float32 `[passes]`, the largest so far.
  """

  def __init__(self, weights: Weights, num_passes: int):
    super().__init__()
    self.weights = weights
    self.ranges = np.zeros(num_passes, np.float32)

  def __call__(
    self,
    x: tf.Tensor,
    number: int,
    *,
    activation: str = "linear",
    summand: tf.Tensor | None = None,
  ) -> tf.Tensor:
    self.ranges[number] = np.max(np.abs(x.numpy()), initial=self.ranges[number])
    y = ACTIVATIONS[activation](tf.matmul(x, self.weights.kernel) + self.weights.bias)
    if summand is not None:
      y += summand
    return y


class Int8Product(Product):
  """Inputs of 8 bits and weights of 7, whose products are added in 32 bits.

  Args:
    weights: each column of the kernel has a scale of its own.
    ranges: the largest absolute input of each pass; larger ones are cut.
    result_ranges: those of the product that reads the result, which then is of 8 bits too, qint8; None: float32.
  """

  def __init__(
    self,
    weights: Weights,
    ranges: Sequence[float],
    *,
    result_ranges: Sequence[float] | None = None,
  ):
    super().__init__()
    largest = np.abs(weights.kernel).max(axis=0)
    scale = np.where(largest > 0, largest, 1.0) / _MAX_WEIGHT  # A column of zeros stays zeros.
    quantized = np.round(weights.kernel / scale).astype(np.int8)
    self.kernel = tf.Variable(quantized, trainable=False)
    # The kernel takes scales as the value that 127 stands for.
    self.kernel_range = tf.Variable((scale * _MAX_INPUT).astype(np.float32), trainable=False)
    self.bias = tf.Variable(weights.bias, trainable=False)
    self.ranges = list(ranges)
    self.result_ranges = result_ranges

  def __call__(
    self,
    x: tf.Tensor,
    number: int,
    *,
    activation: str = "linear",
    summand: tf.Tensor | None = None,
  ) -> tf.Tensor:
    return _outside_eager(lambda: self._product(x, number, activation=activation, summand=summand))

  def _product(
    self, x: tf.Tensor, number: int, *, activation: str, summand: tf.Tensor | None
  ) -> tf.Tensor:
    max_input = self.ranges[number]
    if x.dtype != tf.qint8:
      x = quantize(x, max_input)
    ranges = [-max_input, max_input, -self.kernel_range, self.kernel_range]
    device_inputs = [x, tf.bitcast(self.kernel, tf.qint8), self.bias]
    steps = ["BiasAdd"]
    if activation in _FUSED_ACTIVATIONS:
      steps.append(_FUSED_ACTIVATIONS[activation])
    if summand is not None:
      device_inputs.append(summand)
      steps.append("Add")
    result = tf.float32
    host_outputs = []
    if self.result_ranges is None or activation not in _FUSED_ACTIVATIONS:
      steps.append("Dequantize")
    else:
      result = tf.qint8
      host_outputs = [tf.float32, tf.float32]  # The range once more.
      max_result = self.result_ranges[number]
      ranges += [-max_result, max_result]
      steps.append("Requantize")
    y = _operation(
      "_QuantizedMatMul",
      device_inputs=device_inputs,
      host_inputs=[tf.convert_to_tensor(bound, tf.float32) for bound in ranges],
      Tdevice_outputs=[result],
      Thost_outputs=host_outputs,
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
    y = tf.ensure_shape(y, [None, self.kernel.shape[1]])
    if activation not in _FUSED_ACTIVATIONS:
      y = ACTIVATIONS[activation](y)
    return y


def quantize(x: tf.Tensor, largest: float) -> tf.Tensor:
  """qint8: `x` with 127 for `largest`; larger values are cut."""
  quantized, _, _ = tf.quantization.quantize(
    x, -largest, largest, tf.qint8, mode="SCALED", round_mode="HALF_TO_EVEN"
  )
  return quantized


def _operation(name: str, **inputs_and_attributes: Any) -> tf.Tensor:
  """The first output of an op of TensorFlow that has no function in Python."""
  operation = op_def_library._apply_op_helper(name, name=name.strip("_"), **inputs_and_attributes)[
    2
  ]
  return operation.outputs[0]


def _outside_eager(compute: Callable[[], tf.Tensor]) -> tf.Tensor:
  """The op of oneDNN has no eager function: outside of graphs it takes a graph of its own."""
  if tf.executing_eagerly():
    return tf.function(compute, autograph=False)()
  return compute()


class LowPrecisionBlock:
  """A block of the encoder with products of another precision; it takes and gives what `Block` does.

  Args:
    block: gives the LayerNorms.
    products: by the names of `PRODUCTS`.
    number: of the pass.
    config: the model's configuration.
  """

  def __init__(
    self, block: Block, products: Mapping[str, Product], number: int, config: AlbertConfig
  ):
    self.block = block
    self.products = products
    self.number = number
    self.config = config

  def __call__(
    self, x: tf.Tensor, layout: TextLayout, seed: Seed, positions: tf.Tensor | None = None
  ) -> tf.Tensor:
    """See `Block`. There is no dropout, and `layout` is a `PackedLayout`."""
    del seed
    assert isinstance(layout, PackedLayout)
    config = self.config
    projected = self._product("query_key_value", x)  # [T, 3 H]
    context = layout.attend_joined(projected, config.num_attention_heads, positions)
    if positions is not None:
      x = layout.at(x, positions)
    shape = tf.shape(x)
    x = tf.reshape(x, [-1, config.hidden_size])
    context = tf.reshape(context, [-1, config.hidden_size])

    x = self._product("attention_output", context, summand=x)
    x = self._layer_norm(self.block.attention.layer_norm, x)
    hidden = self._product("intermediate", x, activation=config.hidden_act)
    x = self._product("output", hidden, summand=x)
    x = self._layer_norm(self.block.feed_forward.layer_norm, x)
    return tf.reshape(x, shape)

  def _product(self, name: str, x: tf.Tensor, **options: Any) -> tf.Tensor:
    return self.products[name](x, self.number, **options)

  def _layer_norm(self, layer: LayerNorm, x: tf.Tensor) -> tf.Tensor:
    return layer(x)


class Int8Block(LowPrecisionBlock):
  """A block with products of 8 bits, whose LayerNorm is one kernel of oneDNN too."""

  def _layer_norm(self, layer: LayerNorm, x: tf.Tensor) -> tf.Tensor:
    def normalize() -> tf.Tensor:
      y = _operation(
        "_MklLayerNorm",
        x=x,
        scale=tf.convert_to_tensor(layer.gamma),
        offset=tf.convert_to_tensor(layer.beta),
        epsilon=layer.epsilon,
      )
      return tf.ensure_shape(y, x.shape)

    return _outside_eager(normalize)
