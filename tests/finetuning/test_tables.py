"""Tables of users: four formats give the same task, and errors are reported."""

import csv
import json
import re

import numpy as np
import pyarrow
from pyarrow import parquet
import pytest
from sklearn import metrics
from support.tiny_finetuning import tokenizer

from albert_tf.errors import UserError
from albert_tf.finetuning.data import TableColumns, hold_out, read_table
from albert_tf.finetuning.tasks.choices import ChoiceColumns
from albert_tf.finetuning.tasks.tables import table_examples, table_task

ROWS = [
  {"id": "r1", "question": 'the "blue" sky, old', "answer": "green", "stars": 10},
  {"id": "r2", "question": "trees", "answer": "", "stars": 2},
  {"id": "r3", "question": "sing", "answer": "all day", "stars": 10},
]
COLUMNS = TableColumns(text_columns=("question", "answer"), label_column="stars")
ONE_TEXT = TableColumns()


def write(path, rows=ROWS):
  if path.suffix == ".parquet":
    parquet.write_table(pyarrow.Table.from_pylist(rows), str(path))
  elif path.suffix == ".jsonl":
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  elif path.suffix == ".tsv":
    lines = [rows[0].keys(), *(row.values() for row in rows)]
    path.write_text("".join("\t".join(map(str, cells)) + "\n" for cells in lines))
  else:
    with path.open("w", newline="") as stream:
      writer = csv.DictWriter(stream, list(rows[0]))
      writer.writeheader()
      writer.writerows(rows)
  return str(path)


def task_of(columns, *, kind="classification", **paths):
  return table_task(paths, columns=columns, tokenizer=tokenizer(), kind=kind)


def examples_of(path, columns, *, labelled=True, kind="classification"):
  return table_examples(read_table(str(path)), columns, labelled=labelled, kind=kind)


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl", ".parquet"])
def test_every_format_gives_the_same_task(tmp_path, suffix):
  train = write(tmp_path / f"train{suffix}")
  texts = [{name: row[name] for name in ("id", "question", "answer")} for row in ROWS]
  test = write(tmp_path / f"test{suffix}", texts)
  task = task_of(COLUMNS, train=train, eval=train, test=test)
  assert task.spec.label_names == ("2", "10")  # Numbers in their order.
  assert task.features("train").labels.tolist() == [1, 0, 1]
  assert task.features("test").labels is None
  x, *_ = task.features("test").padded()
  assert x["segment_ids"].any(axis=1).tolist() == [True, False, True]
  logits = np.array([[0.0, 2.0], [1.0, 0.0], [0.0, 0.1]])
  assert task.evaluate({"logits": logits})["accuracy"] == 1.0
  constant = task.evaluate({"logits": logits[[0, 0, 0]]})
  assert (constant["f1_2"], constant["f1_10"]) == (0.0, pytest.approx(0.8))
  assert constant["accuracy"] == pytest.approx(2 / 3)
  task.write_predictions({"logits": logits}, "eval", str(tmp_path))
  lines = (tmp_path / "predictions_eval.tsv").read_text().splitlines()
  assert lines[0].split("\t") == ["id", "prediction", "label", "probability_2", "probability_10"]
  assert lines[1].split("\t") == ["r1", "10", "10", "0.119203", "0.880797"]
  value = task_of(COLUMNS, train=train, eval=train, test=train, kind="regression")
  assert value.features("test").labels.tolist() == [[10.0], [2.0], [10.0]]


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("a.tsv", "text\tlable\nx\ty\n", "Received: .* 1 .* text, lable.*--label_column"),
    ("a.tsv", "text\tlabel\n", "with 0 rows"),
    ("a.tsv", "text\tlabel\nx\ty\tz\n", r"a\.tsv:2.* 3 cells"),
    (
      "a.jsonl",
      '{"text": "x", "label": 1}\n{"text": "y", "label": 1}\n',
      "Received: 1 .*--problem=regression",
    ),
    # What would be a class of its own, or train on nothing.
    (
      "a.jsonl",
      '{"text": "x", "label": 1}\n\n{"text": "y"}\n',
      r"none in .*a\.jsonl:3, and 0 more",
    ),
    ("a.csv", 'text,label\n"x\ny",a\nz,\nz,nan\n', r"a\.csv:4, .*1 more"),
    ("a.tsv", "text\tlabel\n \ta\n", r"none in .*a\.tsv:2"),
    # A stray quote would merge rows.
    ("a.csv", 'text,label\nx,a\n"abc,x\ndef" more,y\nz,b\n', r"Received: .*a\.csv:3.* quotes"),
    ("a.parquet", "PAR1", "Received: .*a.parquet "),
    ("a.jsonl", '{"text": "x", "label": "y"}\n{"text": \n', r"a\.jsonl:2"),
  ],
)
def test_a_broken_table_is_named(tmp_path, name, content, message):
  path = tmp_path / name
  path.write_text(content)
  with pytest.raises(UserError, match=message):
    task_of(ONE_TEXT, train=str(path), eval=str(path)).features("eval")


