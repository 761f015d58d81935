"""cuDNN's attention: where its calls stand in a step, when it is left out, and its values on a GPU."""

import dataclasses
import re

import numpy as np
import pytest
from support.stacks import needs_host_xla
import tensorflow as tf

from albert_tf import compat
from albert_tf.configs import AlbertConfig
from albert_tf.modeling import attention
from albert_tf.modeling import encoder as encoder_module
from albert_tf.modeling import fused_attention as module
from albert_tf.modeling.attention import attention_bias, plain_attention
from albert_tf.modeling.encoder import Encoder
from albert_tf.modeling.fused_attention import fused_attention
from albert_tf.modeling.layers import add_bias, gelu
from albert_tf.planning.estimate import StepShape
from albert_tf.planning.lowering import lower_train_step

LAYERS, HEADS, LENGTH, BATCH = 3, 2, 16, 4
CONFIG = AlbertConfig.from_name(
  "tiny",
  hidden_size=128,
  num_attention_heads=HEADS,
  num_hidden_layers=LAYERS,
  hidden_dropout_prob=0.0,
  attention_probs_dropout_prob=0.0,
)
SHAPE = StepShape(per_core_batch_size=BATCH, max_seq_length=LENGTH, max_predictions_per_seq=3)
needs_call = pytest.mark.skipif(
  not compat.HAS_FUSED_ATTENTION, reason="this TensorFlow cannot call cuDNN's attention"
)
needs_gpu = pytest.mark.skipif(
  not tf.config.list_physical_devices("GPU"), reason="needs an NVIDIA GPU"
)


def on_a_gpu():
  """Layers believe in a GPU. Without one, TensorFlow computes on the CPU."""
  return tf.distribute.OneDeviceStrategy("/gpu:0").scope()


def calls(program: bytes) -> tuple[int, int]:
  """How many forward and backward calls a program has."""
  return (
    len(re.findall(rb"__cudnn\$fmhaSoftmax(?!Backward)", program)),
    len(re.findall(rb"__cudnn\$fmhaSoftmaxBackward", program)),
  )


@needs_host_xla
@needs_call
@pytest.mark.parametrize(
  ("changes", "forward"),
  # A loop over layers has one call in its body; rematerialised layers call forward again.
  [
    pytest.param({}, LAYERS, marks=pytest.mark.slow),
    pytest.param({"gradient_accumulation_steps": 2}, LAYERS, marks=pytest.mark.slow),
    pytest.param({"train_depths": (1, LAYERS)}, LAYERS, marks=pytest.mark.slow),
    pytest.param({"layer_loop": "while"}, None, marks=pytest.mark.slow),
    pytest.param({"remat": True}, None, marks=pytest.mark.slow),
  ],
)
def test_a_step_for_a_gpu_has_one_call_a_layer_and_pass_and_no_array_of_scores(changes, forward):
  shape = dataclasses.replace(SHAPE, **changes)
  program = lower_train_step(CONFIG, shape, device="gpu")
  num_forward, num_backward = calls(program)
  if forward is None:
    assert num_forward > 0 < num_backward
  else:
    assert (num_forward, num_backward) == (forward, LAYERS)
  # One call of the last layer: [CLS] and three masked positions read 16 keys.
  assert f'"{BATCH}", "{HEADS}", "4", "{LENGTH}"'.encode() in program
  width = CONFIG.hidden_size // HEADS
  assert f'"fmha_scale": {1 / np.sqrt(width)}'.encode() in program
  # Dimensions as the serialized program has them: a field's number, its length, a byte for each.
  scores = bytes([0x1A, 4, BATCH, HEADS, LENGTH, LENGTH])
  assert scores not in program
  on_a_cpu = lower_train_step(CONFIG, shape)
  assert calls(on_a_cpu) == (0, 0)
  assert scores in on_a_cpu


def trace(config, options, *, training=True, jit_compile=True, batch=BATCH):
  """Traces an encoder as for a GPU; returns whether its graph has the call."""
  dtype = options.get("dtype", "mixed_bfloat16")
  with on_a_gpu():
    encoder = Encoder(config, **{"padding_at_end": True, **options, "dtype": dtype})

    @tf.function(
      jit_compile=jit_compile,
      autograph=False,
      input_signature=[tf.TensorSpec([batch, LENGTH], tf.int32)],
    )
    def run(ids):
      return encoder({"input_ids": ids}, training=training)["pooled_output"]

    graph = run.get_concrete_function().graph.as_graph_def()
  bodies = [graph.node, *(function.node_def for function in graph.library.function)]
  return any(node.op == "XlaCallModule" for body in bodies for node in body)


@needs_call
@pytest.mark.parametrize(
  ("changes", "options", "reason"),
  [
    ({}, {}, ""),
    ({}, {"padding_at_end": False}, "holes"),
    ({}, {"dtype": "float32"}, "float32"),
    ({"num_attention_heads": 1, "hidden_size": 256}, {}, "head of 256"),
    ({"num_attention_heads": 2, "hidden_size": 24}, {}, "head of 12"),
  ],
)
def test_the_form_of_attention_is_chosen_and_logged(changes, options, reason, monkeypatch):
  messages = []
  monkeypatch.setattr(module, "log_once", messages.append)
  assert trace(dataclasses.replace(CONFIG, **changes), options) == (not reason)
  assert not reason or reason in messages[0]


