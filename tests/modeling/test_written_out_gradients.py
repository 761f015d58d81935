"""Functions whose gradients are written out, against NumPy and against TensorFlow's own."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.modeling.layers import gelu
from albert_tf.modeling.losses import cross_entropy_sums

V = 11


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 5e-6), ("float32", 5e-6), ("bfloat16", 0.005)])
def test_gelu(dtype, tolerance):
  x = tf.cast(tf.linspace(-6.0, 6.0, 401), dtype)
  d_y = tf.cast(tf.linspace(2.0, -1.0, 401), dtype)
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = gelu(x)
  got = tape.gradient(y, x, d_y)
  u, upstream = (np.array(tf.cast(array, tf.float64)) for array in (x, d_y))
  c = np.sqrt(2 / np.pi)
  t = np.tanh(c * (u + 0.044715 * u**3))
  slope = 0.5 * (1 + t) + 0.5 * u * (1 - t**2) * c * (1 + 3 * 0.044715 * u**2)
  assert got.dtype == y.dtype == x.dtype
  np.testing.assert_allclose(tf.cast(got, tf.float64), upstream * slope, atol=tolerance * 2)
  np.testing.assert_allclose(tf.cast(y, tf.float64), 0.5 * u * (1 + t), atol=tolerance * 12)


@pytest.fixture
def predictions():
  rng = np.random.default_rng(0)
  logits = rng.normal(scale=4.0, size=(3, 4, V)).astype(np.float32)
  labels = rng.integers(V, size=(3, 4)).astype(np.int32)
  logits[0, :2, labels[0, :2]] = 20.0  # Surely right.
  return tf.constant(logits), tf.constant(labels), tf.constant(rng.random((3, 4)), tf.float32)


def test_masked_lm_sums_are_those_of_tensorflow(predictions):
  logits, labels, weights = predictions
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(logits)
    got = cross_entropy_sums(logits, labels, weights)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    want = tf.reduce_sum(weights * losses)
  np.testing.assert_allclose(got.loss, want, rtol=1e-6)
  np.testing.assert_allclose(tape.gradient(got.loss, logits), tape.gradient(want, logits), atol=1e-6)
  right = tf.cast(tf.argmax(logits, -1, output_type=tf.int32) == labels, tf.float32)
  assert 0 < float(tf.reduce_sum(right)) < 12
  np.testing.assert_allclose(got.correct, tf.reduce_sum(weights * right), rtol=1e-6)


@pytest.mark.parametrize("label", [-1, V])
def test_a_label_outside_of_the_vocabulary_is_not_passed_over(predictions, label):
  logits, labels, weights = predictions
  labels = tf.tensor_scatter_nd_update(labels, [[1, 2]], [label])
  assert np.isnan(cross_entropy_sums(logits, labels, weights).loss)
