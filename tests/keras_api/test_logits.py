"""Losses and metrics of models that give logits: those of probabilities are refused, or get probabilities."""

import keras
import numpy as np
import pytest
from support.stacks import slow_by_default
from support.tiny_records import tiny_config
import tensorflow as tf

from albert_tf import (
  AlbertClassifier,
  AlbertMaskedLM,
  AlbertMultipleChoice,
  AlbertQuestionAnswering,
  AlbertTagger,
)
from albert_tf.errors import UserError

pytestmark = pytest.mark.filterwarnings(
  "ignore:__array__ implementation doesn.t accept:DeprecationWarning"
)
CONFIG = tiny_config(vocab_size=99)
IDS = {"input_ids": np.arange(1, 36, dtype=np.int32).reshape(5, 7)}
BINARY = keras.losses.BinaryCrossentropy(from_logits=True)
SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
DENSE = keras.losses.CategoricalCrossentropy(from_logits=True)
metrics = keras.metrics


def with_logits(model, logits):
  """The model, whose head gives these logits for all texts."""
  kernel, bias = model.head.get_weights()
  model.head.set_weights([np.zeros_like(kernel), np.array(logits, bias.dtype)])
  return model


def evaluated(model, labels, **options):
  model.compile("sgd", run_eagerly=True, **options)
  return model.evaluate(IDS, labels, verbose=0, return_dict=True)


def test_thresholds_cut_probabilities():
  """The logit 0.3 is the probability 0.57: a metric that cut the logit at 0.5 would say no."""
  labels = np.array([1, 1, 1, 0, 0])
  model = with_logits(AlbertClassifier(CONFIG, num_labels=1), [0.3])
  read = [
    "accuracy",
    metrics.binary_accuracy,
    metrics.Precision(name="precision"),
    metrics.Recall(name="recall"),
    metrics.TruePositives(name="positives"),
    metrics.F1Score(threshold=0.5, name="f1"),
    metrics.BinaryCrossentropy(name="entropy"),
    metrics.BinaryAccuracy(name="strict", threshold=0.6),
  ]
  by_keras = [
    metrics.BinaryAccuracy(name="by_keras", threshold=0.0),
    metrics.BinaryAccuracy(name="w"),
  ]
  got = evaluated(model, labels, loss=BINARY, metrics=read, weighted_metrics=by_keras)
  for name, value in got.items():
    want = {"precision": 0.6, "recall": 1, "positives": 3, "f1": 0.75, "strict": 0.4}.get(name, 0.6)
    if name in ("loss", "entropy"):
      want = np.log1p(np.exp(0.3)) - 0.6 * 0.3
    assert value == pytest.approx(want, rel=1e-4), name


def test_each_label_of_several_has_its_accuracy():
  """Keras would compare the largest values of the rows."""
  labels = np.array([[1, 0, 1], [1, 1, 1], [0, 0, 0], [1, 0, 1], [1, 0, 1]])
  model = AlbertClassifier(CONFIG, label_names=["a", "b", "c"], problem="multi_label")
  model = with_logits(model, [0.1, -0.1, 0.4])
  auc = metrics.AUC(name="auc", multi_label=True, num_labels=3)
  got = evaluated(model, labels, loss=BINARY, metrics=["accuracy", "crossentropy", auc])
  assert got["accuracy"] == pytest.approx(12 / 15)
  assert got["crossentropy"] == pytest.approx(got["loss"], rel=1e-4)
  assert got["auc"] == pytest.approx(0.5)


def test_classes_have_the_probabilities_of_a_softmax():
  labels = np.array([0, 1, 2, 1, 1])
  logits = np.array([0.2, 0.9, -0.3])
  log_probabilities = logits - np.log(np.exp(logits).sum())
  want_loss = -log_probabilities[labels].mean()
  for loss, y, prefix in (
    (SPARSE, labels, "SparseCategorical"),
    (DENSE, np.eye(3)[labels], "Categorical"),
  ):
    model = with_logits(AlbertClassifier(CONFIG, num_labels=3), logits)
    of_logits = getattr(metrics, f"{prefix}Crossentropy")(from_logits=True, name="of_logits")
    of_probabilities = getattr(metrics, f"{prefix}Crossentropy")(name="of_probabilities")
    read = ["accuracy", "crossentropy", of_logits, of_probabilities]
    got = evaluated(model, y, loss=loss, metrics=read)
    assert got["accuracy"] == pytest.approx(0.6)
    for name in ("loss", "crossentropy", "of_logits", "of_probabilities"):
      assert got[name] == pytest.approx(want_loss, rel=1e-4), name


