"""The models as a Keras user treats them: configurations, files, precision policies, masks, functional use, fit."""

import numpy as np
import pytest
from support.synthetic_checkpoint import CONFIG, random_variables
import tensorflow as tf

from albert_tf import AlbertEncoder
from albert_tf.compat import keras
from albert_tf.configs import AlbertConfig
from albert_tf.modeling import (
  AlbertForPreTraining,
  attention,
  dense,
  embeddings,
  feed_forward,
  initialize_variables,
  layer_norm,
  named_variables,
  pretraining_heads,
)
from albert_tf.models import heads
from albert_tf.models import tasks as models

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn.t accept:DeprecationWarning")

DROPOUT = CONFIG.replace(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2)
IDS = np.array([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]], np.int32)
INPUTS = {
  "input_ids": IDS,
  "input_mask": (IDS > 0).astype(np.int32),
  "segment_ids": np.array([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]], np.int32),
}
PRETRAINING = {**INPUTS, "masked_lm_positions": np.array([[1, 2, 3], [0, 2, 1]], np.int32)}
P_MASK = np.array([[0, 1, 0, 0, 1], [0, 1, 0, 1, 1]], np.int32)
SQUAD_1 = models.AlbertQuestionAnswering.make_task(squad_version="1.1")
TOP_2 = {"start_n_top": 2, "end_n_top": 2}

# Every model: how to make it, and what to call it with.
MODELS = {
  "encoder": (lambda **kw: AlbertEncoder(CONFIG, **kw), INPUTS),
  "encoder_while": (lambda **kw: AlbertEncoder(CONFIG, layer_loop="while", **kw), INPUTS),
  "grouped": (
    lambda **kw: AlbertEncoder(CONFIG.replace(num_hidden_groups=2, inner_group_num=2), **kw),
    INPUTS,
  ),
  "ffn_shared": (lambda **kw: AlbertEncoder(CONFIG.replace(sharing="ffn"), **kw), INPUTS),
  "pretraining": (lambda **kw: AlbertForPreTraining(CONFIG, **kw), PRETRAINING),
  "pretraining_read": (
    lambda **kw: AlbertForPreTraining(CONFIG, read_positions_only=True, **kw),
    PRETRAINING,
  ),
  "classification": (
    lambda **kw: models.AlbertClassifier(CONFIG, head_options={"num_labels": 3}, **kw),
    INPUTS,
  ),
  "multiple_choice": (
    lambda **kw: models.AlbertMultipleChoice(CONFIG, **kw),
    {key: np.stack([value, value[::-1], value]) for key, value in INPUTS.items()},
  ),
  "span": (lambda **kw: models.AlbertQuestionAnswering(CONFIG, task=SQUAD_1, **kw), INPUTS),
  "squad2": (
    lambda **kw: models.AlbertQuestionAnswering(CONFIG, head_options=TOP_2, **kw),
    {**INPUTS, "p_mask": P_MASK},
  ),
}
LAYERS = {
  "dense": lambda: dense.Dense(3, activation="gelu", use_bias=False, initializer_range=0.1, name="d"),
  "layer_norm": lambda: layer_norm.LayerNorm(epsilon=1e-6),
  "embeddings": lambda: embeddings.AlbertEmbeddings(CONFIG, use_one_hot_embeddings=True),
  "attention": lambda: attention.AttentionSublayer(CONFIG),
  "feed_forward": lambda: feed_forward.FeedForwardSublayer(CONFIG),
  "masked_lm": lambda: pretraining_heads.MaskedLmHead(CONFIG),
  "sentence_order": lambda: pretraining_heads.SentenceOrderHead(CONFIG),
  "classification": lambda: heads.ClassificationHead(CONFIG, num_labels=4, classifier_dropout=0.3),
  "span": lambda: heads.SpanHead(CONFIG),
  "squad2": lambda: heads.Squad2Head(CONFIG, start_n_top=3, end_n_top=2, classifier_dropout=0.3),
}


def randomize(model, seed=0):
  rng = np.random.default_rng(seed)
  for variable in named_variables(model).values():
    variable.assign(rng.normal(scale=0.3, size=variable.shape).astype(np.float32))
  return model


