"""What all layers use: dropout and its seeds, LayerNorm, activations, the linear map, base classes.

The model's layers (`sublayers.py`, `pretraining.py`) and the heads of `keras_api` are made of these.
`name_map` has the names of their variables in checkpoints.
"""

from collections.abc import Callable
import math
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from albert_tf.compat import ModelBase, device_kind
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError

_GELU_C = math.sqrt(2.0 / math.pi)
_GELU_CA = 0.044715 * _GELU_C
Seed: TypeAlias = tf.Tensor | None  # int32 [2]; None: no dropout.


def dropout(x: tf.Tensor, rate: float, seed: Seed) -> tf.Tensor:
  """Zeroes a share `rate` of `x` and scales the others by `1 / (1 - rate)`.

  Args:
    x: any shape.
    rate: probability of zeroing an entry, in [0, 1); see `dropout_mask` for its steps.
    seed: int32 `[2]`, seed of the mask; None: no dropout.

  Returns:
    A tensor like `x`; `x` itself if `rate` is 0 or `seed` is None.
  """
  if rate == 0.0 or seed is None:
    return x
  is_kept, kept_share = dropout_mask(tf.shape(x), rate, seed)
  # In float32: a 16-bit factor would be wrong by up to 0.4%, and TensorFlow makes one of a 16-bit
  # quotient in some graphs and not in others, so that replicas and micro-batches would differ.
  scaled = tf.cast(tf.cast(x, tf.float32) * (1.0 / kept_share), x.dtype)
  return tf.where(is_kept, scaled, tf.zeros([], x.dtype))


def dropout_mask(shape: tf.Tensor, rate: float, seed: tf.Tensor) -> tuple[tf.Tensor, float]:
  """Draws which entries dropout keeps.

  A random word of 32 bits decides for four entries: the bits, and not their use, are most of what
  dropout costs on a TPU. With 8 bits an entry, the rate is the nearest multiple of 1/256 from 1/256
  to 255/256: 0.1 becomes 26/256 = 0.1016.

  Args:
    shape: of the mask, int32, at least one axis.
    rate: probability of zeroing an entry, in (0, 1).
    seed: int32 `[2]`.

  Returns:
    The mask, bool, and the share of entries that it keeps in the mean.
  """
  dropped = min(max(round(rate * 256), 1), 255)  # Of 256 values of an entry's bits.
  # Four rows of the first axis share a row of words: words [w, v] make the rows w v | w v | w v | w v.
  # A split of another axis would be a copy on a TPU.
  shared_rows = (shape[0] + 3) // 4
  words = tf.random.stateless_uniform(
    tf.concat([[1, shared_rows], shape[1:]], axis=0),
    seed=seed,
    minval=None,
    maxval=None,
    dtype=tf.uint32,
  )
  # An entry's bits are moved to the top. What is left below them never decides.
  shifts = tf.reshape(tf.constant([24, 16, 8, 0], tf.uint32), [4] + [1] * shape.shape[0])
  is_kept = tf.bitwise.left_shift(words, shifts) >= tf.constant(dropped << 24, tf.uint32)
  rows = tf.reshape(is_kept, tf.concat([[-1], shape[1:]], axis=0))
  return tf.reshape(rows[: shape[0]], shape), 1.0 - dropped / 256


def split_seed(seed: Seed, count: int) -> list[Seed]:
  """`count` independent seeds derived from one seed; for None, `count` times None."""
  if seed is None:
    return [None] * count
  # Without bounds: the whole range of int32, each seed equally likely.
  children = tf.random.stateless_uniform(
    [count, 2], seed=seed, minval=None, maxval=None, dtype=tf.int32
  )
  return tf.unstack(children, num=count)


