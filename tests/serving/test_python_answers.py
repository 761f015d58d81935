"""Answers as Python values equal those of SavedModels; question answering is trained from strings."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from support.tiny_run import as_bytes

from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.squad.features import make_features
from albert_tf.finetuning.tasks.squad.read import Question, SquadData
from albert_tf.finetuning.tasks.squad.settings import SquadSettings
from albert_tf.keras_api.pretrained import AlbertMaskedLM

LONG = "small birds sing all day long and the green grass grows under old trees " * 2
TEXTS = ["the sky is blue", LONG, "", "Zebra 12, ﬁ"]
QUESTIONS = ["what is blue?", "where", "x", "sky"]
SAME = {"max_windows": 12}  # As the fixture exports.


def close(ours: Any, served: Any) -> None:
  np.testing.assert_allclose(ours, served, atol=1e-5)


@pytest.mark.parametrize("key", ["pair", "labels"])
def test_labels(key: str, exported: Callable[[str], Any]) -> None:
  task, model, _, session, _, source = exported(key)
  model = type(model).from_pretrained(source)
  texts, inputs = TEXTS, {"text": as_bytes(TEXTS)}
  if task.pair:
    texts, inputs = (TEXTS, QUESTIONS), inputs | {"text_pair": as_bytes(QUESTIONS)}
  answers = model.predict_labels(texts, batch_size=3)
  served = session.run("serving_default", inputs)
  assert [list(answer.probabilities) for answer in answers] == [list(task.label_names)] * 4
  close([list(answer.probabilities.values()) for answer in answers], served["probabilities"])
  if key == "pair":
    assert [answer.labels for answer in answers] == [(label.decode(),) for label in served["label"]]
    assert model.predict_labels(TEXTS) != answers  # One text is no pair.
  else:
    names = np.array(task.label_names)
    assert [answer.labels for answer in answers] == [
      tuple(names[row]) for row in served["above_threshold"]
    ]
  assert model.predict_labels([]) == []
  keras.backend.clear_session()  # As every search of hyper-parameters does.
  assert model.predict_labels(texts, batch_size=3) == answers
  model.head.set_weights([10 * weight for weight in model.head.get_weights()])
  changed = model.predict_labels(texts)
  assert changed[0].probabilities != answers[0].probabilities  # Weights are read, not copied.


@pytest.mark.parametrize("key", ["squad_1.1", "squad_2.0"])
def test_answers(key: str, exported: Callable[[str], Any]) -> None:
  _, model, _, session, _, source = exported(key)
  model = type(model).from_pretrained(source)
  answers = model.answer(QUESTIONS, TEXTS, batch_size=3, **SAME)
  served = session.run(
    "serving_default", {"question": as_bytes(QUESTIONS), "context": as_bytes(TEXTS)}
  )
  assert [answer.text.encode() for answer in answers] == served["answer"].tolist()
  for row, answer in enumerate(answers):
    assert [span.text.encode() for span in answer.spans] == [
      text for text in served["answers"][row] if text
    ]
    assert all(span.text == TEXTS[row][span.start : span.end] for span in answer.spans)
    close(
      [span.probability for span in answer.spans], served["probabilities"][row][: len(answer.spans)]
    )
  with pytest.raises(UserError, match=r"same number of rows.*'question': 4, 'context': 1"):
    model.answer(QUESTIONS, TEXTS[:1])


def test_tags(exported: Callable[[str], Any]) -> None:
  _, model, _, session, _, source = exported("tags")
  model = type(model).from_pretrained(source)
  texts = [*TEXTS, "the sky " * 200]
  tagged = model.tag(texts, batch_size=2, **SAME)
  served = session.run("serving_default", {"text": as_bytes(texts)})
  assert [text.truncated for text in tagged] == served["truncated"].tolist() == [False] * 4 + [True]
  assert any(text.entities for text in tagged)
  for row, text in enumerate(tagged):
    assert [word.text for word in text.words] == texts[row].split()
    count = len(text.words)
    assert [word.label.encode() for word in text.words] == served["tags"][row][:count].tolist()
    close([word.probability for word in text.words], served["probabilities"][row][:count])
    count = served["num_entities"][row]
    assert [span.label.encode() for span in text.entities] == served["entity_types"][row][
      :count
    ].tolist()
    assert [texts[row][span.start : span.end] for span in text.entities] == [
      span.text for span in text.entities
    ]
    close([span.probability for span in text.entities], served["entity_probabilities"][row][:count])
  with pytest.raises(UserError, match="Put it in a list"):
    model.tag("one text")


def test_masks(exported: Callable[[str], Any]) -> None:
  exported = exported("fill_mask")
  texts = ["the [MASK] is [MASK]", "no mask", "[MASK], [MASK] and [MASK]"]
  filled = AlbertMaskedLM.from_pretrained(exported.source).fill(texts, top_k=10, batch_size=2)
  served = exported.session.run("serving_default", {"text": as_bytes(texts)})
  assert [len(masks) for masks in filled] == served["num_masks"].tolist() == [2, 0, 3]
  for row, masks in enumerate(filled):
    for place, words in enumerate(masks):
      assert [word.encode() for word, _ in words] == served["words"][row][place].tolist()
      close([probability for _, probability in words], served["probabilities"][row][place])


@pytest.mark.parametrize("key", ["squad_1.1", "squad_2.0"])
def test_answer_strings_train_the_rows_of_run_squad(
  key: str, exported: Callable[[str], Any]
) -> None:
  task, model, _, _, _, source = exported(key)
  model = type(model).from_pretrained(source, max_length=32)
  contexts = ["the sky is blue", "The  Sky, ﬁne", "é birds sing ", "green \u0301 grass", "day", ""]
  answers = ["sky is", "Sky, ﬁ", "birds", "grass", "day", ""]
  if task.squad_version == "1.1":
    contexts, answers = contexts[:5], answers[:5]
  questions = ["what is blue?", "where", "x", "", "when", "why"][: len(answers)]
  inputs = {"question": questions, "context": contexts}
  x, y = model._prepared(inputs, answers)

  rows = []
  for number, (question, context, answer) in enumerate(
    zip(questions, contexts, answers, strict=True)
  ):
    gold = ((answer, context.find(answer)),) if answer else ()
    rows.append(Question(str(number), question, context, answers=gold))
  data = SquadData(task.squad_version, rows, labelled=True)
  settings = SquadSettings(max_seq_length=32, max_query_length=8, doc_stride=6)
  features = make_features(data, tokenizer=model.preprocessor.tokenizer, settings=settings)
  assert len(features) == len(contexts)  # A window each.
  for ours, theirs in zip(x["input_ids"], features.rows, strict=True):
    np.testing.assert_array_equal(ours[: len(theirs["input_ids"])], theirs["input_ids"])
  for ours, theirs in zip(y.values(), features.positions, strict=False):
    np.testing.assert_array_equal(ours, theirs)
  np.testing.assert_array_equal(x["start_positions"], features.positions[0])

  model.compile("adam")  # The losses are those of run_squad.py.
  history = model.fit(inputs, answers, validation_data=(inputs, answers), verbose=0).history
  assert np.isfinite([*history["loss"], *history["val_loss"]]).all()


@pytest.mark.parametrize("key", ["squad_1.1", "squad_2.0"])
def test_answers_that_teach_nothing_are_refused(key: str, exported: Callable[[str], Any]) -> None:
  _, model, _, _, _, source = exported(key)
  model = type(model).from_pretrained(source)
  x = {"question": QUESTIONS[:2], "context": TEXTS[:2]}
  for answers, received in (
    (["sky", "no such words"], "row 1: 'no such words'"),
    (
      ["sky", "old trees "],
      "row 1: 'old trees '.*max_length, or train with run_squad.py",
    ),  # Cut off.
    (["sky"], "2 contexts, 1"),
  ):
    with pytest.raises(UserError, match=received):
      model.fit(x, answers)
  if key == "squad_1.1":
    with pytest.raises(UserError, match="row 1: ''"):
      model.fit(x, ["sky", ""])
