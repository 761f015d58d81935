"""A person's own questions: columns, ways to write labels, and what is refused."""

import numpy as np
import pytest

from albert_tf.errors import UserError
from albert_tf.finetuning.data import Table
from albert_tf.finetuning.tasks.choice_table import ChoiceColumns, choice_examples


def table(*rows):
  names = dict.fromkeys(name for row in rows for name in row)
  columns = {name: [row.get(name) for row in rows] for name in names}
  return Table(source="t.csv", columns=columns, first_line=2)


def listed(label, choices=("red", "blue", "green"), **more):
  return {"question": "what is it?", "choices": list(choices), "label": label, **more}


def labels(*values, label_format="auto", choices=("red", "blue", "green")):
  rows = table(*(listed(value, choices) for value in values))
  found = choice_examples({"train": rows}, ChoiceColumns(label_format=label_format))["train"]
  return [example.label for example in found]


def test_labels_in_every_way():
  assert labels("0", "2") == [0, 2]
  assert labels(0, np.int64(2), 1.0) == [0, 2, 1]
  assert labels("A", "c ") == [0, 2]
  assert labels("blue", " green") == [1, 2]
  assert labels(1, 3, label_format="index1") == [0, 2]
  assert labels("1", "2", choices=("1", "0", "2"), label_format="text") == [0, 2]
  assert labels("0", choices=("0", "1")) == [0]  # Index and text say the same.


@pytest.mark.parametrize(
  ("values", "choices", "message"),
  [
    (["A", "E"], "xyz", r"letter from A to C.* Received: 'E' in line 3 of t.csv, label_format=auto"),
    (["1", "3"], "xyz", r"Give --label_format=index1: they count from 1"),
    (["-1"], "xyz", r"Received: '-1' in line 2"),
    (["A", "1"], "xyz", r"same way in every row. Received: '1' in line 3"),
    (["1", "0"], "10", r"one meaning. Received: '1' in line 2 of t.csv, which may be index or text"),
    (["x"], "xxy", r"Received: 'x' in line 2"),
    (["A"], "BA", r"one meaning. Received: 'A' in line 2 of t.csv, which may be letter or text"),
  ],
)
def test_labels_that_are_none(values, choices, message):
  with pytest.raises(UserError, match=message):
    labels(*values, choices=choices)


def test_columns_for_each_choice_and_a_context():
  rows = [
    {"passage": "p", "q": "", "a": "x", "b": 3.0, "gold": "B", "n": "first"},
    {"passage": None, "q": "q", "a": "x", "b": 4, "gold": None, "n": ""},
  ]
  columns = ChoiceColumns(context="passage", question="q", choices=("a", "b"), label="gold", example_id="n")
  first, second = choice_examples({"test": table(*rows)}, columns)["test"]
  assert (first.example_id, first.context, first.question, first.choices, first.label) == (
    "first", "p", "", ("x", "3"), 1,
  )  # fmt: skip
  assert (second.example_id, second.context, second.label) == ("line 3 of t.csv", "", None)
  without_labels = [{key: value for key, value in row.items() if key != "gold"} for row in rows]
  assert [each.label for each in choice_examples({"test": table(*without_labels)}, columns)["test"]] == [
    None,
    None,
  ]


@pytest.mark.parametrize(
  ("split", "row", "columns", "message"),
  [
    ("train", {"question": "q", "choices": ["a"]}, {}, r"Received: t.csv without label; it has question, choices"),
    ("test", {"Question": "q", "label": 0}, {}, r"without question, choices; it has Question, label"),
    ("train", listed(0), {"context": "article"}, "without article"),
    ("train", listed(0, "ab"), {"choices": ("a", "b")}, "without a, b"),
    ("train", {**listed(0), "choices": "a b"}, {}, r"lists of texts. Received: str 'a b' in column choices, line 2"),
    ("train", listed(0, ("a", "", "c")), {}, r"all its choices. Received: 2 of 3 in line 2 of t.csv; empty: choice 2"),
    ("train", {"question": "q", "a": "x", "b": np.nan, "label": 0}, {"choices": ("a", "b")}, r"1 of 2 .* empty: b"),
    ("train", {**listed(0), "question": " "}, {}, "neither in line 2"),
    ("train", {**listed(0), "question": {"stem": "q"}}, {}, r"one text or number. Received: .'stem': 'q'. in line 2"),
    ("train", listed(0, ["a", ["b"]]), {}, r"one text or number. Received: .'b'. in line 2"),
    ("train", listed(0, "ab"), {"choices": ("question", "question")}, "a column of its own"),
  ],
)  # fmt: skip
def test_rows_that_are_no_questions(split, row, columns, message):
  with pytest.raises(UserError, match=message):
    choice_examples({split: table(row)}, ChoiceColumns(**columns))


def test_an_empty_table_and_wrong_settings():
  empty = Table(source="t.csv", columns={"question": [], "choices": [], "label": []})
  with pytest.raises(UserError, match=r"at least one row. Received: t.csv"):
    choice_examples({"train": empty}, ChoiceColumns())
  with pytest.raises(UserError, match="label_format must be one of"):
    ChoiceColumns(label_format="roman")
  with pytest.raises(UserError, match="has a question column and choice columns"):
    ChoiceColumns(choices=())
