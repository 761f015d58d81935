"""`run_glue.py` as users run it: train, predict, export on two replicas; predict again; an ensemble; bad input."""

import json
import os
import pathlib
import re

import numpy as np
import pytest
from support import tiny_run
from support.commands.child_processes import start_python, words
from support.commands.script_runs import SCRIPT_FOLDERS, run_script
from support.task_files import write_mrpc

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
  return tiny_run.write_pretrained(tmp_path_factory.mktemp("pretrained") / "run")


@pytest.mark.slow
def test_train_predict_export_predict_again_and_an_ensemble(tmp_path, pretrained):
  write_mrpc(tmp_path / "MRPC", 24)
  out, later, both = (tmp_path / name for name in ("out", "again", "both"))
  common = {"task_name": "MRPC", "data_dir": tmp_path, "max_seq_length": 32, "do_predict": True}
  training = {"init_checkpoint": pretrained, "do_train": True, "train_batch_size": 8}
  training |= {"learning_rate": 0.002, "num_train_epochs": 2}
  commands = [
    {**common, **training, "output_dir": out},
    {**common, "init_checkpoint": out, "output_dir": later, "do_eval": True},
    {**common, "ensemble_of": f"{out},{later}", "output_dir": both},
  ]
  done, again, ensemble = run_script("run_glue", list(map(words, commands)), emulated_gpus=2)
  assert done.status == 0, done.stderr
  results = json.loads((out / "results.json").read_text())
  assert {"accuracy", "f1", "best_step", "train_seconds"} <= results.keys()
  assert f"accuracy: {results['accuracy']:.4f}" in done.stdout
  assert "--max_seq_length=32" in (out / "flags.txt").read_text()
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


def test_mistakes_are_told_in_one_message(tmp_path, pretrained):
  common = {"task_name": "mrpc", "data_dir": tmp_path, "output_dir": tmp_path / "out"}
  common["init_checkpoint"] = pretrained
  table = tmp_path / "train.csv"
  table.write_text("text,label\nthe sky,pos\ntrees,neg\n")
  custom = {"task_name": "custom", "data_dir": ""}
  cases = {
    "--data_dir": {"do_train": True, "data_dir": ""},
    # It was never fine-tuned.
    f"{pretrained}/checkpoints/model.ckpt": {**custom, "do_predict": True, "test_file": table},
    "no head for a task. Train it with --do_train": {"do_predict": True},
    "none of --do_train": {},
    "--do_train=True, --learning_rate=0.1": {
      "ensemble_of": f"{tmp_path}/a,{tmp_path}/b", "do_train": True, "learning_rate": 0.1, "init_checkpoint": "",
    },
    # A flag that the other mode reads.
    "--label_column=stars": {"do_train": True, "label_column": "stars"},
    "--eval_fraction=0.5": {**custom, "do_train": True, "eval_file": table, "eval_fraction": 0.5},
    "no --train_file": {**custom, "do_train": True},
    f"{tmp_path}/missing*.csv": {**custom, "do_train": True, "train_file": tmp_path / "missing*.csv"},
  }  # fmt: skip
  runs = run_script("run_glue", [words(common | flags) for flags in cases.values()])
  for message, run in zip(cases, runs, strict=True):
    assert (run.status, message in run.stderr) == (2, True), run
  assert not (tmp_path / "out").exists()


def test_a_command_shows_the_flags_that_it_takes():
  shown = {}
  for name in ("glue", "squad", "race", "tagging"):
    (done,) = run_script(f"run_{name}", [["--help"]])
    shown[name] = set(re.findall(r"^  --(?:\[no\])?(\w+)", done.stdout, re.MULTILINE))
    assert {"train_depths", "seeds", "export"} <= shown[name], name
  for flag, commands in {
    "depth_distillation": {"glue"},
    "ensemble_of": {"glue", "squad", "race"},
    "freeze_encoder": {"glue", "squad", "race", "tagging"},
    "problem": {"glue"},
  }.items():
    assert {name for name, flags in shown.items() if flag in flags} == commands, flag


def test_the_flag_file_of_a_run_has_no_flags_of_tensorflow():
  """They are unknown when the file is given to a command, which parses before it loads TensorFlow."""
  code = """
from absl import flags
from albert_tf.cli import commands
import run_glue

commands.load_tensorflow = lambda *_: flags.DEFINE_bool("of_tensorflow", False, "")
flags.FLAGS(["run_glue", "--task_name=mrpc", "--output_dir=out", "--do_train"])
text = run_glue.finetune_command.read_request().flags_text
assert "of_tensorflow" in flags.FLAGS
print(text)
"""
  done = start_python("-c", code, PYTHONPATH=os.pathsep.join([str(ROOT), *SCRIPT_FOLDERS]))
  stdout, stderr = done.communicate()
  assert done.returncode == 0, stderr
  lines = stdout.splitlines()
  assert "--task_name=mrpc" in lines
  assert not [line for line in lines if "of_tensorflow" in line]
