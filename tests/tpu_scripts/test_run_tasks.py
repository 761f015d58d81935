"""run_squad.py, run_race.py and run_tagging.py as a user runs them: training, a later prediction, and mistakes."""

import json

import pytest
from support import tiny_run
from support.commands.script_runs import run_script
from support.task_files import write_columns, write_race, write_squad
import tensorflow as tf
import tensorflow_text  # noqa: F401  (Its ops are in the SavedModel.)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("tasks")
  tiny_run.write_pretrained(path / "pretrained")
  write_squad(path / "train.json", articles=4)
  write_squad(path / "dev.json", seed=1)
  write_squad(path / "new.json", seed=2, answers=False)
  write_squad(path / "train1.json", version="1.1", articles=3)
  write_race(path)
  quiz = [{"q": "sing all", "options": ["day", "the sky"], "right": "AB"[n % 2]} for n in range(20)]
  write_lines(path / "quiz.jsonl", *quiz)
  write_lines(path / "asked.jsonl", {"q": "the sky", "options": ["is", "blue"]})
  for split, count in (("train", 20), ("dev", 6), ("test", 3)):
    write_columns(path / f"{split}.txt", count)
  write_lines(path / "untagged.jsonl", {"tokens": ["the", "sky"]})
  tagged = {"old trees": ["ADJ", "NOUN"], "birds sing": ["NOUN", "VERB"]}
  rows = [{"tokens": text.split(), "tags": tags} for text, tags in tagged.items()]
  write_lines(path / "pos.jsonl", *rows)
  return path


def write_lines(path, *rows):
  path.write_text("\n".join(map(json.dumps, rows)))


def load(path):
  return json.loads(path.read_text(encoding="utf-8"))


def run(script, commands):
  """Runs a command in one process with each of `commands`, name → flags."""
  done = run_script(script, list(commands.values()))
  return dict(zip(commands, done, strict=True))


def training(folder, *sizes):
  steps = ["--do_train", "--train_batch_size=8", "--num_train_steps=4"]
  return [*sizes, *steps, f"--init_checkpoint={folder}/pretrained"]


@pytest.fixture(scope="module")
def squad(folder):
  sizes = ["--max_seq_length=32", "--max_query_length=8", "--doc_stride=8", "--max_answer_length=6"]
  train, elsewhere = training(folder, *sizes, "--learning_rate=0.01"), f"--output_dir={folder}/x"
  commands = {
    "2.0": [*train, "--version=2.0", f"--train_file={folder}/train.json", f"--predict_file={folder}/dev.json",
            f"--output_dir={folder}/two", "--selection_split=train", "--eval_fraction=0.3"],
    # Nothing but the run, the questions and a place: everything else is the run's.
    "new questions": ["--do_predict", f"--init_checkpoint={folder}/two", f"--predict_file={folder}/new.json",
                      f"--output_dir={folder}/answers"],
    "1.1": [*train, "--version=1.1", f"--train_file={folder}/train1.json", f"--output_dir={folder}/one", "--noexport"],
    "Use --version=1.1 or --version=2.0": [*train, f"--train_file={folder}/train.json", elsewhere],
    "Received: no --train_file": [*train, "--version=2.0", elsewhere],
    "Received: no --predict_file": ["--do_predict", f"--init_checkpoint={folder}/two", elsewhere],
    "--start_n_top=7": [*train, "--version=1.1", f"--train_file={folder}/train1.json", elsewhere, "--start_n_top=7"],
  }  # fmt: skip
  runs = run("run_squad", commands)
  for name in list(commands)[:3]:
    assert runs[name].status == 0, runs[name].stderr
  return runs


def test_squad_leaves_everything(squad, folder):
  results, task = load(folder / "two/results.json"), load(folder / "two/task.json")
  assert {"f1", "test_exact", "test_HasAns_f1", "test_best_exact_thresh"} <= results.keys()
  assert tuple(results[f"test_{name}total"] for name in ("", "HasAns_", "NoAns_")) == (12, 8, 4)
  assert task["null_score_diff_threshold"] == results["null_score_diff_threshold"]
  # Of version 1.1, without a file to predict, the questions that choose.
  results, answers = load(folder / "one/results.json"), load(folder / "one/predictions.json")
  assert results["total"] == len(answers) == 6
  assert not (folder / "one/saved_model").exists()


def questions_of(path):
  """(id, question, context) of each."""
  paragraphs = [paragraph for article in load(path)["data"] for paragraph in article["paragraphs"]]
  return [(q["id"], q["question"], part["context"]) for part in paragraphs for q in part["qas"]]


def test_new_questions_are_answered_by_the_run(squad, folder):
  answers, odds = load(folder / "answers/predictions.json"), load(folder / "answers/null_odds.json")
  threshold = load(folder / "two/task.json")["null_score_diff_threshold"]
  assert load(folder / "answers/task.json") == load(folder / "two/task.json")
  contexts = {key: context for key, _, context in questions_of(folder / "new.json")}
  assert answers.keys() == odds.keys() == contexts.keys()
  assert all(answer in contexts[key] for key, answer in answers.items())
  assert all(answer == "" for key, answer in answers.items() if odds[key] >= threshold)


