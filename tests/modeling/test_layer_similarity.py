"""How far a layer moves its input, against NumPy by the arc cosine."""

import numpy as np
import tensorflow as tf

from albert_tf.modeling.layer_similarity import layer_similarity


def test_it_is_numpys_and_padding_does_not_count():
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
  """A converging layer moves its input by less than the arc cosine of a float32 can tell."""
  x, one = tf.constant([[[3.0, 4.0]]]), tf.ones([1, 1])
  turned = x + 1e-3 * tf.constant([[[-4.0, 3.0]]])
  np.testing.assert_allclose(layer_similarity(x, turned, one), [5e-3, np.degrees(1e-3)], rtol=1e-4)
  assert [float(value) for value in layer_similarity(x, x, one)] == [0.0, 0.0]
