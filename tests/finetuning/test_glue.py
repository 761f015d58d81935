"""GLUE: packing as in the original, all files, metrics computed by hand, submission files, bad input."""

import numpy as np
import pytest
from support.goldens import SPM_MODEL, golden_rows
from support.tiny_finetuning import tokenizer

from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.tasks import glue
from albert_tf.finetuning.tasks.glue import find_task, glue_task
from albert_tf.finetuning.tasks.labelled import METRICS, LabelledTask, TextExample, named_metrics
from albert_tf.tokenization import AlbertTokenizer

COLUMNS = {  # Of the files for training.
  "cola": ["source", "label", "mark", "sentence"],
  "sst-2": ["sentence", "label"],
  "mrpc": ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
  "sts-b": "index genre filename year old_index source1 source2 sentence1 sentence2 score".split(),
  "qqp": ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
  "mnli": ["index", "promptID", "sentence1", "sentence2", "label1", "gold_label"],
  "qnli": ["index", "question", "sentence", "label"],
  "rte": ["index", "sentence1", "sentence2", "label"],
  "wnli": ["index", "sentence1", "sentence2", "label"],
}


def write_task(root, name):
  """The task's folder with every file GLUE has, in GLUE's layout: a row of each class, and one to predict."""
  task, columns = glue.TASKS[name], COLUMNS[name]
  (root / task.folder).mkdir(parents=True)
  rows = [
    [f"{label} " if column == task.label else f'A "{column} .' for column in columns]
    for label in task.label_names or ("2.5", "5.000")
  ]
  broken = [["135", "broken"]] if name == "qqp" else []
  train = [*([] if task.columns else [columns]), *rows, *broken]
  test = [["index", *task.texts], ["7", *task.texts]]
  for split, file in task.files.items():
    lines = ["\t".join(cells) for cells in (test if split.startswith("test") else train)]
    if split != "test_ax":  # A byte-order mark and other line ends must not matter.
      text = ("\ufeff" if name == "mrpc" else "") + ("\r\n" if name == "rte" else "\n").join(lines)
      (root / task.folder / file).write_text(text + "\n")
  return str(root)


def test_a_short_row_of_a_test_file_is_refused(tmp_path):
  """Left out, its answer would be missing in the submission."""
  root = write_task(tmp_path, "mrpc")
  path = tmp_path / glue.TASKS["mrpc"].folder / "test.tsv"
  path.write_text(path.read_text() + "17\tcut off\n")
  with pytest.raises(UserError, match=r"test\.tsv, a row of 2 columns: '17'"):
    glue_task(glue.TASKS["mrpc"], data_dir=root, tokenizer=tokenizer(), max_seq_length=32)


@pytest.mark.parametrize("name", COLUMNS)
def test_each_layout(tmp_path, name, caplog):
  root = write_task(tmp_path, name)
  of_glue = glue.TASKS[name]
  task = glue_task(of_glue, data_dir=root, tokenizer=tokenizer(), max_seq_length=32)
  found = glue.find_files(of_glue, f"{root}/{of_glue.folder}")
  assert glue.read_splits(of_glue, found) == task.splits
  assert task.splits["train"] == task.splits["eval"]
  expected = [[2.5], [5.0]] if name == "sts-b" else list(range(task.spec.num_labels))
  np.testing.assert_array_equal(task.features("train").labels, expected)
  assert len(task.features("test")) == 1
  assert task.features("test").labels is None
  if name == "qqp":
    assert "1 rows have too few columns" in caplog.text
  x, _ = task.features("train").padded()
  assert x["segment_ids"][0].any() == task.spec.pair
  logits = np.array([[7.0, 1.0, 0.0][: task.spec.num_labels]])
  task.write_predictions({"logits": logits}, "test", str(tmp_path))
  submission = tmp_path / f"submission/{of_glue.submission.get('test', of_glue.folder)}.tsv"
  label = "5.0000" if name == "sts-b" else task.spec.label_names[0]
  assert submission.read_text() == f"index\tprediction\n7\t{label}\n"


def test_a_file_above_the_data_is_not_the_test_data(tmp_path):
  root = write_task(tmp_path, "mrpc")
  own = tmp_path / "MRPC/test.tsv"
  own.rename(tmp_path.parent / "test.tsv")
  assert "test" not in glue.find_files(glue.TASKS["mrpc"], root)
  (tmp_path.parent / "test.tsv").rename(tmp_path / "test.tsv")
  assert "test" not in glue.find_files(glue.TASKS["mrpc"], f"{root}/MRPC")


