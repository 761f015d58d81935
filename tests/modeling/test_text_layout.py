"""Packed texts, without padding, give the vectors and gradients of padded ones."""

import dataclasses

import numpy as np
import pytest
from support import tiny_run
from support.stacks import needs_host_xla
from support.synthetic_checkpoint import CONFIG
import tensorflow as tf

from albert_tf.modeling import Encoder, named_variables

MASKS = {
  "padding": [[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]],
  "holes": [[1, 0, 1, 0, 0, 1], [0, 1, 1, 0, 1, 0], [1, 1, 1, 1, 1, 1]],
  "full": [[1] * 6, [1] * 6, [1] * 6],
  "empty": [[0] * 6, [1, 1, 0, 0, 0, 0], [0] * 6],
  "no_rows": np.zeros([0, 6]),
}


def encoder_and_inputs(mask, **changes):
  encoder = Encoder(dataclasses.replace(CONFIG, **changes))
  tiny_run.randomize(encoder, seed=3, stddev=0.1)
  mask = np.asarray(mask, np.int32)
  ids = np.random.default_rng(1).integers(5, CONFIG.vocab_size, mask.shape)
  return encoder, {"input_ids": tf.constant(ids, tf.int32), "input_mask": tf.constant(mask)}


def outputs_and_gradients(encoder, inputs, **call_args):
  """What is read at real tokens, and the gradients of a function of it."""
  variables = list(named_variables(encoder).values())
  with tf.GradientTape() as tape:
    outputs = encoder(inputs, **call_args)
    sequence = outputs["sequence_output"]
    if "read_positions" not in inputs:
      mask = inputs["input_mask"]
      mask = tf.where(tf.reduce_any(mask > 0, axis=1, keepdims=True), mask, 1)
      sequence *= tf.cast(mask, tf.float32)[:, :, tf.newaxis]
    loss = tf.reduce_sum(sequence**2) + tf.reduce_sum(outputs["pooled_output"])
  gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
  dense = [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]
  return [sequence.numpy(), outputs["pooled_output"].numpy(), *dense]


def assert_packed_is_padded(encoder, inputs, **call_args):
  packed = outputs_and_gradients(encoder, inputs, **call_args)
  encoder.packs = False
  padded = outputs_and_gradients(encoder, inputs, **call_args)
  for of_packed, of_padded in zip(packed, padded, strict=True):
    scale = max(1.0, np.abs(of_padded).max(initial=0.0))
    np.testing.assert_allclose(of_packed, of_padded, atol=2e-6 * scale, rtol=0)


@pytest.mark.parametrize("kind", list(MASKS))
def test_packed_texts_have_the_vectors_and_gradients_of_padded_ones(kind):
  encoder, inputs = encoder_and_inputs(MASKS[kind])
  assert_packed_is_padded(encoder, inputs)


def test_some_positions_of_packed_texts():
  encoder, inputs = encoder_and_inputs(MASKS["padding"])
  inputs["read_positions"] = tf.constant([[5, 0], [1, 1], [2, 0]])
  assert_packed_is_padded(encoder, inputs)


def test_packed_texts_in_a_loop_and_at_several_depths():
  encoder, inputs = encoder_and_inputs(MASKS["padding"], num_hidden_layers=3)
  assert_packed_is_padded(encoder, inputs, depths=[1, 3])


def test_padding_is_zeros_and_computed_by_no_block():
  """A NaN in the table of padding's token would show in any product that reads it."""
  encoder, inputs = encoder_and_inputs(MASKS["padding"])
  inputs["input_ids"] = inputs["input_ids"] * inputs["input_mask"]
  table = named_variables(encoder)["bert/embeddings/word_embeddings"]
  table.assign(tf.tensor_scatter_nd_update(table, [[0]], tf.fill([1, table.shape[1]], np.nan)))
  found = encoder(inputs)["sequence_output"].numpy()
  is_token = inputs["input_mask"].numpy() > 0
  assert np.isfinite(found).all()
  assert not found[~is_token].any()
  assert found[is_token].any(axis=-1).all()


@needs_host_xla
def test_a_program_of_xla_has_fixed_shapes():
  encoder, inputs = encoder_and_inputs(MASKS["padding"])
  layouts = []

  @tf.function(jit_compile=True)
  def program(mask):
    layouts.append(type(encoder.layout(mask, has_seed=False)).__name__)
    return mask

  program(inputs["input_mask"])
  assert layouts == ["PaddedLayout"]
