"""Dot-product attention in two forms: plain, and with fewer passes over arrays `[Q, S]`.

`text_layout` takes the second on accelerators.
"""

import math
from typing import Any

import tensorflow as tf

from albert_tf.compat import device_kind
from albert_tf.modeling.dropout import Seed, dropout, dropout_mask

# Added to the score of a padded key (original code); finite, so that a row of padding stays finite.
MASKED_SCORE = -10000.0


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
  context = attend(
    _swap_middle_axes(query),
    _swap_middle_axes(key),
    _swap_middle_axes(value),
    bias,
    dropout_rate=dropout_rate,
    seed=seed,
  )
  return _swap_middle_axes(context)


def attend(
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
