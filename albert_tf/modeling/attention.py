"""Attention among the tokens of each text, and where these tokens are: padding included, or the real ones alone.

All of a block but attention treats each token by itself. A program of fixed shapes (TPU, XLA, LiteRT)
computes padded texts `[B, S, H]`. On a CPU the encoder packs the T real tokens to `[T, H]`: texts of 26
tokens beside one of 66 then cost what they hold.
"""

import abc
import math
from typing import Any

import tensorflow as tf

from albert_tf.compat import device_kind
from albert_tf.modeling.dropout import Seed, dropout, dropout_mask
from albert_tf.modeling.fused_attention import fused_attention

# Added to the score of a padded key (original code); finite, so that a row of padding stays finite.
MASKED_SCORE = -10000.0


# ------------------------------------------------------------------ dot-product attention


def attention_bias(input_mask: tf.Tensor) -> tf.Tensor:
  """Converts a mask `[B, S]` (1 = real token) to float32 `[B, 1, 1, S]` to add to the scores."""
  is_padding = 1.0 - tf.cast(input_mask, tf.float32)
  return is_padding[:, tf.newaxis, tf.newaxis, :] * MASKED_SCORE


def plain_attention(
  query: tf.Tensor,
  key: tf.Tensor,
  value: tf.Tensor,
  bias: tf.Tensor,
  *,
  dropout_rate: float,
  seed: Seed,
) -> tf.Tensor:
  r"""$O = \mathrm{softmax}(Q K^T / \sqrt D + \text{bias}) V$, softmax in float32.

  Args:
    query: `[B, Q, N, D]`.
    key, value: `[B, S, N, D]`.
    bias: float32, broadcast to `[B, N, Q, S]`.
    dropout_rate: dropout rate of the probabilities.
    seed: see `dropout`.

  Returns:
    `[B, Q, N, D]`.

  Reference: arXiv 1706.03762, equation 1.
  """
  context = attention_by_head(
    _swap_middle_axes(query),
    _swap_middle_axes(key),
    _swap_middle_axes(value),
    bias,
    dropout_rate=dropout_rate,
    seed=seed,
  )
  return _swap_middle_axes(context)


def attention_by_head(
  query: tf.Tensor,
  key: tf.Tensor,
  value: tf.Tensor,
  bias: tf.Tensor,
  *,
  dropout_rate: float,
  seed: Seed,
) -> tf.Tensor:
  """`plain_attention` of `[B, N, Q, D]` and `[B, N, S, D]`; returns `[B, N, Q, D]`."""
  # The queries are scaled, and not the scores, which are more.
  query = query * tf.cast(1.0 / math.sqrt(query.shape[-1]), query.dtype)
  scores = _float32(tf.matmul(query, key, transpose_b=True)) + bias  # [B, N, Q, S]
  probabilities = tf.cast(tf.nn.softmax(scores), value.dtype)
  return tf.matmul(dropout(probabilities, dropout_rate, seed), value)


