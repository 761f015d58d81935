"""Answers as Python values equal those of SavedModels; question answering is trained from strings."""

from typing import Any

import keras
import numpy as np
import pytest
from serving.conftest import TASKS
from support.tiny_run import as_bytes, write_fine_tuned_run
from support.tiny_step import eagerly
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.squad.features import make_features
from albert_tf.finetuning.tasks.squad.read import Question, SquadData
from albert_tf.finetuning.tasks.squad.settings import SquadSettings
from albert_tf.keras_api.pretrained import AlbertMaskedLM

LONG = "small birds sing all day long and the green grass grows under old trees " * 2
TEXTS = ["the sky is blue", LONG, "", "Zebra 12, ﬁ"]
QUESTIONS = ["what is blue?", "where", "x", "sky"]
SAME = {"max_windows": 12}  # As the fixture exports.
# The head of SQuAD 1.1 is the simpler one.
BOTH_SQUADS = pytest.mark.parametrize(
  "key", [pytest.param(key, marks=pytest.mark.slow) for key in ("squad_1.1", "squad_2.0")]
)


def loaded(export: Any, **options: Any) -> Any:
  return type(export.model).from_pretrained(export.source, **options)


def close(ours: Any, served: Any) -> None:
  np.testing.assert_allclose(ours, served, atol=1e-5)


def decoded(values: Any) -> list[str]:
  return [value.decode() for value in values]


@pytest.mark.parametrize("key", ["pair", pytest.param("labels", marks=pytest.mark.slow)])
def test_labels(key: str, exported) -> None:
  export = exported(key)
  model, task = loaded(export), export.task
  texts, inputs = TEXTS, {"text": as_bytes(TEXTS)}
  if task.pair:
    texts, inputs = (TEXTS, QUESTIONS), inputs | {"text_pair": as_bytes(QUESTIONS)}
  answers = model.predict_labels(texts, batch_size=3)
  served = export.session.run("serving_default", inputs)
  assert [list(answer.probabilities) for answer in answers] == [list(task.label_names)] * 4
  close([list(answer.probabilities.values()) for answer in answers], served["probabilities"])
  labels = [answer.labels for answer in answers]
  if key == "pair":
    assert labels == [(label,) for label in decoded(served["label"])]
    assert model.predict_labels(TEXTS) != answers  # One text is no pair.
  else:
    names = np.array(task.label_names)
    assert labels == [tuple(names[row]) for row in served["above_threshold"]]
  assert model.predict_labels([]) == []
  keras.backend.clear_session()  # As every search of hyper-parameters does.
  assert model.predict_labels(texts, batch_size=3) == answers
  model.head.set_weights([10 * weight for weight in model.head.get_weights()])
  changed = model.predict_labels(texts)
  assert changed[0].probabilities != answers[0].probabilities  # Weights are read, not copied.


@BOTH_SQUADS
def test_answers(key: str, exported) -> None:
  model = loaded(exported(key))
  with eagerly():  # The graph is that of the SavedModel, which is compared with.
    answers = model.answer(QUESTIONS, TEXTS, batch_size=3, **SAME)
  inputs = {"question": as_bytes(QUESTIONS), "context": as_bytes(TEXTS)}
  served = exported(key).session.run("serving_default", inputs)
  assert [answer.text for answer in answers] == decoded(served["answer"])
  for row, answer in enumerate(answers):
    spans = answer.spans
    assert [span.text for span in spans] == decoded(text for text in served["answers"][row] if text)
    assert all(span.text == TEXTS[row][span.start : span.end] for span in spans)
    close([span.probability for span in spans], served["probabilities"][row][: len(spans)])
  with pytest.raises(UserError, match=r"Received: .*'question': 4, 'context': 1"):
    model.answer(QUESTIONS, TEXTS[:1])


@pytest.mark.slow
def test_tags(exported) -> None:
  model = loaded(exported("tags"))
  texts = [*TEXTS, "the sky " * 200]
  with eagerly():
    tagged = model.tag(texts, batch_size=2, **SAME)
  served = exported("tags").session.run("serving_default", {"text": as_bytes(texts)})
  assert [text.truncated for text in tagged] == served["truncated"].tolist() == [False] * 4 + [True]
  assert any(text.entities for text in tagged)
  for row, text in enumerate(tagged):
    assert [word.text for word in text.words] == texts[row].split()
    assert all(texts[row][span.start : span.end] == span.text for span in text.entities)
    for spans, count, labels, probabilities in (
      (text.words, "num_words", "tags", "probabilities"),
      (text.entities, "num_entities", "entity_types", "entity_probabilities"),
    ):
      count = served[count][row]
      assert [span.label for span in spans] == decoded(served[labels][row][:count])
      close([span.probability for span in spans], served[probabilities][row][:count])
  with pytest.raises(UserError, match=r"Received: .*'one text'"):
    model.tag("one text")


