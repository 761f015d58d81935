"""Errors in SQuAD files are reported; windows, alignment and positions equal the original's for all features."""

import json

import numpy as np
import pytest
from support.goldens import SPM_MODEL, SQUAD_INPUT, golden_rows
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.squad.features import make_features
from albert_tf.finetuning.tasks.squad.read import read_squad
from albert_tf.finetuning.tasks.squad.settings import SquadSettings
from albert_tf.tokenization import AlbertTokenizer
from albert_tf.windows.question_windows import max_context
from albert_tf.windows.text_windows import Windows

GOLDEN = SquadSettings(max_seq_length=64, doc_stride=16, max_query_length=12)


@pytest.fixture(scope="module")
def golden():
  """Recorded features and this project's. The original's digit-comma rule is `nostrip`."""
  tokenizer = AlbertTokenizer.from_pretrained(SPM_MODEL, digit_comma="nostrip")
  data = read_squad(SQUAD_INPUT, version="2.0", require_answers=True)
  return golden_rows("squad_features"), make_features(data, tokenizer=tokenizer, settings=GOLDEN)


def test_rows_equal_the_originals(golden):
  recorded, features = golden
  assert len(features) == len(recorded["eval"]) == len(recorded["train"])
  (x,) = features.rows.padded(64)
  for name in ("input_ids", "input_mask", "segment_ids", "p_mask"):
    assert x[name].tolist() == [expected[name] for expected in recorded["train"]], name
  keys = ("start_position", "end_position", "is_impossible")
  positions = [[int(each[key]) for each in recorded["train"]] for key in keys]
  assert [column.tolist() for column in features.positions] == positions


def test_alignment_and_context_equal_the_originals(golden):
  recorded, features = golden
  numbers = [n for count in np.bincount(features.windows.row) for n in range(count)]
  most_context = max_context(features.windows).numpy()
  windows = zip(*features.windows, strict=True)
  for index, (question, begin, length, text_begin) in enumerate(windows):
    expected = recorded["eval"][index]
    assert (expected["example_index"], expected["doc_span_index"]) == (question, numbers[index])
    context = features.data.questions[question].context
    located = (features.located.starts, features.located.ends)
    paragraph = features.paragraphs[question]
    places = [column[paragraph][begin : begin + length].numpy() for column in located]
    ours = [context[start:end] for start, end in zip(*places, strict=True)]
    # The original gives the zero-width space, which SentencePiece drops, to a lone "▁".
    places = [expected[f"tok_{side}_to_orig_index"] for side in ("start", "end")]
    theirs = [context[a : b + 1].strip(" \u200b") for a, b in zip(*places, strict=True)]
    # The original leaves a combining accent out.
    assert [text.removesuffix("\u0301") for text in ours] == theirs
    best = {str(text_begin + place): bool(most_context[index, place]) for place in range(length)}
    assert best == expected["token_is_max_context"]


def test_many_windows_of_long_texts():
  """Windows times the longest text is more than 2^31: such a number would fail, or take all memory."""
  count = 70_000
  begin = tf.range(count)
  windows = Windows(
    row=tf.repeat([0, 1], count // 2),
    begin=begin % (count // 2),
    length=tf.fill([count], 2),
    text_begin=tf.fill([count], 3),
  )
  # A token is in two windows, with as much context: the first one has it.
  first = begin.numpy() % (count // 2) == 0
  assert max_context(windows).numpy().tolist() == [[bool(at), True] for at in first]


@pytest.mark.slow
def test_every_question_of_real_files_converts(shared_dir):
  tokenizer = AlbertTokenizer.from_pretrained(str(shared_dir / "data/vocab/30k-clean.model"))
  for name, count in (("train-subset-v2.0.json", 4719), ("dev-half-v2.0.json", 6078)):
    data = read_squad(str(shared_dir / "data/squad" / name), version="2.0", require_answers=True)
    features = make_features(data, tokenizer=tokenizer, settings=SquadSettings())
    assert len(data.questions) == count
    assert set(features.windows.row) == set(range(count))
    assert not features.missing.any()
    starts, _, lacking = features.positions
    answered = set(features.windows.row[lacking == 0])
    assert answered == {n for n, question in enumerate(data.questions) if question.answers}
    assert all(starts[lacking == 0] >= features.windows.text_begin[lacking == 0])
    # Every gold answer round-trips: the span's characters, cut from the original text, contain it.
    located = features.located
    begins, ends = located.starts.flat_values.numpy(), located.ends.flat_values.numpy()
    rows = located.ids.row_splits.numpy()[features.paragraphs]
    for question, row, (first, last) in zip(data.questions, rows, features.spans, strict=True):
      for answer in question.answers[:1]:
        assert begins[row + first] <= answer.start
        assert ends[row + last] >= answer.start + len(answer.text), answer


ANSWERED = {"id": "a", "question": "What?", "answers": [{"text": "Paris", "answer_start": 0}]}
IMPOSSIBLE = {"id": "b", "question": "Who?", "answers": [], "is_impossible": True}


def write(tmp_path, *questions):
  paragraph = {"context": "Paris is big.", "qas": questions}
  document = {"version": "v2.0", "data": [{"paragraphs": [paragraph]}]}
  # With a byte-order mark.
  (tmp_path / "squad.json").write_text(json.dumps(document), encoding="utf-8-sig")
  return str(tmp_path / "squad.json")


def changed(question, **changes):
  """The question with some keys changed, or left out where they are None."""
  return {key: value for key, value in (question | changes).items() if value is not None}


@pytest.mark.parametrize("impossible", [IMPOSSIBLE, changed(IMPOSSIBLE, is_impossible=None)])
def test_reads(tmp_path, impossible):
  data = read_squad(write(tmp_path, ANSWERED, impossible), version="2.0", require_answers=True)
  assert data.labelled
  context = "Paris is big."
  assert data.questions[0] == ("a", "What?", context, 0, (("Paris", 0),))
  assert data.questions[1] == ("b", "Who?", context, 0, ())


@pytest.mark.parametrize("version", ["1.1", "2.0"])
@pytest.mark.parametrize("said", [{}, {"is_impossible": False}, {"answers": None}])
def test_empty_answers_everywhere_are_no_answers(tmp_path, version, said):
  """A test file without answers is not scored; otherwise empty answers to all questions would be right."""
  changes = {"answers": [], "is_impossible": None} | said
  questions = [changed(each, **changes) for each in (ANSWERED, IMPOSSIBLE)]
  path = write(tmp_path, *questions)
  assert not read_squad(path, version=version).labelled
  with pytest.raises(UserError, match=rf"Received: {path} for --version={version}, 2 "):
    read_squad(path, version=version, require_answers=True)


@pytest.mark.parametrize(
  ("version", "questions", "message"),
  [
    ("2.0", [], "--version=2.0, 0 "),
    ("2.0", [ANSWERED, changed(IMPOSSIBLE, id=None)], r"'id'.* after 1 questions"),
    ("2.0", [changed(ANSWERED, is_impossible=True)], r"not so \['a'\]"),
    ("2.0", [ANSWERED, changed(IMPOSSIBLE, answers=None, is_impossible=None)], r"not so \['b'\]"),
    ("1.1", [ANSWERED, IMPOSSIBLE], r"--version=1.1, .* not so \['b'\]"),
    ("2.0", [ANSWERED, changed(IMPOSSIBLE, id="a")], "Received: an id .*squad.json"),
  ],
)
def test_refusals(tmp_path, version, questions, message):
  with pytest.raises(UserError, match=message):
    read_squad(write(tmp_path, *questions), version=version)
