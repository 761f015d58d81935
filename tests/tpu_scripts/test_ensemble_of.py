"""--ensemble_of of the fine-tuning commands, as a user gives it."""

import json

import numpy as np
import pytest
from support import tiny_run
from support.commands.script_runs import run_script
from support.task_files import write_mrpc

from albert_tf.finetuning.tasks.glue import GlueTextTask

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Two runs of MRPC, as its command leaves them but for the weights."""
  path = tmp_path_factory.mktemp("ensemble")
  tokenizer = tiny_run.train_tokenizer(path)
  write_mrpc(path / "MRPC", 24)
  task = GlueTextTask("mrpc", data_dir=str(path), tokenizer=tokenizer, max_seq_length=32)
  for seed in range(2):
    run = path / f"mrpc_{seed}"
    run.mkdir()
    config = tiny_run.tiny_model(tokenizer.vocab_size).config
    (run / "albert_config.json").write_text(config.to_json_string())
    tokenizer.save_pretrained(str(run))
    task.spec.save(str(run))
    for split in ("eval", "test"):
      scores = np.random.default_rng(seed).normal(size=[len(task.splits[split]), 2])
      task.write_predictions({"logits": scores}, split, str(run))
  return path


def test_an_ensemble(folder):
  both = f"--ensemble_of={folder}/mrpc_0,{folder}/mrpc_1"
  common = ["--task_name=mrpc", f"--data_dir={folder}"]
  done, trained, alone = run_script(
    "run_glue",
    [
      [*common, both, f"--output_dir={folder}/out", "--do_predict"],
      [*common, both, f"--output_dir={folder}/x", "--do_train"],
      [*common, f"--ensemble_of={folder}/mrpc_0", f"--output_dir={folder}/x"],
    ],
  )
  assert done.status == 0, done.stderr
  results = json.loads((folder / "out/results.json").read_text())
  assert {each["directory"] for each in results["candidates"]} == {f"{folder}/mrpc_0", f"{folder}/mrpc_1"}
  assert results["accuracy"] == max(each["score_with_it"] for each in results["members"])
  assert f"accuracy: {results['accuracy']:.4f}" in done.stdout
  assert len((folder / "out/submission/MRPC.tsv").read_text().splitlines()) == 6
  assert (trained.status, alone.status) == (2, 2)
  assert "it with --do_train" in trained.stderr
  assert "An ensemble needs several runs" in alone.stderr
  assert not (folder / "x").exists()
