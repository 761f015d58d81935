"""Models in plain Keras code, without this project's engine: a strategy's scope, `fit`, `predict`."""

import dataclasses

import keras
import numpy as np
import pytest
from support.stacks import slow_by_default
from support.tiny_records import tiny_config
import tensorflow as tf

from albert_tf import AlbertEncoder
from albert_tf.compat import KERAS_3, raw_variable
from albert_tf.keras_api.squad_heads import answerability_loss
from albert_tf.keras_api.tasks import AlbertClassifier, AlbertQuestionAnswering, AlbertTagger
from albert_tf.modeling import named_variables
from albert_tf.modeling.micro_batches import count_equal_parts
from albert_tf.optim.keras_optimizers import AdamW, Muon

CONFIG = tiny_config(vocab_size=999)


def inputs(count=8, length=7):
  rng = np.random.default_rng(0)
  ids = rng.integers(0, 999, (count, length)).astype(np.int32)
  return {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": ids % 2}


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [AdamW, Muon])
def test_micro_batches_of_losses_by_name(optimizer):
  starts = np.arange(8, dtype=np.int32) % 5
  x = {**inputs(), "p_mask": np.zeros((8, 7), np.int32), "start_positions": starts}
  y = {"start_log_probs": starts, "end_log_probs": starts, "cls_logits": starts % 2}
  of_positions = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  loss = {
    "start_log_probs": of_positions,
    "end_log_probs": of_positions,
    "cls_logits": answerability_loss,
  }
  losses, weights = [], []
  for parts in (1, 4):
    keras.utils.set_random_seed(3)
    model = AlbertQuestionAnswering(CONFIG, head_options={"classifier_dropout": 0.0})
    model.compile(optimizer(0.01, global_clipnorm=1.0), loss=loss, jit_compile=False)
    model.gradient_accumulation_steps = parts
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    losses.append(history["loss"])
    weights.append(model.get_weights())
  np.testing.assert_allclose(*losses, rtol=1e-4)
  for one, four in zip(*weights, strict=True):
    np.testing.assert_allclose(one, four, atol=1e-4)


def small_classifier(optimizer, **options):
  """A classifier of three classes without dropout, compiled with metrics."""
  keras.utils.set_random_seed(3)
  config = dataclasses.replace(CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
  head = {"num_labels": 3, "classifier_dropout": 0.0}
  model = AlbertClassifier(config, head_options=head, dtype=options.pop("dtype", "float32"))
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model.compile(
    optimizer, loss=loss, metrics=["accuracy"], weighted_metrics=["accuracy"], **options
  )
  return model


def fit_11_rows(model):
  """Two epochs of a batch of 8 rows and one of 3."""
  rows = 11
  y, weights = np.arange(rows) % 3, np.linspace(0.5, 1.5, rows)
  fitted = model.fit(
    inputs(rows), y, sample_weight=weights, batch_size=8, epochs=2, shuffle=False, verbose=0
  )
  return fitted.history


@pytest.mark.stack
@pytest.mark.parametrize(
  ("dtype", "tolerance", "eagerly"),
  [
    ("float32", 1e-3, True),
    # In a graph, on two replicas.
    pytest.param("mixed_float16", 0.03, False, marks=pytest.mark.slow),
  ],
)
def test_micro_batches_are_the_update_of_the_batch(dtype, tolerance, eagerly, mirrored_2):
  """With metrics, and with a last batch of 3 rows for 4 parts. Plain gradient descent shows the gradient's size."""
  updates, histories = [], []
  strategy = tf.distribute.get_strategy() if eagerly else mirrored_2
  for parts in (1, 4):
    with strategy.scope():
      model = small_classifier(keras.optimizers.SGD(0.05), dtype=dtype, run_eagerly=eagerly)
    model.gradient_accumulation_steps = parts
    before = model.get_weights()
    histories.append(fit_11_rows(model))
    updates.append([new - old for new, old in zip(model.get_weights(), before, strict=True)])
  largest = max(np.abs(update).max() for update in updates[0])
  assert largest > 1e-3
  for one, four in zip(*updates, strict=True):
    np.testing.assert_allclose(four, one, atol=tolerance * largest)
  assert histories[0].keys() == histories[1].keys()
  for name, values in histories[0].items():
    np.testing.assert_allclose(histories[1][name], values, rtol=tolerance)


def test_a_batch_has_the_fewest_equal_parts_that_are_enough():
  dynamic = tf.function(
    lambda values: count_equal_parts(values, at_least=4), input_signature=[tf.TensorSpec([None, 2])]
  )
  for rows, parts in ((32, 4), (30, 5), (7, 7), (3, 3), (1, 1), (0, 1)):
    values = tf.zeros([rows, 2])
    assert (count_equal_parts(values, at_least=4), int(dynamic(values))) == (parts, parts)


@pytest.mark.skipif(not KERAS_3, reason="Keras 2 has no such argument.")
@pytest.mark.parametrize("optimizer", [AdamW, pytest.param(Muon, marks=slow_by_default)])
def test_keras_own_accumulation(tmp_path, optimizer):
  """It counts batches; the name of the saved weights counts updates."""
  model = small_classifier(optimizer(0.01, gradient_accumulation_steps=2), run_eagerly=True)
  fit_11_rows(model)
  model.save_pretrained(tmp_path / "run")
  assert (tmp_path / "run/checkpoints/model.ckpt-2.index").exists()


def test_ids_given_as_floats_are_not_rounded():
  """Keras would cast them to the layer's type, and bfloat16 has exact integers only up to 256."""
  encoder = AlbertEncoder(CONFIG, dtype="mixed_bfloat16")
  x = inputs()
  floats = {name: value.astype(np.float32) for name, value in x.items()}
  np.testing.assert_array_equal(encoder(x)["sequence_output"], encoder(floats)["sequence_output"])


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn.t accept:DeprecationWarning")
def test_parts_that_are_frozen_stay_so_in_a_file(tmp_path):
  model = AlbertClassifier(CONFIG, head_options={"num_labels": 3})
  everything = len(model.trainable_variables)
  model.encoder.embeddings.trainable = False
  model.encoder.attention_sublayers[
    "transformer/group_0/inner_group_0"
  ].layer_norm.trainable = False
  model.head.trainable = False
  assert 0 < len(model.trainable_variables) < everything - 6
  model.save(tmp_path / "m.keras")
  again = keras.saving.load_model(tmp_path / "m.keras")
  assert trained_names(again) == trained_names(model)
  tagger = AlbertTagger(CONFIG, head_options={"num_labels": 3})  # It makes its pooler frozen.
  tagger.encoder.pooler.trainable = True
  tagger.encoder.embeddings.trainable = False
  again = AlbertTagger.from_config(tagger.get_config())
  assert trained_names(again) == trained_names(tagger) > {"bert/pooler/dense/kernel"}


def trained_names(model):
  ids = {id(raw_variable(variable)) for variable in model.trainable_variables}
  return {name for name, variable in named_variables(model).items() if id(variable) in ids}
