"""Texts, ids, answers and thresholds in any form: the same as of plain lists, or one sentence of what is wrong."""

import collections
import contextlib
import functools
from typing import Any

from fuzz.fuzzing import fuzz
from fuzz.test_labels import forms
from fuzz.test_tokenizers import ODD
from hypothesis import strategies as st
import numpy as np
from support import tiny_run
from support.columns import Column
from support.tiny_records import tiny_config
import tensorflow as tf

from albert_tf import AlbertClassifier, AlbertPreprocessor, AlbertTagger
from albert_tf.errors import UserError
from albert_tf.keras_api.answers import gold_answers
from albert_tf.keras_api.task_model import _checked_thresholds

TEXTS = st.lists(st.sampled_from([*ODD, *tiny_run.WORDS, "", "a b"]), min_size=1, max_size=4)


@functools.cache
def model_of(kind: str) -> Any:
  tokenizer = tiny_run.tokenizer()
  config = tiny_config(vocab_size=tokenizer.vocab_size, max_position_embeddings=64)
  preprocessor = AlbertPreprocessor(tokenizer, kind=kind, max_length=60)
  model = AlbertTagger if kind == "words" else AlbertClassifier
  return model(config, preprocessor=preprocessor, head_options={"num_labels": 2})


def encoded(texts: list[str]) -> list[bytes]:
  return [text.encode() for text in texts]


# A list in other forms, of any rows and of texts.
CONTAINERS = [
  list, iter, collections.deque, Column, np.array, tf.constant, tf.ragged.constant,
  lambda rows: np.array(rows, object),
]  # fmt: skip
COLUMNS = [
  *CONTAINERS,
  encoded,
  lambda texts: np.array(encoded(texts)),
  lambda texts: [np.str_(text) for text in texts],
]
# Batches, other things with the same texts, and what is no batch of texts.
OTHERS = [
  tuple, set, dict.fromkeys,
  lambda texts: (texts,),
  lambda texts: (texts, [""] * len(texts)),
  lambda texts: {"text": iter(texts)},
  lambda texts: {text: [text] for text in texts},
  lambda texts: [texts],
  lambda texts: [[text] for text in texts],
  lambda texts: ([text] for text in texts),
  lambda texts: [*texts, None],
  lambda texts: np.array([*texts, 1.5], object),
  lambda texts: texts[0],
  lambda texts: texts[0].encode(),
  lambda texts: np.array(texts[0]),
  lambda texts: tf.constant(texts[0]),
  lambda texts: tf.data.Dataset.from_tensor_slices(texts),
  lambda texts: tf.data.Dataset.from_tensor_slices(texts).batch(2),
]  # fmt: skip


def rows_of(prepared: Any) -> list[list[int]]:
  """The ids of all rows without padding, of arrays or of batches."""
  if isinstance(prepared, dict):
    prepared = [prepared]
  rows = []
  for batch in prepared:
    ids = batch[0] if isinstance(batch, tuple) else batch
    rows += [row[row != 0].tolist() for row in np.asarray(ids["input_ids"])]
  return rows


@fuzz(cost=2, texts=TEXTS, form=st.sampled_from(COLUMNS + OTHERS))
def test_texts(texts: list[str], form: Any) -> None:
  model = model_of("text")
  (plain,) = model.examples(texts).padded()
  with contextlib.suppress(UserError):
    (prepared,) = model.examples(form(texts)).padded()
    assert rows_of(prepared) == rows_of(plain)
  with contextlib.suppress(UserError):
    np.testing.assert_allclose(model(form(texts)), model(texts), atol=1e-5)


@fuzz(
  rows=st.lists(TEXTS, min_size=1, max_size=3),
  form=st.sampled_from(CONTAINERS),
  inner=st.sampled_from(COLUMNS + OTHERS),
)
def test_words(rows: list[list[str]], form: Any, inner: Any) -> None:
  try:
    words = form([inner(row) for row in rows])
  except Exception:  # No such array or tensor.
    return
  model = model_of("words")
  (plain,) = model.examples({"words": rows}).padded()
  with contextlib.suppress(UserError):
    (prepared,) = model.examples({"words": words}).padded()
    assert rows_of(prepared) == rows_of(plain)


NUMBERS = st.sampled_from([0, 1, 2, 39, 40, -1, 2**31, 2**32, 2**64, 0.5, 2.0, np.nan, True, None])
TYPES = [bool, "u1", "i2", "i4", "i8", "u8", "f2", "f4", "f8", object, "U"]
MAKERS = [list, tf.constant, *(functools.partial(np.array, dtype=dtype) for dtype in TYPES)]


@fuzz(
  ids=st.lists(st.lists(NUMBERS, min_size=1, max_size=3), min_size=1, max_size=2),
  make=st.sampled_from(MAKERS),
  name=st.sampled_from(["input_ids", "input_mask", "token_type_ids"]),
)
def test_ids(ids: list[list[Any]], make: Any, name: str) -> None:
  try:
    values = make(ids)
  except Exception:  # No such array or tensor.
    return
  model = model_of("text")
  count = model.config.vocab_size if name == "input_ids" else 2
  with contextlib.suppress(UserError):
    answer = model({"input_ids": [[1, 2]], name: values})
    numbers = np.asarray(values).tolist()
    assert all(number in range(count) for row in numbers for number in row)
    plain = model({"input_ids": np.array([[1, 2]]), name: np.array(numbers, np.int32)})
    np.testing.assert_allclose(answer, plain, atol=1e-5)


ANSWERS = [
  str,
  str.encode,
  lambda text: [text],
  lambda text: (text, "other"),
  lambda text: np.array([text, "other"]),
  lambda text: {"text": text, "answer_start": 0},
  lambda text: {"text": [text, "other"], "answer_start": np.array([0, 3])},
  lambda text: [{"text": text, "answer_start": 0}],
]


@fuzz(texts=TEXTS, form=st.sampled_from(CONTAINERS), answer=st.sampled_from(ANSWERS))
def test_answers(texts: list[str], form: Any, answer: Any) -> None:
  try:
    labels = form([answer(text) for text in texts])
  except Exception:  # No such array or tensor.
    return
  with contextlib.suppress(UserError):
    assert [gold.text for gold in gold_answers(labels)] == texts


@fuzz(value=forms())
def test_other_answers_and_thresholds(value: Any) -> None:
  for labels in (value, [value], {"text": value}, {"text": ["a"], "answer_start": value}):
    with contextlib.suppress(UserError):
      for text, start in gold_answers(labels) or ():
        assert isinstance(text, str)
        assert start is None or isinstance(start, int)
  with contextlib.suppress(UserError):
    thresholds = _checked_thresholds(value)
    assert ((thresholds >= 0) & (thresholds <= 1)).all()
