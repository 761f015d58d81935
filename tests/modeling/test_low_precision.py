"""Blocks of 8 and 16 bits: their numbers beside float32's, and the values that kernels get wrong."""

import dataclasses
import os
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest
from support import tiny_run
from support.stacks import needs_int8
from support.synthetic_checkpoint import CONFIG
import tensorflow as tf

from albert_tf.modeling import Encoder, named_variables
from albert_tf.modeling.low_precision import Int8Map
from albert_tf.serving import precision

ROOT = pathlib.Path(__file__).parents[2]
WIDE = dataclasses.replace(
  CONFIG, hidden_size=32, num_attention_heads=4, intermediate_size=64, max_position_embeddings=16
)
IDS = np.random.default_rng(0).integers(5, CONFIG.vocab_size, [6, 9]).astype(np.int32)
MASK = (np.arange(9) < np.array([[9], [2], [5], [1], [7], [9]])).astype(np.int32)
BATCH = {"input_ids": IDS, "input_mask": MASK}


def encoder_of(config=WIDE, stddev=0.2):
  encoder = Encoder(config)
  tiny_run.randomize(encoder, seed=1, stddev=stddev)
  return encoder


def vectors(encoder, *batches):
  """The encoder's outputs for each batch, by one program."""
  rows = {name: tf.TensorSpec([None, IDS.shape[1]], tf.int32) for name in BATCH}
  program = tf.function(lambda inputs: encoder(inputs), autograph=False, input_signature=[rows])
  return [program({name: tf.constant(array) for name, array in batch.items()}) for batch in batches]


@pytest.mark.parametrize(
  "changes",
  [{}, {"sharing": "none"}, pytest.param({"hidden_act": "tanh"}, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(
  ("name", "least_cosine"), [("bfloat16", 0.999), pytest.param("int8", 0.99, marks=needs_int8)]
)
def test_vectors_are_near_those_of_float32(name, least_cosine, changes):
  encoder = encoder_of(dataclasses.replace(WIDE, **changes))
  [expected] = vectors(encoder, BATCH)
  ranges = precision.measured_ranges(encoder, [BATCH], None)
  with precision.computed_in(encoder, name, ranges):
    [found] = vectors(encoder, BATCH)
  for key in ("sequence_output", "pooled_output"):
    want = expected[key].numpy().reshape(-1, WIDE.hidden_size)
    got = found[key].numpy().astype(np.float32).reshape(want.shape)
    is_token = np.linalg.norm(want, axis=1) > 0
    cosines = np.sum(want * got, axis=1)[is_token]
    cosines /= np.linalg.norm(want, axis=1)[is_token] * np.linalg.norm(got, axis=1)[is_token]
    assert cosines.min() > least_cosine
    assert np.abs(got - want).max() > 0


def test_an_export_in_float32_computes_no_padding_although_a_gpu_is_seen(monkeypatch):
  """It may be made beside a GPU and answer on a CPU. A NaN in padding's vector shows where it is read."""
  monkeypatch.setattr("albert_tf.modeling.encoder.device_kind", lambda: "gpu")
  encoder = encoder_of()
  table = named_variables(encoder)["bert/embeddings/word_embeddings"]
  table.assign(tf.tensor_scatter_nd_update(table, [[0]], tf.fill([1, table.shape[1]], np.nan)))
  [padded] = vectors(encoder, {**BATCH, "input_ids": IDS * MASK})
  with precision.computed_in(encoder, "float32"):
    [packed] = vectors(encoder, {**BATCH, "input_ids": IDS * MASK})
  assert not np.isfinite(padded["sequence_output"]).all()
  assert np.isfinite(packed["sequence_output"]).all()


@needs_int8
def test_a_text_has_the_same_answer_in_any_batch():
  """The ranges are constants: a text of large numbers beside it changes nothing."""
  encoder = encoder_of()
  ranges = precision.measured_ranges(encoder, [BATCH], None)
  with precision.computed_in(encoder, "int8", ranges):
    rows = [
      {name: rows[start : start + 1] for name, rows in BATCH.items()}
      for start in range(len(IDS) + 1)
    ]
    together, *alone, no_rows = vectors(encoder, BATCH, *rows)
  pooled = np.concatenate([outputs["pooled_output"] for outputs in alone])
  np.testing.assert_allclose(together["pooled_output"], pooled, atol=1e-6)
  assert no_rows["sequence_output"].shape == (0, 9, WIDE.hidden_size)


@pytest.mark.slow  # A process each.
@needs_int8
@pytest.mark.parametrize("instructions", ["AVX2", "AVX512_CORE", "ALL"])
def test_extreme_numbers_do_not_overflow_on_older_processors(instructions):
  """Sums of 16 bits hold two products of 8 and 7 bits, not of 8 and 8."""
  program = """
import types
import numpy as np, tensorflow as tf
from albert_tf.modeling.low_precision import Int8Block, Int8Map
layer = types.SimpleNamespace(kernel=np.ones([512, 8], np.float32), bias=np.zeros(8, np.float32))
maps = types.SimpleNamespace(output=Int8Map(layer))
block = Int8Block(None, maps, None, {"output": 1.0})
for sign in (1.0, -1.0):
  rows = tf.fill([4, 512], sign)
  y = tf.function(lambda x: block.product("output", x), autograph=False)(rows)
  np.testing.assert_allclose(y, np.full([4, 8], 512 * sign), rtol=1e-3)
"""
  environment = dict(os.environ, ONEDNN_MAX_CPU_ISA=instructions, TF_CPP_MIN_LOG_LEVEL="3")
  subprocess.run([sys.executable, "-c", program], env=environment, check=True, cwd=ROOT)


@needs_int8
def test_a_column_of_zeros_stays_zeros():
  kernel = np.zeros([4, 2], np.float32)
  kernel[:, 0] = [1.0, -2.0, 0.5, 0.0]
  layer = types.SimpleNamespace(kernel=kernel, bias=np.zeros(2, np.float32))
  weights = Int8Map(layer)
  found = weights.kernel.numpy() * weights.kernel_range.numpy() / 127
  np.testing.assert_allclose(found, kernel, atol=2.0 / 126)
  assert not found[:, 1].any()