def test_labels_that_do_not_fit(tmp_path):
  columns = TableColumns(text_columns=("question",), label_column="stars")
  train = write(tmp_path / "train.tsv")
  other = write(tmp_path / "eval.tsv", [{**row, "stars": "many"} for row in ROWS])
  task = task_of(columns, train=train, eval=other)
  with pytest.raises(UserError, match=r"eval data must be one of 2, 10\. Received: .*'many'"):
    task.features("eval")
  with pytest.raises(UserError, match=r"'many' in .*eval\.tsv:2"):
    task_of(columns, train=train, eval=other, kind="regression")
  with pytest.raises(UserError, match="--init_checkpoint"):
    task_of(columns, test=train)
  with pytest.raises(UserError, match=r"Received: 'a,b,c'.*--text_columns"):
    TableColumns(text_columns=("a", "b", "c"))


def test_classes_of_different_sizes(tmp_path):
  """Weights of classes are in the training loss alone; a metric of one class chooses."""
  paths = {"train": write(tmp_path / "train.csv"), "eval": write(tmp_path / "eval.csv")}
  options = {
    "columns": TableColumns(text_columns=("question",), label_column="stars"),
    "tokenizer": tokenizer(),
  }
  task = table_task(paths, **options, class_weights=["balanced"], best_metric="f1_2")
  # Of the classes 2 and 10 there are one and two rows: 3 / (2 · 1) and 3 / (2 · 2).
  np.testing.assert_allclose(task.features("train").weights, [0.75, 1.5, 0.75])
  assert task.features("eval").weights is None
  assert task.best_metric == "f1_2"
  assert task.training_options == {"class_weights": [1.5, 0.75], "best_metric": "f1_2"}
  given = table_task(paths, **options, class_weights=["4", "1"])
  np.testing.assert_allclose(given.features("train").weights, [1, 4, 1])
  assert given.features("train").fingerprint() != task.features("train").fingerprint()
  for wrong in (["1"], ["1", "-1"], ["1", "much"]):
    with pytest.raises(UserError, match=",".join(wrong)):
      table_task(paths, **options, class_weights=wrong)
  with pytest.raises(UserError, match="regression"):
    table_task(paths, **options, kind="regression", class_weights=["balanced"])
  with pytest.raises(UserError, match=r"macro_f1, f1_2, f1_10\. Received: loss"):
    table_task(paths, **options, best_metric="loss")


@pytest.mark.parametrize(("suffix", "separator"), [(".tsv", "\t"), (".csv", ",")])
def test_an_empty_row_of_a_single_column_is_a_row(tmp_path, suffix, separator):
  """If it were left out, the rows after it would get wrong numbers as ids."""
  path = tmp_path / f"test{suffix}"
  path.write_bytes(b"text\r\nthe sky\r\n\r\ntrees\r\n")
  found = examples_of(path, TableColumns(), labelled=False)
  assert [example[:2] for example in found] == [("0", "the sky"), ("1", ""), ("2", "trees")]
  # Of two columns it is no row.
  path.write_text("text|label\na|0\n\nb|1\n".replace("|", separator))
  assert [example.text for example in examples_of(path, ONE_TEXT)] == ["a", "b"]
  assert read_table(str(path)).rows[1].where == f"{path}:4"


