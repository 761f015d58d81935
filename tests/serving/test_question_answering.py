"""Question answering exports give the answers that fine-tuning's own decoding gives."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.goldens import SPM_MODEL
from support.tiny_run import WORDS, write_fine_tuned_run
import tensorflow as tf

from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.squad.decode import answers, decode
from albert_tf.finetuning.tasks.squad.read import Paragraph, Question, SquadData
from albert_tf.finetuning.tasks.squad.windows import SquadSettings, make_features
from albert_tf.serving import export_saved_model
from albert_tf.serving.signatures import question_windows
from albert_tf.tokenization import AlbertTokenizer
from albert_tf.tokenization.graph import GraphTokenizer
from albert_tf.tokenization.graph_offsets import GraphOffsets

SIZES = {"max_seq_length": 24, "max_query_length": 8, "doc_stride": 6, "max_answer_length": 5}
LONG = " ".join(WORDS[(7 * i) % len(WORDS)] for i in range(30))
CONTEXTS = [
  "the sky is blue",
  LONG,
  "",
  "The  Sky, is BLUE zebra\tgrass.",
  "the the the the the the",
  "\u00a0birds sing",
]
QUESTIONS = ["what is blue?", "the long grass grows under old trees all day long", "", "sky", "the", "x"]


def as_bytes(texts: list[str]) -> np.ndarray:
  return np.array([text.encode() for text in texts], object)


@pytest.fixture(scope="module", params=["squad_1.1", "squad_2.0"])
def squad(request: pytest.FixtureRequest, exported: Callable[[str], Any]) -> Any:
  return exported(request.param)


@pytest.fixture(scope="module")
def expected(squad, tokenizer):
  """Features and decoded answers of the Python side."""
  task, model, _, _, *_ = squad
  data = SquadData(
    task.squad_version,
    [Paragraph(context, 0) for context in CONTEXTS],
    [Question(str(b), text, b) for b, text in enumerate(QUESTIONS)],
    labelled=False,
  )
  features = make_features(data, tokenizer=tokenizer, settings=SquadSettings(**SIZES))
  outputs: dict[str, list[np.ndarray]] = {}
  for row in features.rows:
    padding = {"p_mask": 1}
    padded = {
      name: np.pad(a, (0, 24 - len(a)), constant_values=padding.get(name, 0)) for name, a in row.items()
    }
    for name, array in model({name: tf.constant(a[np.newaxis]) for name, a in padded.items()}).items():
      outputs.setdefault(name, []).append(array.numpy()[0])
  return features, decode(features, outputs)


def test_answers_equal_python(squad, expected) -> None:
  task, _, _, session, *_ = squad
  features, decoded = expected
  outputs = session.run("serving_default", {"question": as_bytes(QUESTIONS), "context": as_bytes(CONTEXTS)})
  for b, each in enumerate(decoded):
    texts = [candidate.text for candidate in each.candidates]
    scores = np.array([candidate.score for candidate in each.candidates])
    assert [text.decode() for text in outputs["answers"][b][: len(texts)]] == texts
    np.testing.assert_allclose(outputs["scores"][b][: len(texts)], scores, rtol=1e-5, atol=1e-5)
    assert not outputs["answers"][b][len(texts) :].any()
    for text, start, end in zip(texts, outputs["starts"][b], outputs["ends"][b], strict=False):
      assert CONTEXTS[b][start:end] == text
    if texts != [""]:
      np.testing.assert_allclose(outputs["probabilities"][b].sum(), 1.0, rtol=1e-5)
      weights = np.exp(scores - scores.max())
      np.testing.assert_allclose(
        outputs["probabilities"][b][: len(texts)], weights / weights.sum(), atol=1e-5
      )
  threshold = task.null_score_diff_threshold if task.squad_version == "2.0" else None
  final = answers(features, decoded, threshold=threshold)
  assert [answer.decode() for answer in outputs["answer"]] == [final[str(b)] for b in range(len(QUESTIONS))]
  if task.squad_version == "2.0":
    nulls = [each.null_score for each in decoded]
    np.testing.assert_allclose(outputs["null_scores"], nulls, atol=1e-5)
    assert {bool(answer) for answer in outputs["answer"]} == {True, False}  # Both are seen.
  assert not outputs["truncated"].any()


AWKWARD = [  # Signs that no one sees, lone "▁", and characters that become several pieces.
  "\u200ethe\u200e \u200e many—\u200b\u200bmany ways \u200e\u0301 — 1,990\u200e, \u2014 ▁ ﷺ ½\u0301",
  "سياسي\u200e islām siyā ～ x\u200by \ufeffthe end\u200b",
  "A – b —  c 東京 \u200f😀\u200f d\u0001e. " * 4,
  "\u200e\u200b \u0301",
  "",
]


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_the_same_logits_give_the_same_answers(version: str) -> None:
  """To the character, also where scores are equal: Python's decoding and the graph's."""
  tokenizer = AlbertTokenizer(spm_model_file=SPM_MODEL)
  questions = [Question(str(b), "who?" * b, b) for b in range(len(AWKWARD))]
  data = SquadData(version, [Paragraph(text, 0) for text in AWKWARD], questions, labelled=False)
  features = make_features(data, tokenizer=tokenizer, settings=SquadSettings(**SIZES))
  graph = GraphTokenizer(tokenizer)
  located = GraphOffsets(tokenizer, graph)(tf.constant(AWKWARD))
  query = graph.tokenize(tf.constant([question.text for question in questions]))
  settings = question_windows.WindowSettings(24, 8, 6, max_windows=100)
  windows = question_windows.make_windows(graph, query, located.ids, settings, fixed=False, min_length=8)
  count, length = windows.batch["input_ids"].shape
  np.testing.assert_array_equal(windows.begin, features.windows.begin)
  rng = np.random.default_rng(0)
  if version == "1.1":
    names = ("start_logits", "end_logits")
    outputs = {name: np.round(rng.normal(size=(count, length)), 1).astype(np.float32) for name in names}
  else:
    outputs = {
      "cls_logits": rng.normal(size=count).astype(np.float32),
      "start_top_index": rng.integers(0, length, (count, 8), np.int32),
      "end_top_index": rng.integers(0, length, (count, 64), np.int32),
      "start_top_log_probs": np.round(rng.normal(size=(count, 8)), 1).astype(np.float32),
      "end_top_log_probs": np.round(rng.normal(size=(count, 64)), 1).astype(np.float32),
    }
  tensors = {name: tf.constant(values) for name, values in outputs.items()}
  if version == "1.1":
    spans = question_windows.spans_of_logits(windows, tensors, n_best=20, max_answer_length=5)
  else:
    spans = question_windows.spans_of_best(windows, tensors, max_answer_length=5)
  best = question_windows.best_answers(spans, located, n_best=20)
  seen = set()
  for b, each in enumerate(decode(features, outputs)):
    texts = [candidate.text for candidate in each.candidates]
    seen |= set(texts)
    assert [text.decode() for text in best["answers"][b].numpy()] == texts + [""] * (20 - len(texts))
    if texts != [""]:
      scores = [candidate.score for candidate in each.candidates]
      np.testing.assert_allclose(best["scores"][b][: len(texts)], scores, rtol=1e-6, atol=1e-6)
  assert len(seen) > 20
  for text in seen - {""}:
    assert not {text[0], text[-1]} & set(" \u200b\u200e\u200f\ufeff▁")  # White space, and what is dropped.


def test_an_answer_depends_on_its_row_alone(squad) -> None:
  session = squad.session
  inputs = {"question": as_bytes(QUESTIONS), "context": as_bytes(CONTEXTS)}
  whole = session.run("serving_default", inputs)
  for b in range(len(QUESTIONS)):
    one = session.run("serving_default", {name: array[b : b + 1] for name, array in inputs.items()})
    np.testing.assert_array_equal(one["answers"][0], whole["answers"][b])
    np.testing.assert_allclose(one["scores"][0], whole["scores"][b], rtol=1e-5, atol=1e-5)
  none = session.run("serving_default", {name: array[:0] for name, array in inputs.items()})
  assert none["answers"].shape == (0, 20)
  assert none["answer"].shape == (0,)


def test_answers_are_cut_from_the_original_text(squad) -> None:
  session = squad.session
  context = "\u00a0Ｂirds (ﬁve ½ 😀)\u0301 İS the\u0301  GRASS\u200b 한국 sing"
  outputs = session.run("serving_default", {"question": as_bytes(["birds"]), "context": as_bytes([context])})
  found = [text.decode() for text in outputs["answers"][0] if text]
  assert len(found) > 5
  for text, start, end in zip(found, outputs["starts"][0], outputs["ends"][0], strict=False):
    assert context[start:end] == text == text.strip()


def test_contexts_are_read_up_to_a_limit(squad) -> None:
  session = squad.session
  texts = [LONG * 40, (LONG + " ") * 600, "\xff".encode("latin-1").decode("latin-1"), "a\x00b"]
  outputs = session.run("serving_default", {"question": as_bytes(["sky"] * 4), "context": as_bytes(texts)})
  np.testing.assert_array_equal(outputs["truncated"], [True, True, False, False])
  assert (outputs["ends"] < 600).all()
  broken = np.array([b"the \xff\xfe sky \xe2\x82", b"\x00", b"\xf0\x9f\x98\x80"], object)
  outputs = session.run("serving_default", {"question": broken, "context": broken})
  assert all(text.decode() is not None for row in outputs["answers"] for text in row)


def test_windows_of_ids_and_examples(squad, expected) -> None:
  _, model, _, session, *_ = squad
  features, _ = expected
  row = {name: array[np.newaxis] for name, array in features.rows[1].items()}
  got = session.run("tokens", row)
  for name, array in model({name: tf.constant(array) for name, array in row.items()}).items():
    np.testing.assert_allclose(got[name], array, atol=1e-5)
  feature = {
    name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
    for name, text in (("question", QUESTIONS[1]), ("context", CONTEXTS[1]))
  }
  example = tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
  got = session.run("examples", {"inputs": np.array([example], object)})
  strings = session.run(
    "serving_default", {"question": as_bytes(QUESTIONS[1:2]), "context": as_bytes(CONTEXTS[1:2])}
  )
  np.testing.assert_array_equal(got["answers"], strings["answers"])
  empty = tf.train.Example(features=tf.train.Features(feature={"question": feature["question"]}))
  with pytest.raises(tf.errors.InvalidArgumentError, match="Feature: context"):
    session.run("examples", {"inputs": np.array([empty.SerializeToString()], object)})


def test_a_length_without_room_for_text_is_refused(config, tokenizer, tmp_path) -> None:
  task = TaskSpec(
    kind="question_answering", name="q", squad_version="1.1", max_seq_length=24, max_query_length=8
  )
  write_fine_tuned_run(tmp_path / "run", task, config, tokenizer)
  with pytest.raises(UserError, match="Raise --max_seq_length"):
    export_saved_model(
      model="question_answering",
      init_checkpoint=str(tmp_path / "run"),
      output_dir=str(tmp_path / "e"),
      max_seq_length=11,
    )
