"""Labels, weights and texts of any form: what Keras gets is finite and in range, or one sentence says what is wrong."""

import contextlib
import functools
import math
from typing import Any

from fuzz.fuzzing import fuzz
from hypothesis import strategies as st
import keras
import numpy as np
import pytest
from support import tiny_run
from support.tiny_records import tiny_config
import tensorflow as tf

from albert_tf import AlbertClassifier, AlbertPreprocessor, AlbertQuestionAnswering, AlbertTagger
from albert_tf.errors import UserError
from albert_tf.keras_api import labels
from albert_tf.keras_api.logits import metrics_of_logits
from albert_tf.keras_api.squad_heads import squad_losses

NAMES = ["bad", "good", "1"]
IDS = {"input_ids": np.ones([3, 5], np.int32)}
TAGGED = IDS | {"word_positions": np.array([[1, 2], [1, 0], [0, 0]])}
VALUES = st.sampled_from([
  0, 1, 2, 3, -1, True, 0.0, 0.5, 1.0, math.nan, math.inf, 1e39, -1e308, 2**31, 2**63, -(2**63), 10**400, 1j, None,
  "", "bad", "good", "1", "x", "\ud800", b"bad", b"\xff", np.int64(1), np.float32(2), np.str_("bad"), object,
  (), [], {}, {"bad": 1}, np.array(1), np.datetime64("2020-01-01"),
])  # fmt: skip
ROWS = st.lists(VALUES, max_size=3) | st.lists(st.lists(VALUES, max_size=3), max_size=3) | VALUES


@st.composite
def forms(draw: st.DrawFn) -> Any:
  """A value, a list, rows, an array of some type, or a tensor."""
  value = draw(ROWS)
  arrays = [functools.partial(np.array, dtype=dtype) for dtype in (None, object, float)]
  make = draw(st.sampled_from([tuple, iter, *arrays, tf.constant, tf.ragged.constant]))
  with contextlib.suppress(Exception):
    return make(value)
  return value


@functools.cache
def model_of(kind: str) -> Any:
  config = tiny_config(vocab_size=99)
  if kind == "answers":
    return AlbertQuestionAnswering(config)
  if kind == "tags":
    model = AlbertTagger(config, label_names=NAMES)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    model.compile(loss=loss)
    return model
  if kind == "regression":
    return AlbertClassifier(config, num_labels=1)
  return AlbertClassifier(config, label_names=NAMES, problem=kind)


@functools.cache
def preprocessor_of(kind: str) -> AlbertPreprocessor:
  return AlbertPreprocessor(tiny_run.tokenizer(), kind=kind, max_length=80)


RANGES = {"classification": (-1e39, 1e39), "multi_label": (0, 1), "regression": (-3.41e38, 3.41e38),
          "tags": (-1, 2), "answers": (0, 4)}  # fmt: skip


@pytest.mark.parametrize("name", RANGES)
@fuzz(value=forms())
def test_labels(name: str, value: Any) -> None:
  model = model_of(name)
  if name == "answers":
    value = dict.fromkeys(squad_losses("2.0"), value)
  with contextlib.suppress(UserError):
    checked = model.checked_labels(value, TAGGED if name == "tags" else IDS)
    for array in tf.nest.flatten(checked):
      lowest, highest = RANGES[name]
      assert array.dtype.kind in "iuf"
      assert np.all((array.astype(float) >= lowest) & (array.astype(float) <= highest))
      if name == "tags":
        assert np.all(array[TAGGED["word_positions"] == 0] == -1)
      if name == "classification" and array.ndim == 1:
        assert set(array.tolist()) <= {0, 1, 2}


class Frame:
  """What a data frame of pandas has."""

  def __init__(self, columns: dict[Any, Any]):
    self.columns = list(columns)
    self._columns = columns

  def __getitem__(self, name: Any) -> Any:
    return self._columns[name]


COLUMN = st.lists(st.sampled_from([0, 1]), min_size=3, max_size=3)
COLUMNS = st.dictionaries(st.sampled_from([*NAMES, 1, "x", None]), COLUMN | VALUES, max_size=4)
# All labels, in any order.
COLUMNS |= st.permutations(NAMES).flatmap(
  lambda names: st.fixed_dictionaries(dict.fromkeys(names, COLUMN))
)


@fuzz(columns=COLUMNS, form=st.sampled_from([dict, Frame]))
def test_labels_by_name(columns: dict[Any, Any], form: Any) -> None:
  """Each column is the label of its name, in whatever order the columns are."""
  with contextlib.suppress(UserError):
    checked = model_of("multi_label").checked_labels(form(columns), IDS)
    by_name = {labels.name_of(name): column for name, column in columns.items()}
    assert set(by_name) == set(NAMES)
    for name, column in zip(NAMES, checked.T, strict=True):
      np.testing.assert_array_equal(column, np.asarray(by_name[name], float))


CUTS = st.sampled_from([0.1, 0.3, 0.5, 0.7])
CELLS = st.tuples(st.integers(0, 1), st.floats(-3, 3, width=32))
TABLE = st.lists(st.lists(CELLS, min_size=2, max_size=2), min_size=1, max_size=4)
METRICS = {
  "accuracy": lambda cut: keras.metrics.BinaryAccuracy(threshold=cut),
  "precision": lambda cut: keras.metrics.Precision(thresholds=cut),
  "recall": lambda cut: keras.metrics.Recall(thresholds=cut),
  "f1": lambda cut: keras.metrics.F1Score(threshold=cut, average="micro"),
  "auc": lambda cut: keras.metrics.AUC(num_thresholds=9),
  "entropy": lambda cut: keras.metrics.BinaryCrossentropy(),
}


@pytest.mark.parametrize("name", METRICS)
@fuzz(cost=4, table=TABLE, cut=CUTS)
def test_metrics_of_logits(name: str, table: Any, cut: float) -> None:
  """A metric of logits is Keras' metric of their probabilities."""
  cells = np.array(table, np.float32)
  gold, logits = cells[..., 0], cells[..., 1]
  of_probabilities = METRICS[name](cut)
  of_probabilities.update_state(gold, tf.sigmoid(logits))
  loss = keras.losses.BinaryCrossentropy(from_logits=True)
  (of_logits,) = metrics_of_logits([METRICS[name](cut)], loss, lambda output: "sigmoid")
  of_logits.update_state(gold, tf.constant(logits))
  np.testing.assert_array_equal(of_logits.result(), of_probabilities.result())


@fuzz(value=forms())
def test_weights(value: Any) -> None:
  for check in (
    lambda: labels.finite(value, "sample_weight"),
    lambda: np.array(list(labels.class_weights(value, NAMES).values())),
    lambda: np.array(list(labels.class_weights({"bad": value}, NAMES).values())),
  ):
    with contextlib.suppress(UserError):
      for array in tf.nest.flatten(check()):
        assert np.all(np.abs(np.asarray(array, float)) <= 3.41e38)


@pytest.mark.parametrize("name", ["text", "sentences", "words", "choices", "question"])
@fuzz(value=forms(), other=forms())
def test_texts(name: str, value: Any, other: Any) -> None:
  layer = preprocessor_of(name)
  parts = {"context": value, "question": other, "choices": value}
  for inputs in (value, (value, other), {"text": value}, parts):
    with contextlib.suppress(UserError):
      for column in layer.named(inputs).values():
        assert tf.convert_to_tensor(column).dtype == tf.string