TOPICS = {"the sky": ["air", "blue"], "old trees": [], "sing": ["air"], "all day": ["long", "air"]}
NAMES = ("air", "blue", "long")
GOLD = np.array([[1, 1, 0], [0, 0, 0], [1, 0, 0], [1, 0, 1]], np.float32)
SEVERAL = TableColumns(label_column="labels")


@pytest.mark.parametrize(
  ("suffix", "cell"),
  [
    (".csv", ",".join),
    (".tsv", ", ".join),
    (".jsonl", lambda labels: labels),
    (".parquet", lambda labels: labels),
  ],
)
def test_labels_that_overlap(tmp_path, suffix, cell):
  """Names with commas and lists give the same task."""
  rows = [{"text": text, "labels": cell(labels)} for text, labels in TOPICS.items()]
  path = write(tmp_path / f"train{suffix}", rows)
  task = task_of(SEVERAL, kind="multi_label", train=path, eval=path, test=path)
  np.testing.assert_array_equal(task.features("test").labels, GOLD)
  assert (task.spec.kind, task.spec.label_names) == ("multi_label", NAMES)
  np.testing.assert_array_equal(task.gold("eval"), GOLD)


LOGITS = np.array([[3.0, 1.0, -2.0], [0.5, 0.0, -4.0], [1.0, -1.0, -3.0], [-1.0, -2.0, 0.0]])
PROBABILITIES = 1 / (1 + np.exp(-LOGITS))


@pytest.fixture
def overlapping(tmp_path):
  """A task of several labels whose splits are all the same table."""
  rows = [{"text": text, "labels": labels} for text, labels in TOPICS.items()]
  path = write(tmp_path / "a.jsonl", rows)
  return task_of(SEVERAL, kind="multi_label", train=path, eval=path, test=path)


def test_evaluation_data_choose_the_thresholds_of_labels(overlapping):
  found = overlapping.evaluate({"logits": LOGITS})
  p = PROBABILITIES
  assert found["threshold_air"] == pytest.approx(p[3, 0] / 2)  # Three of four are right.
  assert found["threshold_blue"] == pytest.approx((p[0, 1] + p[1, 1]) / 2)
  assert overlapping.spec.with_thresholds(found).thresholds[1] == found["threshold_blue"]


def test_other_data_keep_the_thresholds_of_labels(overlapping):
  found = overlapping.evaluate({"logits": LOGITS})
  assert "threshold_air" not in overlapping.evaluate({"logits": LOGITS - 9}, "test")
  given = np.greater_equal(PROBABILITIES, [found[f"threshold_{name}"] for name in NAMES])
  np.testing.assert_array_equal(overlapping.predictions({"logits": LOGITS}), given)


def test_scores_of_overlapping_labels_are_those_of_scikit_learn(overlapping):
  found = overlapping.evaluate({"logits": LOGITS})
  given = np.greater_equal(PROBABILITIES, [found[f"threshold_{name}"] for name in NAMES])
  for average in ("micro", "macro"):
    assert found[f"{average}_f1"] == metrics.f1_score(GOLD, given, average=average)
  by_class = metrics.f1_score(GOLD, given, average=None).tolist()
  assert [found[f"f1_{name}"] for name in NAMES] == by_class
  precision = metrics.average_precision_score(GOLD, PROBABILITIES)
  assert found["average_precision"] == pytest.approx(precision)
  loss = metrics.log_loss(GOLD.ravel(), PROBABILITIES.ravel())
  assert found["loss"] == pytest.approx(loss)


def test_predictions_of_overlapping_labels_are_lists(tmp_path, overlapping):
  overlapping.evaluate({"logits": LOGITS})  # It chooses the thresholds.
  overlapping.write_predictions({"logits": LOGITS}, "test", str(tmp_path))
  lines = (tmp_path / "predictions_test.tsv").read_text().splitlines()
  assert lines[1].split("\t")[1:3] == ['["air", "blue"]', '["air", "blue"]']
  assert lines[3].split("\t")[1:3] == ['["air"]', '["air"]']


