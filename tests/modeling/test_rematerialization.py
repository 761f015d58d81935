"""Rematerialisation gives the same gradients, for all kinds of sharing and loops, also with dropout."""

import dataclasses
import functools

import numpy as np
import pytest
from support.stacks import needs_host_xla
import tensorflow as tf

from albert_tf import AlbertEncoder
from albert_tf.configs import AlbertConfig
from albert_tf.modeling import initialize_variables, named_variables
from albert_tf.modeling.rematerialization import rematerialize

CONFIG = AlbertConfig.from_name(
  "tiny",
  vocab_size=90,
  num_hidden_layers=4,
  hidden_dropout_prob=0.1,
  attention_probs_dropout_prob=0.1,
)


def loss_and_gradients(config, options, *, jit=False, depths=(), eager=False):
  """The loss over all that is read, and name → gradient."""
  encoder = AlbertEncoder(config, **options)
  variables = named_variables(encoder)
  initialize_variables(variables, seed=3, initializer_range=0.1)
  rng = np.random.default_rng(1)
  inputs = {
    "input_ids": tf.constant(rng.integers(5, 90, (2, 12)), tf.int32),
    "input_mask": tf.constant([[1] * 12, [1] * 7 + [0] * 5], tf.int32),
    "read_positions": tf.constant([[3, 7], [1, 2]], tf.int32),
  }
  scale = tf.constant(rng.normal(size=(2, 2, config.hidden_size)), tf.float32)

  def compute():
    with tf.GradientTape() as tape:
      outputs = encoder(inputs, training=True, seed=tf.constant([1, 2]), depths=depths)
      loss = 0.0
      for read in outputs.get("of_depths", [outputs]):
        loss += tf.reduce_sum(read["sequence_output"] * scale)
        loss += tf.reduce_sum(read["pooled_output"])
    gradients = tape.gradient(loss, list(variables.values()))
    return loss, [tf.convert_to_tensor(gradient) for gradient in gradients]

  program = compute if eager else tf.function(compute, jit_compile=jit, autograph=False)
  loss, gradients = program()
  return loss.numpy(), {name: g.numpy() for name, g in zip(variables, gradients, strict=True)}


@functools.cache
def expected(sharing, *, jit=False):
  """Loss and gradients of a model that keeps all activations for the backward pass."""
  config = dataclasses.replace(CONFIG, sharing=sharing)
  return loss_and_gradients(config, {}, jit=jit, eager=not jit)


def assert_same(found, expected):
  assert found[0] == pytest.approx(expected[0], rel=1e-5)
  largest = max(np.abs(g).max() for g in expected[1].values())
  for name, value in expected[1].items():
    np.testing.assert_allclose(found[1][name], value, atol=1e-5 * largest, err_msg=name)


@pytest.mark.parametrize(
  ("sharing", "options", "jit"),
  [
    ("all", {"remat": True}, False),
    ("all", {"remat": True, "layer_loop": "while"}, False),
    pytest.param(
      "all", {"remat": True, "layer_loop": "while"}, True, marks=[needs_host_xla, pytest.mark.slow]
    ),
    ("attention", {"remat": True}, False),
    pytest.param("none", {"remat": True}, True, marks=pytest.mark.slow),
  ],
)
def test_gradients_are_those_of_a_model_that_keeps_everything(sharing, options, jit):
  config = dataclasses.replace(CONFIG, sharing=sharing)
  assert_same(
    loss_and_gradients(config, options, jit=jit, eager=not jit), expected(sharing, jit=jit)
  )


@pytest.mark.stack
@pytest.mark.parametrize(
  ("options", "jit"),
  [
    ({}, False),
    pytest.param({"remat": True}, False, marks=pytest.mark.slow),
    pytest.param({"layer_loop": "while"}, False, marks=pytest.mark.slow),
    pytest.param({"remat": True}, True, marks=[needs_host_xla, pytest.mark.slow]),
  ],
)
def test_one_pass_that_reads_several_depths_is_one_pass_for_each(options, jit):
  """The sum of the losses and gradients of models with so many layers, without dropout."""
  config = dataclasses.replace(CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
  together = loss_and_gradients(config, options, jit=jit, depths=(1, 2, 4), eager=not options)
  apart = [loss_and_gradients(config.at_depth(depth), {}, eager=True) for depth in (1, 2, 4)]
  gradients = {name: sum(of_depth[name] for _, of_depth in apart) for name in together[1]}
  assert_same(together, (sum(loss for loss, _ in apart), gradients))


@pytest.mark.parametrize("loop", [False, True])
def test_only_the_inputs_of_steps_are_kept(loop):
  """The inner activation of a step is wider than its input, and must not be kept for the backward pass."""
  count, width = 5, 96
  weights = tf.Variable(tf.random.stateless_normal([8, width], [1, 2]))

  def step(x, i):
    del i
    return tf.matmul(tf.nn.tanh(tf.matmul(x, weights)), weights, transpose_b=True)

  @tf.function
  def forward(x):
    return rematerialize(step, x, count, loop=loop)

  with tf.GradientTape():
    forward(tf.ones([3, 8]))
  kept = [tuple(tensor.shape) for tensor in forward.get_concrete_function(tf.ones([3, 8])).outputs]
  assert (count, 3, 8) in kept
  assert not any(shape[-2:] == (3, width) for shape in kept)
