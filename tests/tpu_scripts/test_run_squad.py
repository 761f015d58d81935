"""run_squad.py as a user runs it: training, answering new questions, and mistakes."""

import json

import pytest
from support import tiny_run
from support.commands.script_runs import run_script
from support.task_files import write_squad
import tensorflow as tf
import tensorflow_text  # noqa: F401  (Its ops are in the SavedModel.)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("squad")
  tokenizer = tiny_run.train_tokenizer(path)
  tiny_run.write_run(path / "pretrained", tiny_run.tiny_model(tokenizer.vocab_size), tokenizer)
  write_squad(path / "train.json", articles=4)
  write_squad(path / "dev.json", seed=1)
  write_squad(path / "new.json", seed=2, answers=False)
  write_squad(path / "train1.json", version="1.1", articles=3)
  return path


@pytest.fixture(scope="module")
def runs(folder):
  sizes = ["--max_seq_length=32", "--max_query_length=8", "--doc_stride=8", "--max_answer_length=6"]
  common = [*sizes, f"--init_checkpoint={folder}/pretrained", "--noprogress", "--distribution=one_device"]
  train = [*common, "--do_train", "--train_batch_size=8", "--num_train_steps=3", "--learning_rate=0.01"]
  elsewhere = f"--output_dir={folder}/x"
  commands = {
    "2.0": [*train, "--version=2.0", f"--train_file={folder}/train.json", f"--predict_file={folder}/dev.json",
            f"--output_dir={folder}/two", "--selection_split=train",
            "--held_out_fraction=0.3"],
    # Nothing but the run, the questions and a place: everything else is the run's.
    "new questions": ["--do_predict", f"--init_checkpoint={folder}/two", f"--predict_file={folder}/new.json",
                      f"--output_dir={folder}/answers", "--noprogress", "--distribution=one_device"],
    "1.1": [*train, "--version=1.1", f"--train_file={folder}/train1.json", f"--output_dir={folder}/one", "--noexport"],
    "no version": [*train, f"--train_file={folder}/train.json", elsewhere],
    "no train file": [*train, "--version=2.0", elsewhere],
    "nothing to answer": ["--do_predict", f"--init_checkpoint={folder}/two", elsewhere],
  }  # fmt: skip
  return dict(zip(commands, run_script("run_squad", list(commands.values())), strict=True))


def load(path):
  return json.loads(path.read_text(encoding="utf-8"))


def test_training_leaves_everything(runs, folder):
  assert runs["2.0"].status == 0, runs["2.0"].stderr
  run = folder / "two"
  results = load(run / "results.json")
  assert {
    "test_exact", "test_f1", "test_total", "test_HasAns_exact", "test_HasAns_f1", "test_HasAns_total",
    "test_NoAns_exact", "test_NoAns_f1", "test_NoAns_total", "test_best_exact", "test_best_exact_thresh",
    "test_best_f1", "test_best_f1_thresh", "f1", "null_score_diff_threshold",
  } <= results.keys()  # fmt: skip
  assert tuple(results[f"test_{name}total"] for name in ("", "HasAns_", "NoAns_")) == (12, 8, 4)
  ids = {
    question["id"]
    for a in load(folder / "dev.json")["data"]
    for p in a["paragraphs"]
    for question in p["qas"]
  }
  for name in ("predictions.json", "nbest_predictions.json", "null_odds.json"):
    assert load(run / name).keys() == ids
  for name in ("flags.txt", "saved_model/1/saved_model.pb"):
    assert (run / name).exists(), name
  assert (
    "random_seed" not in (run / "flags.txt").read_text()
  )  # A flag of TensorFlow's own: unknown at parsing.
  assert load(run / "task.json")["null_score_diff_threshold"] == results["null_score_diff_threshold"]


def test_new_questions_are_answered_by_the_run(runs, folder):
  assert runs["new questions"].status == 0, runs["new questions"].stderr
  answers, odds = load(folder / "answers/predictions.json"), load(folder / "answers/null_odds.json")
  threshold = load(folder / "two/task.json")["null_score_diff_threshold"]
  assert load(folder / "answers/task.json") == load(folder / "two/task.json")
  contexts = {
    question["id"]: paragraph["context"]
    for each in load(folder / "new.json")["data"]
    for paragraph in each["paragraphs"]
    for question in paragraph["qas"]
  }
  assert answers.keys() == odds.keys() == contexts.keys()
  assert all(answer in contexts[key] for key, answer in answers.items())
  assert all(answer == "" for key, answer in answers.items() if odds[key] >= threshold)


def test_version_1_1_without_a_file_to_predict(runs, folder):
  assert runs["1.1"].status == 0, runs["1.1"].stderr
  results = load(folder / "one/results.json")
  assert results["total"] == 6
  assert len(load(folder / "one/predictions.json")) == 6  # Of the questions that choose.
  assert not (folder / "one/saved_model").exists()


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("no version", "Use --version=1.1 or --version=2.0"),
    ("no train file", "Received: no --train_file"),
    ("nothing to answer", "Received: no --predict_file"),
  ],
)
def test_mistakes(runs, folder, name, message):
  assert runs[name].status == 2, runs[name].stderr
  assert message in runs[name].stderr
  assert not (folder / "x").exists()


def test_the_saved_model_gives_the_same_answers(runs, folder):
  """Strings in, answers out of the graph: what predictions.json says."""
  assert runs["2.0"].status == 0, runs["2.0"].stderr
  serve = tf.saved_model.load(str(folder / "two/saved_model/1")).signatures["serving_default"]
  asked = [
    (question["id"], question["question"], paragraph["context"])
    for each in load(folder / "dev.json")["data"]
    for paragraph in each["paragraphs"]
    for question in paragraph["qas"]
  ]
  ids, questions, contexts = zip(*asked, strict=True)
  outputs = serve(question=tf.constant(questions), context=tf.constant(contexts))
  answers = [answer.decode() for answer in outputs["answer"].numpy()]
  assert dict(zip(ids, answers, strict=True)) == load(folder / "two/predictions.json")
