"""Ensembles of runs: the mean and the choice of members, for texts, choices and questions; and the directory."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from reference.squad import merged
from scipy import special
from support.task_files import write_squad
from support.tiny_finetuning import QUICK, made_up_texts, tiny_start, tiny_task, tokenizer

from albert_tf.errors import UserError
from albert_tf.finetuning.ensemble import combine, greedy, run_directories
from albert_tf.finetuning.run import fine_tune
from albert_tf.finetuning.tasks.squad.answers import Candidate, Decoded
from albert_tf.finetuning.tasks.squad.read import read_splits
from albert_tf.finetuning.tasks.squad.settings import SquadFiles, SquadSettings
from albert_tf.finetuning.tasks.squad.task import SquadTask

SPLITS = {
  "eval": made_up_texts(40, classes=3, seed=1),
  "test": made_up_texts(7, labelled=False, seed=2),
}


def text_task(splits=None, **options):
  return tiny_task(splits or SPLITS, **({"classes": 3} | options))


def scores(seed, rows, columns=3, *, towards=None):
  """Random scores that are right a little more often than by chance."""
  values = np.random.default_rng(seed).normal(size=[rows, columns]).astype(np.float32)
  if towards is not None:
    values[np.arange(rows), towards] += 0.7
  return values


def write_member(task, folder, seed, splits=("eval", "test")):
  folder.mkdir(parents=True)
  for split in splits:
    rows = len(task.splits[split])
    gold = task.gold(split) if split == "eval" else None
    task.write_predictions({"logits": scores(seed, rows, towards=gold)}, split, str(folder))
  task.spec.save(str(folder))


@pytest.fixture(scope="module")
def members(tmp_path_factory):
  """Six candidates, the smallest number in the paper."""
  folder = tmp_path_factory.mktemp("members")
  for seed in range(6):
    write_member(text_task(), folder / f"run_{seed}", seed)
  return [str(path) for path in sorted(folder.iterdir())]


def test_the_mean_is_of_probabilities_and_the_order_has_no_say(members):
  task = text_task()
  outputs = [task.stored(member, "eval") for member in members]
  of_runs = [special.softmax(each["logits"].astype(float), axis=-1) for each in outputs]
  probabilities = np.mean(of_runs, axis=0)
  for order in itertools.islice(itertools.permutations(outputs), 0, 720, 97):
    mean = task.ensemble(order)["logits"]
    np.testing.assert_allclose(special.softmax(mean, axis=-1), probabilities, rtol=1e-12)
  values = tiny_task({"eval": made_up_texts(5, regression=True)}, regression=True)
  numbers = [scores(seed, 5, 1) for seed in range(3)]
  mean = values.ensemble([{"logits": each} for each in numbers])["logits"]
  np.testing.assert_allclose(mean, np.mean(numbers, axis=0), rtol=1e-6)


def test_the_choice_is_never_worse_than_the_best_member_and_stops():
  rng = np.random.default_rng(0)
  task = text_task()
  gold = task.gold("eval")
  for trial in range(6):
    seeds = 1000 * trial + np.arange(rng.integers(2, 9))
    candidates = [{"logits": scores(seed, len(gold), towards=gold)} for seed in seeds]

    def score(chosen):
      return task.evaluate(task.ensemble(chosen))["accuracy"]

    chosen, alone = greedy(candidates, score)
    assert alone == [score([each]) for each in candidates]
    reached = list(chosen.values())
    assert reached[0] == max(alone)
    assert reached == sorted(set(reached))  # Each one helped.
    assert reached[-1] == score([candidates[n] for n in sorted(chosen)])
    for other in set(range(len(candidates))) - set(chosen):
      assert score([candidates[n] for n in sorted([*chosen, other])]) <= reached[-1]


def test_the_directory_of_an_ensemble(members, tmp_path):
  task = text_task()
  results = combine(task, members, output_dir=str(tmp_path / "a"), predict=True)
  assert json.loads((tmp_path / "a/results.json").read_text()) == results
  chosen = [each["directory"] for each in results["members"]]
  assert len(chosen) > 1
  assert results["accuracy"] == results["members"][-1]["score_with_it"]
  assert [each["directory"] for each in results["candidates"]] == members
  mean = task.ensemble([task.stored(member, "test") for member in sorted(chosen)])
  rows = (tmp_path / "a/predictions_test.tsv").read_text().splitlines()[1:]
  labels = list(map(task.labels.text, task.predictions(mean)))
  assert [row.split("\t")[1] for row in rows] == labels
  # The same again is allowed; other members are another ensemble.
  first = (tmp_path / "a/predictions_test.tsv").read_bytes()
  combine(task, members, output_dir=str(tmp_path / "a"), predict=True)
  assert (tmp_path / "a/predictions_test.tsv").read_bytes() == first
  # Without predictions too, those of before stay, and results.json names their data.
  again = combine(task, members, output_dir=str(tmp_path / "a"))
  assert again["data"] == results["data"]
  assert [again["data"][split]["examples"] for split in ("eval", "test")] == [40, 7]
  # Nor is it the place of seeds.
  settings = dataclasses.replace(QUICK, seeds=(1, 2))
  trained = tiny_task({"train": SPLITS["eval"], "eval": SPLITS["eval"]}, classes=3)
  with pytest.raises(UserError, match=r"Received: .*ensemble_of.*--output_dir"):
    fine_tune(trained, settings, start=tiny_start(), output_dir=str(tmp_path / "a"))
  with pytest.raises(UserError, match=r"Received: .*ensemble_of.*--output_dir"):
    combine(task, members[:3], output_dir=str(tmp_path / "a"), predict=True)


def test_what_cannot_be_a_member_is_refused(members, tmp_path):
  write_member(text_task(name="other"), tmp_path / "other", 1)
  write_member(text_task(), tmp_path / "unpredicted", 1, splits=("eval",))
  texts = {"eval": made_up_texts(40, classes=3, seed=9), "test": SPLITS["test"]}
  write_member(text_task(texts), tmp_path / "texts", 1)
  for name, message in (
    ("other", "Received: .*'other' → 'tiny'"),
    ("unpredicted", r"Received: .*scores_test\.npz.*--do_predict"),
    ("texts", r"Received: .*texts/scores_eval\.npz,"),
    ("", r"holds task\.json"),
  ):
    named = [members[0], str(tmp_path / name)]
    with pytest.raises(UserError, match=message):
      combine(text_task(), named, output_dir=str(tmp_path / "x"), predict=True)
  with pytest.raises(UserError, match=r"Received: --ensemble_of=.*, .* 1\."):
    run_directories([members[0], f"{members[0]}/"])


# ------------------------------------------------------------------ SQuAD


def write_answers(folder, task, seed, *, threshold):
  """Stores up to five words of the paragraph for each question, and its null score."""
  rng = np.random.default_rng(seed)
  decoded = []
  for question in task.splits["eval"].data.questions:
    words = rng.permutation(question.context.split())[: rng.integers(1, 6)].tolist()
    texts = [*dict.fromkeys([answer.text for answer in question.answers[:1]] + words)]
    log_probs = np.sort(rng.normal(size=[2, len(texts)]))[:, ::-1].tolist()
    candidates = list(map(Candidate, texts, *log_probs))
    decoded.append(Decoded(candidates, float(rng.normal() - 1.5 + 3 * (not question.answers))))
  folder.mkdir()
  task.write_predictions({"decoded": decoded, "threshold": [threshold]}, "eval", str(folder))
  task.spec.with_thresholds({"null_score_diff_threshold": threshold}).save(str(folder))


@pytest.fixture(scope="module")
def squad(tmp_path_factory):
  folder = tmp_path_factory.mktemp("squad")
  write_squad(folder / "dev.json", articles=4)
  settings = SquadSettings(
    max_seq_length=32, max_query_length=8, doc_stride=8, max_answer_length=6, n_best_size=4
  )
  source = SquadFiles(squad_version="2.0", predict_file=str(folder / "dev.json"))
  task = SquadTask(read_splits(source), version="2.0", settings=settings, tokenizer=tokenizer())
  for seed, threshold in enumerate((-0.5, 0.1, 0.4)):
    write_answers(folder / f"run_{seed}", task, seed, threshold=threshold)
  return task, [str(folder / f"run_{seed}") for seed in range(3)]


def load(path, name):
  with open(f"{path}/{name}", encoding="utf-8") as stream:
    return json.load(stream)


def test_spans_are_averaged_over_the_union_as_in_numpy(squad):
  task, directories = squad
  stored = [task.stored(directory, "eval") for directory in directories]
  together = task.ensemble(stored)
  n_best = [load(directory, "nbest_predictions.json") for directory in directories]
  nulls = [load(directory, "null_odds.json") for directory in directories]
  questions = task.splits["eval"].data.questions
  for question, decoded in zip(questions, together["decoded"], strict=True):
    of_runs = [[of[question.id] for of in entries] for entries in (n_best, nulls)]
    texts, means, impossible = merged(*of_runs)
    assert [candidate.text for candidate in decoded.candidates] == texts[:4]
    np.testing.assert_allclose(np.exp([c.score for c in decoded.candidates]), means[:4], rtol=1e-12)
    np.testing.assert_allclose(special.expit(decoded.null_score), impossible, rtol=1e-12)
  mean = special.expit(np.array([-0.5, 0.1, 0.4])).mean()
  np.testing.assert_allclose(special.expit(together["threshold"][0]), mean, rtol=1e-12)
  for order in itertools.permutations(stored):
    for one, other in zip(task.ensemble(order)["decoded"], together["decoded"], strict=True):
      assert one.candidates == other.candidates


def test_questions_of_an_ensemble(squad, tmp_path):
  task, directories = squad
  results = combine(task, directories, output_dir=str(tmp_path / "out"))
  assert results["f1"] >= max(each["score"] for each in results["candidates"])
  answers = load(tmp_path / "out", "predictions.json")
  questions = task.splits["eval"].data.questions
  assert list(answers) == [question.id for question in questions]
  assert any(not answers[question.id] for question in questions if not question.answers)
  for name in ("nbest_predictions", "null_odds"):
    (tmp_path / f"out/{name}.json").write_text("{}")
  task.spec.save(str(tmp_path / "out"))
  # The same questions with other answers.
  document = load(*task.sources["eval"].rsplit("/", 1))
  for article in document["data"]:
    for part in article["paragraphs"]:
      for question in part["qas"]:
        question.pop("is_impossible", None)
        question["answers"] = [{"text": part["context"].split()[0], "answer_start": 0}]
  (tmp_path / "other.json").write_text(json.dumps(document))
  source = SquadFiles(squad_version="2.0", predict_file=str(tmp_path / "other.json"))
  other = SquadTask(
    read_splits(source), version="2.0", settings=task.settings, tokenizer=tokenizer()
  )
  with pytest.raises(UserError, match=r"other\.json \(.*dev\.json \("):
    combine(other, directories, output_dir=str(tmp_path / "out"))
  with pytest.raises(UserError, match=r"Received: .* 0 .* 24 of --predict_file"):
    combine(task, [directories[0], str(tmp_path / "out")], output_dir=str(tmp_path / "x"))