def test_an_ensemble_of_overlapping_labels(overlapping):
  """Its scores are the means; a constant that is added to all leaves the average precision."""
  mean = overlapping.ensemble([{"logits": LOGITS}, {"logits": LOGITS + 2}])
  np.testing.assert_allclose(mean["logits"], LOGITS + 1)
  precision = metrics.average_precision_score(GOLD, PROBABILITIES)
  assert overlapping.evaluate(mean)["average_precision"] == pytest.approx(precision)


@pytest.mark.parametrize(
  ("train", "evaluation", "options", "message"),
  [
    ("a,b", "a,x", {}, "eval data must be one of a, b. Received: 'x' in the example with the id 1"),
    ("a,b", "a", {"label_names": ("a", "b", "c")}, "Received: none for c in 2 "),
    ('["a", "b"]', "a", {}, r'Received: \["a", "b"\] in .*train\.tsv:3'),
    ("a", "a", {}, "Received: 1 .*air,blue"),
    (",".join(map(str, range(1001))), "1", {}, "Received: 1001 .*AlbertClassifier"),
  ],
)
def test_labels_that_overlap_and_do_not_fit(tmp_path, train, evaluation, options, message):
  paths = {}
  for split, label in (("train", train), ("eval", evaluation)):
    rows = [{"text": "x", "labels": ""}, {"text": "y", "labels": label}]
    paths[split] = write(tmp_path / f"{split}.tsv", rows)
  with pytest.raises(UserError, match=message):
    table_task(
      paths, columns=SEVERAL, tokenizer=tokenizer(), kind="multi_label", **options
    ).features("eval")


def test_a_label_whose_rows_were_all_held_out_needs_evaluation_data(tmp_path):
  train = write(tmp_path / "train.csv", [{"text": f"{i}", "label": f"{i}"} for i in range(10)])
  task = task_of(ONE_TEXT, train=train)
  with pytest.raises(UserError, match="name evaluation data"):
    task.gold("eval")


def test_texts_that_are_in_training_and_evaluation_are_counted(tmp_path, caplog):
  train = write(tmp_path / "train.csv")
  both = write(tmp_path / "both.csv", [ROWS[0], ROWS[1] | {"answer": "another"}])
  apart = write(tmp_path / "apart.csv", [ROWS[1] | {"answer": "another"}])
  task_of(COLUMNS, train=train, eval=both, test=apart)
  assert f"{both}: 1 of 2 eval rows" in caplog.text
  assert apart not in caplog.text


def test_twin_rows_on_both_sides_of_a_held_out_part_are_counted(tmp_path, caplog):
  train = write(tmp_path / "train.csv", [ROWS[0]] * 10 + [ROWS[1]] * 10)
  task_of(COLUMNS, train=train)
  assert f"{train}: 2 of 2 eval rows" in caplog.text


def test_rows_without_any_label_are_kept_and_counted(tmp_path, caplog):
  rows = [{"text": "x", "labels": None}, {"text": "y", "labels": ["a"]}]
  with caplog.at_level("INFO", logger="absl"):
    examples = examples_of(write(tmp_path / "a.jsonl", rows), SEVERAL, kind="multi_label")
  assert [example.label for example in examples] == [(), ("a",)]
  assert "1 of 2 rows have none of the labels" in caplog.text
  path = write(tmp_path / "test.tsv", [{"text": "x", "labels": ""}])  # Nothing to be scored.
  assert examples_of(path, SEVERAL, labelled=False, kind="multi_label")[0].label is None


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl", ".parquet"])
def test_whole_numbers_are_the_same_classes_in_every_format(tmp_path, suffix):
  """A column of whole numbers with gaps is one of floats, whose text is 1.0."""
  paths = {}
  for split, labels in {"train": [0.0, 1.0, 0.0], "eval": [1.0], "test": [1, 0]}.items():
    rows = [{"text": "x", "label": label} for label in labels]
    paths[split] = write(tmp_path / f"{split}{suffix}", rows)
  task = task_of(ONE_TEXT, **paths)
  assert task.spec.label_names == ("0", "1")
  assert [task.gold(split).tolist() for split in paths] == [[0, 1, 0], [1], [1, 0]]
  assert task.evaluate({"logits": np.array([[0.0, 1.0]])})["f1_1"] == 1.0
  # Numbers of versions are names.
  rows = [{"text": "x", "label": label} for label in ("1.0", "1.1")]
  versions = write(tmp_path / f"versions{suffix}", rows)
  assert task_of(ONE_TEXT, train=versions, eval=versions).spec.label_names == ("1.0", "1.1")


