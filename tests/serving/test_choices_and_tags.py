"""Exports for multiple choice and tagging give the outputs of fine-tuning."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from reference.batches import numpy_batch
from seqeval.metrics.sequence_labeling import get_entities
from support.tiny_run import as_bytes
import tensorflow as tf

from albert_tf.finetuning.tasks.choices import ChoiceExample
from albert_tf.finetuning.tasks.conll import TaggedSentence
from albert_tf.finetuning.tasks.multiple_choice import MultipleChoiceTask
from albert_tf.finetuning.tasks.tagging import align
from albert_tf.serving.check import ODD_TEXTS
from albert_tf.serving.signatures.token_classification import group_entities
from albert_tf.tokenization import AlbertTokenizer
from albert_tf.windows.word_windows import locate_words

CONTEXTS = [
  "the sky is blue and green grass grows under old trees while small birds sing",
  "",
  "day",
]
QUESTIONS = ["The _ is blue", "what  grows?", "_ and _ sing all day"]
CHOICES = [
  ["sky", "old trees under the long grass"],
  ["grass", ""],
  ["small birds", "Ｂｉｒｄｓ ﬁ"],
]
SENTENCES = [
  "the sky is blue",
  "birds zebra \u0301 sing",
  "",
  "small birds sing all day long and the grass grows",
]


def test_choices_equal_the_python_model(
  exported: Callable[[str], Any], tokenizer: AlbertTokenizer
) -> None:
  _, model, _, session, *_ = exported("choice")
  questions = [
    ChoiceExample(id=str(b), context=CONTEXTS[b], question=QUESTIONS[b], choices=tuple(CHOICES[b]))
    for b in range(3)
  ]
  task = MultipleChoiceTask(
    splits={"test": questions}, tokenizer=tokenizer, max_seq_length=24, max_qa_length=10
  )
  rows, _, _ = numpy_batch(task.features("test"), range(3), batch_size=3, length=24)
  inputs = {
    "context": as_bytes(CONTEXTS),
    "question": as_bytes(QUESTIONS),
    "choices": as_bytes(CHOICES),
  }
  outputs = session.run("serving_default", inputs)
  for b in range(3):
    row = {name: tf.constant(array[b : b + 1]) for name, array in rows.items()}
    scores = model(row).numpy()[0]
    np.testing.assert_allclose(outputs["scores"][b], scores, atol=1e-5)
    np.testing.assert_allclose(outputs["probabilities"][b], tf.nn.softmax(scores), atol=1e-5)
    assert outputs["predictions"][b] == scores.argmax()
    assert outputs["answer"][b].decode() == CHOICES[b][scores.argmax()]
    tokens = session.run("tokens", {name: tensor.numpy() for name, tensor in row.items()})
    np.testing.assert_allclose(tokens["scores"][0], scores, atol=1e-5)
  none = session.run("serving_default", {name: array[:0] for name, array in inputs.items()})
  assert none["scores"].shape == (0, 2)


def test_tags_equal_the_python_model(
  exported: Callable[[str], Any], tokenizer: AlbertTokenizer
) -> None:
  task, model, _, session, *_ = exported("tags")
  outputs = session.run("serving_default", {"text": as_bytes(SENTENCES)})
  for b, sentence in enumerate(SENTENCES):
    words = sentence.split()
    assert outputs["num_words"][b] == len(words)
    assert [word.decode() for word in outputs["words"][b][: len(words)]] == words
    assert not outputs["words"][b][len(words) :].any()
    assert not outputs["tags"][b][len(words) :].any()
    if not words:
      continue
    features, places = align(
      [TaggedSentence(words=tuple(words), tags=(), where="")],
      tokenizer,
      label_ids={},
      max_seq_length=12,
    )
    count = len(features)
    x, _, _ = numpy_batch(features, range(count), batch_size=count, length=12)
    chances = tf.nn.softmax(model(x)).numpy()  # Of each window.
    for word, (row, position) in enumerate(places):
      at = np.eye(4)[0] if row < 0 else chances[row, position]
      assert outputs["tags"][b][word].decode() == task.label_names[at.argmax()]
      assert row < 0 or outputs["probabilities"][b][word] == pytest.approx(at.max(), abs=1e-5)
  assert not outputs["truncated"].any()
  listed = session.run("words", {"words": outputs["words"]})
  np.testing.assert_array_equal(listed["tags"], outputs["tags"])
  none = session.run("serving_default", {"text": np.array([], object)})
  assert none["tags"].shape == none["entities"].shape == (0, 0)
  endless = session.run("serving_default", {"text": as_bytes(["the sky " * 200])})
  assert endless["truncated"].all()
  assert 30 < np.count_nonzero(endless["tags"][0]) < 400


def test_entities_are_parts_of_the_text(exported: Callable[[str], Any]) -> None:
  session = exported("tags").session
  texts = [
    "  the sky\u3000is blue, small birds\nsing all day long and the grass grows ",
    "é 😀 birds",
  ]
  outputs = session.run("serving_default", {"text": as_bytes(texts)})
  for b, text in enumerate(texts):
    words = [text[s:e] for s, e in zip(outputs["starts"][b], outputs["ends"][b], strict=True) if e]
    assert words == text.split()
    tags = [tag.decode() for tag in outputs["tags"][b][: len(words)]]
    found = get_entities(tags)
    assert outputs["num_entities"][b] == len(found)
    for e, (kind, first, last) in enumerate(found):
      start, end = outputs["entity_starts"][b][e], outputs["entity_ends"][b][e]
      assert (start, end) == (outputs["starts"][b][first], outputs["ends"][b][last])
      assert outputs["entities"][b][e].decode() == text[start:end]
      assert outputs["entity_types"][b][e].decode() == kind
      of_words = outputs["probabilities"][b][first : last + 1]
      assert outputs["entity_probabilities"][b][e] == pytest.approx(of_words.mean(), abs=1e-6)
    assert not outputs["entities"][b][len(found) :].any()
  assert outputs["num_entities"].sum() > 0


def test_words_are_those_of_python_whatever_the_text() -> None:
  texts = [*(text.decode("utf-8", "replace") for text in ODD_TEXTS), "a\x85b\u2028c  d", "\t\n"]
  located = locate_words(tf.constant(texts))
  for text, words, starts, ends in zip(
    texts, *(column.to_list() for column in located[1:4]), strict=True
  ):
    assert [word.decode() for word in words] == text.split()
    assert [text[s:e] for s, e in zip(starts, ends, strict=True)] == text.split()


@pytest.mark.parametrize("letters", ["BI", "I", "BIES", "BILU"])
def test_entities_are_grouped_as_they_are_scored(letters: str) -> None:
  names = ["O", *(f"{letter}-{kind}" for letter in letters for kind in ("PER", "LOC"))]
  tags = np.random.default_rng(1).integers(0, len(names), (50, 12)).astype(np.int32)
  made = group_entities(names, tf.constant(tags), tf.ones([50, 12], tf.bool), tf.ones([50, 12]))
  for row, kinds, first, end, count in zip(
    tags,
    *(made[f"entity_{name}"].numpy() for name in ("types", "first_words", "end_words")),
    made["num_entities"].numpy(),
    strict=True,
  ):
    # seqeval knows the letters of IOBES; BILOU has L for E and U for S.
    iobes = [names[tag].replace("L-", "E-").replace("U-", "S-") for tag in row]
    scored = get_entities(iobes)
    grouped = zip(kinds[:count], first[:count], end[:count] - 1, strict=True)
    assert [(kind.decode(), a, b) for kind, a, b in grouped] == scored
