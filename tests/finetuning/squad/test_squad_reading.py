"""What is wrong with a SQuAD file is said; what is right is read whole."""

import copy
import json

import pytest

from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.squad.read import read_squad

ANSWERED = {"id": "a", "question": "What?", "answers": [{"text": "Paris", "answer_start": 0}]}
IMPOSSIBLE = {"id": "b", "question": "Who?", "answers": [], "is_impossible": True}


def write(tmp_path, *questions):
  document = {"version": "v2.0", "data": [{"paragraphs": [{"context": "Paris is big.", "qas": questions}]}]}
  (tmp_path / "squad.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(document).encode())  # A byte-order mark.
  return str(tmp_path / "squad.json")


def changed(question, **changes):
  """The question with some keys changed, or left out where they are None."""
  return {key: value for key, value in (copy.deepcopy(question) | changes).items() if value is not None}


@pytest.mark.parametrize("impossible", [IMPOSSIBLE, changed(IMPOSSIBLE, is_impossible=None)])
def test_reads(tmp_path, impossible):
  data = read_squad(write(tmp_path, ANSWERED, impossible), version="2.0", require_answers=True)
  assert data.labelled
  assert data.paragraphs == [("Paris is big.", 0)]
  assert data.questions == [("a", "What?", 0, (("Paris", 0),)), ("b", "Who?", 0, ())]


@pytest.mark.parametrize("version", ["1.1", "2.0"])
@pytest.mark.parametrize("said", [{}, {"is_impossible": False}, {"answers": None}])
def test_empty_answers_everywhere_are_no_answers(tmp_path, version, said):
  """Of a test file whose answers were taken out; scored, it would be exactly right with nothing but abstentions."""
  questions = [
    changed(each, **{"answers": [], "is_impossible": None} | said) for each in (ANSWERED, IMPOSSIBLE)
  ]
  path = write(tmp_path, *questions)
  assert not read_squad(path, version=version).labelled
  with pytest.raises(UserError, match="those of a training file have"):
    read_squad(path, version=version, require_answers=True)


@pytest.mark.parametrize(
  ("version", "questions", "message"),
  [
    ("2.0", [], "0 questions"),
    ("2.0", [ANSWERED, changed(IMPOSSIBLE, id=None)], r"'id'.* after 1 questions"),
    ("2.0", [changed(ANSWERED, is_impossible=True)], r"not so \['a'\]"),
    ("2.0", [ANSWERED, changed(IMPOSSIBLE, answers=None, is_impossible=None)], r"not so \['b'\]"),
    ("1.1", [ANSWERED, IMPOSSIBLE], r"--version=1.1, .* not so \['b'\]"),
    ("2.0", [ANSWERED, changed(IMPOSSIBLE, id="a")], "an id more than once"),
  ],
)
def test_refusals(tmp_path, version, questions, message):
  with pytest.raises(UserError, match=message):
    read_squad(write(tmp_path, *questions), version=version)
