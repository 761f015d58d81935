"""`run_glue.py` as users run it: train, predict, export on two replicas; predict again; bad input."""

import json

import numpy as np
import pytest
from support.commands.child_processes import words
from support.commands.script_runs import run_script
from support.task_files import write_mrpc
from support.tiny_finetuning import tiny_start, tokenizer

from albert_tf.checkpoints.bundle import write_bundle
from albert_tf.modeling import AlbertForPreTraining, named_variables


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
  folder = tmp_path_factory.mktemp("pretrained")
  start = tiny_start()
  (folder / "albert_config.json").write_text(start.config.to_json_string())
  tokenizer().save_pretrained(str(folder))
  variables = named_variables(AlbertForPreTraining(start.config))
  write_bundle(str(folder / "model.ckpt-7"), {k: v.numpy() for k, v in variables.items()})
  return folder


@pytest.mark.slow
def test_train_predict_export_and_predict_again(tmp_path, pretrained):
  write_mrpc(tmp_path / "MRPC", 24)
  common = {"task_name": "MRPC", "data_dir": tmp_path, "output_dir": tmp_path / "out", "max_seq_length": 32}
  done, again = run_script(
    "run_glue",
    [
      words({
        **common, "init_checkpoint": pretrained, "do_train": True, "do_predict": True, "train_batch_size": 8,
        "learning_rate": 0.002, "num_train_epochs": 2, "num_virtual_devices": 2,
      }),
      words({
        **common, "init_checkpoint": tmp_path / "out", "output_dir": tmp_path / "again", "do_predict": True,
        "num_virtual_devices": 2,
      }),
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
    np.array([line.split("\t")[3:] for line in text.splitlines()[1:]], float) for text in (first, second)
  )
  np.testing.assert_allclose(one, two, atol=2e-6)


def test_mistakes_are_told_in_one_message(tmp_path, pretrained):
  common = {
    "task_name": "mrpc",
    "data_dir": tmp_path,
    "init_checkpoint": pretrained,
    "output_dir": tmp_path / "out",
  }
  cases = {
    "--from_scratch": {"init_checkpoint": "", "do_train": True},
    "--data_dir": {"do_train": True, "data_dir": ""},
    "none of --do_train": {},
  }
  runs = run_script("run_glue", [words(common | flags) for flags in cases.values()])
  for message, run in zip(cases, runs, strict=True):
    assert (run.status, message in run.stderr) == (2, True), run
  assert not (tmp_path / "out").exists()