def assert_equal_outputs(a, b, **tolerance):
  flat_a, flat_b = tf.nest.flatten(a), tf.nest.flatten(b)
  assert len(flat_a) == len(flat_b) > 0
  for x, y in zip(flat_a, flat_b, strict=True):
    np.testing.assert_allclose(tf.cast(x, tf.float32), tf.cast(y, tf.float32), **tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_model_config_round_trip(name):
  make, _ = MODELS[name]
  model = make()
  again = type(model).from_config(model.get_config())
  assert again.get_config() == model.get_config()
  assert again.config == model.config
  shapes = {key: tuple(v.shape) for key, v in named_variables(model).items()}
  assert {key: tuple(v.shape) for key, v in named_variables(again).items()} == shapes


@pytest.mark.parametrize("name", LAYERS)
def test_layer_config_round_trip(name):
  layer = LAYERS[name]()
  config = layer.get_config()
  again = type(layer).from_config(config)
  assert again.get_config() == config
  assert again.name == layer.name
  registered = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
  assert type(registered) is type(layer)


@pytest.mark.parametrize("name", MODELS)
def test_keras_file_round_trip(name, tmp_path):
  make, inputs = MODELS[name]
  model = randomize(make())
  want = model(inputs)
  model.save(tmp_path / "model.keras")
  again = keras.models.load_model(tmp_path / "model.keras")
  assert type(again) is type(model)
  assert_equal_outputs(again(inputs), want, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["encoder", "grouped", "pretraining", "squad2"])
def test_weights_file_round_trip(name, tmp_path):
  make, inputs = MODELS[name]
  model, other = randomize(make(), seed=1), randomize(make(), seed=2)
  model.save_weights(tmp_path / "model.weights.h5")
  other.load_weights(tmp_path / "model.weights.h5")
  assert_equal_outputs(other(inputs), model(inputs), rtol=0, atol=0)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "float32"])
@pytest.mark.parametrize("name", ["encoder", "pretraining", "classification", "span", "squad2"])
def test_precision_policies(name, policy):
  make, inputs = MODELS[name]
  reference = randomize(make())
  model = randomize(make(dtype=policy))
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


def test_global_policy_reaches_inside():
  keras.mixed_precision.set_global_policy("mixed_bfloat16")
  try:
    encoder = AlbertEncoder(CONFIG)
  finally:
    keras.mixed_precision.set_global_policy("float32")
  assert encoder(INPUTS)["sequence_output"].dtype == tf.bfloat16


@pytest.mark.parametrize("name", ["encoder", "encoder_while"])
def test_masked_tokens_do_not_matter(name):
  model = randomize(MODELS[name][0]())
  changed = {**INPUTS, "input_ids": np.where(INPUTS["input_mask"] == 1, IDS, 13).astype(np.int32)}
  real = INPUTS["input_mask"].astype(bool)
  want, got = model(INPUTS)["sequence_output"].numpy(), model(changed)["sequence_output"].numpy()
  np.testing.assert_allclose(got[real], want[real], atol=1e-6)
  assert not np.allclose(got[~real], want[~real])
  unmasked = model({"input_ids": IDS, "segment_ids": INPUTS["segment_ids"]})["sequence_output"].numpy()
  assert not np.allclose(unmasked[1], want[1])
  explicit = model({**INPUTS, "input_mask": np.ones_like(IDS)})["sequence_output"]
  np.testing.assert_allclose(unmasked, explicit, atol=1e-6)  # Default mask: ones.


@pytest.mark.parametrize("name", ["encoder", "pretraining", "classification"])
def test_hugging_face_names_are_taken_for_ours(name):
  """Passed over in silence, their mask would leave every padded piece in view."""
  model, inputs = randomize(MODELS[name][0]()), MODELS[name][1]
  names = {"input_mask": "attention_mask", "segment_ids": "token_type_ids"}
  theirs = {names.get(key, key): value for key, value in inputs.items()}
  assert_equal_outputs(model(theirs), model(inputs), atol=0)
  with pytest.raises(ValueError, match="input_mask and attention_mask"):
    model({**theirs, "input_mask": inputs["input_mask"]})
  if name == "encoder":
    with pytest.raises(ValueError, match="Received: position_ids"):
      model({**INPUTS, "position_ids": IDS})


