"""Muon: its update against NumPy, the variables it takes, and mistakes."""

import numpy as np
import pytest
from reference.muon import muon_step
import tensorflow as tf

from albert_tf.configs import HEADS, AlbertConfig
from albert_tf.errors import UserError
from albert_tf.modeling.name_map import variable_entries
from albert_tf.optim.config import OptimizerConfig
from albert_tf.optim.muon import muon_matrices, muon_update, orthogonalized
from albert_tf.optim.optimizer import build_optimizer


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
  result = orthogonalized(x, dtype)
  assert result.dtype == tf.float32
  values = np.linalg.svd(result.numpy(), compute_uv=False)
  assert 0.6 < values.min() <= values.max() < 1.3


def test_a_gradient_of_0_only_decays():
  p, zeros = tf.ones([4, 8]), tf.zeros([4, 8])
  result = muon_update(p, zeros, zeros, learning_rate=0.5, momentum=0.9, weight_decay=0.1)
  np.testing.assert_allclose(result.p, 0.95 * p)


@pytest.mark.parametrize(
  ("changes", "matrices"),
  [
    ({"sharing": "all"}, 4 + 2),
    ({"sharing": "attention"}, 4 + 2 * 4),
    ({"sharing": "ffn"}, 4 * 4 + 2),
    ({"sharing": "none"}, 4 * (4 + 2)),
    ({"num_hidden_groups": 2, "inner_group_num": 3}, 2 * 3 * (4 + 2)),
  ],
)
def test_muon_takes_each_matrix_of_a_block_once(changes, matrices):
  config = AlbertConfig.from_name("tiny", num_hidden_layers=4, **changes)
  shapes = {entry.name: entry.shape for entry in variable_entries(config, HEADS)}
  assert len(muon_matrices(shapes)) == matrices


def test_both_rates_follow_one_schedule():
  """With the momentum of the first gradient alone, a step is proportional to the rate of the update."""
  kernel = np.random.default_rng(0).standard_normal((3, 5)).astype("f")
  steps = []
  for options in ({}, {"muon_learning_rate": 0.004}):
    variable = tf.Variable(kernel)
    config = OptimizerConfig(name="muon", learning_rate=0.002, weight_decay=0.0, **options)
    build_optimizer(config, {"transformer/kernel": variable}).apply(
      {"transformer/kernel": tf.constant(kernel)}, 0.001
    )
    steps.append(kernel - variable.numpy())
  np.testing.assert_allclose(steps[1], 2 * steps[0], rtol=1e-3, atol=1e-6)
  want, _ = muon_step(kernel, kernel, 0 * kernel, lr=0.001, momentum=0.95, wd=0.0)
  np.testing.assert_allclose(kernel - steps[0], want, rtol=1e-5)


@pytest.mark.parametrize(
  ("settings", "received"),
  [
    ({"name": "muon", "learning_rate": 0.0}, "learning_rate .*Received: 0.0"),
    ({"name": "muon", "muon_learning_rate": 0.0}, "muon_learning_rate .*Received: 0.0"),
    ({"name": "muon", "muon_learning_rate": -0.1}, "muon_learning_rate .*Received: -0.1"),
    ({"muon_learning_rate": 0.1}, "Received: 0.1 with --optimizer=lamb.*--optimizer=muon"),
  ],
)
def test_rates_that_muon_cannot_take_are_refused(settings, received):
  with pytest.raises(UserError, match=received):
    OptimizerConfig(**settings)


def test_muon_without_a_matrix_is_refused():
  only_head = {"cls/predictions/transform/dense/kernel": tf.Variable(tf.ones([2, 3]))}
  with pytest.raises(UserError, match=r"Received: 1 .*--optimizer=lamb"):
    build_optimizer(OptimizerConfig(name="muon"), only_head)
