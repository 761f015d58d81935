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
  initialize_variables(
    named_variables(model),
    seed=1,
    initializer_range=model.config.initializer_range,
  )
  tiny_run.write_run(folder, model, tiny_run.tokenizer())
  return folder


@pytest.mark.slow
def test_train_predict_export_predict_again_and_an_ensemble(tmp_path, pretrained):
  write_mrpc(tmp_path / "MRPC", 24)
  common = {
    "task_name": "MRPC",
    "data_dir": tmp_path,
    "output_dir": tmp_path / "out",
    "max_seq_length": 32,
  }
  both = {
    "ensemble_of": f"{tmp_path}/out,{tmp_path}/again",
    "output_dir": tmp_path / "both",
    "do_predict": True,
  }
  done, again, ensemble = run_script(
    "run_glue",
    [
      words({
        **common, "init_checkpoint": pretrained, "do_train": True, "do_predict": True, "train_batch_size": 8,
        "learning_rate": 0.002, "num_train_epochs": 2, "num_virtual_devices": 2,
      }),
      words({
        **common, "init_checkpoint": tmp_path / "out", "output_dir": tmp_path / "again", "do_eval": True,
        "do_predict": True, "num_virtual_devices": 2,
      }),
      words(common | both),
    ],
  )  # fmt: skip
  assert done.status == 0, done.stderr
  results = json.loads((tmp_path / "out/results.json").read_text())
  assert {"accuracy", "f1", "best_step", "train_seconds"} <= results.keys()
  assert f"accuracy: {results['accuracy']:.4f}" in done.stdout
  for name in ("task.json", "flags.txt", "run.json", "saved_model/1/saved_model.pb"):
    assert (tmp_path / "out" / name).exists(), name
  first = (tmp_path / "out/predictions_test.tsv").read_text()
  assert len((tmp_path / "out/submission/MRPC.tsv").read_text().splitlines()) == 6
  assert again.status == 0, again.stderr
  second = (tmp_path / "again/predictions_test.tsv").read_text()
  one, two = (
    np.array([line.split("\t")[3:] for line in text.splitlines()[1:]], float)
    for text in (first, second)
  )
  np.testing.assert_allclose(one, two, atol=2e-6)
  assert ensemble.status == 0, ensemble.stderr
  results = json.loads((tmp_path / "both/results.json").read_text())
  assert {each["directory"] for each in results["candidates"]} == {
    f"{tmp_path}/out",
    f"{tmp_path}/again",
  }
  assert results["accuracy"] == max(each["score_with_it"] for each in results["members"])
  assert f"accuracy: {results['accuracy']:.4f}" in ensemble.stdout
  assert len((tmp_path / "both/submission/MRPC.tsv").read_text().splitlines()) == 6


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
  columns = {
    "train_file": tmp_path / "train.csv",
    "eval_file": tmp_path / "train.csv",
    "label_column": "topics",
    "multi_label": True,
  }
  training = {
    "do_train": True,
    "init_checkpoint": pretrained,
    "train_batch_size": 16,
    "albert_dropout": 0,
  }
  training |= {"learning_rate": 0.003, "num_train_epochs": 40, "classifier_dropout": 0}
  done, again = run_script(
    "run_glue",
    [
      words({**common, **columns, **training}),
      words({**common, "init_checkpoint": tmp_path / "out", "output_dir": tmp_path / "again"}),
    ],
  )
  assert done.status == again.status == 0, done.stderr + again.stderr
  results = json.loads((tmp_path / "out/results.json").read_text())
  assert f"average_precision: {results['average_precision']:.4f}" in done.stdout
  assert results["average_precision"] > 0.9
  task = TaskSpec.load(str(tmp_path / "out"))
  assert (task.kind, task.label_names) == ("multi_label", ("bird", "colour", "plant"))
  assert task.thresholds == tuple(results[f"threshold_{name}"] for name in task.label_names)
  first, second = (
    (tmp_path / name / "predictions_test.tsv").read_text() for name in ("out", "again")
  )
  rows = [line.split("\t") for line in first.splitlines()[1:]]
  assert [row[1] for row in rows] == [line.split("\t")[1] for line in second.splitlines()[1:]]
  model = LoadedModel(str(tmp_path / "out/saved_model/1"))
  texts = (tmp_path / "test.csv").read_text().splitlines()[1:]
  served = model.run(
    "serving_default", {"text": np.array([text.encode() for text in texts], object)}
  )
  np.testing.assert_allclose(
    served["probabilities"], np.array([row[3:] for row in rows], float), atol=2e-6
  )
  given = [list(np.array(task.label_names)[above]) for above in served["above_threshold"]]
  assert given == [json.loads(row[1]) for row in rows]


def test_mistakes_are_told_in_one_message(tmp_path, pretrained):
  common = {
    "task_name": "mrpc",
    "data_dir": tmp_path,
    "init_checkpoint": pretrained,
    "output_dir": tmp_path / "out",
  }
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
    "warmup_proportion": {"do_train": True, "warmup_proportion": "nan"},
    "max_seq_length must be": {"do_train": True, "max_seq_length": 1 << 40},
    "train_batch_size must be": {"do_train": True, "train_batch_size": 1 << 40},
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
