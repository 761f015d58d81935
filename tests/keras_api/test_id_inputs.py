"""Ids that a model cannot read are refused, wherever they enter."""

import dataclasses

import keras
import numpy as np
import pytest
from support import tiny_run
from support.tiny_records import tiny_config
import tensorflow as tf

from albert_tf import (
  AlbertClassifier,
  AlbertEncoder,
  AlbertMultipleChoice,
  AlbertPreprocessor,
  AlbertSentenceEncoder,
)
from albert_tf.errors import UserError
from albert_tf.keras_api.tasks import AlbertQuestionAnswering, AlbertTagger

CONFIG = tiny_config(vocab_size=99, max_position_embeddings=16)
IDS = np.arange(10, dtype=np.int32).reshape(2, 5)
ONES = np.ones_like(IDS)
WRONG_VALUES = [
  ({"input_ids": IDS + 90}, "0 to 98.*Received: 99 in row 1"),
  ({"input_ids": IDS - 1}, "0 to 98.*Received: -1 in row 0"),
  ({"input_ids": IDS + 0.5}, "0 to 98.*Received: 0.5 in row 0"),
  ({"input_ids": IDS * np.nan}, "Received: nan in row 0"),
  # A cast to int32 would make an id of it.
  ({"input_ids": IDS + np.int64(2**32)}, "Received: 4294967296"),
  ({"input_mask": ONES * 2}, "input_mask .* 0 to 1.*Received: 2"),
  ({"attention_mask": -ONES}, "attention_mask .* 0 to 1.*Received: -1"),
  ({"token_type_ids": ONES * 2}, "token_type_ids .* 0 to 1.*Received: 2"),
]
WRONG_SHAPES = [
  ({"input_ids": IDS[0]}, r"Received: the shape \(5,\)"),
  ({"input_ids": IDS[:, :0]}, r"Received: the shape \(2, 0\)"),
  ({"input_ids": np.ones([2, 17], int)}, "max_position_embeddings=16 .*Received: 17.*max_length"),
  ({"input_mask": ONES[:, :4]}, r"input_mask .*\(2, 5\). Received: \(2, 4\)"),
]
WRONG_FORMS = [
  ({"input_ids": [[1, 2], [3]]}, r"input_ids .*Received: \[\[1, 2\], \[3\]\]"),
  ({"input_ids": [[None, 2], [3, 1]]}, "input_ids .*Received: .*None"),
]


@pytest.fixture(scope="module")
def classifier():
  """Compiled; it computes eagerly."""
  model = AlbertClassifier(CONFIG, head_options={"num_labels": 2})
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model.compile("sgd", loss=loss, run_eagerly=True)
  return model


@pytest.mark.parametrize(("wrong", "message"), WRONG_VALUES + WRONG_SHAPES + WRONG_FORMS)
def test_what_cannot_be_read_is_refused_where_it_enters(classifier, wrong, message):
  x = {"input_ids": IDS} | wrong
  for call in (
    lambda: classifier(x),
    lambda: classifier.predict(x),
    lambda: classifier.fit(x, [0, 1]),
    lambda: classifier.fit({"input_ids": IDS}, [0, 1], validation_data=(x, [0, 1])),
    lambda: classifier.predict((batch,) for batch in [x]),
    lambda: classifier.predict_on_batch(x),
  ):
    with pytest.raises(UserError, match=message):
      call()


@pytest.mark.parametrize(("wrong", "message"), WRONG_VALUES)
def test_values_of_a_data_set_are_checked_by_its_batches(classifier, wrong, message):
  [name] = wrong
  data = tf.data.Dataset.from_tensor_slices(({"input_ids": IDS} | wrong, [0, 1])).batch(2)
  for call in (classifier.predict, classifier.fit):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{name} "):
      call(data, verbose=0)


@pytest.mark.parametrize(("wrong", "message"), WRONG_SHAPES[1:])
def test_shapes_of_a_data_set_are_checked_before_its_batches(classifier, wrong, message):
  data = tf.data.Dataset.from_tensors({"input_ids": IDS} | wrong)
  with pytest.raises(UserError, match=message):
    classifier.predict(data)


def test_a_data_set_of_many_lengths(classifier):
  """Lengths that are not known before are checked by batches."""
  rows = tf.ragged.constant([[1] * 5, [1] * 17])
  data = tf.data.Dataset.from_tensor_slices(rows).batch(1)
  data = data.map(lambda ids: {"input_ids": ids.to_tensor()})
  assert classifier.predict(data.take(1), verbose=0).shape == (1, 2)
  with pytest.raises(tf.errors.InvalidArgumentError, match=r"max_position_embeddings=16.*17"):
    classifier.predict(data, verbose=0)


def test_numbers_in_other_forms_are_the_same_ids(classifier):
  want = classifier({"input_ids": IDS, "input_mask": ONES}).numpy()
  for ids, mask in [
    (IDS.tolist(), ONES.tolist()),
    (tf.constant(IDS), ONES.astype(bool)),
    (IDS.astype(np.float32), ONES.astype(np.uint8)),
  ]:
    x = {"input_ids": ids, "input_mask": mask}
    np.testing.assert_allclose(classifier(x), want, atol=1e-5)
    np.testing.assert_allclose(classifier.predict(x, verbose=0), want, atol=1e-5)


@pytest.mark.parametrize(
  ("kind", "wrong", "message"),
  [
    (AlbertMultipleChoice, {}, r"Received: the shape \(2, 5\)"),
    (AlbertSentenceEncoder, {"input_ids": IDS[0]}, r"Received: the shape \(5,\)"),
    (AlbertQuestionAnswering, {"p_mask": 2 * ONES}, "p_mask .* 0 to 1.*Received: 2"),
    (AlbertTagger, {"word_positions": [[5], [0]]}, "word_positions .* 0 to 4.*Received: 5"),
    (AlbertEncoder, {"read_positions": [[0], [-1]]}, "read_positions .*Received: -1 in row 1"),
  ],
)
def test_further_inputs_of_other_models(kind, wrong, message):
  options = {}
  if kind is AlbertTagger:
    options = {"head_options": {"num_labels": 2}}
  with pytest.raises(UserError, match=message):
    kind(CONFIG, **options)({"input_ids": IDS} | wrong)


def test_a_preprocessor_of_another_model():
  """Its vocabulary is larger than the model's, or its rows are longer."""
  texts = [" ".join(tiny_run.WORDS)]
  data = tf.data.Dataset.from_tensor_slices(texts).batch(1)
  preprocessor = AlbertPreprocessor(tiny_run.tokenizer(), max_length=64)
  for config, message in [
    (dataclasses.replace(CONFIG, vocab_size=9, max_position_embeddings=64), r"input_ids .*\b8\b"),
    (CONFIG, "max_position_embeddings=16 .*max_length"),
  ]:
    encoder = AlbertEncoder(config, preprocessor=preprocessor)
    for call in (encoder, encoder.predict):
      with pytest.raises(UserError, match=message):
        call(texts)
    with pytest.raises((UserError, tf.errors.InvalidArgumentError), match=message):
      encoder.predict(data)


def test_tensors_of_a_graph_are_not_known_yet():
  encoder = AlbertEncoder(CONFIG)
  want = encoder({"input_ids": IDS})["pooled_output"]
  ids = keras.Input([None], dtype="int32")
  functional = keras.Model(ids, encoder({"input_ids": ids})["pooled_output"])
  in_graph = tf.function(lambda ids: encoder({"input_ids": ids})["pooled_output"])
  for model in (functional, in_graph):
    np.testing.assert_allclose(model(tf.constant(IDS)), want, atol=1e-5)
