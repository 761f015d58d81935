"""`run_glue.py` as users run it: train, predict, export on two replicas; predict again; an ensemble; bad input."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from support import tiny_run
from support.commands.child_processes import words
from support.commands.script_runs import SCRIPT_FOLDERS, run_script
from support.task_files import write_mrpc
from support.tiny_finetuning import tiny_start
from support.tiny_run import WORDS

from albert_tf.configs.task import TaskSpec
from albert_tf.modeling import AlbertForPreTraining, initialize_variables, named_variables
from albert_tf.serving.loaded_model import LoadedModel

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
  folder = tmp_path_factory.mktemp("pretrained")
  model = AlbertForPreTraining(tiny_start().config)
  # By a seed: what is learned in a minute depends on the first weights.
  spread = model.config.initializer_range
  initialize_variables(named_variables(model), seed=1, initializer_range=spread)
  tiny_run.write_run(folder, model, tiny_run.tokenizer())
  return folder


@pytest.mark.slow
def test_train_predict_export_predict_again_and_an_ensemble(tmp_path, pretrained):
  write_mrpc(tmp_path / "MRPC", 24)
  out, later, both = (tmp_path / name for name in ("out", "again", "both"))
  common = {"task_name": "MRPC", "data_dir": tmp_path, "max_seq_length": 32, "do_predict": True}
  two = {"num_virtual_devices": 2}
  training = {"init_checkpoint": pretrained, "do_train": True, "train_batch_size": 8}
  training |= {"learning_rate": 0.002, "num_train_epochs": 2}
  commands = [
    {**common, **two, **training, "output_dir": out},
    {**common, **two, "init_checkpoint": out, "output_dir": later, "do_eval": True},
    {**common, "ensemble_of": f"{out},{later}", "output_dir": both},
  ]
  done, again, ensemble = run_script("run_glue", list(map(words, commands)))
  assert done.status == 0, done.stderr
  results = json.loads((out / "results.json").read_text())
  assert {"accuracy", "f1", "best_step", "train_seconds"} <= results.keys()
  assert f"accuracy: {results['accuracy']:.4f}" in done.stdout
  for name in ("task.json", "flags.txt", "run.json", "saved_model/1/saved_model.pb"):
    assert (out / name).exists(), name
  assert again.status == 0, again.stderr
  first, second = (
    np.loadtxt(folder / "predictions_test.tsv", str, delimiter="\t", skiprows=1)
    for folder in (out, later)
  )
  np.testing.assert_allclose(first[:, 3:].astype(float), second[:, 3:].astype(float), atol=2e-6)
  assert ensemble.status == 0, ensemble.stderr
  results = json.loads((both / "results.json").read_text())
  assert {each["directory"] for each in results["candidates"]} == {str(out), str(later)}
  assert results["accuracy"] == max(each["score_with_it"] for each in results["members"])
  assert f"accuracy: {results['accuracy']:.4f}" in ensemble.stdout
  for folder in (out, both):
    assert len((folder / "submission/MRPC.tsv").read_text().splitlines()) == 6


TOPICS = {"colour": {"blue", "green"}, "bird": {"birds", "sing"}, "plant": {"grass", "trees"}}


@pytest.mark.slow
@pytest.mark.stack
def test_labels_that_overlap(tmp_path, pretrained):
  """Trained with a threshold for each label, which the run, a later prediction and the SavedModel share."""
  rng, rows = np.random.default_rng(3), ["text,topics"]
  for _ in range(120):
    text = rng.choice(WORDS, 4, replace=False).tolist()
    rows.append(
      f'{" ".join(text)},"{",".join(topic for topic, of in TOPICS.items() if of & set(text))}"'
    )
  for name, part in (("train", rows), ("test", [row.partition(",")[0] for row in rows[:21]])):
    (tmp_path / f"{name}.csv").write_text("\n".join(part) + "\n")
  common = {"task_name": "custom", "output_dir": tmp_path / "out", "do_predict": True}
  common |= {"test_file": tmp_path / "test.csv", "max_seq_length": 16}
  # Evaluated on what it is trained on: a dozen held-out rows would decide by the processor's rounding.
  training = dict.fromkeys(("train_file", "eval_file"), tmp_path / "train.csv")
  training |= {"label_column": "topics", "multi_label": True, "init_checkpoint": pretrained}
  training |= {"do_train": True, "train_batch_size": 16, "learning_rate": 0.003}
  training |= {"num_train_epochs": 40, "albert_dropout": 0, "classifier_dropout": 0}
  later = {"init_checkpoint": tmp_path / "out", "output_dir": tmp_path / "again"}
  commands = [words(common | training), words(common | later)]
  done, again = run_script("run_glue", commands)
  assert done.status == again.status == 0, done.stderr + again.stderr
  results = json.loads((tmp_path / "out/results.json").read_text())
  assert f"average_precision: {results['average_precision']:.4f}" in done.stdout
  assert results["average_precision"] > 0.9
  task = TaskSpec.load(str(tmp_path / "out"))
  assert (task.kind, task.label_names) == ("multi_label", ("bird", "colour", "plant"))
  assert task.thresholds == tuple(results[f"threshold_{name}"] for name in task.label_names)
  rows, later_rows = (
    [
      line.split("\t")
      for line in (tmp_path / name / "predictions_test.tsv").read_text().splitlines()[1:]
    ]
    for name in ("out", "again")
  )
  assert [row[1] for row in rows] == [row[1] for row in later_rows]
  model = LoadedModel(str(tmp_path / "out/saved_model/1"))
  texts = np.array((tmp_path / "test.csv").read_bytes().splitlines()[1:], object)
  served = model.run("serving_default", {"text": texts})
  np.testing.assert_allclose(
    served["probabilities"], np.array([row[3:] for row in rows], float), atol=2e-6
  )
  given = [list(np.array(task.label_names)[above]) for above in served["above_threshold"]]
  assert given == [json.loads(row[1]) for row in rows]


def test_mistakes_are_told_in_one_message(tmp_path, pretrained):
  common = {"task_name": "mrpc", "data_dir": tmp_path, "output_dir": tmp_path / "out"}
  common["init_checkpoint"] = pretrained
  table = tmp_path / "train.csv"
  table.write_text("text,label\nthe sky,pos\ntrees,neg\n")
  custom = {"task_name": "custom", "data_dir": ""}
  cases = {
    "--from_scratch": {"init_checkpoint": "", "do_train": True},
    "--data_dir": {"do_train": True, "data_dir": ""},
    "none of --do_train": {},
    "--do_train=True, --learning_rate=0.1": {
      "ensemble_of": f"{tmp_path}/a,{tmp_path}/b", "do_train": True, "learning_rate": 0.1, "init_checkpoint": "",
    },
    "An ensemble needs several runs": {"ensemble_of": f"{tmp_path}/a", "init_checkpoint": ""},
    # Flags that the other mode reads.
    "--train_file=mine.csv": {"do_train": True, "train_file": "mine.csv"},
    "--label_column=stars": {"do_train": True, "label_column": "stars"},
    "--regression=True": {"do_train": True, "regression": True},
    "--eval_fraction=0.5": {**custom, "do_train": True, "eval_file": table, "eval_fraction": 0.5},
    "no --train_file": {**custom, "do_train": True},
    f"{tmp_path}/missing*.csv": {**custom, "do_train": True, "train_file": tmp_path / "missing*.csv"},
    "'neg'": {**custom, "do_train": True, "train_file": table, "label_names": "neg,pos,neg"},
    "learning_rate must be a finite number": {"do_train": True, "learning_rate": "inf"},
  }  # fmt: skip
  runs = run_script("run_glue", [words(common | flags) for flags in cases.values()])
  for message, run in zip(cases, runs, strict=True):
    assert (run.status, message in run.stderr) == (2, True), run
  assert not (tmp_path / "out").exists()


def test_the_flag_file_of_a_run_has_no_flags_of_tensorflow():
  """They are unknown when the file is given to a command, which parses before it loads TensorFlow."""
  code = """
from absl import flags
from albert_tf.cli import commands
import run_glue

commands.load_tensorflow = lambda *_: flags.DEFINE_bool("of_tensorflow", False, "")
flags.FLAGS(["run_glue", "--task_name=mrpc", "--output_dir=out", "--do_train"])
text = run_glue.finetune_command.read_request(run_glue.Command).flags_text
assert "of_tensorflow" in flags.FLAGS
print(text)
"""
  done = subprocess.run(
    [sys.executable, "-c", code],
    env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *SCRIPT_FOLDERS])},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  lines = done.stdout.splitlines()
  assert "--task_name=mrpc" in lines
  assert not [line for line in lines if "of_tensorflow" in line]
