"""Distance and angle between input and output of a layer, the measures of the paper's figure 1.

Evaluation in pretraining reports them.
"""

import math

import tensorflow as tf


def layer_similarity(
  x_in: tf.Tensor, x_out: tf.Tensor, mask: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  r"""The distance $\lVert x_{out} - x_{in} \rVert_2$, and the angle in degrees.

  The angle is $\arccos \frac{x_{in} \cdot x_{out}}{|x_{in}| |x_{out}|}$, computed as
  $2 \arctan2(|u - v|, |u + v|)$ of the unit vectors. This is exact if input and output are nearly
  equal, where the arc cosine loses half of its digits.

  Args:
    x_in, x_out: `[…, B, S, H]`.
    mask: `[B, S]`, 1 for a real position, 0 for padding.

  Returns:
    Sums over the real positions, both float32 `[…]`.

  Reference: ALBERT figure 1: "the L2 distances and cosine similarity (in terms of degree) of the
  input and output embedding of each layer".
  """
  x_in = tf.cast(x_in, tf.float32)
  x_out = tf.cast(x_out, tf.float32)
  mask = tf.cast(mask, tf.float32)
  distance = tf.norm(x_out - x_in, axis=-1)  # [..., B, S]
  u = tf.math.l2_normalize(x_in, axis=-1)
  v = tf.math.l2_normalize(x_out, axis=-1)
  half_angle = tf.math.atan2(tf.norm(u - v, axis=-1), tf.norm(u + v, axis=-1))
  angle = (360.0 / math.pi) * half_angle  # [..., B, S], in degrees.
  distance_sum = tf.reduce_sum(distance * mask, axis=[-2, -1])
  angle_sum = tf.reduce_sum(angle * mask, axis=[-2, -1])
  return distance_sum, angle_sum
