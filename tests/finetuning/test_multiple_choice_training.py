"""Multiple choice with the engine: learning by heart, files left behind, parts of RACE scored apart."""

import dataclasses
import json

import numpy as np
import pytest
from support.tiny_finetuning import QUICK, tiny_start
from support.tiny_run import WORDS

from albert_tf.finetuning.engine.fit import fine_tune
from albert_tf.finetuning.tasks.choices import ChoiceExample
from albert_tf.finetuning.tasks.multiple_choice import MultipleChoiceTask


def random_questions(count, *, num_choices, seed):
  rng = np.random.default_rng(seed)

  def words(n):
    return " ".join(rng.choice(WORDS, n))

  return [
    ChoiceExample(
      example_id=str(number),
      context=words(rng.integers(3, 8)),
      question=words(2) + " _",
      choices=tuple(words(2) for _ in range(num_choices)),
      label=int(rng.integers(num_choices)),
      group=("middle", "high")[number % 2],
    )
    for number in range(count)
  ]


@pytest.mark.slow
def test_64_questions_are_learnt_by_heart(tmp_path):
  start = tiny_start(initializer_range=0.2)  # At 0.02 so small a model begins almost constant.
  questions = random_questions(64, num_choices=3, seed=0)
  task = MultipleChoiceTask(
    splits={"train": questions, "eval": questions, "test": questions[:3]},
    tokenizer=start.tokenizer,
    max_seq_length=24,
    max_qa_length=8,
  )
  settings = dataclasses.replace(
    QUICK, learning_rate=1e-3, num_train_steps=80, eval_steps=40, do_predict=True
  )
  run = tmp_path / "run"
  results = fine_tune(task, settings, start=start, output_dir=str(run)).results
  assert results["accuracy"] >= 0.95
  assert results["accuracy"] == pytest.approx((results["accuracy_middle"] + results["accuracy_high"]) / 2)
  assert json.loads((run / "results.json").read_text())["accuracy"] == results["accuracy"]
  assert json.loads((run / "task.json").read_text())["kind"] == "multiple_choice"
  rows = [line.split("\t") for line in (run / "predictions_eval.tsv").read_text().splitlines()[1:]]
  assert np.mean([row[1] == row[2] for row in rows]) == results["accuracy"]  # Of the best checkpoint.
  assert results["test_accuracy"] >= 2 / 3  # Three of the questions, with their labels.
  assert len((run / "predictions_test.tsv").read_text().splitlines()) == 4
  assert (run / "evaluation.png").read_bytes().startswith(b"\x89PNG")

  # Predicting alone, later: nothing is trained, what is known of the weights stays, other test data is scored anew.
  (run / "predictions_test.tsv").unlink()
  unknown = [dataclasses.replace(question, label=None) for question in questions[:5]]
  other = MultipleChoiceTask(
    splits={"test": unknown}, tokenizer=start.tokenizer, max_seq_length=24, max_qa_length=8
  )
  alone = dataclasses.replace(settings, do_train=False, do_eval=False)
  again = fine_tune(other, alone, start=start, output_dir=str(run)).results
  wanted = {key: value for key, value in results.items() if not key.startswith("test")}
  assert {**wanted, "history": None} == {**again, "history": None}
  assert json.loads((run / "results.json").read_text())["accuracy"] == results["accuracy"]
  assert len((run / "predictions_test.tsv").read_text().splitlines()) == 6