def test_a_metric_of_ones_own_and_one_of_values_get_the_output():
  def largest(y_true, y_pred):
    return tf.reduce_max(y_pred, axis=-1)

  model = with_logits(AlbertClassifier(CONFIG, num_labels=1), [3.0])
  assert evaluated(model, np.zeros(5), loss=BINARY, metrics=[largest])["largest"] == 3
  value = with_logits(AlbertClassifier(CONFIG, num_labels=1), [3.0])
  got = evaluated(value, np.full(5, 2.0), loss="mse", metrics=["mae", "binary_accuracy"])
  assert (got["mae"], got["binary_accuracy"]) == (1, 0)


def test_answerability_has_a_probability():
  model = AlbertQuestionAnswering(CONFIG, head_options={"classifier_dropout": 0.0})
  model.compile(
    "sgd", metrics={"cls_logits": ["accuracy"], "start_log_probs": "accuracy"}, run_eagerly=True
  )
  zeros = np.zeros([5], np.int32)
  x = IDS | {"p_mask": np.zeros([5, 7], np.int32), "start_positions": zeros}
  logits = model.head(model.encoder(IDS)["sequence_output"], x["p_mask"])["cls_logits"].numpy()
  impossible = (logits > 0).astype(int)
  impossible[0] = 1 - impossible[0]
  y = {"start_log_probs": zeros, "end_log_probs": zeros, "cls_logits": impossible}
  got = model.evaluate(x, y, verbose=0, return_dict=True)
  assert got["cls_logits_accuracy"] == pytest.approx(0.8)
  assert 0 <= got["start_log_probs_accuracy"] <= 1


def test_metrics_are_saved_with_the_model(tmp_path):
  model = with_logits(AlbertClassifier(CONFIG, num_labels=1), [0.3])
  model.compile("sgd", loss=BINARY, metrics=["accuracy", metrics.Precision(name="precision")])
  labels = np.array([1, 1, 1, 0, 0])
  want = model.evaluate(IDS, labels, verbose=0, return_dict=True)
  assert want["accuracy"] == pytest.approx(0.6)
  model.save(tmp_path / "m.keras")
  again = keras.saving.load_model(tmp_path / "m.keras")
  assert again.evaluate(IDS, labels, verbose=0, return_dict=True) == pytest.approx(want, rel=1e-5)


@slow_by_default
def test_metrics_of_two_replicas(mirrored_2):
  with mirrored_2.scope():
    model = with_logits(AlbertClassifier(CONFIG, num_labels=1), [0.3])
    model.compile("sgd", loss=BINARY, metrics=["accuracy", metrics.Precision(name="precision")])
  x = {"input_ids": IDS["input_ids"][:4]}
  got = model.evaluate(x, np.array([1, 1, 1, 0]), batch_size=4, verbose=0, return_dict=True)
  assert (got["accuracy"], got["precision"]) == (pytest.approx(0.75), pytest.approx(0.75))


@pytest.fixture(scope="module")
def models_of_logits():
  two = {"num_labels": 2}
  return (
    AlbertClassifier(CONFIG, **two),
    AlbertMultipleChoice(CONFIG),
    AlbertTagger(CONFIG, **two),
    AlbertMaskedLM(CONFIG),
  )


@pytest.fixture(scope="module")
def reader():
  return AlbertQuestionAnswering(CONFIG, squad_version="1.1")


@pytest.mark.parametrize(
  "loss",
  [
    "kl_divergence", "kld", keras.losses.KLDivergence(), keras.losses.kl_divergence, "ce", "crossentropy",
    "sparse_categorical_crossentropy", keras.losses.SparseCategoricalCrossentropy(), keras.losses.BinaryCrossentropy(),
    keras.losses.categorical_crossentropy, keras.losses.BinaryFocalCrossentropy(),
  ],
)  # fmt: skip
def test_losses_of_probabilities_are_refused(loss, models_of_logits, reader):
  for model in models_of_logits:
    with pytest.raises(UserError, match="from_logits=True"):
      model.compile("sgd", loss=loss)
  with pytest.raises(UserError, match="from_logits=True"):
    reader.compile("sgd", loss={"start_logits": SPARSE, "end_logits": loss})


def test_losses_of_logits_and_of_ones_own_are_taken():
  def my_crossentropy(y_true, y_pred):
    return tf.nn.sigmoid_cross_entropy_with_logits(
      labels=tf.cast(y_true, tf.float32), logits=y_pred
    )

  model = AlbertClassifier(CONFIG, num_labels=2)
  for loss in (SPARSE, DENSE, my_crossentropy, "mse", None):
    model.compile("sgd", loss=loss)
