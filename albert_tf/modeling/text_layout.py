"""Where the tokens of a batch are: padding included, or the real tokens alone.

All of a block but attention treats each token by itself. A program of fixed shapes (TPU, XLA, LiteRT)
computes padded texts `[B, S, H]`. On a CPU the encoder packs the T real tokens to `[T, H]`: texts of 26
tokens beside one of 66 then cost what they hold.
"""

import abc

import tensorflow as tf

from albert_tf.modeling.dot_product_attention import (
  attend,
  attention_bias,
  lean_attention,
  plain_attention,
)
from albert_tf.modeling.dropout import Seed
from albert_tf.modeling.fused_attention import fused_attention


class TextLayout(abc.ABC):
  """Where the tokens of B texts of S places are in the blocks' arrays, which it makes and reads.

  Attributes:
    mask: int32 `[B, S]`; 1 = real token.
  """

  def __init__(self, mask: tf.Tensor):
    self.mask = mask

  @abc.abstractmethod
  def pack(self, x: tf.Tensor) -> tf.Tensor:
    """The array that blocks take, of `[B, S, W]`."""

  @abc.abstractmethod
  def unpack(self, x: tf.Tensor) -> tf.Tensor:
    """`[B, S, W]` of a blocks' array."""

  @abc.abstractmethod
  def at(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """`[B, Q, W]`: the vectors at `positions`, int32 `[B, Q]`, of a blocks' array."""

  @abc.abstractmethod
  def only(self, x: tf.Tensor, texts: tf.Tensor) -> tuple[tf.Tensor, "TextLayout"]:
    """A blocks' array without the other texts, and its layout; `texts` int32 `[R]` ascends."""

  @abc.abstractmethod
  def attend(
    self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, *, dropout_rate: float, seed: Seed
  ) -> tf.Tensor:
    """Attention of each text's queries to its real tokens; see `plain_attention`.

    Args:
      query: a blocks' array with split heads, `[…, N, D]`, or `[B, Q, N, D]` of some positions.
      key, value: blocks' arrays with split heads.

    Returns:
      An array like `query`.
    """


class PaddedLayout(TextLayout):
  """Texts of equal length: the blocks' arrays are `[B, S, W]`.

  Args:
    mask: int32 `[B, S]`.
    accelerated: see `Encoder`.
    key_lengths: int32 `[B]`, where `fused_attention` computes.
  """

  def __init__(self, mask: tf.Tensor, *, accelerated: bool, key_lengths: tf.Tensor | None = None):
    super().__init__(mask)
    self.accelerated = accelerated
    self.key_lengths = key_lengths
    self.bias = attention_bias(mask)

  def pack(self, x: tf.Tensor) -> tf.Tensor:
    return x

  def unpack(self, x: tf.Tensor) -> tf.Tensor:
    return x

  def at(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    return tf.gather(x, positions, batch_dims=1)

  def only(self, x: tf.Tensor, texts: tf.Tensor) -> tuple[tf.Tensor, "PaddedLayout"]:
    # Without lengths: no kernel of fixed size can compute what is left.
    layout = PaddedLayout(tf.gather(self.mask, texts), accelerated=self.accelerated)
    return tf.gather(x, texts), layout

  def attend(
    self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, *, dropout_rate: float, seed: Seed
  ) -> tf.Tensor:
    if self.key_lengths is not None:
      return fused_attention(query, key, value, self.key_lengths)
    form = lean_attention if self.accelerated else plain_attention
    return form(query, key, value, self.bias, dropout_rate=dropout_rate, seed=seed)


class PackedLayout(TextLayout):
  """The T real tokens of all texts, one after the other: the blocks' arrays are `[T, W]`.

  Example, with two texts of the mask `[[1, 1, 1], [1, 0, 0]]`: T is 4, `places` are 0, 1, 2 and 3, and `rows` are
  `[[0, 1, 2], [3, 3, 3]]`: a padded place has any row, which attention gives no weight.

  [CLS] is always kept, as heads read it, and so is a text without any token.
  """

  def __init__(self, mask: tf.Tensor):
    super().__init__(mask)
    length = tf.shape(mask)[1]
    is_token = mask > 0
    is_empty = ~tf.reduce_any(is_token, axis=1, keepdims=True)
    is_kept = tf.reshape(is_token | is_empty | (tf.range(length) == 0), [-1])
    # Of the places 0 to B S - 1: those of the rows, and each place's row.
    self.places = tf.cast(tf.where(is_kept)[:, 0], tf.int32)  # [T]
    row_of_place = tf.cumsum(tf.cast(is_kept, tf.int32)) - 1
    self.rows = tf.reshape(row_of_place, tf.shape(mask))  # [B, S]
    self.bias = attention_bias(mask)

  def pack(self, x: tf.Tensor) -> tf.Tensor:
    return tf.gather(tf.reshape(x, [-1, x.shape[-1]]), self.places)

  def unpack(self, x: tf.Tensor) -> tf.Tensor:
    """`[B, S, W]`, with zeros at padding."""
    num_places = tf.size(self.mask)
    padded = tf.scatter_nd(self.places[:, tf.newaxis], x, [num_places, x.shape[-1]])
    padded = tf.reshape(padded, tf.concat([tf.shape(self.mask), [x.shape[-1]]], axis=0))
    return tf.ensure_shape(padded, self.mask.shape + x.shape[-1:])

  def at(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    return tf.gather(x, tf.gather(self.rows, positions, batch_dims=1))

  def only(self, x: tf.Tensor, texts: tf.Tensor) -> tuple[tf.Tensor, "PackedLayout"]:
    layout = PackedLayout(tf.gather(self.mask, texts))
    rows = tf.reshape(tf.gather(self.rows, texts), [-1])
    return tf.gather(x, tf.gather(rows, layout.places)), layout

  def attend(
    self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, *, dropout_rate: float, seed: Seed
  ) -> tf.Tensor:
    num_heads, width = key.shape[-2:]
    # Padding and the transposition to [B, N, S, D] are one copy, of vectors of D numbers.
    vectors = _vectors(self.rows, num_heads, num_heads)
    key = tf.gather(tf.reshape(key, [-1, width]), vectors)
    value = tf.gather(tf.reshape(value, [-1, width]), vectors)
    if query.shape.rank == 4:
      query = tf.transpose(query, [0, 2, 1, 3])
      context = attend(query, key, value, self.bias, dropout_rate=dropout_rate, seed=seed)
      return tf.transpose(context, [0, 2, 1, 3])
    query = tf.gather(tf.reshape(query, [-1, width]), vectors)
    context = attend(query, key, value, self.bias, dropout_rate=dropout_rate, seed=seed)
    return self._packed_context(context)

  def attend_joined(
    self, projected: tf.Tensor, num_heads: int, positions: tf.Tensor | None = None
  ) -> tf.Tensor:
    """As `attend`, of queries, keys and values side by side, without dropout.

    Args:
      projected: `[T, 3 N D]`.
      num_heads: N.
      positions: int32 `[B, Q]`, the places of the queries; None: all.

    Returns:
      `[T, N, D]`, or `[B, Q, N, D]` of `positions`.
    """
    projected = tf.reshape(projected, [-1, projected.shape[-1] // (3 * num_heads)])

    def part(number: int, rows: tf.Tensor) -> tf.Tensor:
      return tf.gather(projected, _vectors(rows, num_heads, 3 * num_heads, number * num_heads))

    query_rows = self.rows
    if positions is not None:
      query_rows = tf.gather(self.rows, positions, batch_dims=1)
    context = attend(
      part(0, query_rows),
      part(1, self.rows),
      part(2, self.rows),
      self.bias,
      dropout_rate=0.0,
      seed=None,
    )
    if positions is not None:
      return tf.transpose(context, [0, 2, 1, 3])
    return self._packed_context(context)

  def _packed_context(self, context: tf.Tensor) -> tf.Tensor:
    """`[B, N, S, D]` → `[T, N, D]`."""
    num_heads, width = context.shape[1], context.shape[3]
    # The vectors of a place (b, s) are at [b, n, s].
    length = tf.shape(self.mask)[1]
    first = self.places // length * (num_heads * length) + self.places % length
    vectors = first[:, tf.newaxis] + tf.range(num_heads) * length  # [T, N]
    return tf.gather(tf.reshape(context, [-1, width]), vectors)


def _vectors(rows: tf.Tensor, num_heads: int, in_a_row: int, first: int = 0) -> tf.Tensor:
  """Numbers of the vectors `[B, N, S]` of each head, where a row has `in_a_row` of them, one after the other."""
  return rows[:, tf.newaxis] * in_a_row + (first + tf.range(num_heads))[:, tf.newaxis]
