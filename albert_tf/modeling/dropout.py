"""Dropout whose mask is a function of a seed, so that a step can be repeated exactly."""

import tensorflow as tf


def dropout(x: tf.Tensor, rate: float, seed: tf.Tensor | None) -> tf.Tensor:
  """Zeroes a share `rate` of `x` and scales the rest by `1 / (1 - rate)`.

  Args:
    x: any shape.
    rate: probability of zeroing an entry, in [0, 1).
    seed: int32 `[2]`, the whole randomness of the mask; None means no dropout.

  Returns:
    A tensor like `x`; `x` itself where `rate` is 0 or `seed` is None.
  """
  if rate == 0.0 or seed is None:
    return x
  return tf.nn.experimental.stateless_dropout(x, rate=rate, seed=seed)


def split_seed(seed: tf.Tensor | None, count: int) -> list[tf.Tensor | None]:
  """`count` independent seeds derived from one, or as many None."""
  if seed is None:
    return [None] * count
  children = tf.random.stateless_uniform([count, 2], seed=seed, minval=None, maxval=None, dtype=tf.int32)
  return tf.unstack(children, num=count)


def resolve_seed(seed: tf.Tensor | None, *, training: bool | None) -> tf.Tensor | None:
  """The seed a training call uses: the caller's, or a fresh one; None at inference.

  `model.fit` passes no seed: then `keras.utils.set_random_seed` governs it.
  """
  if not training:
    return None
  if seed is not None:
    return seed
  return tf.random.uniform([2], minval=0, maxval=tf.int32.max, dtype=tf.int32)
