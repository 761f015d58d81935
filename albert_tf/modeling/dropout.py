"""Dropout that is a function of a seed, and the seeds of a call."""

from typing import TypeAlias

import tensorflow as tf

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
