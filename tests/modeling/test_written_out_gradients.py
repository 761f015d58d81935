"""Functions with own gradients, the precision of the masked-LM head, and layer similarity, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.compat import raw_variable, variable_path
from albert_tf.configs import AlbertConfig
from albert_tf.modeling import initialize_variables
from albert_tf.modeling.layer_similarity import layer_similarity
from albert_tf.modeling.layers import gelu
from albert_tf.modeling.losses import cross_entropy_sums
from albert_tf.modeling.pretraining import MaskedLmHead

VALUES = 11


@pytest.mark.parametrize(
  ("dtype", "tolerance"), [("float64", 5e-6), ("float32", 5e-6), ("bfloat16", 0.005)]
)
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
  logits = rng.normal(scale=4.0, size=(3, 4, VALUES)).astype(np.float32)
  labels = rng.integers(VALUES, size=(3, 4)).astype(np.int32)
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
  np.testing.assert_allclose(
    tape.gradient(got.loss, logits), tape.gradient(want, logits), atol=1e-6
  )
  right = tf.cast(tf.argmax(logits, -1, output_type=tf.int32) == labels, tf.float32)
  assert 0 < float(tf.reduce_sum(right)) < 12
  np.testing.assert_allclose(got.correct, tf.reduce_sum(weights * right), rtol=1e-6)


@pytest.mark.parametrize("label", [-1, VALUES])
def test_a_label_outside_of_the_vocabulary_is_not_passed_over(predictions, label):
  logits, labels, weights = predictions
  labels = tf.tensor_scatter_nd_update(labels, [[1, 2]], [label])
  assert np.isnan(cross_entropy_sums(logits, labels, weights).loss)


def test_layer_similarity_is_numpys_and_padding_does_not_count():
  rng = np.random.default_rng(0)
  x_in, x_out = rng.normal(size=(2, 3, 5, 7))  # B=3, S=5, H=7.
  mask = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0]])
  norm_in, norm_out = (np.linalg.norm(x, axis=-1) for x in (x_in, x_out))
  angles = np.degrees(np.arccos((x_in * x_out).sum(-1) / (norm_in * norm_out)))
  want = [np.linalg.norm(x_out - x_in, axis=-1)[mask == 1].sum(), angles[mask == 1].sum()]
  np.testing.assert_allclose(layer_similarity(x_in, x_out, mask), want, rtol=1e-5)
  x_out[mask == 0] = 1e9
  np.testing.assert_allclose(layer_similarity(x_in, x_out, mask), want, rtol=1e-5)
  _, degrees = layer_similarity(np.stack([x_in, x_in]), np.stack([x_out, -x_in]), mask)
  np.testing.assert_allclose(degrees, [want[1], 180.0 * mask.sum()], rtol=1e-5)


def test_small_angles_keep_their_digits_and_no_movement_is_zero():
  """Angles of converging layers are smaller than the precision of a float32 arc cosine."""
  x, one = tf.constant([[[3.0, 4.0]]]), tf.ones([1, 1])
  turned = x + 1e-3 * tf.constant([[[-4.0, 3.0]]])
  np.testing.assert_allclose(layer_similarity(x, turned, one), [5e-3, np.degrees(1e-3)], rtol=1e-4)
  assert [float(value) for value in layer_similarity(x, x, one)] == [0.0, 0.0]


B, P, V, E, H = 2, 3, 50, 24, 40
CONFIG = AlbertConfig.from_name("tiny", vocab_size=V, embedding_size=E, hidden_size=H)


def exact(x):
  return np.array(tf.cast(x, tf.float64))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_logits_are_not_rounded_to_16_bits(dtype):
  """Compared with float64 sums of the same 16-bit factors; rounding would change them by up to 2^-9."""
  head = MaskedLmHead(CONFIG, dtype=f"mixed_{dtype}")
  head.build()
  variables = {variable_path(v): raw_variable(v) for v in head.weights}
  initialize_variables(variables, seed=1, initializer_range=0.5)
  rng = np.random.default_rng(0)
  hidden = tf.constant(rng.normal(size=(B, P, H)), dtype)
  table = tf.Variable(rng.normal(size=(V, E)), dtype=tf.float32)
  with tf.GradientTape() as tape:
    logits = head(hidden, None, table)
    loss = tf.reduce_sum(tf.sin(logits))
  assert logits.dtype == tf.float32
  factors = (
    exact(tf.cast(head.layer_norm(head.transform(hidden)), dtype)),
    exact(tf.cast(table, dtype)),
  )
  want = np.einsum("bpe,ve->bpv", *factors)
  np.testing.assert_allclose(logits, want, atol=1e-5 * np.abs(want).max())
  gradient = np.einsum("bpv,bpe->ve", np.cos(want), factors[0])
  got = tape.gradient(loss, table)
  assert got.dtype == tf.float32
  np.testing.assert_allclose(got, gradient, atol=0.02 * np.abs(gradient).max())
