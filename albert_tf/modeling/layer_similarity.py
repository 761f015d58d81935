"""Distance and angle between input and output of a layer, the measures of the paper's figure 1."""

import math

import tensorflow as tf


def layer_similarity(x_in: tf.Tensor, x_out: tf.Tensor, mask: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  r"""$\lVert x_{out} - x_{in} \rVert_2$ and $\arccos \frac{x_{in} \cdot x_{out}}{|x_{in}| |x_{out}|}$ in degrees.

  The angle is computed as $2 \arctan2(|u - v|, |u + v|)$ of the unit vectors. This is exact if input and output are
  nearly equal, where the arc cosine loses half of its digits.

  Args:
    x_in, x_out: `[…, B, S, H]`.
    mask: `[B, S]`, 1 for a real position, 0 for padding.

  Returns:
    Sums over the real positions, both float32 `[…]`.

  Reference: ALBERT figure 1: "the L2 distances and cosine similarity (in terms of degree) of the input and output
  embedding of each layer".
  """
  x_in, x_out, mask = (tf.cast(value, tf.float32) for value in (x_in, x_out, mask))
  distance = tf.norm(x_out - x_in, axis=-1)  # [..., B, S]
  u, v = (tf.math.l2_normalize(value, axis=-1) for value in (x_in, x_out))
  angle = (360.0 / math.pi) * tf.math.atan2(tf.norm(u - v, axis=-1), tf.norm(u + v, axis=-1))
  return tf.reduce_sum(distance * mask, axis=[-2, -1]), tf.reduce_sum(angle * mask, axis=[-2, -1])
