"""The threshold of SQuAD 2.0: which questions choose it, which answers it withholds, and that decoding happens once."""

import collections
import dataclasses
import json

import numpy as np
import pytest
from support.goldens import SPM_MODEL
from support.task_files import write_squad

from albert_tf.finetuning.tasks.squad import decode as decoding
from albert_tf.finetuning.tasks.squad.build import SquadFiles, build_task, later_notes
from albert_tf.finetuning.tasks.squad.read import read_squad
from albert_tf.finetuning.tasks.squad.task import SquadTask
from albert_tf.finetuning.tasks.squad.windows import SquadSettings, make_features
from albert_tf.tokenization import AlbertTokenizer

SIZES = SquadSettings(max_seq_length=128, max_query_length=24, doc_stride=64)
SYLLABLES = [first + last for first in "bdfklmr" for last in "aiou"]
NONSENSE = [one + two for one in SYLLABLES for two in SYLLABLES if one != two]  # Enough not to repeat a word.


@pytest.fixture(scope="module")
def tokenizer():
  return AlbertTokenizer(spm_model_file=SPM_MODEL)


def write(path, articles):
  """A file whose questions' ids begin with its name."""

  def rename(made):
    for article in made:
      for paragraph in article["paragraphs"]:
        for question in paragraph["qas"]:
          question["id"] = f"{path.stem}-{question['id']}"

  write_squad(path, articles=articles, words=NONSENSE, change=rename)
  return str(path)


def fake_outputs(task, null_scores):
  """Outputs for the task's evaluation rows: the beam is the gold answer, the null scores are given by question id."""
  columns = collections.defaultdict(list)
  for part in task.splits["eval"]:
    starts, ends, _ = part.positions
    for window, question in enumerate(part.windows.question):
      columns["cls_logits"].append(null_scores(part.data.questions[question]))
      columns["start_top_index"].append([starts[window]])
      columns["end_top_index"].append([ends[window]])
      columns["start_top_log_probs"].append([-0.1])
      columns["end_top_log_probs"].append([-0.2])
  return {name: np.array(column) for name, column in columns.items()}


def test_held_out_questions_choose_and_others_are_reported(tmp_path, tokenizer):
  """Null scores of the reported file are 10 higher: its own best threshold would be another."""
  train, predict = write(tmp_path / "train.json", 10), write(tmp_path / "predict.json", 6)
  files = SquadFiles(version="2.0", train_file=train, predict_file=predict, held_out_fraction=0.3)
  built = build_task(files, settings=SIZES, tokenizer=tokenizer)
  task = built.task
  assert task.best_metric == "selection_f1"
  own = {question.id for question in task.splits["eval"][-1].data.questions}

  def null_scores(question):
    return (1.0 if question.is_impossible else -1.0) + (10.0 if question.id in own else 0.0)

  report = task.evaluate(fake_outputs(task, null_scores))
  assert report["null_score_diff_threshold"] == 0.0
  assert report["selection_f1"] > 97.0  # A few answers are longer than 30 pieces, or less than theirs.
  assert report["HasAns_f1"] == 0.0
  assert report["NoAns_f1"] == 100.0
  assert report["best_f1"] > 97.0
  assert report["best_f1_thresh"] == 10.0
  assert report["total"] == len(own)
  held = built.notes["questions"]["held_out"]["total"]
  assert built.notes["threshold_from"] == f"{held} questions held out of the training file"
  assert held + built.notes["questions"]["train"]["total"] == 60
  # Asked for, the reported questions choose: as in the original.
  same = dataclasses.replace(files, selection_split="predict")
  task = build_task(same, settings=SIZES, tokenizer=tokenizer).task
  report = task.evaluate(fake_outputs(task, null_scores))
  assert task.best_metric == "f1"
  assert report["f1"] == pytest.approx(report["best_f1"])
  assert report["null_score_diff_threshold"] == 10.0


def test_a_later_command_says_of_the_threshold_what_it_changed(tmp_path, tokenizer):
  """In a trained run's directory; it wrote over where the run's threshold comes from."""
  path = write(tmp_path / "dev.json", 2)

  def notes(*, evaluates: bool, threshold: float | None = None):
    files = SquadFiles(version="2.0", predict_file=path, threshold=threshold)
    built = build_task(files, settings=SIZES, tokenizer=tokenizer, trained_threshold=1.5)
    return later_notes(built.notes, evaluates=evaluates)

  assert notes(evaluates=False)["questions"]["predict"]["total"]
  for evaluates, threshold in ((False, None), (True, None), (False, 0.5)):
    assert "threshold_from" not in notes(evaluates=evaluates, threshold=threshold)
  assert notes(evaluates=True, threshold=0.5)["threshold_from"] == "--null_score_diff_threshold"


def test_outputs_are_decoded_once(tmp_path, tokenizer, monkeypatch):
  """To score them, to write the answers and to draw them; other outputs anew."""
  data = read_squad(write(tmp_path / "a.json", 2), version="2.0")
  task = SquadTask(
    version="2.0", settings=SIZES, predict=make_features(data, tokenizer=tokenizer, settings=SIZES)
  )
  calls = []
  decode = decoding.decode
  monkeypatch.setattr(decoding, "decode", lambda *args: calls.append(args) or decode(*args))
  spec = task.spec
  for scale in (1.0, 2.0):
    outputs = fake_outputs(task, lambda question: scale * (1.0 if question.is_impossible else -3.0))  # noqa: B023
    threshold = task.evaluate(outputs)["null_score_diff_threshold"]
    task.write_predictions(outputs, "eval", str(tmp_path))
    assert task.plot(outputs, str(tmp_path / "plot.png"))
    assert threshold == -scale
    assert len(calls) == scale
    answers = json.loads((tmp_path / "predictions.json").read_text(encoding="utf-8"))
    assert {key for key, text in answers.items() if not text} == {
      question.id for question in data.questions if question.is_impossible
    }
  assert task.spec is spec  # What evaluation found out is in its result.


def test_the_threshold_that_was_found_withholds_answers_to_a_file_without(tmp_path, tokenizer):
  data = read_squad(write(tmp_path / "a.json", 2), version="2.0")
  held, bare = (
    make_features(each, tokenizer=tokenizer, settings=SIZES) for each in (data, data._replace(labelled=False))
  )
  task = SquadTask(version="2.0", settings=SIZES, held_out=held, predict=bare)
  outputs = fake_outputs(task, lambda question: 3.0)
  task.write_predictions(outputs, "eval", str(tmp_path))
  assert not (tmp_path / "predictions.json").exists()  # Those questions only choose.
  for threshold, withheld in ((4.0, 4), (2.0, 12)):  # Impossible ones have no span here.
    spec = task.spec.settled({"null_score_diff_threshold": threshold})
    task.write_predictions(outputs, "test", str(tmp_path), spec=spec)
    answers = json.loads((tmp_path / "predictions.json").read_text(encoding="utf-8"))
    assert sum(not text for text in answers.values()) == withheld