@pytest.mark.parametrize("place", ["diagnostic/diagnostic.tsv", "AX/AX.tsv"])
def test_mnli_has_two_evaluations_and_the_diagnostic_set(tmp_path, place):
  root = write_task(tmp_path, "mnli")
  (tmp_path / place).parent.mkdir()
  (tmp_path / place).write_text("index\tsentence1\tsentence2\n9\tA\tB\n")
  task = glue_task(glue.TASKS["mnli"], data_dir=root, tokenizer=tokenizer(), max_seq_length=32)
  assert list(task.splits) == list(glue.TASKS["mnli"].files)
  right = {"logits": np.eye(3) * 5}
  assert task.evaluate(right, "eval_mismatched")["accuracy"] == 1.0
  for split in ("test_mismatched", "test_ax"):
    task.write_predictions({"logits": np.array([[0.0, 1.0, 0.0]])}, split, str(tmp_path))
  assert (tmp_path / "submission/MNLI-mm.tsv").read_text() == "index\tprediction\n7\tentailment\n"
  assert (tmp_path / "submission/AX.tsv").read_text() == "index\tprediction\n9\tentailment\n"


def test_packing_equals_the_original():
  model = AlbertTokenizer.from_pretrained(SPM_MODEL)
  recorded = golden_rows("glue_features")
  for length in {row["max_seq_length"] for row in recorded}:
    of_length = [row for row in recorded if row["max_seq_length"] == length]
    task = LabelledTask(
      TaskSpec(kind="regression", name="glue", max_seq_length=length),
      {"test": [TextExample("0", row["text_a"], row["text_b"] or "") for row in of_length]},
      tokenizer=model,
      metrics=named_metrics("pearson"),
    )
    (made,) = task.features("test").padded(length)
    for name, values in made.items():
      for row, padded in zip(of_length, values, strict=True):
        np.testing.assert_array_equal(padded, row[name], err_msg=f"{name} of {row['text_a']!r}")


def test_every_real_file_is_read(shared_dir):
  for path in sorted((shared_dir / "data/glue").glob("*/*.tsv")):
    task = glue.TASKS[path.parent.name.removesuffix("-sample").lower()]
    split = next(s for s, name in task.files.items() if name == path.name)
    texts = glue.read_tsv(task, str(path), split)
    lines = sum(bool(line.strip()) for line in path.read_text("utf-8").split("\n"))
    assert len(texts) == lines - (split == "test" or task.name != "cola")
    assert all(example.text.strip() for example in texts)
    if task.label_names and split != "test":
      assert {example.label for example in texts} == set(task.label_names)


def test_metrics_by_hand():
  labels, predictions = np.array([1, 1, 1, 0, 0, 1]), np.array([1, 0, 1, 1, 0, 1])
  # True positives 3, false negatives 1, false positives 1, true negatives 1.
  x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 4.0, 9.0, 8.0])
  # Deviations -1.5 -.5 .5 1.5 and -4.5 -1.5 3.5 2.5: 13 / sqrt(5 · 41); ranks 1 2 4 3.
  expected = {"accuracy": 4 / 6, "f1": 6 / 8, "macro_f1": 0.625, "matthews_correlation": 0.25}
  correlations = {"pearson": 13 / np.sqrt(5 * 41), "spearman": 0.8}
  assert {name: METRICS[name](labels, predictions) for name in expected} == pytest.approx(expected)
  assert {name: METRICS[name](x, y) for name in correlations} == pytest.approx(correlations)
  assert METRICS["pearson"](x, np.ones(4)) == METRICS["spearman"](x, np.ones(4)) == 0.0


def test_wrong_names_and_labels(tmp_path):
  with pytest.raises(UserError, match="mrpc"):
    find_task("mrcp")
  with pytest.raises(UserError, match=r"train\.tsv"):
    glue_task(glue.TASKS["mrpc"], data_dir=str(tmp_path), tokenizer=tokenizer())
  (tmp_path / "train.tsv").write_text("sentence\tlabel\ngood\t1\nbad\t2\n")
  task = glue_task(glue.TASKS["sst-2"], data_dir=str(tmp_path), tokenizer=tokenizer())
  with pytest.raises(UserError, match=r"eval .*Received: none"):
    task.features("eval")
  with pytest.raises(UserError, match=r"Received: .*train\.tsv with 2 .*sentence, label"):
    glue_task(glue.TASKS["sts-b"], data_dir=str(tmp_path), tokenizer=tokenizer())