def test_masks(exported) -> None:
  exported = exported("fill_mask")
  texts = ["the [MASK] is [MASK]", "no mask", "[MASK], [MASK] and [MASK]"]
  model = AlbertMaskedLM.from_pretrained(exported.source)
  with eagerly():
    filled = model.fill(texts, top_k=10, batch_size=2)
  served = exported.session.run("serving_default", {"text": as_bytes(texts)})
  assert [len(masks) for masks in filled] == served["num_masks"].tolist() == [2, 0, 3]
  for row, masks in enumerate(filled):
    for place, words in enumerate(masks):
      assert [word for word, _ in words] == decoded(served["words"][row][place])
      close([probability for _, probability in words], served["probabilities"][row][place])


def test_more_words_than_the_vocabulary_has(run_dir, tmp_path) -> None:
  """Special tokens are no answers: without them the tiny vocabulary has 35 tokens."""
  model = AlbertMaskedLM.from_pretrained(run_dir)
  for call in (
    lambda: model.fill(["the [MASK]"], top_k=36),
    lambda: model.export(tmp_path / "1", top_k=100_000),
  ):
    with pytest.raises(UserError, match=r"at most 35.*Received: (36|100000)\. .*top_k"):
      call()
  assert not list(tmp_path.iterdir())
  with pytest.raises(UserError, match=r"batch_size .*Received: 0"):
    model.fill(["the [MASK]"], batch_size=0)
  with eagerly():
    ((words,),) = model.fill(["the [MASK]"], top_k=35)
  assert min(probability for _, probability in words) >= 0


@BOTH_SQUADS
def test_answer_strings_train_the_rows_of_run_squad(key: str, exported) -> None:
  model = loaded(exported(key), max_length=32)
  contexts = ["the sky is blue", "The  Sky, ﬁne", "é birds sing ", "green \u0301 grass", "day", ""]
  answers = ["sky is", "Sky, ﬁ", "birds", "grass", "day", ""]
  questions = ["what is blue?", "where", "x", "", "when", "why"]
  if key == "squad_1.1":
    contexts, answers, questions = contexts[:5], answers[:5], questions[:5]
  inputs = {"question": questions, "context": contexts}
  x, y = model.examples(inputs, answers).padded()

  rows = []
  for number, (question, context, answer) in enumerate(
    zip(questions, contexts, answers, strict=True)
  ):
    gold = ((answer, context.find(answer)),) if answer else ()
    rows.append(Question(str(number), question, context, answers=gold))
  data = SquadData(model.task.squad_version, rows, labelled=True)
  settings = SquadSettings(max_seq_length=32, max_query_length=8, doc_stride=6)
  features = make_features(data, tokenizer=model.preprocessor.tokenizer, settings=settings)
  assert len(features) == len(contexts)  # A window each.
  (theirs,) = features.rows.padded()
  np.testing.assert_array_equal(x["input_ids"], theirs["input_ids"])
  for ours, position in zip(y.values(), features.positions, strict=False):
    np.testing.assert_array_equal(ours, position)
  np.testing.assert_array_equal(x["start_positions"], features.positions[0])

  model.compile("adam", run_eagerly=True)  # The losses are those of run_squad.py.
  history = model.fit(inputs, answers, validation_data=(inputs, answers), verbose=0).history
  assert np.isfinite([*history["loss"], *history["val_loss"]]).all()


CONTEXTS = ["the sky is the sky", "small birds sing", "grass"]
COLUMN = np.empty(3, object)
COLUMN[:] = [["sky"], ["birds"], []]


@pytest.fixture(scope="module")
def reader(config, tokenizer, tmp_path_factory) -> Any:
  """A model of SQuAD 2.0, compiled; it computes eagerly."""
  folder = tmp_path_factory.mktemp("reader") / "run"
  model = write_fine_tuned_run(folder, TASKS["squad_2.0"], config, tokenizer)
  model = type(model).from_pretrained(folder, max_length=32)
  model.compile("adam", run_eagerly=True)
  return model


