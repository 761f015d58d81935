"""Dropout: which entries it zeroes, and how it scales the others."""

import numpy as np
import pytest
from support.stacks import needs_host_xla
import tensorflow as tf

from albert_tf.modeling.dropout import dropout, dropout_mask

SEED = (3, 4)


def masks(rate, shape, count):
  shape = tf.constant(shape)
  return np.stack([dropout_mask(shape, rate, (7, number))[0] for number in range(count)])


@pytest.mark.parametrize(
  ("rate", "dropped"), [(0.1, 26), (0.5, 128), (0.9, 230), (1e-4, 1), (0.9999, 255)]
)
def test_the_share_that_is_zeroed(rate, dropped):
  """The rate is the nearest multiple of 1/256, but neither 0 nor 1; the mean of x stays."""
  shape = tf.constant([64, 32, 256])
  is_kept, kept_share = dropout_mask(shape, rate, SEED)
  assert kept_share == 1 - dropped / 256
  deviation = np.sqrt(kept_share * (1 - kept_share) / is_kept.shape.num_elements())
  assert np.mean(is_kept) == pytest.approx(kept_share, abs=4 * deviation)
  y = dropout(tf.ones(shape), rate, SEED).numpy()
  np.testing.assert_allclose(y, is_kept / np.float32(kept_share), rtol=1e-6)


_OTHER_SHAPES = [[7], [1, 3], [2, 3, 4, 9], [8, 6]]


@pytest.mark.parametrize(
  "shape", [[2, 5, 7], *(pytest.param(shape, marks=pytest.mark.slow) for shape in _OTHER_SHAPES)]
)
def test_each_entry_is_zeroed_alone(shape):
  """In many masks each entry has its share, and no two entries are zeroed together more often than by chance."""
  count = 1500
  flat = masks(0.25, shape, count).reshape(count, -1).astype(float)
  flat -= 0.75
  covariance = flat.T @ flat / count
  chance = 0.75 * 0.25 / np.sqrt(count)
  np.testing.assert_allclose(np.diag(covariance), 0.75 * 0.25, atol=5 * chance)
  np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=5 * chance)
  assert np.abs(flat.mean(axis=0)).max() < 5 * np.sqrt(0.75 * 0.25 / count)


@needs_host_xla
def test_a_seed_has_one_mask_however_it_is_computed():
  """Eagerly, in a graph that does not know the shape, and compiled by XLA for a fixed one."""
  x = tf.ones([3, 5, 4])
  eager = dropout(x, 0.3, SEED)
  unknown = tf.function(
    lambda x: dropout(x, 0.3, SEED), input_signature=[tf.TensorSpec([None, None, 4])]
  )
  compiled = tf.function(lambda x: dropout(x, 0.3, SEED), jit_compile=True)
  np.testing.assert_array_equal(eager, unknown(x))
  np.testing.assert_allclose(eager, compiled(x), rtol=1e-6)
  assert np.any(eager != dropout(x, 0.3, (3, 5)))
  assert unknown.get_concrete_function().output_shapes == tf.TensorShape([None, None, 4])
