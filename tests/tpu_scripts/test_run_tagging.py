"""run_tagging.py as a user runs it: named entities, parts of speech, and mistakes."""

import json

import pytest
from support import tiny_run
from support.commands.script_runs import run_script
from support.task_files import write_columns

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("tagging")
  tokenizer = tiny_run.train_tokenizer(path)
  tiny_run.write_run(path / "pretrained", tiny_run.tiny_model(tokenizer.vocab_size), tokenizer)
  (path / "ner").mkdir()
  for split, count in (("train", 20), ("dev", 6), ("test", 3)):
    write_columns(path / f"ner/{split}.txt", count)
  (path / "untagged.jsonl").write_text(json.dumps({"tokens": ["the", "sky"]}))
  pos = [
    {"tokens": ["old", "trees"], "tags": ["ADJ", "NOUN"]},
    {"tokens": ["birds", "sing"], "tags": ["NOUN", "VERB"]},
  ]
  (path / "pos.jsonl").write_text("\n".join(map(json.dumps, pos)))
  return path


FILES = {"train": "train", "eval": "dev", "test": "test"}


@pytest.fixture(scope="module")
def runs(folder):
  start = f"--init_checkpoint={folder}/pretrained"
  common = ["--max_seq_length=16", "--noprogress", "--distribution=one_device"]
  train = [*common, start, "--train_batch_size=8", "--num_train_steps=4", "--do_train"]
  commands = {
    "ner": [
      *train, *(f"--{split}_file={folder}/ner/{name}.txt" for split, name in FILES.items()),
      f"--output_dir={folder}/out", "--do_predict", "--task_name=ner",
    ],
    "predict": [f"--test_file={folder}/untagged.jsonl", f"--output_dir={folder}/out", "--do_predict", "--noprogress"],
    "pos": [
      *train, f"--train_file={folder}/pos.jsonl", f"--eval_file={folder}/pos.jsonl", f"--output_dir={folder}/pos",
      "--noexport",
    ],
    "no file": [*train, f"--output_dir={folder}/x"],
  }  # fmt: skip
  return dict(zip(commands, run_script("run_tagging", list(commands.values())), strict=True))


def test_entities(runs, folder):
  assert runs["ner"].status == 0, runs["ner"].stderr
  assert runs["predict"].status == 0, runs["predict"].stderr
  results = json.loads((folder / "out/results.json").read_text())
  assert {"accuracy", "precision", "recall", "f1", "f1_COLOUR"} <= results.keys()
  assert "test_f1: " in runs["ner"].stdout
  assert "test_f1" not in results  # It was of other test data than the second command's.
  assert (folder / "out/saved_model/1/saved_model.pb").exists()
  lines = (folder / "out/predictions_eval.tsv").read_text().split("\n")
  assert {len(line.split("\t")) for line in lines if line} == {3}
  assert json.loads((folder / "out/task.json").read_text())["max_seq_length"] == 16
  # The second command, without training and without tags, has replaced the first's.
  written = (folder / "out/predictions_test.tsv").read_text().split("\n")
  assert [line.split("\t")[0] for line in written] == ["the", "sky", "", ""]


def test_parts_of_speech(runs, folder):
  assert runs["pos"].status == 0, runs["pos"].stderr
  results = json.loads((folder / "pos/results.json").read_text())
  assert results["best_metric"] == "accuracy"
  assert "f1" not in results
  assert json.loads((folder / "pos/task.json").read_text())["label_names"] == ["NOUN", "ADJ", "VERB"]


def test_a_mistake(runs, folder):
  assert runs["no file"].status == 2
  assert "needs train data. Received: no --train_file" in runs["no file"].stderr
  assert not (folder / "x").exists()
