"""The official scores for cases computed by hand, and the threshold search against a trial of every threshold."""

import numpy as np
import pytest

from albert_tf.finetuning.tasks.squad import metrics
from albert_tf.finetuning.tasks.squad.read import Answer, Question, SquadData


def data_of(version, *golds):
  questions = [
    Question(str(n), "?", "", answers=tuple(Answer(text, 0) for text in texts))
    for n, texts in enumerate(golds)
  ]
  return SquadData(version, questions, True)


@pytest.mark.parametrize(
  ("text", "normal"),
  [
    ("The  Cat, sat!", "cat sat"),
    ("a an the", ""),
    ("An apple (the red-one), $1,000.50", "apple redone 100050"),
    ("“quoted” – naïve", "“quoted” – naïve"),  # Only ASCII punctuation goes.
    ("the\u00a0end", "end"),
  ],
)
def test_normal_form(text, normal):
  assert metrics.normalize_answer(text) == normal


def test_report_1_1_by_hand():
  data = data_of("1.1", ["Denver Broncos", "the Broncos"], ["1887"], ["gold"])
  # The third has no prediction.
  scores = metrics.score_answers(data, {"0": "broncos", "1": "in 1887"})
  expected = {"exact": 100 / 3, "f1": 100 * (1 + 2 / 3) / 3, "total": 3}
  assert metrics.summarize(data, scores) == pytest.approx(expected)


def test_report_2_0_by_hand():
  data = data_of("2.0", ["Paris"], ["red wine", "wine"], [], [])
  scores = metrics.score_answers(data, {"0": "", "1": "white wine", "2": "", "3": "something"})
  expected = {"exact": 25.0, "f1": 100 * (0 + 2 / 3 + 1 + 0) / 4, "total": 4}
  expected |= {"HasAns_exact": 0.0, "HasAns_f1": 100 / 3, "HasAns_total": 2}
  expected |= {"NoAns_exact": 50.0, "NoAns_f1": 50.0, "NoAns_total": 2}
  assert metrics.summarize(data, scores) == pytest.approx(expected)


def test_best_threshold_is_the_best_of_all():
  rng = np.random.default_rng(3)
  for _ in range(200):
    n = int(rng.integers(1, 9))
    answerable = rng.random(n) < 0.5
    answering = np.where(answerable, rng.random(n), rng.integers(0, 2, n)).round(2)
    nulls = rng.integers(-3, 4, n).astype(np.float64)  # With ties.

    def score(threshold):
      withheld = nulls >= threshold  # noqa: B023
      return 100 * np.where(withheld, ~answerable, answering).mean()  # noqa: B023

    threshold, best = metrics.best_threshold(answering, answerable, nulls)
    assert score(threshold) == pytest.approx(best)
    assert best >= max(score(threshold) for threshold in np.arange(-4, 6) - 0.5) - 1e-9
