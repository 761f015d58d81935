"""Labels and weights that are refused before training, and what the loss gets of the others."""

import keras
import numpy as np
import pytest
from support.tiny_records import tiny_config
import tensorflow as tf

from albert_tf import AlbertClassifier, AlbertMultipleChoice, AlbertQuestionAnswering, AlbertTagger
from albert_tf.errors import UserError
from albert_tf.keras_api import labels

CONFIG = tiny_config(vocab_size=99)
IDS = {"input_ids": np.ones([3, 7], np.int32)}
SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
NUMBERS = [float("nan"), float("inf"), -float("inf"), 1e39, 10**400, None, "a", b"1", 1j]


@pytest.fixture(scope="module")
def classifier():
  model = AlbertClassifier(CONFIG, task=AlbertClassifier.make_task(label_names=["bad", "good"]))
  model.compile("sgd", loss=SPARSE)
  return model


@pytest.mark.parametrize(
  "wrong",
  [
    [[5], [0], [1]], lambda: tf.constant([0, 1, 5]), [0, 1, None], [b"bad", b"good", b"good"], np.array([0, 1, 0.5]),
    [[0, 1], [1]], [10**400, 0, 1], [1j, 0, 0], "bad", 1, {"bad": 1}, iter([0, 1, 1]), ["bad", "ugly", "good"],
    np.array([0, 1, -1], np.int8), np.array(["2020-01-01"] * 3, "datetime64[D]"), [float("nan"), 0, 1],
  ],
)  # fmt: skip
def test_a_class_that_is_none_is_refused_before_training(wrong, classifier):
  if callable(wrong):
    wrong = wrong()
  before = classifier.get_weights()
  with pytest.raises(UserError):
    classifier.fit(IDS, wrong, verbose=0)
  with pytest.raises(UserError):
    classifier.fit(IDS, [0, 1, 1], validation_data=(IDS, wrong), verbose=0)
  for one, other in zip(before, classifier.get_weights(), strict=True):
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("right", [[0, 1, 1], [[0], [1], [1]], ["bad", "good", "good"], lambda: tf.constant([0, 1, 1]),
                                   np.array([False, True, True]), np.array([0.0, 1.0, 1.0], object)])  # fmt: skip
def test_classes_in_any_form_are_numbers(right, classifier):
  if callable(right):  # A tensor made now, not while tests are collected.
    right = right()
  np.testing.assert_array_equal(classifier.checked_labels(right, IDS), [0, 1, 1])


@pytest.mark.parametrize("wrong", NUMBERS, ids=lambda value: str(value)[:9])
def test_numbers_that_are_not_finite_are_refused(wrong, classifier):
  for call in (
    lambda: labels.finite([0, 1, wrong], "Labels"),
    lambda: classifier.fit(IDS, [0, 1, 1], sample_weight=[1, 1, wrong], verbose=0),
    lambda: classifier.evaluate(IDS, [0, 1, 1], sample_weight=[1, 1, wrong], verbose=0),
    lambda: classifier.fit(IDS, [0, 1, 1], class_weight={0: 1.0, 1: wrong}, verbose=0),
    lambda: classifier.fit(
      IDS, [0, 1, 1], validation_data=(IDS, [0, 1, 1], [1, 1, wrong]), verbose=0
    ),
  ):
    with pytest.raises(UserError):
      call()


def test_regression_and_weights_keep_their_numbers():
  model = AlbertClassifier(CONFIG, head_options={"num_labels": 1})
  np.testing.assert_array_equal(model.checked_labels([0.5, 2, -3e38], IDS), [0.5, 2, -3e38])
  with pytest.raises(UserError, match="1e\\+39 in row 1"):
    model.checked_labels([0.5, 1e39, 1], IDS)
  assert labels.class_weights({"bad": 2, 1: 3}, ["bad", "good"]) == {0: 2, 1: 3}
  with pytest.raises(UserError, match="mapping from class to weight"):
    labels.class_weights("balanced", ["bad", "good"])


def test_labels_of_words_choices_and_answers():
  tagger = AlbertTagger(CONFIG, head_options={"num_labels": 2})
  tagger.compile(
    "sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
  )
  np.testing.assert_array_equal(tagger.checked_labels([[0, 1], [1, -1]], IDS), [[0, 1], [1, -1]])
  choices = AlbertMultipleChoice(CONFIG)
  answers = AlbertQuestionAnswering(
    CONFIG, task=AlbertQuestionAnswering.make_task(squad_version="1.1")
  )
  of_choices = {"input_ids": np.ones([2, 3, 7], np.int32)}
  assert choices.checked_labels([0, 2], of_choices).tolist() == [0, 2]
  for call in (
    lambda: tagger.checked_labels([[0, 2], [1, -1]], IDS),
    lambda: tagger.checked_labels([[0, 1], [1, -2]], IDS),
    lambda: tagger.fit(IDS, np.zeros([3, 7]), class_weight={0: 1.0}),
    lambda: tagger.compile("sgd", loss="sparse_categorical_crossentropy"),
    lambda: choices.checked_labels([0, 3], of_choices),
    lambda: answers.checked_labels({"start_logits": [0, 7, 1], "end_logits": [0, 1, 1]}, IDS),
  ):
    with pytest.raises(UserError):
      call()


def test_names_are_read_before_digits():
  """Else the names "0" and "1" would be taken for a matrix of 0 and 1."""
  got = labels.multi_hot([["0", "1"], ["1", "1"]], ["0", "1"])
  np.testing.assert_array_equal(got, [[1, 1], [0, 1]])