def test_padding_the_batch_changes_nothing():
  model = randomize(AlbertEncoder(CONFIG))
  longer = {key: np.pad(value, [(0, 0), (0, 2)]) for key, value in INPUTS.items()}
  np.testing.assert_allclose(
    model(longer)["sequence_output"][:, :5], model(INPUTS)["sequence_output"], atol=1e-6
  )
  np.testing.assert_allclose(model(longer)["pooled_output"], model(INPUTS)["pooled_output"], atol=1e-6)


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
  model = randomize(AlbertEncoder(CONFIG.replace(**changes), **options))
  want = model(INPUTS)
  read = np.array([[4, 0], [2, 2]], np.int32)
  got = model({**INPUTS, "read_positions": read}, training=True)
  rows = np.take_along_axis(want["sequence_output"].numpy(), read[..., np.newaxis], axis=1)
  np.testing.assert_allclose(got["sequence_output"], rows, atol=1e-5)
  np.testing.assert_allclose(got["pooled_output"], want["pooled_output"], atol=1e-5)
  none = model({**INPUTS, "read_positions": read[:, :0]})
  assert none["sequence_output"].shape == (2, 0, 6)
  np.testing.assert_allclose(none["pooled_output"], want["pooled_output"], atol=1e-5)


def test_too_long_a_sequence_is_refused():
  with pytest.raises(ValueError, match=r"max_position_embeddings=7\. Received: 8 pieces"):
    AlbertEncoder(CONFIG)({"input_ids": np.ones([2, 8], np.int32)})


def functional_model(encoder):
  inputs = {key: keras.Input([None], dtype="int32", name=key) for key in INPUTS}
  pooled = encoder(inputs)["pooled_output"]
  return keras.Model(inputs, keras.layers.Dense(2, name="out")(pooled))


def test_functional_model(tmp_path):
  encoder = randomize(AlbertEncoder(CONFIG))
  model = functional_model(encoder)
  np.testing.assert_allclose(
    model(INPUTS), model.get_layer("out")(encoder(INPUTS)["pooled_output"]), atol=1e-6
  )
  assert model.output_shape == (None, 2)
  model.save(tmp_path / "functional.keras")
  again = keras.models.load_model(tmp_path / "functional.keras")
  np.testing.assert_array_equal(again(INPUTS), model(INPUTS))


class Subclass(keras.Model):
  """How a user embeds the encoder in a model of their own."""

  def __init__(self):
    super().__init__()
    self.encoder = AlbertEncoder(DROPOUT)
    self.out = keras.layers.Dense(2)

  def call(self, inputs, training=False):
    return self.out(self.encoder(inputs, training=training)["pooled_output"])


@pytest.mark.parametrize(
  "kind",
  [
    pytest.param("functional", marks=pytest.mark.slow),
    pytest.param("subclass", marks=pytest.mark.slow),
    "classification",
  ],
)
def test_fit_learns(kind):
  rng = np.random.default_rng(0)
  ids = rng.integers(1, CONFIG.vocab_size, size=[48, 5]).astype(np.int32)
  labels = (ids[:, 0] > CONFIG.vocab_size // 2).astype(np.int32)
  inputs = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
  if kind == "functional":
    model = functional_model(encoder := AlbertEncoder(CONFIG))
  elif kind == "subclass":
    model = Subclass()
    encoder = model.encoder
  else:
    encoder = model = models.AlbertClassifier(DROPOUT, head_options={"num_labels": 2})
  initialize_variables(named_variables(encoder), seed=0, initializer_range=0.1)
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model.compile(keras.optimizers.Adam(0.01), loss=loss, metrics=["accuracy"])
  history = model.fit(inputs, labels, epochs=12, batch_size=16, verbose=0).history
  assert history["loss"][-1] < history["loss"][0] - 0.1
  assert model.predict(inputs, verbose=0).shape == (48, 2)
  assert len(model.evaluate(inputs, labels, verbose=0)) == 2


def test_summary_counts_what_the_formula_counts():
  for config in (CONFIG, AlbertConfig.from_name("tiny", sharing="attention")):
    assert AlbertEncoder(config).count_params() == config.param_count()
  assert sum(v.size for v in random_variables(CONFIG).values()) == AlbertForPreTraining(CONFIG).count_params()
