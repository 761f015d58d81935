"""Exports for multiple choice and tagging give the outputs of fine-tuning."""

import numpy as np
import pytest
from seqeval.metrics.sequence_labeling import get_entities
from support.tiny_run import as_bytes
import tensorflow as tf

from albert_tf.finetuning.tasks.choices import ChoiceExample
from albert_tf.finetuning.tasks.conll import TaggedSentence
from albert_tf.finetuning.tasks.multiple_choice import multiple_choice_task
from albert_tf.finetuning.tasks.tagging import align
from albert_tf.serving.check import ODD_TEXTS
from albert_tf.serving.signatures.token_classification import group_entities

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


@pytest.mark.slow
def test_choices_equal_the_python_model(exported, tokenizer) -> None:
  _, model, _, session, _ = exported("choice")
  examples = [
    ChoiceExample(id=question, context=context, question=question, choices=tuple(choices))
    for context, question, choices in zip(CONTEXTS, QUESTIONS, CHOICES, strict=True)
  ]
  task = multiple_choice_task(
    {"test": examples}, tokenizer=tokenizer, max_seq_length=24, max_qa_length=10
  )
  rows, *_ = task.features("test").padded(24)
  columns = {"context": CONTEXTS, "question": QUESTIONS, "choices": CHOICES}
  inputs = {name: as_bytes(column) for name, column in columns.items()}
  outputs = session.run("serving_default", inputs)
  scores = model({name: tf.constant(array) for name, array in rows.items()}).numpy()
  best = scores.argmax(-1)
  np.testing.assert_allclose(outputs["scores"], scores, atol=1e-5)
  np.testing.assert_allclose(outputs["probabilities"], tf.nn.softmax(scores), atol=1e-5)
  np.testing.assert_array_equal(outputs["predictions"], best)
  assert [answer.decode() for answer in outputs["answer"]] == [
    choices[index] for choices, index in zip(CHOICES, best, strict=True)
  ]
  np.testing.assert_allclose(session.run("tokens", rows)["scores"], scores, atol=1e-5)


@pytest.mark.slow
def test_tags_equal_the_python_model(exported, tokenizer) -> None:
  task, model, _, session, _ = exported("tags")
  outputs = session.run("serving_default", {"text": as_bytes(SENTENCES)})
  for b, sentence in enumerate(SENTENCES):
    words = sentence.split()
    assert outputs["num_words"][b] == len(words)
    assert not outputs["words"][b][len(words) :].any()
    assert not outputs["tags"][b][len(words) :].any()
    if not words:
      continue
    sentences = [TaggedSentence(words=tuple(words), tags=(), where="")]
    features, places = align(sentences, tokenizer, label_ids={}, max_seq_length=12)
    x, *_ = features.padded(12)
    chances = tf.nn.softmax(model(x)).numpy()  # Of each window.
    for word, (row, position) in enumerate(places):
      at = np.eye(4)[0] if row < 0 else chances[row, position]
      assert outputs["tags"][b][word].decode() == task.label_names[at.argmax()]
      assert row < 0 or outputs["probabilities"][b][word] == pytest.approx(at.max(), abs=1e-5)
  assert not outputs["truncated"].any()
  listed = session.run("words", {"words": outputs["words"]})
  np.testing.assert_array_equal(listed["tags"], outputs["tags"])


@pytest.mark.slow  # An export.
def test_words_and_entities_are_parts_of_the_text(exported) -> None:
  texts = [
    "  the sky\u3000is blue, small birds\nsing all day long and the grass grows ",
    "é 😀 birds",
    *(text.decode("utf-8", "replace") for text in ODD_TEXTS),
    "a\x85b\u2028c  d",
    "\t\n",
  ]
  outputs = exported("tags").session.run("serving_default", {"text": as_bytes(texts)})
  for text, row in zip(texts, zip(*outputs.values(), strict=True), strict=True):
    row = dict(zip(outputs, row, strict=True))
    count = row["num_words"]
    starts, ends = row["starts"][:count], row["ends"][:count]
    assert [word.decode() for word in row["words"][:count]] == text.split()
    assert [text[s:e] for s, e in zip(starts, ends, strict=True)] == text.split()
    found = get_entities([tag.decode() for tag in row["tags"][:count]])
    assert row["num_entities"] == len(found)
    assert found or text not in texts[:2]
    for e, (kind, first, last) in enumerate(found):
      start, end = row["entity_starts"][e], row["entity_ends"][e]
      assert (start, end) == (starts[first], ends[last])
      assert row["entities"][e].decode() == text[start:end]
      assert row["entity_types"][e].decode() == kind
      of_words = row["probabilities"][first : last + 1]
      assert row["entity_probabilities"][e] == pytest.approx(of_words.mean(), abs=1e-6)
    assert not row["entities"][len(found) :].any()


@pytest.mark.parametrize("letters", ["BI", "I", "BIES", "BILU"])
def test_entities_are_grouped_as_they_are_scored(letters: str) -> None:
  names = ["O", *(f"{letter}-{kind}" for letter in letters for kind in ("PER", "LOC"))]
  tags = np.random.default_rng(1).integers(0, len(names), (50, 12)).astype(np.int32)
  made = group_entities(names, tf.constant(tags), tf.ones([50, 12], tf.bool), tf.ones([50, 12]))
  columns = [made[f"entity_{name}"].numpy() for name in ("types", "first_words", "end_words")]
  counts = made["num_entities"].numpy()
  for row, kinds, first, end, count in zip(tags, *columns, counts, strict=True):
    # seqeval knows the letters of IOBES; BILOU has L for E and U for S.
    iobes = [names[tag].replace("L-", "E-").replace("U-", "S-") for tag in row]
    grouped = zip(kinds[:count], first[:count], end[:count] - 1, strict=True)
    assert [(kind.decode(), a, b) for kind, a, b in grouped] == get_entities(iobes)
    assert not end[count:].any()
