"""Exact match and F1 by SQuAD's official rules, and the search for the threshold of 2.0."""

import collections
from collections.abc import Mapping
import re
import string
from typing import NamedTuple

import numpy as np

from albert_tf.finetuning.tasks.squad.read import SquadData

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
  """Lower-cases, drops ASCII punctuation and articles, and collapses white space."""
  text = text.lower().translate(_PUNCTUATION)
  return " ".join(_ARTICLES.sub(" ", text).split())


def token_f1(prediction: str, gold: str, *, version: str) -> float:
  r"""F1 of two bags of words, $2pr / (p + r)$.

  If one has no words, F1 is 0; in 2.0 it is 1 if both have none.
  """
  predicted_words = normalize_answer(prediction).split()
  gold_words = normalize_answer(gold).split()
  if version == "2.0" and not (predicted_words and gold_words):
    return float(predicted_words == gold_words)
  common = collections.Counter(predicted_words) & collections.Counter(gold_words)
  # With c common of m and n words, p = c / m and r = c / n: F1 is 2c / (m + n).
  return 2.0 * common.total() / max(len(predicted_words) + len(gold_words), 1)


class Scores(NamedTuple):
  """Exact match and F1 of each question, float64 `[questions]` in 0..1, with the best gold answer."""

  exact: np.ndarray
  f1: np.ndarray


def score_answers(data: SquadData, predictions: Mapping[str, str]) -> Scores:
  """Scores the answers; a missing answer scores 0 in 1.1, and as the empty answer in 2.0.

  Args:
    data: questions with gold answers.
    predictions: question id → text.
  """
  exact = []
  f1 = []
  for question in data.questions:
    prediction = predictions.get(question.id, "")
    golds = [answer.text for answer in question.answers]
    if data.version == "2.0":
      # A gold answer of articles and punctuation alone counts as none, as in the official script.
      golds = [gold for gold in golds if normalize_answer(gold)] or [""]
    normal = normalize_answer(prediction)
    exact.append(max((float(normal == normalize_answer(gold)) for gold in golds), default=0.0))
    f1.append(
      max((token_f1(prediction, gold, version=data.version) for gold in golds), default=0.0)
    )
  return Scores(np.array(exact), np.array(f1))


def has_answer(data: SquadData) -> np.ndarray:
  """Whether each question has an answer, bool `[questions]`."""
  return np.array([bool(question.answers) for question in data.questions], bool)


def summarize(data: SquadData, scores: Scores) -> dict[str, float]:
  """The official metrics, in percent: `exact`, `f1`, `total`; in 2.0 also `HasAns_…`, `NoAns_…`."""
  answerable = has_answer(data)
  groups = {"": np.ones_like(answerable)}
  if data.version == "2.0":
    groups |= {"HasAns_": answerable, "NoAns_": ~answerable}
  report: dict[str, float] = {}
  for prefix, in_group in groups.items():
    if in_group.any():
      report[f"{prefix}exact"] = 100.0 * float(scores.exact[in_group].mean())
      report[f"{prefix}f1"] = 100.0 * float(scores.f1[in_group].mean())
      report[f"{prefix}total"] = int(in_group.sum())
  return report


def best_threshold(
  answering: np.ndarray, answerable: np.ndarray, null_scores: np.ndarray
) -> tuple[float, float]:
  """The threshold of the null score that is best for these questions, and its score in percent.

  It is midway between two null scores. Of equal ones it is the first, as in the official script.

      # null score   -1.0   0.5   2.0      The third question has no answer:
      # score          1    0.6    0       not to answer it scores 1.
      # totals       1    2    2.6   1.6   If the first 0, 1, 2 or 3 questions are answered.
      # The best threshold is (0.5 + 2.0) / 2, and its score 2.6 / 3.

  Args:
    answering: `[n]`, score (0..1) of each question's answer.
    answerable: bool `[n]`; for other questions no answer scores 1.
    null_scores: `[n]`, high for unanswerable questions.
  """
  # No threshold is between equal null scores: questions with one null score are a level.
  levels, level_of_question = np.unique(null_scores.astype(np.float64), return_inverse=True)
  gain = np.where(answerable, answering, answering - 1.0)  # Of answering over abstaining.
  gain_of_level = np.bincount(level_of_question, gain)

  # totals[k]: the score if the questions of the k lowest levels are answered.
  totals = np.concatenate([[0.0], np.cumsum(gain_of_level)]) + np.count_nonzero(~answerable)
  # Rounded, so that sums of the same numbers in another order are equal.
  best = int(np.argmax(np.round(totals, 9)))

  # Beyond the ends a distance of 1 is enough.
  bounds = np.concatenate([[levels[0] - 2.0], levels, [levels[-1] + 2.0]])
  threshold = (bounds[best] + bounds[best + 1]) / 2.0
  return float(threshold), 100.0 * float(totals[best]) / len(null_scores)