def resolve_seed(seed: Seed, *, training: bool | None) -> Seed:
  """The seed of a call: the caller's, or a new one; None at inference.

  `model.fit` passes no seed; the new one depends on `keras.utils.set_random_seed`.
  """
  if not training:
    return None
  if seed is not None:
    return seed
  # Not stateless: a constant seed would drop the same entries in every update.
  return tf.random.uniform([2], minval=0, maxval=tf.int32.max, dtype=tf.int32)


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
    join_rows: join the axes `[B, S]` to one for the product. On a CPU, product, bias and activation
      are then one kernel; on a TPU it would need copies.

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
    join_rows: bool = True,
    **kwargs: Any,
  ):
    super().__init__(**kwargs)
    self.inputs = inputs
    self.units = units
    self.output_shape = (None, None, units)
    self.join_rows = join_rows
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
    if x.shape.rank == 3 and not self.join_rows:
      return self._activation(self._plus_bias(tf.einsum("bsi,io->bso", x, kernel)))
    rows = tf.reshape(x, [-1, kernel.shape[0]])
    y = self._activation(self._plus_bias(tf.matmul(rows, kernel)))
    if x.shape.rank == 2:
      return y
    return tf.reshape(y, tf.concat([tf.shape(x)[:-1], [self.units]], axis=0))

  def to_heads(self, x: tf.Tensor, num_heads: int) -> tf.Tensor:
    """As `call`, but splits the last axis of the result: `[B, S, H]` → `[B, S, N, D]`."""
    heads = [num_heads, self.units // num_heads]  # 12 heads of 768 units are [12, 64].
    if self.join_rows:
      return tf.reshape(self(x), tf.concat([tf.shape(x)[:-1], heads], axis=0))
    x = tf.cast(x, self.compute_dtype)
    # The kernel is split, and not the result: that would need a copy on a TPU.
    kernel = tf.cast(self.kernel, self.compute_dtype)
    kernel = tf.reshape(kernel, [-1] + heads)  # [H, N, D]
    y = tf.einsum("bsh,hnd->bsnd", x, kernel)
    return add_bias(y, tf.reshape(tf.cast(self.bias, self.compute_dtype), heads))

  def from_heads(self, x: tf.Tensor) -> tf.Tensor:
    """As `call`, for an input with a split last axis: `[B, S, N, D]` → `[B, S, units]`."""
    if self.join_rows:
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


class _Composite:
  """Builds its layers, whose sizes depend on the configuration and not on the input."""

  def build(self: Any, input_shape: Any = None) -> None:
    for layer in self._flatten_layers(include_self=False, recursive=False):
      if not layer.built:
        layer.build(None)
    self.built = True


class ConfigLayer(_Composite, keras.layers.Layer):
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
      join_rows=not self.accelerated,
      name=name,
      dtype=self.dtype_policy,
      **kwargs,
    )

  def _layer_norm(self, width: int, name: str = "layer_norm") -> LayerNorm:
    return LayerNorm(width, epsilon=self.config.layer_norm_eps, name=name)


class ConfigModel(_Composite, ModelBase):
  """Base class of models with a configuration, which Keras saves. The constructor makes the weights.

  Args:
    config: the model's configuration.
    preprocessor: a layer that converts strings to ids; see `keras_api.text_model.TextModel`.
  """

  built: bool  # Keras sets it.
  # Else Keras traces the model on floats where it is saved, alone or in another model.
  _default_save_signature = None
  # The model's heads, of `name_map.ALL_HEADS`.
  checkpoint_heads: tuple[str, ...] = ()

  def __init__(self, config: AlbertConfig, *, preprocessor: Any = None, **kwargs: Any):
    super().__init__(**kwargs, autocast=False)  # Ids would lose digits in bfloat16.
    self.config = config
    self.preprocessor = preprocessor

  def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
    """`keras.Model.save`, without Keras' older HDF5 format, which cannot be loaded again."""
    if str(filepath).endswith((".h5", ".hdf5")):
      raise UserError(
        f"A model is saved as a .keras file. Received: {filepath}. Give it the ending .keras."
      )
    super().save(filepath, *args, **kwargs)

  def quantize(self, *args: Any, **kwargs: Any) -> None:
    """Refused: Keras would only warn for each of these layers, and change nothing."""
    raise UserError(
      f"Keras quantizes only its own layers. Received: quantize() of {type(self).__name__}. "
      "For int8 weights call save_pretrained, and give its folder to "
      "tpu_scripts/export_lite.py --init_checkpoint with --weights=int8."
    )

  def get_config(self) -> dict[str, Any]:
    config = super().get_config()
    config["name"] = self.name
    config["dtype"] = self.dtype_policy.name  # Keras 2 leaves it out.
    config["config"] = self.config.to_dict()
    return config

  @classmethod
  def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
    del custom_objects
    return cls(**config | {"config": AlbertConfig.from_dict(config["config"])})
