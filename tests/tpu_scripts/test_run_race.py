"""run_race.py as a user runs it: RACE and own questions."""

import json

import numpy as np
import pytest
from support import tiny_run
from support.commands.script_runs import run_script
from support.task_files import write_race

pytestmark = pytest.mark.slow


def words(rng, count):
  return " ".join(rng.choice(tiny_run.WORDS, count))


def write_quiz(folder):
  rng = np.random.default_rng(0)
  folder.mkdir()
  rows = [
    json.dumps(
      {"q": words(rng, 3), "options": [words(rng, 1), words(rng, 2)], "right": "AB"[rng.integers(2)]}
    )
    for _ in range(20)
  ]
  (folder / "train.jsonl").write_text("\n".join(rows))
  (folder / "test.jsonl").write_text(json.dumps({"q": "the sky", "options": ["is", "blue"]}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("race")
  tokenizer = tiny_run.train_tokenizer(path)
  tiny_run.write_run(path / "pretrained", tiny_run.tiny_model(tokenizer.vocab_size), tokenizer)
  write_race(path)
  write_quiz(path / "quiz")
  return path


@pytest.fixture(scope="module")
def runs(folder):
  common = [
    f"--init_checkpoint={folder}/pretrained",
    "--max_seq_length=32",
    "--max_qa_length=10",
    "--noprogress",
  ]
  train = [*common, "--train_batch_size=8", "--num_train_steps=4", "--distribution=one_device", "--do_train"]
  custom = ["--task_name=custom", "--question_column=q", "--choice_columns=options", "--label_column=right"]
  commands = {
    "race": [*train, f"--data_dir={folder}", f"--output_dir={folder}/out", "--do_predict"],
    "own": [
      *train, *custom, f"--train_file={folder}/quiz/train.jsonl", f"--test_file={folder}/quiz/test.jsonl",
      f"--output_dir={folder}/own", "--do_predict", "--noexport",
    ],
    # No lengths: they are the run's.
    "later": [*custom, f"--test_file={folder}/quiz/test.jsonl", f"--output_dir={folder}/own",
              "--do_predict", "--noprogress"],
  }  # fmt: skip
  return dict(zip(commands, run_script("run_race", list(commands.values())), strict=True))


def test_race(runs, folder):
  assert runs["race"].status == 0, runs["race"].stderr
  results = json.loads((folder / "out/results.json").read_text())
  assert {"accuracy", "accuracy_middle", "accuracy_high", "test_accuracy_high"} <= results.keys()
  assert f"accuracy: {results['accuracy']:.4f}" in runs["race"].stdout
  assert (folder / "out/saved_model/1/saved_model.pb").exists()
  lines = (folder / "out/predictions_test.tsv").read_text().splitlines()
  assert len(lines) == 1 + 2 * 2 * 2
  assert lines[1].startswith("middle0.txt:0\t")


def test_own_questions(runs, folder):
  assert runs["own"].status == 0, runs["own"].stderr
  results = json.loads((folder / "own/results.json").read_text())
  assert (results["task"], results["train_examples"]) == ("custom", 18)  # Two of twenty are held out.
  assert len((folder / "own/predictions_test.tsv").read_text().splitlines()) == 2
  assert not (folder / "own/saved_model").exists()
  assert runs["later"].status == 0, runs["later"].stderr
