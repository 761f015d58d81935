"""Heads that read several depths: the loss over all of them, and answers that stop early."""

import dataclasses
import functools
import re

import keras
import numpy as np
import pytest
from scipy import special
from support import tiny_run
from support.stacks import slow_by_default
from support.tiny_records import tiny_config
from support.tiny_step import EAGER_INPUT, eagerly, one_device
import tensorflow as tf

from albert_tf import AlbertClassifier, AlbertSentenceEncoder
from albert_tf.errors import UserError
from albert_tf.keras_api.sentence_vectors import cosine_regression
from albert_tf.keras_api.tasks import AlbertTagger
from albert_tf.keras_api.training_step import training_loss

DEPTHS = (1, 2, 4)
CONFIG = tiny_config(
  vocab_size=99,
  num_hidden_layers=4,
  initializer_range=0.3,
  hidden_dropout_prob=0.0,
  attention_probs_dropout_prob=0.0,
)
DISTILLATION = 0.5
LOSSES = {
  "classification": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
  "multi_label": keras.losses.BinaryCrossentropy(from_logits=True),
  "regression": keras.losses.MeanSquaredError(),
  "sentence_vectors": cosine_regression,
}


def batch(kind, count=6):
  """Inputs of several lengths, labels, and weights."""
  rng = np.random.default_rng(1)
  shape = (count, 2, 7) if kind == "sentence_vectors" else (count, 7)
  ids = rng.integers(5, 99, shape).astype(np.int32)
  lengths = rng.integers(3, 8, shape[:-1])
  mask = (np.arange(7) < lengths[..., np.newaxis]).astype(np.int32)
  labels = {
    "classification": rng.integers(0, 3, count),
    "multi_label": rng.integers(0, 2, (count, 3)).astype(np.float32),
    "regression": rng.normal(size=(count, 1)).astype(np.float32),
    "sentence_vectors": rng.random(count).astype(np.float32),
  }[kind]
  return {"input_ids": ids, "input_mask": mask}, labels


def model_of(kind, **options):
  keras.utils.set_random_seed(2)
  if kind == "sentence_vectors":
    return AlbertSentenceEncoder(CONFIG, **options)
  labels = ("a", "b", "c") if kind != "regression" else ()
  task = AlbertClassifier.make_task(problem=kind, label_names=labels)
  return AlbertClassifier(CONFIG, task=task, head_options={"classifier_dropout": 0.0}, **options)


@functools.cache
def early_model(kind):
  """A model of several depths for tests that only ask it: its functions are traced once for all."""
  return model_of(kind, train_depths=DEPTHS)


def kl(p, q):
  return np.sum(p * np.log(p / q), axis=-1)


def distance(kind, outputs, deepest):
  """NumPy's distance of two depths' outputs, one for each row."""
  if kind == "classification":
    return kl(special.softmax(deepest, -1), special.softmax(outputs, -1))
  if kind == "multi_label":
    p, q = (np.stack([special.expit(x), special.expit(-x)], -1) for x in (deepest, outputs))
    return kl(p, q).sum(-1)
  if kind == "regression":
    return np.square(outputs - deepest)[:, 0]
  return 1 - np.sum(outputs * deepest, -1).mean(-1)  # Vectors of length 1.


@pytest.mark.parametrize("kind", LOSSES)
def test_the_loss_is_that_of_equation_5(kind):
  """Mean of the depths' losses by depth, and the distances from the deepest."""
  x, y = batch(kind)
  model = model_of(kind, train_depths=DEPTHS, depth_distillation=DISTILLATION)
  model.compile("sgd", loss=LOSSES[kind])
  outputs = [model(x, depths=[depth]).numpy() for depth in DEPTHS]
  expected = 0
  for depth, of_depth in zip(DEPTHS, outputs, strict=True):
    loss = float(np.mean(LOSSES[kind](y, of_depth)))
    loss += DISTILLATION * distance(kind, of_depth, outputs[-1]).mean()
    expected += loss * depth / sum(DEPTHS)
  loss = training_loss(model, x, tf.constant(y))
  assert float(loss) == pytest.approx(expected, rel=1e-4)


