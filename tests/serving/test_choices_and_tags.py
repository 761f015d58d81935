"""Multiple choice and tagging exports equal what fine-tuning's own features give."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.finetuning.tasks.choices import ChoiceExample, PackedChoices
from albert_tf.finetuning.tasks.conll import TaggedSentence
from albert_tf.finetuning.tasks.words import align
from albert_tf.tokenization import AlbertTokenizer

CONTEXTS = ["the sky is blue and green grass grows under old trees while small birds sing", "", "day"]
QUESTIONS = ["The _ is blue", "what  grows?", "_ and _ sing all day"]
CHOICES = [["sky", "old trees under the long grass"], ["grass", ""], ["small birds", "Ｂｉｒｄｓ ﬁ"]]
SENTENCES = [
  "the sky is blue",
  "birds zebra \u0301 sing",
  "",
  "small birds sing all day long and the grass grows",
]


def as_bytes(texts) -> np.ndarray:
  return np.vectorize(lambda text: text.encode(), otypes=[object])(np.array(texts, object))


def test_choices_equal_the_python_model(exported: Callable[[str], Any], tokenizer: AlbertTokenizer) -> None:
  _, model, _, session, *_ = exported("choice")
  rows = PackedChoices(
    [
      ChoiceExample(example_id=str(b), context=CONTEXTS[b], question=QUESTIONS[b], choices=tuple(CHOICES[b]))
      for b in range(3)
    ],
    tokenizer,
    max_seq_length=24,
    max_qa_length=10,
  )
  inputs = {"context": as_bytes(CONTEXTS), "question": as_bytes(QUESTIONS), "choices": as_bytes(CHOICES)}
  outputs = session.run("serving_default", inputs)
  for b in range(3):
    row = {name: tf.constant(array[np.newaxis]) for name, array in rows[b].items()}
    scores = model(row).numpy()[0]
    np.testing.assert_allclose(outputs["scores"][b], scores, atol=1e-5)
    np.testing.assert_allclose(outputs["probabilities"][b], tf.nn.softmax(scores), atol=1e-5)
    assert outputs["predictions"][b] == scores.argmax()
    assert outputs["answer"][b].decode() == CHOICES[b][scores.argmax()]
    tokens = session.run("tokens", {name: tensor.numpy() for name, tensor in row.items()})
    np.testing.assert_allclose(tokens["scores"][0], scores, atol=1e-5)
  none = session.run("serving_default", {name: array[:0] for name, array in inputs.items()})
  assert none["scores"].shape == (0, 2)


def test_examples_hold_choices(exported: Callable[[str], Any]) -> None:
  session = exported("choice").session

  def example(b: int, count: int = 2) -> bytes:
    lists = {"context": [CONTEXTS[b]], "question": [QUESTIONS[b]], "choices": CHOICES[b][:count]}
    feature = {
      name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode() for text in texts]))
      for name, texts in lists.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()

  inputs = {"context": as_bytes(CONTEXTS), "question": as_bytes(QUESTIONS), "choices": as_bytes(CHOICES)}
  expected = session.run("serving_default", inputs)
  outputs = session.run("examples", {"inputs": np.array([example(b) for b in range(3)], object)})
  np.testing.assert_allclose(outputs["scores"], expected["scores"], atol=1e-6)
  with pytest.raises(tf.errors.InvalidArgumentError, match="same number of strings in choices"):
    session.run("examples", {"inputs": np.array([example(0), example(1, count=1)], object)})


def test_tags_equal_the_python_model(exported: Callable[[str], Any], tokenizer: AlbertTokenizer) -> None:
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
    aligned = align(
      [TaggedSentence(words=tuple(words), tags=None, where="")], tokenizer, label_ids={}, max_seq_length=12
    )
    row = {name: tf.constant(array[np.newaxis]) for name, array in aligned.features.rows[0].items()}
    if len(aligned.features.rows) > 1:
      whole = [place for place in aligned.places[0] if place is not None and place.row == 0]
      cut = [tag.decode() for tag in outputs["tags"][b]]
      assert all(cut[: len(whole)])
      assert cut[-1] == ""
      continue
    chances = tf.nn.softmax(model(row)).numpy()[0]
    for word, place in enumerate(aligned.places[0]):
      best = "O" if place is None else task.label_names[chances[place.position].argmax()]
      assert outputs["tags"][b][word].decode() == best
      if place is not None:
        np.testing.assert_allclose(
          outputs["probabilities"][b][word], chances[place.position].max(), atol=1e-5
        )
  listed = session.run("words", {"words": outputs["words"]})
  np.testing.assert_array_equal(listed["tags"], outputs["tags"])
  none = session.run("serving_default", {"text": np.array([], object)})
  assert none["tags"].shape == (0, 0)
