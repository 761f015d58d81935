"""Attention and its gradient against NumPy, and in 16-bit training: repeated, rematerialised, distributed."""

from unittest import mock

import numpy as np
import pytest
from support.stacks import needs_host_xla
import tensorflow as tf

from albert_tf.configs import AlbertConfig
from albert_tf.modeling import (
  AlbertForPreTraining,
  initialize_variables,
  named_variables,
)
from albert_tf.modeling.attention import attention_bias, lean_attention, plain_attention
from albert_tf.modeling.dropout import dropout
from albert_tf.modeling.layers import moments

B, Q, S, N, D = 2, 4, 5, 3, 8
MASK = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]])
SEED = (3, 4)
CONFIG = AlbertConfig.from_name(
  "tiny", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_hidden_layers=2
)


def inputs(scale=1.0):
  rng = np.random.default_rng(0)
  shapes = {
    "query": (B, Q, N, D),
    "key": (B, S, N, D),
    "value": (B, S, N, D),
    "d_output": (B, Q, N, D),
  }
  return {name: scale * rng.normal(size=shape) for name, shape in shapes.items()}


def numpy_attention(query, key, value, d_output, mask, kept):
  """float64: the output and the gradients of query, key, value; `kept` multiplies the probabilities."""
  scores = (
    np.einsum("bqnd,bsnd->bnqs", query, key) / np.sqrt(D) + (1.0 - mask[:, None, None]) * -10000.0
  )
  p = np.exp(scores - scores.max(-1, keepdims=True))
  p /= p.sum(-1, keepdims=True)
  dp = np.einsum("bqnd,bsnd->bnqs", d_output, value) * kept
  ds = p * (dp - (dp * p).sum(-1, keepdims=True))
  return (
    np.einsum("bnqs,bsnd->bqnd", p * kept, value),
    np.einsum("bnqs,bsnd->bqnd", ds, key) / np.sqrt(D),
    np.einsum("bnqs,bqnd->bsnd", ds, query) / np.sqrt(D),
    np.einsum("bnqs,bqnd->bsnd", p * kept, d_output),
  )


def attention_and_gradients(attention, arrays, dtype, rate, mask=MASK):
  tensors = {name: tf.constant(array, dtype) for name, array in arrays.items()}
  d_output = tensors.pop("d_output")
  with tf.GradientTape() as tape:
    tape.watch(tensors)
    output = attention(
      **tensors, bias=attention_bias(tf.constant(mask)), dropout_rate=rate, seed=SEED
    )
  gradients = tape.gradient(output, tensors, output_gradients=d_output)
  assert {output.dtype, *(gradient.dtype for gradient in gradients.values())} == {dtype}
  return [np.array(tf.cast(x, tf.float64)) for x in (output, *gradients.values())]


def lean_attention_on_a_gpu(*args, **kwargs):
  with mock.patch.object(tf.config, "get_visible_devices", return_value=["a GPU"]):
    return lean_attention(*args, **kwargs)


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize(
  ("dtype", "attention", "tolerance"),
  [
    (tf.float32, plain_attention, 1e-5),
    (tf.float32, lean_attention, 1e-5),
    (tf.bfloat16, plain_attention, 0.04),
    (tf.bfloat16, lean_attention, 0.04),
    (tf.float32, lean_attention_on_a_gpu, 1e-5),
    (tf.bfloat16, lean_attention_on_a_gpu, 0.04),
    (tf.float16, lean_attention, 0.006),
  ],
)
def test_output_and_gradients(dtype, attention, tolerance, rate):
  arrays = {name: np.array(tf.cast(tf.cast(x, dtype), tf.float64)) for name, x in inputs().items()}
  kept = dropout(tf.ones([B, N, Q, S], tf.float64), rate, SEED).numpy()
  want = numpy_attention(**arrays, mask=MASK, kept=kept)
  got = attention_and_gradients(attention, arrays, dtype, rate)
  for name, x, y in zip(("output", *arrays), got, want, strict=False):
    np.testing.assert_allclose(x, y, atol=tolerance * max(1.0, np.abs(y).max()), err_msg=name)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 30.0])
def test_any_scores_are_safe(scale):
  """Very large scores, and rows of only padding, give finite results."""
  mask = np.array([[1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
  for got in attention_and_gradients(lean_attention, inputs(scale), tf.bfloat16, 0.0, mask):
    assert np.isfinite(got).all()


def pretraining_gradients(dtype, *, jit=False, **encoder_options):
  rng = np.random.default_rng(1)
  model = AlbertForPreTraining(
    CONFIG, encoder_options=encoder_options, read_positions_only=True, dtype=dtype
  )
  variables = named_variables(model)
  initialize_variables(variables, seed=2, initializer_range=0.1)
  batch = {
    "input_ids": tf.constant(rng.integers(5, CONFIG.vocab_size, size=(3, 12)), tf.int32),
    "input_mask": tf.constant(np.arange(12) < np.array([[12], [7], [9]]), tf.int32),
    "masked_lm_positions": tf.constant([[1, 4], [2, 3], [5, 6]], tf.int32),
  }

  def step(batch):
    with tf.GradientTape() as tape:
      outputs = model(batch, training=True)
      loss = tf.reduce_mean(tf.square(outputs["mlm_logits"])) + tf.reduce_mean(
        outputs["sop_logits"]
      )
    return [tf.convert_to_tensor(g) for g in tape.gradient(loss, list(variables.values()))]

  if jit:
    step = tf.function(step, jit_compile=True)
  return np.concatenate([np.ravel(gradient) for gradient in step(batch)])


@pytest.fixture(scope="module")
def float32_gradients():
  return pretraining_gradients("float32")


@pytest.mark.parametrize(
  "options",
  [
    {},
    pytest.param({"remat": True}, marks=pytest.mark.slow),
    {"accelerated": True},
    pytest.param({"accelerated": True, "remat": True}, marks=pytest.mark.slow),
    {"accelerated": True, "layer_loop": "while"},
    pytest.param({"accelerated": True, "jit": True}, marks=[pytest.mark.slow, needs_host_xla]),
    pytest.param(
      {"accelerated": True, "jit": True, "remat": True}, marks=[pytest.mark.slow, needs_host_xla]
    ),
  ],
)
def test_mixed_precision_has_the_gradients_of_float32(options, float32_gradients):
  got = pretraining_gradients("mixed_bfloat16", **options)
  cosine = got @ float32_gradients / np.linalg.norm(got) / np.linalg.norm(float32_gradients)
  assert cosine > 0.998  # 0.99895 on a processor without bfloat16 instructions.
  assert np.linalg.norm(got) == pytest.approx(np.linalg.norm(float32_gradients), rel=0.02)


@pytest.mark.parametrize("mean", [0.0, 30.0, -200.0])
def test_moments_of_16_bit_values(mean):
  x = tf.cast(mean + np.random.default_rng(0).normal(size=(7, 768)), tf.bfloat16)
  exact = np.array(tf.cast(x, tf.float64))
  got_mean, variance = moments(x)
  np.testing.assert_allclose(got_mean[:, 0], exact.mean(-1), rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(variance[:, 0], exact.var(-1), rtol=0.01)
  constant = moments(tf.fill([2, 768], tf.constant(mean, tf.bfloat16)))[1]
  assert (constant.numpy() >= 0).all()