def updated(strategy, parts, **options):
  x, y = batch("classification", count=8)
  with strategy.scope():
    model = model_of("classification", train_depths=DEPTHS, depth_distillation=DISTILLATION)
    model.compile(keras.optimizers.SGD(0.1), loss=LOSSES["classification"], **options)
  model.gradient_accumulation_steps = parts
  before = model.get_weights()
  model.fit(x, y, sample_weight=np.linspace(0.5, 1.5, 8), batch_size=8, shuffle=False, verbose=0)
  return [new - old for new, old in zip(model.get_weights(), before, strict=True)]


@slow_by_default
def test_replicas_and_micro_batches_make_the_same_update(mirrored_2):
  whole = updated(one_device(), 1, run_eagerly=True)
  divided = updated(mirrored_2, 2)
  largest = max(np.abs(change).max() for change in whole)
  assert largest > 1e-3
  for one, other in zip(whole, divided, strict=True):
    np.testing.assert_allclose(other, one, atol=1e-4 * largest)


@pytest.mark.parametrize(
  "kind",
  [
    "classification",
    pytest.param("sentence_vectors", marks=slow_by_default),
    pytest.param("regression", marks=pytest.mark.slow),
    pytest.param("multi_label", marks=pytest.mark.slow),
  ],
)
def test_each_row_has_the_answer_of_the_depth_where_it_stopped(kind):
  x, _ = batch(kind, count=8)
  model = early_model(kind)
  plain = {depth: model(x, depths=[depth]).numpy() for depth in DEPTHS}
  layers_seen = set()
  for threshold in np.linspace(0, 1, 21):
    early = model.predict_early(x, threshold=threshold, batch_size=4)
    shape = x["input_ids"].shape[:-1]
    assert early.layers.shape == shape
    for row in np.ndindex(shape):
      expected = plain[early.layers[row]][row]
      np.testing.assert_allclose(early.outputs[row], expected, atol=1e-5)
    layers_seen |= set(early.layers.ravel().tolist())
  # A value and a vector are compared with those of the depth before.
  expected = {2, 4} if kind in ("regression", "sentence_vectors") else set(DEPTHS)
  assert layers_seen == expected
  # The last threshold is 1.
  assert set(early.layers.ravel().tolist()) == {4}


def test_confidence_decides():
  """The largest probability must be above the threshold; a greater depth is not asked then."""
  x, _ = batch("classification", count=20)
  model = early_model("classification")
  threshold = 0.6
  expected = np.full(20, 4)
  for depth in (2, 1):
    confidence = special.softmax(model(x, depths=[depth]).numpy(), -1).max(-1)
    expected[confidence > threshold] = depth
  assert len(set(expected)) > 1
  np.testing.assert_array_equal(model.predict_early(x, threshold=threshold).layers, expected)


@pytest.mark.parametrize("count", [0, 1])
def test_no_row_and_one_row(count):
  x, _ = batch("classification")
  rows = {name: values[:count] for name, values in x.items()}
  early = early_model("classification").predict_early(rows, threshold=0.5)
  assert early.outputs.shape == (count, 3)
  assert early.layers.shape == (count,)


class Batches(keras.utils.Sequence):
  """Two batches of four rows."""

  def __init__(self, x, y):
    super().__init__()
    self._rows = (x, y)

  def __len__(self):
    return 2

  def __getitem__(self, index):
    return tf.nest.map_structure(lambda rows: rows[4 * index : 4 * index + 4], self._rows)


def test_the_texts_of_an_example_have_its_threshold():
  x, _ = batch("sentence_vectors", count=3)
  model = early_model("sentence_vectors")
  layers = model.predict_early(x, threshold=[1, 0, 1]).layers
  np.testing.assert_array_equal(layers, [[4, 4], [2, 2], [4, 4]])