def lean_attention(
  query: tf.Tensor,
  key: tf.Tensor,
  value: tf.Tensor,
  bias: tf.Tensor,
  *,
  dropout_rate: float,
  seed: Seed,
) -> tf.Tensor:
  r"""As `plain_attention`, with fewer passes over the scores; maximum, exponential and sums in float32.

  $A = \exp(S - \max S)$, $l = \mathrm{rowsum}(A)$, $O = A V / l$. Except on GPUs, a column of ones is
  added to V, so that one product gives $A V$ and $l$. Only A is kept for the gradient. The gradient
  divides rows of dO and not of A: with $dO' = dO / l$ and $\Delta = \mathrm{rowsum}(dO' \circ O)$,

  $dV = A^T dO'$, $dS = A \circ (dO' V^T - \Delta)$, $dQ = dS K / \sqrt D$, $dK = dS^T Q / \sqrt D$.

  Dropout takes $A \circ M$ for A in O and dV, and $M \circ dO' V^T$ in dS, with the mask M of what is kept. O and dO'
  are divided by the kept share too, and Δ is not.

  Args and result are those of `plain_attention`; `bias` gets no gradient.

  Reference: arXiv 2205.14135, appendix B.
  """
  scale = tf.cast(1.0 / math.sqrt(query.shape[-1]), query.dtype)
  bias = tf.stop_gradient(bias)

  @tf.custom_gradient
  def attend(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, Any]:
    dtype = value.dtype
    query = query * scale
    # A product's float32 sums are rounded to its type here: kept, they would be 6% of a step on v3
    # (PAPER_MAP.md). The bias is added in that type too: what reads the scores again, thrice, then
    # adds nothing more.
    scores = _float32(tf.einsum("bqnd,bsnd->bnqs", query, key) + tf.cast(bias, dtype))
    row_max = tf.reduce_max(scores, axis=-1, keepdims=True)
    exp = tf.cast(tf.exp(scores - row_max), dtype)  # [B, N, Q, S]
    is_kept = None
    kept_share = 1.0
    if dropout_rate and seed is not None:
      is_kept, kept_share = dropout_mask(tf.shape(exp), dropout_rate, seed)
    product, row_sum = _product_and_row_sum(exp, value, is_kept)
    row_sum *= kept_share  # Rows are divided by the share, and not the scores, which are more.
    output = tf.cast(product / row_sum, dtype)

    def gradient(d_output: tf.Tensor) -> Any:
      divided = _float32(d_output) * (1.0 / row_sum)
      delta = kept_share * tf.reduce_sum(divided * _float32(output), axis=-1, keepdims=True)
      d_output = tf.cast(divided, dtype)
      d_exp = _only(is_kept, tf.einsum("bqnd,bsnd->bnqs", d_output, value))
      d_scores = tf.cast(_float32(exp) * (_float32(d_exp) - _swap_middle_axes(delta)), dtype)
      d_query = tf.einsum("bnqs,bsnd->bqnd", d_scores, key) * scale
      d_key = tf.einsum("bnqs,bqnd->bsnd", d_scores, query)
      d_value = tf.einsum("bnqs,bqnd->bsnd", _only(is_kept, exp), d_output)
      return d_query, d_key, d_value

    return output, gradient

  return attend(query, key, value)


def _product_and_row_sum(
  exp: tf.Tensor, value: tf.Tensor, is_kept: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor]:
  """A V, with A after dropout, and l: float32 `[B, Q, N, D]` and `[B, Q, N, 1]`."""
  # Apart: dropout changes A but not l, and a GPU would multiply the joined product in float32.
  if is_kept is not None or device_kind() == "gpu":
    product = tf.einsum("bnqs,bsnd->bqnd", _only(is_kept, exp), value)
    row_sum = tf.reduce_sum(_float32(exp), axis=-1, keepdims=True)
    return _float32(product), _swap_middle_axes(row_sum)

  ones = tf.ones_like(value[..., :1])
  columns = tf.concat([value, ones], axis=-1)  # [B, S, N, D + 1]
  # float32 for the result's type: a TPU still multiplies the 16-bit values as such, and adds in float32.
  joined = tf.einsum("bnqs,bsnd->bqnd", _float32(exp), _float32(columns))
  return joined[..., :-1], joined[..., -1:]


def _float32(x: tf.Tensor) -> tf.Tensor:
  return tf.cast(x, tf.float32)


def _only(is_kept: tf.Tensor | None, x: tf.Tensor) -> tf.Tensor:
  """x where it is kept, else 0; all of x without dropout."""
  if is_kept is None:
    return x
  return tf.where(is_kept, x, tf.zeros([], x.dtype))


def _swap_middle_axes(x: tf.Tensor) -> tf.Tensor:
  """`[B, S, N, D]` ↔ `[B, N, S, D]`."""
  return tf.transpose(x, [0, 2, 1, 3])


# ------------------------------------------------------------------ layouts


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
      query = _swap_middle_axes(query)
      context = attention_by_head(
        query, key, value, self.bias, dropout_rate=dropout_rate, seed=seed
      )
      return _swap_middle_axes(context)
    query = tf.gather(tf.reshape(query, [-1, width]), vectors)
    context = attention_by_head(query, key, value, self.bias, dropout_rate=dropout_rate, seed=seed)
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
    context = attention_by_head(
      part(0, query_rows),
      part(1, self.rows),
      part(2, self.rows),
      self.bias,
      dropout_rate=0.0,
      seed=None,
    )
    if positions is not None:
      return _swap_middle_axes(context)
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
