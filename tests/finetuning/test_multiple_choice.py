"""Multiple choice: packing as in the original, metrics, RACE in both layouts, and tables."""

import json
import shutil

import numpy as np
import pytest
from support.tiny_run import tokenizer

from albert_tf.errors import UserError
from albert_tf.finetuning.data import Table
from albert_tf.finetuning.tasks.choices import (
  ChoiceColumns,
  ChoiceExample,
  choice_examples,
  read_race,
)
from albert_tf.finetuning.tasks.multiple_choice import multiple_choice_task
from albert_tf.tables import Row


def example(**changes):
  values = {
    "context": "birds sing all day",
    "question": "the Grass is",
    "choices": ("Green", "small", "old trees"),
  }
  return ChoiceExample(**{"id": "q", "label": "B", **values, **changes})


def plain_row(context, text, *, max_seq_length, max_qa_length):
  """The row of one choice by the rule of the original."""
  tail = tokenizer().encode(text)
  tail = tail[max(0, len(tail) - min(max_qa_length, max_seq_length - 3)) :]
  head = tokenizer().encode(context)
  while len(head) + len(tail) > max_seq_length - 3:
    head.pop()
  ids = [tokenizer().cls_id, *head, tokenizer().sep_id, *tail, tokenizer().sep_id]
  return ids, [0] * (len(head) + 2) + [1] * (len(tail) + 1)


@pytest.mark.parametrize(
  ("max_seq_length", "max_qa_length"), [(64, 32), (24, 32), (24, 5), (14, 3), (8, 32), (5, 1)]
)
def test_packing_equals_the_rule(max_seq_length, max_qa_length):
  sizes = {"max_seq_length": max_seq_length, "max_qa_length": max_qa_length}
  blanks = {"question": "ＢＬＵＥ _ and ＿", "choices": ("a", "small birds sing", "")}
  examples = [
    example(label=None),
    example(context="the sky " * 40, **blanks),
    example(context="", question="", choices=("day", "day long", "the sky is blue and green")),
  ]
  task = multiple_choice_task({"test": examples}, tokenizer=tokenizer(), **sizes)
  x, *_ = task.features("test").padded(max_seq_length)
  texts = [
    ["the grass is green", "the grass is small", "the grass is old trees"],
    ["blue a and a", "blue small birds sing and small birds sing", "blue  and "],
    ["day", "day long", "the sky is blue and green"],
  ]
  for row, (source, choices) in enumerate(zip(examples, texts, strict=True)):
    for choice, text in enumerate(choices):
      ids, segments = plain_row(source.context, text, **sizes)
      rest = [0] * (max_seq_length - len(ids))
      assert x["input_ids"][row, choice].tolist() == ids + rest
      assert x["segment_ids"][row, choice].tolist() == segments + rest
      assert x["input_mask"][row, choice].tolist() == [1] * len(ids) + rest


def test_scores_by_group_and_predictions(tmp_path):
  labels = ["A", "B", "C", "A"]
  examples = [
    example(id=f"q{number}\tx", label=label, group="high" if number > 1 else "middle")
    for number, label in enumerate(labels)
  ]
  splits = {"eval": examples, "test": [example(label=None)], "eval_wrong": [example(label="D")]}
  mixed = {"train": [example()], "eval": [example(id="row 5", choices=("a", "b"))]}
  options = {"tokenizer": tokenizer(), "max_seq_length": 24, "max_qa_length": 12}
  with pytest.raises(UserError, match="3 in the question q, 2 in the question row 5"):
    multiple_choice_task(mixed, **options)
  task = multiple_choice_task(splits, **options)
  logits = np.log([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.7, 0.2, 0.1], [0.5, 0.25, 0.25]])
  wanted = {"accuracy": 0.75, "accuracy_middle": 1.0, "accuracy_high": 0.5}
  wanted["loss"] = -np.log([0.6, 0.5, 0.1, 0.5]).mean()
  assert task.evaluate({"logits": logits}) == pytest.approx(wanted)
  task.write_predictions({"logits": logits}, "eval", str(tmp_path))
  lines = (tmp_path / "predictions_eval.tsv").read_text().splitlines()
  assert lines[0] == "id\tprediction\tlabel\tprobability_A\tprobability_B\tprobability_C"
  assert lines[3] == "q2\\tx\tA\tC\t0.700000\t0.200000\t0.100000"
  assert task.features("eval").labels.tolist() == [0, 1, 2, 0]
  assert task.features("test").labels is None
  task.write_predictions({"logits": logits[:1]}, "test", str(tmp_path))
  assert "\tA\t\t0.6" in (tmp_path / "predictions_test.tsv").read_text()
  with pytest.raises(UserError, match=r"train .*Received: none"):
    task.features("train")
  with pytest.raises(UserError, match=r"one of A, B, C\. Received: 'D'"):
    task.features("eval_wrong")