def test_the_saved_model_gives_the_same_answers(squad, folder):
  """The SavedModel gives the answers of predictions.json for strings."""
  serve = tf.saved_model.load(str(folder / "two/saved_model/1")).signatures["serving_default"]
  ids, questions, contexts = zip(*questions_of(folder / "dev.json"), strict=True)
  outputs = serve(question=tf.constant(questions), context=tf.constant(contexts))
  answers = dict(zip(ids, [answer.decode() for answer in outputs["answer"].numpy()], strict=True))
  assert answers == load(folder / "two/predictions.json")
  for name in ("nbest_predictions.json", "null_odds.json"):
    assert load(folder / "two" / name).keys() == answers.keys()


def test_squad_mistakes(squad, folder):
  for message in list(squad)[3:]:
    assert (squad[message].status, message in squad[message].stderr) == (2, True), squad[message]
  assert not (folder / "x").exists()


def test_race_and_own_questions(folder):
  train = training(folder, "--max_seq_length=32", "--max_qa_length=10")
  custom = ["--task_name=custom", "--question_column=q", "--choice_columns=options"]
  custom += ["--label_column=right", f"--test_file={folder}/asked.jsonl", "--do_predict"]
  custom += [f"--output_dir={folder}/own"]
  commands_of_race = [*train, f"--data_dir={folder}", f"--output_dir={folder}/x"]
  commands = {
    "race": [*train, f"--data_dir={folder}", f"--output_dir={folder}/race", "--do_predict"],
    "own": [*train, *custom, f"--train_file={folder}/quiz.jsonl", "--noexport"],
    "later": custom,  # No lengths: they are the run's.
    "--train_file": [*commands_of_race, f"--train_file={folder}/quiz.jsonl"],
    "--data_dir": [*train, *custom, f"--train_file={folder}/quiz.jsonl", f"--data_dir={folder}"],
  }
  runs = run("run_race", commands)
  assert [done.status for done in runs.values()] == [0, 0, 0, 2, 2], runs
  for unused in list(commands)[3:]:
    assert unused in runs[unused].stderr
  results = load(folder / "race/results.json")
  assert {"accuracy", "accuracy_middle", "accuracy_high", "test_accuracy_high"} <= results.keys()
  assert f"accuracy: {results['accuracy']:.4f}" in runs["race"].stdout
  lines = (folder / "race/predictions_test.tsv").read_text().splitlines()
  assert len(lines) == 1 + 2 * 2 * 2
  assert lines[1].startswith("middle0.txt:0\t")
  results = load(folder / "own/results.json")
  # Two of twenty are held out.
  assert (results["task"], results["train_examples"]) == ("custom", 18)
  assert len((folder / "own/predictions_test.tsv").read_text().splitlines()) == 2


def test_entities_and_parts_of_speech(folder):
  train = training(folder, "--max_seq_length=16")
  files = {"train": "train", "eval": "dev", "test": "test"}
  commands = {
    "ner": [*train, *(f"--{split}_file={folder}/{name}.txt" for split, name in files.items()),
            f"--output_dir={folder}/ner", "--do_predict"],
    "later": [f"--test_file={folder}/untagged.jsonl", f"--output_dir={folder}/ner", "--do_predict"],
    "pos": [*train, f"--train_file={folder}/pos.jsonl", f"--eval_file={folder}/pos.jsonl",
            f"--output_dir={folder}/pos", "--noexport"],
    "no file": [*train, f"--output_dir={folder}/y"],
  }  # fmt: skip
  runs = run("run_tagging", commands)
  assert [done.status for done in runs.values()] == [0, 0, 0, 2], runs
  results = load(folder / "ner/results.json")
  assert {"accuracy", "precision", "recall", "f1", "f1_COLOUR"} <= results.keys()
  assert "test_f1: " in runs["ner"].stdout
  assert "test_f1" not in results  # It was of other test data than the second command's.
  lines = (folder / "ner/predictions_eval.tsv").read_text().split("\n")
  assert {len(line.split("\t")) for line in lines if line} == {3}
  assert load(folder / "ner/task.json")["max_seq_length"] == 16
  # The second command, without training and without tags, has replaced the first's.
  written = (folder / "ner/predictions_test.tsv").read_text().split("\n")
  assert [line.split("\t")[0] for line in written] == ["the", "sky", "", ""]
  results = load(folder / "pos/results.json")
  assert (results["best_metric"], "f1" in results) == ("accuracy", False)
  assert load(folder / "pos/task.json")["label_names"] == ["NOUN", "ADJ", "VERB"]
  assert "need their data. Received: no --train_file" in runs["no file"].stderr
  assert not (folder / "y").exists()
