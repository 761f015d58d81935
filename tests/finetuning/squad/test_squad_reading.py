"""What is wrong with a SQuAD file is said; what is right is read whole."""

import copy
import json

import pytest

from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.squad.read import read_squad

GOOD = {
  "version": "v2.0",
  "data": [
    {
      "title": "t",
      "paragraphs": [
        {
          "context": "Paris is big.",
          "qas": [
            {"id": "a", "question": "What?", "answers": [{"text": "Paris", "answer_start": 0}]},
            {"id": "b", "question": "Who?", "answers": [], "is_impossible": True},
          ],
        }
      ],
    }
  ],
}


@pytest.fixture
def write(tmp_path):
  def write(content):
    path = tmp_path / "squad.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return str(path)

  return write


def changed(change):
  """`GOOD` after `change(document, paragraph, its first and its second question)`."""
  document = copy.deepcopy(GOOD)
  paragraph = document["data"][0]["paragraphs"][0]
  change(document, paragraph, *paragraph["qas"])
  return document


def without_answers(document, paragraph, first, second):
  for question in (first, second):
    question.pop("answers", None)
    question.pop("is_impossible", None)


def test_reads(write):
  data = read_squad(write(b"\xef\xbb\xbf" + json.dumps(GOOD).encode()), version="2.0")  # A BOM.
  assert data.labelled
  assert data.paragraphs == [("Paris is big.", 0)]
  assert [(q.id, q.text, q.answers, q.is_impossible) for q in data.questions] == [
    ("a", "What?", (("Paris", 0),), False),
    ("b", "Who?", (), True),
  ]


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_empty_answers_everywhere_are_no_answers(write, version):
  """Of a test file whose answers were taken out; scored, it would be exactly right with nothing but abstentions."""

  def emptied(document, paragraph, first, second):
    for question in (first, second):
      question["answers"] = []
      question.pop("is_impossible", None)

  data = read_squad(write(changed(emptied)), version=version)
  assert not data.labelled
  assert [question.is_impossible for question in data.questions] == [False, False]
  with pytest.raises(UserError, match="2 of 2 without"):
    read_squad(write(changed(emptied)), version=version, require_answers=True)


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (b'{"data": [', r"JSON is expected here"),
    (b"{}", r"KeyError \('data'\)"),
    (b'{"data": []}', "0 of 0 without"),
    (changed(lambda d, p, a, b: b.pop("id")), r"'id'.* after 1 questions"),
    (changed(lambda d, p, a, b: a.update(is_impossible=True)), "'a' is impossible and has answers"),
    (changed(lambda d, p, a, b: b.update(is_impossible="no")), "true or false, not .no."),
    (changed(lambda d, p, a, b: b.update(id="a")), "an id more than once"),
    (changed(lambda d, p, a, b: a.pop("answers")), "All questions of a file have answers, or none"),
    (changed(lambda d, p, a, b: d.update(version="1.1")), r"--version=2.0 and .* of version 1.1"),
  ],
)
def test_refusals(write, content, message):
  with pytest.raises(UserError, match=message):
    read_squad(write(content), version="2.0")


def test_impossible_questions_are_of_2_0(write):
  with pytest.raises(UserError, match="with 1 impossible questions"):
    read_squad(write(GOOD), version="1.1")
