"""The models in Keras: configurations, files, precision policies, masks, functional models, fit."""

import dataclasses
import re

import keras
import numpy as np
import pytest
from support import tiny_run
from support.synthetic_checkpoint import CONFIG
import tensorflow as tf

from albert_tf import AlbertEncoder
from albert_tf.errors import UserError
from albert_tf.keras_api import tasks as models
from albert_tf.modeling import AlbertForPreTraining, named_variables
from albert_tf.modeling import encoder as encoder_module

pytestmark = pytest.mark.filterwarnings(
  "ignore:__array__ implementation doesn.t accept:DeprecationWarning"
)

DROPOUT = dataclasses.replace(CONFIG, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2)
IDS = np.array([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]], np.int32)
INPUTS = {
  "input_ids": IDS,
  "input_mask": (IDS > 0).astype(np.int32),
  "segment_ids": np.array([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]], np.int32),
}
PRETRAINING = {**INPUTS, "masked_lm_positions": np.array([[1, 2, 3], [0, 2, 1]], np.int32)}
SQUAD_2_INPUTS = {**INPUTS, "p_mask": np.array([[0, 1, 0, 0, 1], [0, 1, 0, 1, 1]], np.int32)}
SQUAD_1 = models.AlbertQuestionAnswering.make_task(squad_version="1.1")
TOP_2 = {"start_n_top": 2, "end_n_top": 2}
GROUPED = dataclasses.replace(CONFIG, num_hidden_groups=2, inner_group_num=2)
FFN_SHARED = dataclasses.replace(CONFIG, sharing="ffn")
CHOICES = {key: np.stack([value, value[::-1], value]) for key, value in INPUTS.items()}

# Every model: its class and arguments, and what to call it with.
MODELS = {
  "encoder": (AlbertEncoder, {}, INPUTS),
  "encoder_while": (AlbertEncoder, {"layer_loop": "while"}, INPUTS),
  "grouped": (AlbertEncoder, {"config": GROUPED}, INPUTS),
  "ffn_shared": (AlbertEncoder, {"config": FFN_SHARED}, INPUTS),
  "pretraining": (AlbertForPreTraining, {}, PRETRAINING),
  "pretraining_read": (AlbertForPreTraining, {"read_positions_only": True}, PRETRAINING),
  "classification": (models.AlbertClassifier, {"head_options": {"num_labels": 3}}, INPUTS),
  "multiple_choice": (models.AlbertMultipleChoice, {}, CHOICES),
  "span": (models.AlbertQuestionAnswering, {"task": SQUAD_1}, INPUTS),
  "squad2": (models.AlbertQuestionAnswering, {"head_options": TOP_2}, SQUAD_2_INPUTS),
}


def make(name, **changes):
  """A model with random weights, and its inputs."""
  model_class, options, inputs = MODELS[name]
  return randomize(model_class(**{"config": CONFIG} | options | changes)), inputs


def randomize(model):
  tiny_run.randomize(model, seed=0, stddev=0.3)
  return model


def assert_equal_outputs(a, b, **tolerance):
  flat_a, flat_b = tf.nest.flatten(a), tf.nest.flatten(b)
  assert len(flat_a) == len(flat_b) > 0
  for x, y in zip(flat_a, flat_b, strict=True):
    np.testing.assert_allclose(tf.cast(x, tf.float32), tf.cast(y, tf.float32), **tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_keras_file_round_trip(name, tmp_path):
  model, inputs = make(name)
  want = model(inputs)
  model.save(tmp_path / "model.keras")
  again = keras.models.load_model(tmp_path / "model.keras")
  assert type(again) is type(model)
  assert_equal_outputs(again(inputs), want, rtol=0, atol=0)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "float32"])
@pytest.mark.parametrize("name", ["encoder", "pretraining", "classification", "span", "squad2"])
def test_precision_policies(name, policy):
  reference, inputs = make(name)
  model, _ = make(name, dtype=policy)
  assert {v.dtype for v in named_variables(model).values()} == {tf.float32}
  assert all(v.trainable for v in named_variables(model).values())
  outputs = model(inputs)
  # float32 islands: every logit and log-probability; hidden states have the compute type.
  compute = tf.as_dtype(policy.removeprefix("mixed_"))
  for key, value in outputs.items() if isinstance(outputs, dict) else [("logits", outputs)]:
    is_hidden = key in ("encoder_input", "all_encoder_layers") or key.endswith("_output")
    for tensor in tf.nest.flatten(value):
      assert tensor.dtype in (compute if is_hidden else tf.float32, tf.int32), key
  if name in ("encoder", "pretraining"):
    key = "mlm_logits" if name == "pretraining" else "sequence_output"
    close = {"mixed_bfloat16": 0.15, "mixed_float16": 0.03, "float32": 0}[policy]
    assert_equal_outputs(outputs[key], reference(inputs)[key], atol=close)


