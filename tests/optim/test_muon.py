"""Muon: its update against NumPy, the variables it takes, and mistakes."""

import numpy as np
import pytest
from reference.muon import muon_step
import tensorflow as tf

from albert_tf.optim.muon import muon_update, orthogonalized


@pytest.mark.parametrize("shape", [(6, 6), (4, 7), (7, 4)])
def test_muon_equals_numpy(shape):
  p, g, m = np.random.default_rng(1).standard_normal((3, *shape)).astype(np.float32)
  got = muon_update(p, g, m, learning_rate=0.02, momentum=0.9, weight_decay=0.3)
  want = muon_step(p, g, m, lr=0.02, momentum=0.9, wd=0.3)
  np.testing.assert_allclose(got.p, want[0], rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(got.m, want[1], rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(got.delta, p - want[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_singular_values_come_near_1_in_16_bits_too(dtype):
  x = np.random.default_rng(1).standard_normal((16, 64)).astype(np.float32)
  values = np.linalg.svd(orthogonalized(x, dtype).numpy(), compute_uv=False)
  assert 0.6 < values.min() <= values.max() < 1.3


def test_a_gradient_of_0_only_decays():
  p, zeros = tf.ones([4, 8]), tf.zeros([4, 8])
  result = muon_update(p, zeros, zeros, learning_rate=0.5, momentum=0.9, weight_decay=0.1)
  np.testing.assert_allclose(result.p, 0.95 * p)
