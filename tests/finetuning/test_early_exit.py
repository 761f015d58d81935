"""Fine-tuning at several depths: the table of thresholds, the one that is stored, and its later use."""

import dataclasses
import json
import shutil
import types

import numpy as np
import pytest
from support.tiny_finetuning import QUICK, made_up_texts, tiny_start, tiny_task, tokenizer
from support.tiny_step import EAGER_INPUT, eagerly

from albert_tf import AlbertClassifier
from albert_tf.checkpoints.checkpoint import read_checkpoint
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning import exit_table
from albert_tf.finetuning.results import lines as printed_lines
from albert_tf.finetuning.run import fine_tune
from albert_tf.finetuning.tasks.labelled import LabelledTask, TextExample, named_metrics

SETTINGS = dataclasses.replace(QUICK, num_train_steps=4, train_batch_size=8, train_depths=(1, 2))


pytestmark = pytest.mark.filterwarnings(EAGER_INPUT)


@pytest.fixture
def without_graphs():
  with eagerly():
    yield


def run(directory, task, start=None, **changes):
  settings = dataclasses.replace(SETTINGS, **changes)
  return fine_tune(task, settings, start=start or tiny_start(), output_dir=str(directory))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A run at two depths: its directory, task, examples to evaluate and results."""
  splits = {"train": made_up_texts(24, seed=5), "eval": made_up_texts(13, seed=6)}
  task = tiny_task(splits)
  directory = tmp_path_factory.mktemp("trained") / "run"
  with eagerly():
    results = run(directory, task, depth_distillation=1.0)
  return types.SimpleNamespace(path=directory, task=task, eval=splits["eval"], results=results)


@pytest.mark.slow
def test_the_fastest_threshold_that_is_good_enough_is_stored(trained):
  table = trained.results["early_exit"]
  assert table["rows"][0] == {
    "threshold": 1.0, "metric": trained.results["accuracy"], "layers": 2.0
  }  # fmt: skip
  rows = [exit_table.ExitRow(**row) for row in table["rows"]]
  assert table["threshold"] == exit_table.fastest_row(rows).threshold
  spec = TaskSpec.load(str(trained.path))
  assert (spec.exit_depths, spec.exit_threshold) == ((1, 2), table["threshold"])
  printed = list(printed_lines(trained.results))
  assert sum(line.endswith("stored") for line in printed) == 1


@pytest.mark.slow
def test_a_loaded_model_answers_as_the_table_says(trained, without_graphs):
  model = AlbertClassifier.from_pretrained(trained.path)
  labels = np.array([example.label for example in trained.eval])
  texts = [example.text for example in trained.eval]
  names = np.array(model.task.label_names)
  for row in trained.results["early_exit"]["rows"]:
    early = model.predict_early(texts, threshold=row["threshold"])
    accuracy = np.mean(names[early.outputs.argmax(-1)] == labels)
    assert accuracy == pytest.approx(row["metric"])
    assert early.layers.mean() == pytest.approx(row["layers"], abs=1 / 13)


@pytest.mark.slow
@pytest.mark.parametrize(
  "flags", [{"train_depths": ()}, {"depth_distillation": 1.0}], ids=["none", "of_training"]
)
def test_an_evaluation_has_the_same_table_and_keeps_the_threshold(
  tmp_path, trained, without_graphs, flags
):
  shutil.copytree(trained.path, tmp_path / "run")
  again = run(tmp_path / "run", trained.task, do_train=False, **flags)
  assert again["early_exit"] == trained.results["early_exit"]
  assert TaskSpec.load(str(tmp_path / "run")) == TaskSpec.load(str(trained.path))


@pytest.mark.slow
def test_other_data_have_another_table_and_keep_the_threshold(tmp_path, trained, without_graphs):
  other = tiny_task({"eval": made_up_texts(7, seed=8)})
  start = read_checkpoint(str(trained.path))
  results = run(tmp_path / "run", other, start, do_train=False, train_depths=())
  table = trained.results["early_exit"]
  assert results["early_exit"]["rows"] != table["rows"]
  assert TaskSpec.load(str(tmp_path / "run")).exit_threshold == table["threshold"]


@pytest.mark.slow
def test_the_least_of_the_trained_depths_has_no_table(tmp_path, trained, without_graphs):
  start = read_checkpoint(str(trained.path))
  options = {"do_train": False, "train_depths": (), "num_hidden_layers": 1}
  assert "early_exit" not in run(tmp_path / "run", trained.task, start, **options)


@pytest.mark.slow
def test_the_table_leaves_the_thresholds_of_labels_as_they_are(tmp_path, without_graphs):
  """It evaluates other answers, and each evaluation of overlapping labels chooses thresholds."""
  examples = [
    TextExample(str(number), text, label=("a", "b")[: number % 3])
    for number, text in enumerate(example.text for example in made_up_texts(24, seed=5))
  ]
  spec = TaskSpec(kind="multi_label", name="t", label_names=("a", "b"), max_seq_length=40)
  task = LabelledTask(
    spec,
    {"train": examples, "eval": examples},
    tokenizer=tokenizer(),
    metrics=named_metrics("micro_f1"),
  )
  results = run(tmp_path / "run", task)
  assert len(results["early_exit"]["rows"]) > 1
  stored = TaskSpec.load(str(tmp_path / "run")).thresholds
  lines = (tmp_path / "run/predictions_eval.tsv").read_text().splitlines()
  for line in lines[1:]:
    cells = line.split("\t")
    given = [float(cell) >= threshold for cell, threshold in zip(cells[3:], stored, strict=True)]
    expected = [name for name, is_given in zip(spec.label_names, given, strict=True) if is_given]
    assert json.loads(cells[1] or "[]") == expected


@pytest.mark.parametrize("tolerance", [0.0, 1.0, 100.0])
def test_the_fastest_row_that_is_good_enough(tolerance):
  rows = [
    exit_table.ExitRow(1.0, 0.80, 12.0),
    exit_table.ExitRow(0.9, 0.795, 8.0),
    exit_table.ExitRow(0.8, 0.81, 9.0),
    exit_table.ExitRow(0.7, float("nan"), 2.0),
    exit_table.ExitRow(0.6, 0.3, 4.0),
  ]
  expected = {0.0: 0.8, 1.0: 0.9, 100.0: 0.6}[tolerance]
  assert exit_table.fastest_row(rows, tolerance).threshold == expected


def test_distillation_needs_several_depths():
  with pytest.raises(UserError, match=r"Received: --depth_distillation=1\.0 .*--train_depths"):
    dataclasses.replace(SETTINGS, train_depths=(), depth_distillation=1.0)
