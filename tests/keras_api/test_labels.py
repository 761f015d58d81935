"""Labels and weights that are refused before training, and what the loss gets of the others."""

import dataclasses

import keras
import numpy as np
import pytest
from support.stacks import slow_by_default
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
  model = AlbertClassifier(CONFIG, label_names=["bad", "good"])
  model.compile("sgd", loss=SPARSE)
  return model


@pytest.mark.parametrize(
  "wrong",
  [
    [[5], [0], [1]], lambda: tf.constant([0, 1, 5]), [0, 1, None], [b"bad", b"good", b"good"], np.array([0, 1, 0.5]),
    [[0, 1], [1]], [10**400, 0, 1], [1j, 0, 0], "bad", 1, {"bad": 1}, iter([0, 1, 1]), ["bad", "ugly", "good"],
    np.array([0, 1, -1], np.int8), np.array(["2020-01-01"] * 3, "datetime64[D]"), [float("nan"), 0, 1],
    np.array([float("nan"), 0, 1], object),
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
  model = AlbertClassifier(CONFIG, num_labels=1)
  np.testing.assert_array_equal(model.checked_labels([0.5, 2, -3e38], IDS), [0.5, 2, -3e38])
  with pytest.raises(UserError, match="1e\\+39 in row 1"):
    model.checked_labels([0.5, 1e39, 1], IDS)
  assert labels.class_weights({"bad": 2, 1: 3}, ["bad", "good"]) == {0: 2, 1: 3}
  with pytest.raises(UserError, match="Received: 'balanced'"):
    labels.class_weights("balanced", ["bad", "good"])


def test_labels_of_choices_and_answers():
  choices = AlbertMultipleChoice(CONFIG)
  answers = AlbertQuestionAnswering(CONFIG, squad_version="1.1")
  of_choices = {"input_ids": np.ones([2, 3, 7], np.int32)}
  assert choices.checked_labels([0, 2], of_choices).tolist() == [0, 2]
  positions = {"end_logits": [0, 1, 6], "start_logits": [0, 0, 1]}
  for labels_by_name in (positions, Frame(**positions)):
    checked = answers.checked_labels(labels_by_name, IDS)
    assert {name: column.tolist() for name, column in checked.items()} == positions
  for call, received in (
    (lambda: choices.checked_labels([0, 3], of_choices), "Received: 3 in row 1"),
    (
      lambda: answers.checked_labels(positions | {"end_logits": [0, 7, 1]}, IDS),
      "Received: 7 in row 1",
    ),
    (lambda: answers.checked_labels({"start_logits": [0, 0, 1]}, IDS), "Received: start_logits"),
    (lambda: answers.checked_labels(Frame(start=[0], end=[1]), IDS), "Received: start, end"),
    (lambda: answers.checked_labels([[0, 0, 1], [0, 1, 6]], IDS), "Received: .*0, 0, 1"),
  ):
    with pytest.raises(UserError, match=received):
      call()


_CHOICES = {"input_ids": np.ones([2, 3, 7], np.int32)}
_WORDS = {"input_ids": np.ones([2, 7], np.int32), "word_positions": np.array([[1, 2], [1, 0]])}
_TAGS = {"cls": AlbertTagger, "label_names": ["O", "X"]}


@pytest.mark.stack
@pytest.mark.parametrize(
  ("options", "loss", "inputs", "right", "wrong", "received"),
  [
    ({"num_labels": 2}, SPARSE, IDS, [[0, 1, 1], [0.0, 1.0, 1.0], [[0], [1], [1]]], [0, 2, 1], r"\[2\]"),
    ({"num_labels": 2}, SPARSE, IDS, [], [0, -1, 1], r"\[-1\]"),
    ({"num_labels": 2}, SPARSE, IDS, [], [0.0, 0.5, 1.0], r"\[0\.5\]"),
    ({"num_labels": 2}, SPARSE, IDS, [], [0.0, np.nan, 1.0], "NaN"),
    ({"num_labels": 1}, "mse", IDS, [[0.5, -3.0, 7.0]], [0.5, np.inf, 7.0], "infinity"),
    ({"cls": AlbertMultipleChoice}, SPARSE, _CHOICES, [[0, 2]], [0, 3], r"\[3\]"),
    # Beyond the words any number is padding.
    (_TAGS, SPARSE, _WORDS, [[[0, 1], [1, 9]], [[0, -1], [1, 0]]], [[0, 2], [1, 0]], r"\[2\]"),
  ],
)  # fmt: skip
def test_labels_of_a_data_set_are_checked_where_they_are_read(
  options, loss, inputs, right, wrong, received
):
  """In a compiled step a class that is none would give NaN, without a word."""
  options = dict(options)
  model = options.pop("cls", AlbertClassifier)(CONFIG, **options)
  model.compile("sgd", loss=loss)

  def read(labels):
    dataset = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(3)
    return [batch[1].numpy().tolist() for batch in model.prepared_batches(dataset)]

  for values in right:
    assert read(values) == [values]
  with pytest.raises(tf.errors.InvalidArgumentError, match=f"must be .*Received.*{received}"):
    read(wrong)


def test_classes_that_the_loss_ignores_and_answers_of_a_data_set():
  ignoring = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
  model = AlbertClassifier(CONFIG, num_labels=2)
  model.compile("sgd", loss=ignoring)
  answers = AlbertQuestionAnswering(CONFIG, squad_version="1.1")
  answers.compile("sgd", loss={"start_logits": SPARSE, "end_logits": SPARSE})
  ends = [0, 1, 6]

  def batches(model, labels):
    return list(model.prepared_batches(tf.data.Dataset.from_tensors((IDS, labels))))

  assert batches(model, [0, -1, 1])
  # `predict` reads none: test rows of GLUE have -1, others a name.
  for unknown in ([-1, 2, 9], ["?", "?", "?"]):
    rows = tf.data.Dataset.from_tensors((IDS, unknown))
    assert model.predict(rows, verbose=0).shape == (3, 2)
  assert batches(answers, {"start_logits": [0, 0, 1], "end_logits": ends})
  with pytest.raises(tf.errors.InvalidArgumentError, match=r"end_logits must be .*\[7\]"):
    batches(answers, {"start_logits": [0, 0, 1], "end_logits": [0, 7, 6]})
  with pytest.raises(tf.errors.InvalidArgumentError, match=r"sample_weight must be finite"):
    list(model.prepared_batches(tf.data.Dataset.from_tensors((IDS, [0, 1, 1], [1.0, np.nan, 1]))))


# ------------------------------------------------------------------ labels by name


class Frame:
  """What a data frame of pandas has."""

  def __init__(self, **columns):
    self.columns = list(columns)
    self._lists = columns

  def __getitem__(self, name):
    return self._lists[name]


@pytest.mark.parametrize("form", [Frame, dict])
def test_columns_of_labels_are_read_by_name(form, classifier):
  """In any order; a column that is no label, or a missing one, is refused."""
  topics = AlbertClassifier(CONFIG, label_names=["a", "b"], problem="multi_label")
  columns = form(b=[0, 0, 1], a=[1, 0, 1])
  np.testing.assert_array_equal(topics.checked_labels(columns, IDS), [[1, 0], [0, 0], [1, 1]])
  one_hot = AlbertClassifier(CONFIG, label_names=["bad", "good"])
  shares = form(good=[0.0, 0.25, 1], bad=[1.0, 0.75, 0])
  np.testing.assert_array_equal(one_hot.checked_labels(shares, IDS)[1], [0.75, 0.25])
  for model, wrong, received in (
    (topics, form(x=[0, 0, 1], y=[1, 0, 1]), "a, b. Received: x, y"),
    (topics, form(a=[0, 0, 1], b=[1, 0, 1], c=[0, 0, 0]), "a, b. Received: a, b, c"),
    (topics, form(a=[0, 0, 1], b=[1, 0]), "Received: .*0, 0, 1.*1, 0"),
    (one_hot, form(good=[1, 1, 1], other=[0, 0, 0]), "bad, good. Received: good, other"),
    (classifier, shares, r"Received: .*\[3, 2\]"),
  ):
    with pytest.raises(UserError, match=received):
      model.checked_labels(wrong, IDS)


def test_the_only_column_of_a_frame_may_have_any_name(classifier):
  assert classifier.checked_labels(Frame(stars=["good", "bad", "bad"]), IDS).tolist() == [1, 0, 0]
  spam = AlbertClassifier(CONFIG, num_labels=1, problem="multi_label")
  assert spam.checked_labels(Frame(spam=[1, 0, 1]), IDS).tolist() == [[1], [0], [1]]


@pytest.mark.parametrize(
  ("names", "given", "ids"),
  [
    ([0, 1], [0, 1, 1], [0, 1, 1]),
    ([0.0, 1.0], [0.0, 1.0, 1.0], [0, 1, 1]),
    ([1, 0], [1, 0, "0"], [0, 1, 1]),
    (np.arange(1, 6), [1, 5.0, "3"], [0, 4, 2]),
    (["-1", "0", "1"], [-1, 0, 1], [0, 1, 2]),
    (["0", "01"], [0, 1, "01"], [0, 1, 1]),
  ],
)
def test_whole_numbers_are_names(names, given, ids):
  model = AlbertClassifier(CONFIG, label_names=names)
  assert all(type(name) is str for name in model.task.label_names)
  assert model.checked_labels(np.array(given, object), IDS).tolist() == ids


def test_a_number_that_is_no_name_is_refused():
  model = AlbertClassifier(CONFIG, label_names=[1, 2, 3])
  with pytest.raises(UserError, match=r"label_names: 1, 2, 3\. Received: 0 in row 2"):
    model.checked_labels([1, 2, 0], IDS)
  for wrong in ([0.5, 1], [True, False], [None, "a"], [float("nan"), 1], "ab", 2):
    with pytest.raises(UserError, match="label_names"):
      AlbertClassifier(CONFIG, label_names=wrong)


def test_constructor_and_from_pretrained_take_the_same_names(classifier):
  model = AlbertClassifier(
    CONFIG,
    label_names=["a", "b"],
    problem="multi_label",
    thresholds=[0.2, 0.3],
    pair=True,
    classifier_dropout=0.0,
    padding_at_end=True,
  )
  again = AlbertClassifier.from_config(model.get_config())
  for one in (model, again):
    assert (one.task.label_names, one.task.thresholds, one.task.pair) == (
      ("a", "b"),
      (0.2, 0.3),
      True,
    )
    assert (one.head.classifier_dropout, one.encoder_options) == (0.0, {"padding_at_end": True})
  assert AlbertClassifier(CONFIG, num_labels=3).task.label_names == ("0", "1", "2")
  assert AlbertQuestionAnswering(CONFIG, start_n_top=2).head.start_n_top == 2
  for options, message in (
    ({}, "Received: .*num_labels .*label_names"),
    ({"num_labels": 3, "label_names": ["a", "b"]}, "Received: 3, .* 2 "),
    ({"task": classifier.task, "num_labels": 2}, "Received: task and num_labels"),
  ):
    with pytest.raises(UserError, match=message):
      AlbertClassifier(CONFIG, **options)


def test_a_loss_of_values_gets_no_classes(classifier):
  dense = keras.losses.CategoricalCrossentropy(from_logits=True)
  model = AlbertClassifier(CONFIG, num_labels=2)
  model.compile("sgd", loss=dense)
  choices = AlbertMultipleChoice(CONFIG)
  choices.compile("sgd", loss=dense)
  tagger = AlbertTagger(CONFIG, num_labels=2)
  tagger.compile("sgd", loss=dense)
  of_choices = {"input_ids": np.ones([2, 2, 7], np.int32)}
  for call in (
    lambda: model.fit(IDS, [0, 1, 1]),
    lambda: choices.fit(of_choices, [0, 1]),
    lambda: tagger.fit(IDS, np.zeros([3, 7], int)),
  ):
    with pytest.raises(UserError, match=r"SparseCategoricalCrossentropy.*to_categorical"):
      call()
  shares = [[0.25, 0.75], [1, 0]]
  np.testing.assert_array_equal(choices.checked_labels(shares, of_choices), shares)


# ------------------------------------------------------------------ tags


# Two words and padding; three words of which the last is cut away.
WORDS = {
  "input_ids": np.ones([2, 7], np.int32),
  "word_positions": np.array([[1, 3, 0], [1, 2, 0]], np.int32),
}
# Nothing, a number, a name or text beyond the words.
TAGS = [
  [[0, 1, -1], [1, 1, -1]],
  [[0, 1, 0], [1, 1, 1]],
  [[0, 1], [1, 1]],
  [[0, 1], [1, 1, 0]],
  [["O", "B", ""], ["B", "B", "O"]],
  [["O", "B"], ["B", "B", None]],
  [[0, 1, 7, -1, -1], [1, 1, 0, -1, -1]],
  np.array([[0, 1, 9], [1, 1, 9]], np.uint8),
  np.array([["O", "B", "x"], ["B", "B", "x"]]),
]


@pytest.fixture(scope="module")
def tagger():
  config = dataclasses.replace(CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
  return AlbertTagger(config, label_names=["O", "B"], classifier_dropout=0.0)


def numpy_scores(model):
  """Mean loss and accuracy of the four words."""
  logits = model.predict(WORDS, verbose=0)[:, :2].reshape(4, 2)
  gold = np.array([0, 1, 1, 1])
  losses = np.logaddexp(*logits.T) - logits[range(4), gold]
  return [losses.mean(), (logits.argmax(1) == gold).mean()]


@pytest.mark.parametrize("given", TAGS, ids=str)
def test_tags_of_words_in_any_form(given, tagger):
  tagger.compile("sgd", loss=SPARSE)
  np.testing.assert_array_equal(tagger.checked_labels(given, WORDS), [[0, 1, -1], [1, 1, -1]])


@pytest.mark.parametrize("ignore_class", [None, pytest.param(-1, marks=slow_by_default)])
def test_labels_without_a_word_count_nowhere(ignore_class, tagger):
  """Not in the loss and not in metrics, of arrays and of data sets, whatever they are."""
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=ignore_class)
  weighted = keras.metrics.SparseCategoricalAccuracy(name="weighted")
  tagger.compile(
    "sgd", loss=loss, metrics=["accuracy"], weighted_metrics=[weighted], run_eagerly=True
  )
  mean_loss, accuracy = numpy_scores(tagger)
  want = [mean_loss, accuracy, accuracy]
  for padding in (0, 1, -1):
    y = np.array([[0, 1, padding], [1, 1, padding]])
    data = tf.data.Dataset.from_tensor_slices((WORDS, y)).batch(2)
    np.testing.assert_allclose(tagger.evaluate(WORDS, y, verbose=0), want, rtol=1e-4)
    np.testing.assert_allclose(tagger.evaluate(data, verbose=0), want, rtol=1e-4)
  for ones in (np.ones([2]), np.ones([2, 1])):
    got = tagger.evaluate(WORDS, y, sample_weight=ones, verbose=0)
    np.testing.assert_allclose(got, want, rtol=1e-4)


def test_a_word_may_have_no_label(tagger):
  """-1 of a word is left out, as it is of padding."""
  tagger.compile("sgd", loss=SPARSE, metrics=["accuracy"], run_eagerly=True)
  logits = tagger.predict(WORDS, verbose=0)[0, 0]
  got = tagger.evaluate(WORDS, [[0, -1], [-1, -1]], verbose=0)
  want = [np.logaddexp(*logits) - logits[0], float(logits.argmax() == 0)]
  np.testing.assert_allclose(got, want, rtol=1e-4)


def test_a_class_that_the_loss_ignores_is_in_no_metric(tagger):
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
  tagger.compile("sgd", loss=loss, metrics=["accuracy"], run_eagerly=True)
  y = np.array([[0, 1, 1], [0, 0, 0]])
  want = float(tagger.predict(WORDS, verbose=0)[0, 1].argmax() == 1)
  data = tf.data.Dataset.from_tensor_slices((WORDS, y)).batch(2)
  for evaluated in (tagger.evaluate(WORDS, y, verbose=0), tagger.evaluate(data, verbose=0)):
    assert evaluated[1] == want


def test_one_hot_tags_without_a_word_count_nowhere(tagger):
  dense = keras.losses.CategoricalCrossentropy(from_logits=True)
  precision = keras.metrics.Precision(name="precision")
  tagger.compile("sgd", loss=dense, metrics=["accuracy", precision], run_eagerly=True)
  y = np.eye(2, dtype=np.float32)[[[0, 1, 1], [1, 1, 0]]]
  # Of two classes each word has one prediction above 0.5.
  loss, accuracy = numpy_scores(tagger)
  got = tagger.evaluate(WORDS, y, verbose=0)
  np.testing.assert_allclose(got, [loss, accuracy, accuracy], rtol=1e-4)


def test_micro_batches_leave_the_same_labels_out(tagger):
  tagger.compile(keras.optimizers.SGD(0.0), loss=SPARSE, metrics=["accuracy"], run_eagerly=True)
  y = np.array([[0, 1, 1], [1, 1, 0]])
  want = numpy_scores(tagger)
  tagger.gradient_accumulation_steps = 2
  history = tagger.fit(WORDS, y, batch_size=2, verbose=0).history
  tagger.gradient_accumulation_steps = 1
  np.testing.assert_allclose([history["loss"][0], history["accuracy"][0]], want, rtol=1e-4)


def test_weights_of_words_and_tokens_without_a_mask(tagger):
  """Without `word_positions` each token of the mask has a label."""
  tagger.compile("sgd", loss=SPARSE, metrics=["accuracy"], run_eagerly=True)
  mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)
  ids = {"input_ids": np.ones([2, 4], np.int32), "attention_mask": mask}
  y = np.array([[0, 0, -1, 1], [1, -1, 0, 0]])
  got = tagger.evaluate(ids, y, verbose=0)
  correct = tagger.predict(ids, verbose=0).argmax(-1) == y
  assert got[1] == pytest.approx(correct[[0, 0, 1], [0, 1, 0]].mean())
  # Keras divides the sum of weighted losses by the number of places.
  weights = np.array([[2.0, 0, 5, 5], [0, 0, 5, 5]])
  logits = tagger.predict(ids, verbose=0)[0, 0]
  want = 2 * (np.logaddexp(*logits) - logits[0]) / 8
  got = tagger.evaluate(ids, y, sample_weight=weights, verbose=0)
  assert got[0] == pytest.approx(want, rel=1e-4)


@pytest.mark.parametrize(
  ("wrong", "received"),
  [
    ([[0], [1, 1]], r"Received in row 0: 1 .* 2 .*\[0\]"),
    ([[0, 1, 0, 1], [1, 1]], "Received in row 0: 4 "),
    ([[0, 2], [1, 1]], "Received: 2 in row 0"),
    ([[0, 1], [1, -2]], "Received: -2 in row 1"),
    ([["O", ""], ["B", "B"]], "Received: .* in row 0"),
    ([[0, 1]], "Received: 2 texts, 1 "),
    ([0, 1], "Received in row 0: 0"),
    ("OB", "Received: 'OB'"),
    (np.zeros([2, 3, 2], int), "Received in row 0: "),
  ],
)
def test_tags_that_are_refused(wrong, received, tagger):
  tagger.compile("sgd", loss=SPARSE)
  with pytest.raises(UserError, match=received):
    tagger.fit(WORDS, wrong, verbose=0)


def test_names_are_read_before_digits():
  """Else the names "0" and "1" would be taken for a matrix of 0 and 1."""
  got = labels.multi_hot([["0", "1"], ["1", "1"]], ["0", "1"])
  np.testing.assert_array_equal(got, [[1, 1], [0, 1]])