# ------------------------------------------------------------------ a person's own table


def table(*rows):
  names = dict.fromkeys(name for row in rows for name in row)
  lines = [Row(f"t.csv:{number}", row, "", 0) for number, row in enumerate(rows, 2)]
  return Table(source="t.csv", names=list(names), rows=lines)


def test_columns_for_each_choice_and_a_context():
  rows = [
    {"passage": "p", "q": "", "a": "x", "b": 3.0, "gold": 1, "id": "first"},
    {"passage": None, "q": "q", "a": "x", "b": 4, "gold": None, "id": ""},
  ]
  columns = ChoiceColumns(
    context_column="passage", question_column="q", choice_columns=("a", "b"), label_column="gold",
  )  # fmt: skip
  first, second = choice_examples(table(*rows), columns)
  assert first == ("first", "p", "", ("x", "3"), "1", "")
  assert second == ("", "", "q", ("x", "4"), None, "")
  bare = table({"question": "q", "choices": ["a", "b"]})
  (only,) = choice_examples(bare, ChoiceColumns(), labelled=False)
  assert (only.id, only.choices, only.label) == ("0", ("a", "b"), None)
  # As a table of numbers with gaps has it.
  floats = [{"question": "q", "choices": ["a", "b"], "label": label} for label in ("1.0", "0")]
  examples = choice_examples(table(*floats), ChoiceColumns(choice_names=("0", "1")))
  assert [(example.id, example.label) for example in examples] == [("0", "1"), ("1", "0")]
  options = {"tokenizer": tokenizer(), "max_seq_length": 24, "max_qa_length": 12}
  task = multiple_choice_task({"eval": [first]}, choice_names=("0", "1", "2"), **options)
  assert task.gold("eval").tolist() == [1]


@pytest.mark.parametrize(
  ("choices", "message"),
  [
    (None, r"Received: t.csv with 1 .*question, label.*--choice_columns"),
    ("a b", r"--choice_columns.*Received: .'a b'. in t.csv:2"),
    (["a", "", "c"], r"--choice_columns.* Received: .*'a', '', 'c'"),
  ],
)
def test_rows_that_are_no_questions(choices, message):
  row = {"question": "q", "label": "A", "choices": choices}
  with pytest.raises(UserError, match=message):
    choice_examples(table({key: value for key, value in row.items() if value}), ChoiceColumns())


# ------------------------------------------------------------------ RACE

PASSAGE = {
  "article": "the sky is blue\u2028and green",  # RACE holds characters that `splitlines` splits at.
  "questions": ["the sky is _ .", ""],
  "options": [["blue", "old", "small", "long"], ["a", "b", "c", "d"]],
  "answers": ["A", "D"],
  "id": "high7.txt",
}


def write(folder, name, *passages):
  folder.mkdir(parents=True, exist_ok=True)
  lines = [json.dumps(passage, ensure_ascii=False) for passage in passages]
  (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_both_layouts_give_the_same_questions(tmp_path):
  other = {**PASSAGE, "id": "high9.txt", "answers": None}  # A test set needs no answers.
  for level in ("middle", "high"):
    write(tmp_path / "files/RACE/dev" / level, "7.txt", PASSAGE)
    write(tmp_path / "files/RACE/dev" / level, "9.txt", other)
    write(tmp_path / "lines/dev" / level, "all.txt", PASSAGE, other)
  write(tmp_path / "lines/dev/high", "7.txt", PASSAGE)  # Left from making all.txt: not read twice.
  one_file_each = read_race(str(tmp_path / "files"), "dev")
  assert one_file_each == read_race(str(tmp_path / "lines"), "dev")
  assert one_file_each == read_race(str(tmp_path / "files/RACE"), "dev")
  assert [example.group for example in one_file_each] == ["middle"] * 4 + ["high"] * 4
  assert [example.label for example in one_file_each[:4]] == ["A", "D", None, None]
  ids = ["high7.txt:0", "high7.txt:1", "high9.txt:0"]
  assert [example.id for example in one_file_each[:3]] == ids
  assert one_file_each[1].context == PASSAGE["article"]
  shutil.rmtree(tmp_path / "lines/dev/middle")
  assert [example.group for example in read_race(str(tmp_path / "lines"), "dev")] == ["high"] * 4
  with pytest.raises(UserError, match=r"files without train/middle"):
    read_race(str(tmp_path / "files"), "train")


def test_a_passage_that_lacks_an_answer_is_refused(tmp_path):
  write(tmp_path / "train/high", "1.txt", {**PASSAGE, "answers": ["A"]})
  with pytest.raises(UserError, match=r"Received: .*train/high/1\.txt:1 .*--task_name=custom"):
    read_race(str(tmp_path), "train")
