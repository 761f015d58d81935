"""The layers of ALBERT: LayerNorm, activations and linear map; embeddings, attention and feed-forward.

`encoder.py` applies them, and the heads of `pretraining.py` and `keras_api` are made of the first.
`name_map` has the names of their variables in checkpoints.
"""

from collections.abc import Callable
import math
from typing import Any

import keras
import tensorflow as tf

from albert_tf.compat import building, device_kind
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.modeling.attention import TextLayout
from albert_tf.modeling.dropout import Seed, dropout, split_seed

_GELU_C = math.sqrt(2.0 / math.pi)
_GELU_CA = 0.044715 * _GELU_C


# ------------------------------------------------------------------ LayerNorm and activations


def moments(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  r"""Mean and biased variance over the last axis, which stays with size 1; float32.

  16-bit values take one pass, $\mathrm{E}[x^2] - \mu^2$, with a float32 error below their rounding.
  float32 values take two passes.
  """
  if x.dtype.size >= tf.float32.size:
    return tf.nn.moments(tf.cast(x, tf.float32), axes=[-1], keepdims=True)
  x = tf.cast(x, tf.float32)
  mean = tf.reduce_mean(x, axis=-1, keepdims=True)
  mean_square = tf.reduce_mean(x * x, axis=-1, keepdims=True)
  # Rounding may leave a difference below 0 where all values are equal.
  return mean, tf.maximum(mean_square - mean * mean, 0.0)


class LayerNorm(keras.layers.Layer):
  r"""$y = \gamma (x - \mu) / \sqrt{\sigma^2 + \epsilon} + \beta$ over the last axis.

  The variance is biased. Computation and result are float32 under any precision policy; the caller
  casts the result.

  Args:
    width: size of the last axis.
    epsilon: 1e-12 in ALBERT; Keras's default is 1e-3.

  Reference: arXiv 1607.06450, equation 4.
  """

  def __init__(self, width: int, *, epsilon: float = 1e-12, **kwargs: Any):
    # A float32 island: gamma and beta too. No casts: `moments` must see the type x comes in.
    super().__init__(**kwargs | {"dtype": "float32", "autocast": False})
    self.width = width
    self.epsilon = epsilon

  def build(self, input_shape: Any = None) -> None:
    self.gamma = self.add_weight(name="gamma", shape=(self.width,), initializer="ones")
    self.beta = self.add_weight(name="beta", shape=(self.width,), initializer="zeros")
    self.built = True

  def call(self, x: tf.Tensor) -> tf.Tensor:
    mean, variance = moments(x)
    x = tf.cast(x, tf.float32)
    # One product and one sum for each value: the small factors are joined first.
    scale = self.gamma * tf.math.rsqrt(variance + self.epsilon)
    return x * scale + (self.beta - mean * scale)


def _one_plus_tanh(x: tf.Tensor) -> tf.Tensor:
  # A GPU's exact tanh takes longer than reading and writing x; TPUs and CPUs have a fast one.
  if device_kind() == "gpu":
    return 2.0 / (1.0 + tf.exp(-2.0 * x))
  return 1.0 + tf.tanh(x)


@tf.custom_gradient
def gelu(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
  r"""Gaussian error linear unit, tanh form, as ALBERT v1 and v2 were trained.

  $0.5 x (1 + t)$ with $t = \tanh(c x + c a x^3)$, $c = \sqrt{2/\pi}$, $a = 0.044715$. The gradient,
  in float32, is $\frac{1 + t}{2} (1 + (1 - t) (c x + 3 c a x^3))$; automatic differentiation would
  take a third more operations.

  Reference: arXiv 1606.08415, section 2; Keras's default is the exact form.
  """

  def gradient(d_y: tf.Tensor) -> tf.Tensor:
    # Horner's form in u², so that each power is computed once.
    u = tf.cast(x, tf.float32)
    square = u * u
    one_plus_t = _one_plus_tanh(u * (_GELU_C + _GELU_CA * square))
    half_derivative = u * (0.5 * _GELU_C + 1.5 * _GELU_CA * square)  # (c x + 3 c a x³) / 2
    slope = one_plus_t * (0.5 + (2.0 - one_plus_t) * half_derivative)
    return tf.cast(tf.cast(d_y, tf.float32) * slope, x.dtype)

  if device_kind() == "gpu":
    u = tf.cast(x, tf.float32)
    y = 0.5 * u * _one_plus_tanh(u * (_GELU_C + _GELU_CA * u * u))
    return tf.cast(y, x.dtype), gradient
  return tf.nn.gelu(x, approximate=True), gradient


def gelu_exact(x: tf.Tensor) -> tf.Tensor:
  r"""Gaussian error linear unit, exact: $0.5 x (1 + \mathrm{erf}(x / \sqrt 2))$.

  Some checkpoints need it.
  """
  return 0.5 * x * (1.0 + tf.math.erf(x / math.sqrt(2.0)))


# By the names of `hidden_act` in a configuration.
ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
  "gelu": gelu,
  "gelu_exact": gelu_exact,
  "relu": tf.nn.relu,
  "tanh": tf.tanh,
  "linear": tf.identity,
}


# ------------------------------------------------------------------ the linear map


def add_bias(y: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
  """`y` + `bias`, of the shapes `[…, units]` and `[units]`, or `[…, N, D]` and `[N, D]`.

  On a GPU the gradient of a 16-bit bias is a product with ones. XLA would write the whole gradient of
  y in float32 before it sums the rows.
  """
  if device_kind() != "gpu" or y.dtype.size >= tf.float32.size:
    if bias.shape.rank == 1:
      return tf.nn.bias_add(y, bias)  # On a CPU one kernel with the product and the activation.
    return y + bias

  @tf.custom_gradient
  def add(y: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, Any]:
    def gradient(d_y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
      rows = tf.reshape(d_y, [-1, bias.shape.num_elements()])
      # Eight equal rows of ones: a product of one row would not use the matrix units.
      ones = tf.ones([8, tf.shape(rows)[0]], rows.dtype)
      return d_y, tf.reshape(tf.matmul(ones, rows)[0], bias.shape)

    return y + bias, gradient

  return add(y, bias)


def normal_initializer(stddev: float) -> Any:
  """A new initializer: normal, cut at two deviations."""
  # One for each weight: in Keras 3 weights that share an initializer start with equal values.
  return keras.initializers.TruncatedNormal(stddev=stddev)


class Dense(keras.layers.Layer):
  r"""Linear map and activation: $y = f(x W + b)$.

  Args:
    inputs, units: sizes of the last axis, before and after.
    activation: one of `ACTIVATIONS`.
    use_bias: whether there is a bias `b`; the answerability logit of SQuAD 2 has none.
    initializer_range: standard deviation of the normal, cut at two deviations.
    accelerated: see `Encoder`. False joins the axes `[B, S]` to one, so that product, bias and
      activation are one kernel on a CPU; on a TPU that would need copies.

  Reference: `dense_layer_2d` and `dense_layer_3d` of the original code.
  """

  output_shape: Any = ()  # For `summary`; Keras has a property, of functional models.

  def __init__(
    self,
    inputs: int,
    units: int,
    *,
    activation: str = "linear",
    use_bias: bool = True,
    initializer_range: float = 0.02,
    accelerated: bool = False,
    **kwargs: Any,
  ):
    super().__init__(**kwargs)
    self.inputs = inputs
    self.units = units
    self.output_shape = (None, None, units)
    self.accelerated = accelerated
    self.use_bias = use_bias
    self.initializer_range = initializer_range
    self._activation = ACTIVATIONS[activation]
    self.bias = None

  def build(self, input_shape: Any = None) -> None:
    self.kernel = self.add_weight(
      name="kernel",
      shape=(self.inputs, self.units),
      initializer=normal_initializer(self.initializer_range),
    )
    if self.use_bias:
      self.bias = self.add_weight(name="bias", shape=(self.units,), initializer="zeros")
    self.built = True

  def call(self, x: tf.Tensor) -> tf.Tensor:
    x = tf.cast(x, self.compute_dtype)
    kernel = tf.cast(self.kernel, self.compute_dtype)
    if x.shape.rank == 3 and self.accelerated:
      return self._activation(self._plus_bias(tf.einsum("bsi,io->bso", x, kernel)))
    rows = tf.reshape(x, [-1, kernel.shape[0]])
    y = self._activation(self._plus_bias(tf.matmul(rows, kernel)))
    if x.shape.rank == 2:
      return y
    return tf.reshape(y, tf.concat([tf.shape(x)[:-1], [self.units]], axis=0))

  def to_heads(self, x: tf.Tensor, num_heads: int) -> tf.Tensor:
    """As `call`, but splits the last axis of the result: `[B, S, H]` → `[B, S, N, D]`."""
    heads = [num_heads, self.units // num_heads]  # 12 heads of 768 units are [12, 64].
    if not self.accelerated:
      return tf.reshape(self(x), tf.concat([tf.shape(x)[:-1], heads], axis=0))
    x = tf.cast(x, self.compute_dtype)
    # The kernel is split, and not the result: that would need a copy on a TPU.
    kernel = tf.cast(self.kernel, self.compute_dtype)
    kernel = tf.reshape(kernel, [-1] + heads)  # [H, N, D]
    y = tf.einsum("bsh,hnd->bsnd", x, kernel)
    return add_bias(y, tf.reshape(tf.cast(self.bias, self.compute_dtype), heads))

  def from_heads(self, x: tf.Tensor) -> tf.Tensor:
    """As `call`, for an input with a split last axis: `[B, S, N, D]` → `[B, S, units]`."""
    if not self.accelerated:
      return self(tf.reshape(x, tf.concat([tf.shape(x)[:-2], [self.kernel.shape[0]]], axis=0)))
    x = tf.cast(x, self.compute_dtype)
    heads = x.shape.as_list()[2:]
    kernel = tf.cast(self.kernel, self.compute_dtype)
    kernel = tf.reshape(kernel, heads + [self.units])  # [N, D, units]
    return self._plus_bias(tf.einsum("bsnd,ndh->bsh", x, kernel))

  def _plus_bias(self, y: tf.Tensor) -> tf.Tensor:
    if self.bias is None:
      return y
    return add_bias(y, tf.cast(self.bias, self.compute_dtype))


# ------------------------------------------------------------------ layers with the configuration


class Composite:
  """Builds its layers, whose sizes depend on the configuration and not on the input."""

  def build(self: Any, input_shape: Any = None) -> None:
    for layer in self._flatten_layers(include_self=False, recursive=False):
      if not layer.built:
        with building(layer):
          layer.build(None)
    self.built = True


class ConfigLayer(Composite, keras.layers.Layer):
  """Base class of layers with the model's configuration.

  Args:
    config: the model's configuration.
    accelerated: see `Encoder`.
  """

  output_shape: Any = ()  # For `summary`, as in `Dense`.

  def __init__(
    self,
    config: AlbertConfig,
    *,
    accelerated: bool = False,
    **kwargs: Any,
  ):
    super().__init__(**kwargs)
    self.config = config
    self.output_shape = (None, None, config.hidden_size)
    self.accelerated = accelerated

  def _dense(self, inputs: int, units: int, name: str, **kwargs: Any) -> Dense:
    """A linear map of this layer, with its precision and the configuration's initialisation."""
    return Dense(
      inputs,
      units,
      initializer_range=self.config.initializer_range,
      accelerated=self.accelerated,
      name=name,
      dtype=self.dtype_policy,
      **kwargs,
    )

  def _layer_norm(self, width: int, name: str = "layer_norm") -> LayerNorm:
    return LayerNorm(width, epsilon=self.config.layer_norm_eps, name=name)


# ------------------------------------------------------------------ the layers of the encoder


class AlbertEmbeddings(ConfigLayer):
  r"""$\mathrm{dropout}(\mathrm{LN}(W[\text{ids}] + T[\text{segments}] + P[0..S-1]))$, `[B, S, E]`.

  Raises:
    UserError: the sequence is longer than the position table.

  Reference: ALBERT section 3.1, "Factorized embedding parameterization".
  """

  def __init__(self, config: AlbertConfig, **kwargs: Any):
    super().__init__(config, **kwargs, autocast=False)  # Ids would lose digits in bfloat16.
    self.output_shape = (None, None, config.embedding_size)
    self.layer_norm = self._layer_norm(config.embedding_size)

  def build(self, input_shape: Any = None) -> None:
    config = self.config
    self.word_embeddings = self._table("word_embeddings", config.vocab_size)
    self.token_type_embeddings = self._table("token_type_embeddings", config.type_vocab_size)
    self.position_embeddings = self._table("position_embeddings", config.max_position_embeddings)
    super().build()

  def _table(self, name: str, rows: int) -> Any:
    return self.add_weight(
      name=name,
      shape=(rows, self.config.embedding_size),
      initializer=normal_initializer(self.config.initializer_range),
    )

  def call(self, input_ids: tf.Tensor, segment_ids: tf.Tensor, seed: Seed = None) -> tf.Tensor:
    length = input_ids.shape[1]
    limit = self.config.max_position_embeddings
    if length is not None and length > limit:
      raise UserError(
        f"A sequence must not be longer than max_position_embeddings={limit}. "
        f"Received: {length} tokens. "
        "Cut the input, or train with a larger max_position_embeddings."
      )
    words = self._cast(self.word_embeddings)  # [V, E]
    segments = self._cast(self.token_type_embeddings)  # [2, E]
    positions = self._cast(self.position_embeddings)
    x = tf.gather(words, input_ids)
    # Two rows: a product is always cheap, and its gradient has no scatter.
    segment_one_hot = tf.one_hot(segment_ids, segments.shape[0], dtype=segments.dtype)
    x += tf.tensordot(segment_one_hot, segments, 1)
    x += positions[tf.newaxis, : tf.shape(input_ids)[1]]
    x = tf.cast(self.layer_norm(x), self.compute_dtype)
    return dropout(x, self.config.hidden_dropout_prob, seed)

  def _cast(self, table: Any) -> tf.Tensor:
    return tf.cast(tf.convert_to_tensor(table), self.compute_dtype)


class AttentionSublayer(ConfigLayer):
  r"""Multi-head self-attention.

  $\mathrm{LN}_1(x + \mathrm{dropout}(\mathrm{concat}_n(\mathrm{head}_n) W_o + b_o))$

  It contains its LayerNorm (post-norm), which is shared together with the attention.

  Call args:
    x: `[B, S, H]`, or as the layout packs it.
    layout: where the tokens of the texts are in `x`; it computes the attention.
    seed: see `dropout`.
    queries: `[B, Q, H]`, the rows of `x` to compute; default: all.

  Returns:
    An array like `queries`, by default like `x`.

  Reference: arXiv 1706.03762, section 3.2.2; checkpoint names `attention_1`, `LayerNorm`.
  """

  def __init__(self, config: AlbertConfig, **kwargs: Any):
    super().__init__(config, **kwargs)
    width = config.hidden_size
    self.query = self._dense(width, width, "query")
    self.key = self._dense(width, width, "key")
    self.value = self._dense(width, width, "value")
    self.output_dense = self._dense(width, width, "output_dense")
    self.layer_norm = self._layer_norm(width)

  def call(
    self,
    x: tf.Tensor,
    layout: TextLayout,
    seed: Seed = None,
    queries: tf.Tensor | None = None,
  ) -> tf.Tensor:
    if queries is None:
      queries = x
    heads = self.config.num_attention_heads
    attention_seed, output_seed = split_seed(seed, 2)
    context = layout.attend(
      self.query.to_heads(queries, heads),
      self.key.to_heads(x, heads),
      self.value.to_heads(x, heads),
      dropout_rate=self.config.attention_probs_dropout_prob,
      seed=attention_seed,
    )
    output = self.output_dense.from_heads(context)  # […, N, D] -> […, H]
    output = dropout(output, self.config.hidden_dropout_prob, output_seed)
    return tf.cast(self.layer_norm(output + tf.cast(queries, output.dtype)), self.compute_dtype)


class FeedForwardSublayer(ConfigLayer):
  r"""Position-wise feed-forward: $\mathrm{LN}_2(x + \mathrm{dropout}(f(x W_1 + b_1) W_2 + b_2))$.

  It contains its LayerNorm (post-norm), which is shared together with the feed-forward.

  Reference: arXiv 1706.03762, equation 2; checkpoint names `ffn_1`, `LayerNorm_1`.
  """

  def __init__(self, config: AlbertConfig, **kwargs: Any):
    super().__init__(config, **kwargs)
    width = config.hidden_size
    inner_width = config.intermediate_size
    self.intermediate = self._dense(
      width, inner_width, "intermediate", activation=config.hidden_act
    )
    self.output_dense = self._dense(inner_width, width, "output_dense")
    self.layer_norm = self._layer_norm(width)

  def call(self, x: tf.Tensor, seed: Seed = None) -> tf.Tensor:
    output = self.output_dense(self.intermediate(x))  # [B, S, F] -> [B, S, H]
    output = dropout(output, self.config.hidden_dropout_prob, seed)
    return tf.cast(self.layer_norm(output + tf.cast(x, output.dtype)), self.compute_dtype)


# ------------------------------------------------------------------ a head


class RowsHead(ConfigLayer):
  """Logits $x W^T + b$ of `[…, H]` in float32, with `W` stored as `[rows, H]`, as in the original.

  With two rows, on the pooled output, it is the sentence-order head: in order, swapped (ALBERT section 3.1).
  """

  def __init__(self, config: AlbertConfig, *, rows: int, **kwargs: Any):
    super().__init__(config, **kwargs)
    self.rows = rows
    self.output_shape = (None, rows)

  def build(self, input_shape: Any = None) -> None:
    self.output_weights = self.add_weight(
      name="output_weights",
      shape=(self.rows, self.config.hidden_size),
      initializer=normal_initializer(self.config.initializer_range),
    )
    self.output_bias = self.add_weight(name="output_bias", shape=(self.rows,), initializer="zeros")
    self.built = True

  def call(self, x: tf.Tensor) -> tf.Tensor:
    # float32 costs little here: there are few products.
    rows = tf.reshape(tf.cast(x, tf.float32), [-1, self.config.hidden_size])
    logits = tf.matmul(rows, tf.cast(self.output_weights, tf.float32), transpose_b=True)
    logits = tf.nn.bias_add(logits, tf.cast(self.output_bias, tf.float32))
    return tf.reshape(logits, tf.concat([tf.shape(x)[:-1], [self.rows]], axis=0))
