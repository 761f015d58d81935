"""--ensemble_of of the fine-tuning commands, as a user gives it."""

import json

import numpy as np
import pytest
from support import tiny_run
from support.commands.script_runs import run_script
from support.task_files import write_mrpc, write_squad

from albert_tf.finetuning.tasks.glue import GlueTextTask
from albert_tf.finetuning.tasks.squad.settings import SquadFiles, SquadSettings
from albert_tf.finetuning.tasks.squad.task import build_task

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Two runs of MRPC and two of SQuAD 1.1, as their commands leave them but for the weights."""
  path = tmp_path_factory.mktemp("ensemble")
  tokenizer = tiny_run.train_tokenizer(path)
  config = tiny_run.tiny_model(tokenizer.vocab_size).config.to_json_string()
  write_mrpc(path / "MRPC", 24)
  write_squad(path / "dev.json", version="1.1")
  glue = GlueTextTask("mrpc", data_dir=str(path), tokenizer=tokenizer, max_seq_length=32)
  sizes = SquadSettings(max_seq_length=32, max_query_length=8, doc_stride=8, max_answer_length=6)
  source = SquadFiles(version="1.1", predict_file=str(path / "dev.json"))
  squad = build_task(source, settings=sizes, tokenizer=tokenizer)
  lengths = squad.splits["eval"].rows.lengths
  for seed in range(2):
    rng = np.random.default_rng(seed)
    outputs = {name: [rng.normal(size=n) for n in lengths] for name in ("start_logits", "end_logits")}
    for task, name in ((glue, "mrpc"), (squad, "squad")):
      run = path / f"{name}_{seed}"
      run.mkdir()
      (run / "albert_config.json").write_text(config)
      tokenizer.save_pretrained(str(run))
      task.spec.save(str(run))
      for split in ("eval", "test") if task is glue else ("eval",):
        made = {"logits": rng.normal(size=[len(glue.splits[split]), 2])} if task is glue else outputs
        task.write_predictions(made, split, str(run))
  return path


def test_texts(folder):
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
  assert "--do_train. Leave that out" in trained.stderr
  assert "An ensemble needs several runs" in alone.stderr
  assert not (folder / "x").exists()


def test_questions(folder):
  both = f"--ensemble_of={folder}/squad_0,{folder}/squad_1"
  (done,) = run_script(
    "run_squad", [[both, f"--predict_file={folder}/dev.json", f"--output_dir={folder}/answers"]]
  )
  assert done.status == 0, done.stderr
  results = json.loads((folder / "answers/results.json").read_text())
  assert results["f1"] >= max(each["score"] for each in results["candidates"])
  assert len(json.loads((folder / "answers/predictions.json").read_text())) == results["total"] == 12
