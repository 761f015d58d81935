"""How far a layer moves its input, and the input of the first layer among the encoder's outputs."""

import numpy as np
import pytest
from reference.layer_similarity import layer_similarity as twin
from support.tiny_records import tiny_config
import tensorflow as tf

from albert_tf import AlbertEncoder
from albert_tf.modeling import named_variables
from albert_tf.modeling.layer_similarity import layer_similarity


def test_it_is_the_twins_and_padding_does_not_count():
  rng = np.random.default_rng(0)
  x_in, x_out = rng.normal(size=(2, 3, 5, 7)).astype(np.float32)  # B=3, S=5, H=7.
  mask = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0]])
  found = layer_similarity(x_in, x_out, mask)
  np.testing.assert_allclose([found.l2, found.degrees], twin(x_in, x_out, mask), rtol=1e-5)
  x_out[mask == 0] = 1e9
  np.testing.assert_array_equal(layer_similarity(x_in, x_out, mask), found)
  stacked = layer_similarity(np.stack([x_in, x_in]), np.stack([x_out, -x_in]), mask)
  np.testing.assert_allclose(stacked.degrees, [found.degrees, 180.0], rtol=1e-5)


def test_small_angles_keep_their_digits_and_no_movement_is_zero():
  """A converging layer moves its input by less than the arc cosine of a float32 can tell."""
  x = tf.constant([[[3.0, 4.0]]])
  turned = x + 1e-3 * tf.constant([[[-4.0, 3.0]]])
  np.testing.assert_allclose(
    layer_similarity(x, turned, tf.ones([1, 1])), [5e-3, np.degrees(1e-3)], rtol=1e-4
  )
  assert [float(value) for value in layer_similarity(x, x, tf.ones([1, 1]))] == [0.0, 0.0]
  assert [float(value) for value in layer_similarity(x, turned, tf.zeros([1, 1]))] == [0.0, 0.0]


@pytest.mark.parametrize("changes", [{}, {"embedding_size": 12}], ids=["mapped", "E = H"])
def test_the_first_layers_input_is_among_the_outputs(changes):
  encoder = AlbertEncoder(tiny_config(**changes))
  outputs = encoder({"input_ids": tf.constant([[2, 9, 8, 3]])})
  expected = outputs["embedding_output"]
  if not changes:
    weights = named_variables(encoder)
    mapping = "bert/encoder/embedding_hidden_mapping_in"
    expected = expected @ weights[f"{mapping}/kernel"] + weights[f"{mapping}/bias"]
  np.testing.assert_allclose(outputs["encoder_input"], expected, rtol=1e-5, atol=1e-6)
  assert len(outputs["all_encoder_layers"]) == 2
