"""How far a layer moves its input: the figure with which the paper argues that shared layers are stable."""

import math
from typing import NamedTuple

import tensorflow as tf


class LayerSimilarity(NamedTuple):
  """Of one layer or of several; float32, means over the real positions.

  Attributes:
    l2: Euclidean distance between input and output.
    degrees: angle between them, 0 to 180.
  """

  l2: tf.Tensor
  degrees: tf.Tensor


def layer_similarity(x_in: tf.Tensor, x_out: tf.Tensor, mask: tf.Tensor) -> LayerSimilarity:
  r"""$\lVert x_{out} - x_{in} \rVert_2$ and $\arccos \frac{x_{in} \cdot x_{out}}{|x_{in}| |x_{out}|}$.

  The angle is computed as $2 \arctan2(|u - v|, |u + v|)$ of the unit vectors, which keeps its digits where input and
  output nearly agree; there the arc cosine loses half of them.

  Args:
    x_in: `[B, S, H]`, or `[L, B, S, H]` of several layers.
    x_out: the same shape.
    mask: `[B, S]`, 1 for a real position; 0 for one that does not count, as padding.

  Returns:
    Scalars, or `[L]`.

  Reference: ALBERT figure 1: "the L2 distances and cosine similarity (in terms of degree) of the input and output
  embedding of each layer".
  """
  x_in, x_out, mask = (tf.cast(value, tf.float32) for value in (x_in, x_out, mask))
  distance = tf.norm(x_out - x_in, axis=-1)  # [..., B, S]
  u, v = (tf.math.l2_normalize(value, axis=-1) for value in (x_in, x_out))
  angle = 2.0 * tf.math.atan2(tf.norm(u - v, axis=-1), tf.norm(u + v, axis=-1))
  count = tf.reduce_sum(mask)

  def mean(values: tf.Tensor) -> tf.Tensor:
    return tf.math.divide_no_nan(tf.reduce_sum(values * mask, axis=[-2, -1]), count)

  return LayerSimilarity(mean(distance), mean(angle * (180.0 / math.pi)))