def test_batches_with_labels_are_answered_as_their_rows():
  """Each row has its own threshold, or all have one."""
  x, y = batch("classification", count=8)
  model = early_model("classification")
  own = np.array([0, 1] * 4)
  of_rows = model.predict_early(x, threshold=own, batch_size=3)
  assert (of_rows.layers[1::2] == 4).all()
  assert (of_rows.layers[::2] < 4).all()
  for batches in (
    tf.data.Dataset.from_tensor_slices((x, y)).batch(4),
    Batches(x, y),
    (Batches(x, y)[number] for number in range(2)),
  ):
    of_batches = model.predict_early(batches, threshold=own.tolist())
    np.testing.assert_array_equal(of_batches.layers, of_rows.layers)
    np.testing.assert_allclose(of_batches.outputs, of_rows.outputs, atol=1e-5)
  of_one = model.predict_early(Batches(x, y), threshold=0.6)
  np.testing.assert_array_equal(of_one.layers, model.predict_early(x, threshold=0.6).layers)


@pytest.mark.filterwarnings(EAGER_INPUT)
def test_texts_and_the_stored_threshold(tmp_path):
  run = tiny_run.write_pretrained(tmp_path / "run")
  options = {"label_names": ["a", "b"], "train_depths": (2, 4)}
  model = AlbertClassifier.from_pretrained(run, num_hidden_layers=4, **options)
  model.task = dataclasses.replace(model.task, exit_threshold=0.0)
  texts = ["the sky is blue", "grass"]
  model.save_pretrained(tmp_path / "tuned")
  again = AlbertClassifier.from_pretrained(tmp_path / "tuned")
  shallower = AlbertClassifier.from_pretrained(tmp_path / "tuned", num_hidden_layers=3)
  with eagerly():
    np.testing.assert_array_equal(model.predict_early(texts).layers, [2, 2])
    np.testing.assert_array_equal(again.predict_early(texts).layers, [2, 2])
    np.testing.assert_array_equal(again.predict_early(texts, threshold=1).layers, [4, 4])
    np.testing.assert_array_equal(shallower.predict_early(texts, threshold=1).layers, [3, 3])


@pytest.mark.parametrize(
  ("changes", "depths"),
  [
    ({}, (1, 8)),
    ({}, (0, 4)),
    ({}, (1, 1, 4)),
    ({"sharing": "none"}, (1, 4)),
  ],
)
def test_depths_that_cannot_be_trained_are_refused(changes, depths):
  config = dataclasses.replace(CONFIG, **changes)
  with pytest.raises(UserError, match="Received"):
    AlbertClassifier(config, head_options={"num_labels": 3}, train_depths=depths)


def test_what_cannot_stop_early_is_refused():
  x, _ = batch("classification")
  model = early_model("classification")
  for threshold in (-0.1, 1.1, float("nan"), "high", [[0.5]], [0.5, 2], iter([1, 0])):
    with pytest.raises(UserError, match=f"Received: {re.escape(repr(threshold))}"):
      model.predict_early(x, threshold=threshold)
  rows = tf.data.Dataset.from_tensor_slices(x).batch(4)
  for data in (x, rows):
    for count in (5, 7):
      with pytest.raises(UserError, match=f"Received: {count} thresholds, and 6 rows"):
        model.predict_early(data, threshold=[0.5] * count)
  with pytest.raises(UserError, match="Received: none"):
    model.predict_early(rows.take(0), threshold=0.5)
  for size in (0, "8"):
    with pytest.raises(UserError, match=f"batch_size .* Received: {size!r}"):
      model.predict_early(x, threshold=0.5, batch_size=size)
  with pytest.raises(UserError, match="train_depths"):
    model_of("classification").predict_early(x)
  with pytest.raises(UserError, match="token_classification"):
    AlbertTagger(CONFIG, head_options={"num_labels": 3}, train_depths=DEPTHS).predict_early(x)
  with pytest.raises(UserError, match="depth_distillation"):
    model_of("classification", depth_distillation=1.0)
