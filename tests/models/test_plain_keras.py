"""Models in plain Keras code, without this project's engine: a strategy's scope, `fit`, `predict`."""

import keras
import numpy as np
import pytest
from support.tiny_records import tiny_config
import tensorflow as tf

from albert_tf import AlbertEncoder
from albert_tf.compat import raw_variable
from albert_tf.modeling import named_variables
from albert_tf.models.heads import answerability_loss
from albert_tf.models.tasks import (
  AlbertClassifier,
  AlbertQuestionAnswering,
  AlbertTagger,
)
from albert_tf.optim.keras_optimizers import AdamW

CONFIG = tiny_config(vocab_size=999)


def inputs(count=8, length=7):
  rng = np.random.default_rng(0)
  ids = rng.integers(0, 999, (count, length)).astype(np.int32)
  return {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": ids % 2}


def squad2_batch():
  """Inputs, labels by name, and losses by name."""
  starts = np.arange(8, dtype=np.int32) % 5
  x = {**inputs(), "p_mask": np.zeros((8, 7), np.int32), "start_positions": starts}
  x["dropout_seed"] = np.full((8, 2), 4, np.int32)
  loss = {
    "start_log_probs": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    "end_log_probs": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    "cls_logits": answerability_loss,
  }
  y = {"start_log_probs": starts, "end_log_probs": starts, "cls_logits": starts % 2}
  return x, y, loss


@pytest.mark.slow
def test_every_integer_input_on_two_replicas(mirrored_2):
  """SQuAD 2.0 has the most integer inputs, and losses by name."""
  x, y, loss = squad2_batch()
  data = tf.data.Dataset.from_tensors((x, y)).repeat(2)
  with mirrored_2.scope():
    model = AlbertQuestionAnswering(CONFIG, head_options={"classifier_dropout": 0.1})
    model.compile(AdamW(0.05), loss=loss, jit_compile=False)
  before = {name: variable.numpy() for name, variable in named_variables(model).items()}
  model.fit(data, shuffle=False, verbose=0)
  unchanged = {
    name for name, variable in named_variables(model).items() if np.array_equal(before[name], variable)
  }
  pooler = {name for name in before if "pooler" in name}
  assert len(pooler) == 2
  assert pooler <= unchanged
  # A softmax ignores what is added to all its inputs: but for rounding, the gradient of such a bias is zero.
  added_to_all = (
    "self/key/bias",
    "start_logits/dense/bias",
    "end_logits/dense_1/bias",
    "end_logits/LayerNorm/beta",
  )
  assert all(name.endswith(added_to_all) for name in unchanged - pooler)


@pytest.mark.slow
def test_micro_batches_of_losses_by_name():
  x, y, loss = squad2_batch()
  del x["dropout_seed"]
  losses, weights = [], []
  for parts in (1, 4):
    keras.utils.set_random_seed(3)
    model = AlbertQuestionAnswering(CONFIG, head_options={"classifier_dropout": 0.0})
    model.compile(AdamW(0.01, global_clipnorm=1.0), loss=loss, jit_compile=False)
    model.gradient_accumulation_steps = parts
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    losses.append(history["loss"])
    weights.append(model.get_weights())
  np.testing.assert_allclose(*losses, rtol=1e-4)
  for one, four in zip(*weights, strict=True):
    np.testing.assert_allclose(one, four, atol=1e-4)


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
  model.encoder.attention_sublayers["transformer/group_0/inner_group_0"].layer_norm.trainable = False
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