def test_the_answer_among_the_texts_is_refused():
  columns = {"text_columns": ("question", "stars"), "label_column": "stars"}
  with pytest.raises(UserError, match=r"Received: .* stars in --text_columns=question,stars"):
    TableColumns(**columns)
  with pytest.raises(UserError, match=r"Received: .* c in --choice_columns=a,b,c"):
    ChoiceColumns(choice_columns=("a", "b", "c"), label_column="c")


@pytest.mark.parametrize(
  ("name", "rows", "warning"),
  [
    ("a.jsonl", [("1", True), ("2", 1), ("3", "1")], "1 true or false, 1 numbers, 1 texts"),
    ("a.csv", [("1", "pos"), ("2", "Pos"), ("3", "pos")], "pos (2), Pos (1)"),
    ("a.csv", [("k", "a"), ("m", "b"), ("k", "b")], "2 of 3 rows share their id"),
    ("a.csv", [("m", "a"), ("k", "b"), ("k", "b")], "a.csv:3"),
    ("a.csv", [("1", "a"), ("2", "b")], ""),
  ],
)
def test_labels_and_ids_that_are_probably_mistakes(tmp_path, caplog, name, rows, warning):
  cells = [{"id": example_id, "text": "x", "label": label} for example_id, label in rows]
  path = write(tmp_path / name, cells)
  assert len(examples_of(path, ONE_TEXT)) == len(rows)
  if warning:
    assert f"{path}: " in caplog.text
  assert warning in caplog.text
  assert bool(caplog.text) == bool(warning)


def test_test_data_with_some_labels_are_not_scored_and_that_is_said(tmp_path, caplog):
  train = write(tmp_path / "train.csv", [{"text": "x", "label": label} for label in "abab"])
  rows = [{"text": "x", "label": label} for label in ("a", "", "b", "a", "")]
  path = write(tmp_path / "test.csv", rows)
  task = task_of(ONE_TEXT, train=train, eval=train, test=path)
  assert task.features("test").labels is None
  assert f"{path}: 2 of 5 rows have no label" in caplog.text


def test_predictions_keep_every_character(tmp_path):
  """Tabs and line ends are written as jq's @tsv does: a row is a line, and can be read back."""
  ids = ["a\tb", "c\nd\r", "e\\tf", 'g "h"']
  rows = [{"id": example_id, "text": "x", "label": "c\td"} for example_id in ids]
  path = write(tmp_path / "a.csv", rows)
  other = write(tmp_path / "b.csv", [{"id": "1", "text": "x", "label": "b"}, rows[0]])
  task = task_of(ONE_TEXT, train=other, eval=path)
  task.write_predictions({"logits": np.array([[0.0, 1.0]] * 4)}, "eval", str(tmp_path))
  text = (tmp_path / "predictions_eval.tsv").read_bytes().decode()
  lines = text.removesuffix("\n").split("\n")[1:]
  escapes = {"\\t": "\t", "\\n": "\n", "\\r": "\r", "\\\\": "\\"}

  def read_back(cell):
    return re.sub(r"\\.", lambda found: escapes[found[0]], cell)

  cells = [[*map(read_back, line.split("\t"))] for line in lines]
  assert [row[:3] for row in cells] == [[example_id, "c\td", "c\td"] for example_id in ids]


def test_groups_are_held_out_whole_and_always_the_same_ones():
  groups = [4, 4, 4, 9, 9, 2, 2, 2, 2, 7]
  for fraction in (0.1, 0.3, 0.5, 0.8):
    train, held = hold_out(range(10), fraction, source="f", groups=groups)
    assert (train, held) == hold_out(range(10), fraction, source="f", groups=groups)
    assert sorted([*train, *held]) == list(range(10))
    assert {groups[i] for i in train}.isdisjoint(groups[i] for i in held)
    assert held
    assert train
  assert [len(part) for part in hold_out("abcd", 0.01, source="f")] == [3, 1]
  with pytest.raises(UserError, match="1 in f"):
    hold_out(["one"], 0.1, source="f")