@pytest.mark.slow
@needs_call
def test_dropout_unknown_batches_and_plain_graphs_fall_back(monkeypatch):
  messages = []
  monkeypatch.setattr(module, "log_once", messages.append)
  with_dropout = dataclasses.replace(CONFIG, attention_probs_dropout_prob=0.1)
  assert not trace(with_dropout, {})
  assert trace(with_dropout, {}, training=False)
  assert not trace(CONFIG, {}, batch=None)
  assert not trace(CONFIG, {}, jit_compile=False)
  reasons = [message for message in messages if "without" in message]
  for reason, word in zip(reasons, ["dropout", "shape", "XLA"], strict=True):
    assert word in reason


@needs_call
def test_an_old_card_falls_back(monkeypatch):
  monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: ["a GPU"])
  details = {"compute_capability": (7, 5), "device_name": "T4"}
  monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda _: details)
  monkeypatch.setattr(compat, "is_compiled_by_xla", lambda: True)
  ids = tf.ones([2, 4], tf.int32)
  options = {"padding_at_end": True, "has_dropout": False}
  assert not module.can_fuse(CONFIG, ids, "bfloat16", **options)
  details["compute_capability"] = (8, 0)
  assert module.can_fuse(CONFIG, ids, "bfloat16", **options)


def test_a_mask_with_a_hole_ends_in_nan_and_not_in_wrong_numbers(monkeypatch):
  # A CPU has no such kernel: plain attention stands for it.
  def stand_in(query, key, value, lengths):
    mask = tf.sequence_mask(lengths, key.shape[1], tf.int32)
    return plain_attention(query, key, value, attention_bias(mask), dropout_rate=0.0, seed=None)

  encoder = Encoder(CONFIG, padding_at_end=True)
  encoder.packs = False
  ids = tf.ones([2, 5], tf.int32)

  def pooled(mask):
    return encoder({"input_ids": ids, "input_mask": tf.constant(mask)})["pooled_output"].numpy()

  without_holes = [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
  expected = pooled(without_holes)
  monkeypatch.setattr(encoder_module, "can_fuse", lambda *_, **__: True)
  monkeypatch.setattr(attention, "fused_attention", stand_in)
  np.testing.assert_allclose(pooled(without_holes), expected, atol=1e-5)
  assert np.isnan(pooled([[1, 0, 1, 0, 0], [1, 1, 1, 1, 1]])).any()


@pytest.mark.parametrize("shape", [(8,), (2, 4)])
def test_the_bias_on_a_gpu_has_the_same_gradient(shape):
  rng = np.random.default_rng(0)
  y = tf.constant(rng.normal(size=(3, 5, *shape)), tf.bfloat16)
  bias = tf.constant(rng.normal(size=shape), tf.bfloat16)
  d_sum = tf.constant(rng.normal(size=(3, 5, *shape)), tf.bfloat16)

  def gradients():
    with tf.GradientTape() as tape:
      tape.watch([y, bias])
      total = add_bias(y, bias)
    return [total, *tape.gradient(total, [y, bias], output_gradients=d_sum)]

  expected = gradients()
  with on_a_gpu():
    results = gradients()
  for result, value in zip(results, expected, strict=True):
    np.testing.assert_allclose(np.float32(result), np.float32(value), rtol=0.02, atol=0.02)


def test_gelu_on_a_gpu_is_gelu_at_any_size():
  x = tf.constant([-200.0, -30.0, -3.0, -0.5, 0.0, 0.5, 3.0, 30.0, 200.0])

  def value_and_gradient():
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = gelu(x)
    return [y, tape.gradient(y, x)]

  expected = value_and_gradient()
  with on_a_gpu():
    results = value_and_gradient()
  for result, reference in zip(results, expected, strict=True):
    np.testing.assert_allclose(result, reference, rtol=1e-5, atol=1e-6)


@needs_gpu
@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
@pytest.mark.parametrize(
  ("queries", "keys", "width"),
  [
    (128, 128, 64),
    (512, 512, 64),
    (514, 514, 64),
    (1024, 1024, 32),
    (4096, 4096, 128),
    (20, 512, 64),
  ],
)
def test_values_and_gradients_on_a_gpu(dtype, queries, keys, width):
  rng = np.random.default_rng(0)
  batch = 4
  lengths = tf.constant(np.linspace(1, keys, batch), tf.int32)
  shapes = [(queries, width), (keys, width), (keys, width), (queries, width)]
  arrays = [
    tf.cast(rng.normal(size=(batch, rows, HEADS, columns)), dtype) for rows, columns in shapes
  ]

  @tf.function(jit_compile=True, autograph=False)
  def run(attention, tensors):
    query, key, value, d_output = tensors
    with tf.GradientTape() as tape:
      tape.watch([query, key, value])
      output = attention(query, key, value)
    return [output, *tape.gradient(output, [query, key, value], output_gradients=d_output)]

  def plain(query, key, value):
    bias = attention_bias(tf.sequence_mask(lengths, keys, tf.int32))
    return plain_attention(query, key, value, bias, dropout_rate=0.0, seed=None)

  results = run(lambda *tensors: fused_attention(*tensors, lengths), arrays)
  expected = run(plain, [tf.cast(array, tf.float32) for array in arrays])
  for result, value in zip(results, expected, strict=True):
    error = np.abs(np.float32(result) - value).max() / np.abs(value).max()
    assert error < 0.01