@pytest.mark.parametrize(
  "answers",
  [
    [["sky", "the sky"], ("birds",), []],
    np.array([["sky", "x"], ["birds", "x"], ["", "x"]]),
    COLUMN,
    [{"text": ["sky", "x"], "answer_start": [4, 1]}, {"text": "birds"}, {"text": []}],
    # SQuAD's file has a list of mappings.
    [[{"text": "sky", "answer_start": 4}], ["birds"], []],
    {"text": [["sky"], ["birds"], []], "answer_start": [[4], np.array([6]), []]},
  ],
  ids=["lists", "matrix", "column", "mappings", "lists of mappings", "mapping of columns"],
)
def test_answers_in_every_form(reader: Any, answers: Any) -> None:
  inputs = {"question": QUESTIONS[:3], "context": CONTEXTS}
  _, want = reader.examples(inputs, ["sky", "birds", ""]).padded()
  _, got = reader.examples(inputs, answers).padded()
  for name, positions in want.items():
    np.testing.assert_array_equal(got[name], positions)


def test_the_start_of_an_answer_decides_which_occurrence_it_is(reader: Any) -> None:
  inputs = {"question": QUESTIONS[:1], "context": CONTEXTS[:1]}
  starts = []
  for start in (4, 15):
    _, labels = reader.examples(inputs, [{"text": "sky", "answer_start": start}]).padded()
    starts.append(labels["start_log_probs"][0])
  assert starts[0] < starts[1]
  with pytest.raises(UserError, match=r"row 0: 'sky' .* 5, .*max_length"):
    reader.examples(inputs, [{"text": "sky", "answer_start": 5}])


@pytest.mark.parametrize(
  ("answers", "received"),
  [
    ([None, "birds", ""], "Received in row 0: None"),
    (["sky", float("nan"), ""], "Received in row 1: nan"),
    ([["sky"], [None], []], r"Received in row 1: \[None\]"),
    ([1, 2, 3], "Received in row 0: 1"),
    ([{"texts": "sky"}] * 3, "Received in row 0: {'texts': 'sky'}"),
    ([{"text": "sky", "answer_start": "4"}] * 3, "Received in row 0: .*'answer_start': '4'}"),
    ({"text": ["sky", "birds", ""], "answer_start": [4]}, "3 in text, and 1 in"),
    ({"text": ["sky"]}, "Received: 3 .* 1 "),
    ([], "Received: 3 .* 0 "),
    ("sky", "Received: 'sky'"),
    ([b"\xff", "birds", ""], r"Received: b'\\xff'"),
    (None, "`fit` .*Received: none"),
  ],
)
def test_what_is_no_answer_is_refused(reader: Any, answers: Any, received: str) -> None:
  with pytest.raises(UserError, match=received):
    reader.fit({"question": QUESTIONS[:3], "context": CONTEXTS}, answers)


def test_answers_of_a_data_set_are_read_in_batches(reader: Any) -> None:
  inputs = {"question": QUESTIONS[:3], "context": CONTEXTS}
  answers = ["sky", "birds", ""]
  data = tf.data.Dataset.from_tensor_slices((inputs, answers)).batch(2)
  for options in ({"x": data}, {"x": inputs, "y": answers, "validation_data": data}):
    with pytest.raises(UserError, match=r"Received: strings, .*as_numpy_iterator\(\)"):
      reader.fit(**options)
  history = reader.fit(
    data.repeat().as_numpy_iterator(), steps_per_epoch=2, epochs=2, verbose=0
  ).history
  assert np.isfinite(history["loss"]).all()


@pytest.mark.parametrize(
  ("key", "answers", "received"),
  [
    ("squad_2.0", ["sky", "no such words"], "row 1: 'no such words'"),
    # Cut off.
    ("squad_2.0", ["sky", "old trees "], "row 1: 'old trees '.*max_length, or train with run_sq"),
    ("squad_2.0", ["sky"], "Received: 2 .* 1 "),
    ("squad_1.1", ["sky", ""], "row 1: ''"),
  ],
)
def test_answers_that_teach_nothing_are_refused(
  key: str, answers: list[str], received: str, config, tokenizer, tmp_path
) -> None:
  model = write_fine_tuned_run(tmp_path / "run", TASKS[key], config, tokenizer)
  model = type(model).from_pretrained(tmp_path / "run")
  with pytest.raises(UserError, match=received):
    model.fit({"question": QUESTIONS[:2], "context": TEXTS[:2]}, answers)