def test_inputs_that_are_left_out_are_ones_and_zeros():
  model = randomize(AlbertEncoder(CONFIG))
  explicit = {"input_mask": np.ones_like(IDS), "segment_ids": np.zeros_like(IDS)}
  assert_equal_outputs(model({"input_ids": IDS}), model({"input_ids": IDS, **explicit}), atol=0)


@pytest.mark.parametrize("name", ["encoder", "pretraining", "classification"])
def test_hugging_face_names_are_taken_for_ours(name):
  """If their mask were ignored, all padding would be visible."""
  model, inputs = make(name)
  names = {"input_mask": "attention_mask", "segment_ids": "token_type_ids"}
  theirs = {names.get(key, key): value for key, value in inputs.items()}
  assert_equal_outputs(model(theirs), model(inputs), atol=0)
  with pytest.raises(ValueError, match="input_mask and attention_mask"):
    model({**theirs, "input_mask": inputs["input_mask"]})
  if name == "encoder":
    with pytest.raises(ValueError, match=r"position_ids\."):
      model({**INPUTS, "position_ids": IDS})


@pytest.mark.parametrize("options", [{}, {"layer_loop": "while"}, {"remat": True}])
def test_training_means_dropout_and_seed_fixes_it(options):
  model = randomize(AlbertEncoder(DROPOUT, **options))

  def run(**kwargs):
    return model(INPUTS, **kwargs)["sequence_output"].numpy()

  np.testing.assert_array_equal(run(), run(training=False, seed=tf.constant([1, 2])))
  first = run(training=True, seed=tf.constant([1, 2]))
  np.testing.assert_array_equal(first, run(training=True, seed=tf.constant([1, 2])))
  assert not np.allclose(first, run(training=True, seed=tf.constant([1, 3])))
  assert not np.allclose(first, run())
  assert not np.array_equal(run(training=True), run(training=True))


@pytest.mark.parametrize("options", [{}, {"layer_loop": "while"}, {"remat": True}])
@pytest.mark.parametrize("changes", [{}, {"num_hidden_layers": 1}, {"embedding_size": 6}])
def test_reading_some_positions_gives_the_same(changes, options):
  model = randomize(AlbertEncoder(dataclasses.replace(CONFIG, **changes), **options))
  want = model(INPUTS)
  read = np.array([[4, 0], [2, 2]], np.int32)
  got = model({**INPUTS, "read_positions": read}, training=True)
  rows = np.take_along_axis(want["sequence_output"].numpy(), read[..., np.newaxis], axis=1)
  np.testing.assert_allclose(got["sequence_output"], rows, atol=1e-5)
  np.testing.assert_allclose(got["pooled_output"], want["pooled_output"], atol=1e-5)
  none = model({**INPUTS, "read_positions": read[:, :0]})
  assert none["sequence_output"].shape == (2, 0, 6)
  np.testing.assert_allclose(none["pooled_output"], want["pooled_output"], atol=1e-5)


def test_a_depth_counts_layers_of_all_their_blocks():
  """The configuration's own number is the whole model, with any number of blocks in a layer."""
  config = dataclasses.replace(CONFIG, inner_group_num=2)
  model = randomize(AlbertEncoder(config))
  want = model(INPUTS)
  got = model(INPUTS, depths=[config.num_hidden_layers])
  assert len(got["all_encoder_layers"]) == 2 * config.num_hidden_layers
  assert_equal_outputs(got, want, atol=0)


def test_another_depth_is_refused_where_layers_differ():
  model = AlbertEncoder(dataclasses.replace(CONFIG, inner_group_num=2))
  for depths in ([1], [1, CONFIG.num_hidden_layers]):
    with pytest.raises(UserError, match="inner_group_num=2"):
      model(INPUTS, depths=depths)


def test_depths_that_are_read_ascend():
  model = randomize(AlbertEncoder(CONFIG))
  for depths in ([0, 1], [2, 1], [1, 1]):
    with pytest.raises(UserError, match=f"Received: {re.escape(str(depths))}"):
      model(INPUTS, depths=depths)


@pytest.mark.parametrize(
  ("kind", "dtype", "asked", "accelerated"),
  [
    ("cpu", "mixed_bfloat16", None, False),
    ("gpu", "mixed_bfloat16", None, True),
    ("tpu", "mixed_float16", None, True),
    ("tpu", "float32", None, False),
    ("cpu", "float32", True, True),
  ],
)
def test_device_and_precision_choose_the_form(kind, dtype, asked, accelerated, monkeypatch):
  """A file from a CPU, loaded on an accelerator, is fast there; what the user asked for stays."""
  config = AlbertEncoder(CONFIG, dtype=dtype, accelerated=asked).get_config()
  assert config["accelerated"] is asked
  monkeypatch.setattr(encoder_module, "device_kind", lambda: kind)
  assert AlbertEncoder.from_config(config).accelerated == accelerated


def test_too_long_a_sequence_is_refused():
  with pytest.raises(ValueError, match=r"max_position_embeddings=7.* 8 "):
    AlbertEncoder(CONFIG)({"input_ids": np.ones([2, 8], np.int32)})
