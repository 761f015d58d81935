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
  return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def token_f1(prediction: str, gold: str, *, version: str) -> float:
  r"""F1 of two bags of words, $2pr / (p + r)$.

  If one has no words, F1 is 0; in 2.0 it is 1 if both have none.
  """
  ours, theirs = normalize_answer(prediction).split(), normalize_answer(gold).split()
  if version == "2.0" and not (ours and theirs):
    return float(ours == theirs)
  common = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
  return 2.0 * common / (len(ours) + len(theirs)) if common else 0.0


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
  exact, f1 = [], []
  for question in data.questions:
    prediction = predictions.get(question.id, "")
    golds = [answer.text for answer in question.answers]
    if data.version == "2.0":
      golds = list(filter(normalize_answer, golds)) or [""]
    ours = normalize_answer(prediction)
    exact.append(max((float(ours == normalize_answer(gold)) for gold in golds), default=0.0))
    f1.append(max((token_f1(prediction, gold, version=data.version) for gold in golds), default=0.0))
  return Scores(np.array(exact), np.array(f1))


def has_answer(data: SquadData) -> np.ndarray:
  """Whether each question has an answer, bool `[questions]`."""
  return np.array([bool(question.answers) for question in data.questions], bool)


def summarize(data: SquadData, scores: Scores) -> dict[str, float]:
  """The official metrics, in percent: `exact`, `f1`, `total`; in 2.0 also `HasAns_…` and `NoAns_…`."""
  answerable = has_answer(data)
  parts = {"": np.ones_like(answerable)}
  if data.version == "2.0":
    parts |= {"HasAns_": answerable, "NoAns_": ~answerable}
  report: dict[str, float] = {}
  for prefix, chosen in parts.items():
    if chosen.any():
      report[f"{prefix}exact"] = 100.0 * float(scores.exact[chosen].mean())
      report[f"{prefix}f1"] = 100.0 * float(scores.f1[chosen].mean())
      report[f"{prefix}total"] = int(chosen.sum())
  return report


def best_threshold(
  answering: np.ndarray, answerable: np.ndarray, null_scores: np.ndarray
) -> tuple[float, float]:
  """The threshold of the null score that is best for these questions, and its score in percent.

  It is midway between two null scores. Of equal ones it is the first, as in the official script.

  Args:
    answering: `[n]`, score (0..1) of each question's answer.
    answerable: bool `[n]`; for other questions no answer scores 1.
    null_scores: `[n]`, high for unanswerable questions.
  """
  order = np.argsort(null_scores, kind="stable")
  nulls = np.asarray(null_scores, np.float64)[order]
  gain = np.where(answerable, answering, answering - 1.0)[order]  # Of answering over abstaining.
  totals = np.concatenate([[0.0], np.cumsum(gain)]) + np.count_nonzero(~answerable)
  possible = np.concatenate([[True], nulls[1:] > nulls[:-1], [True]])  # Equal null scores stay together.
  count = int(np.argmax(np.where(possible, np.round(totals, 9), -np.inf)))
  below = nulls[count - 1] if count else nulls[0] - 2.0
  above = nulls[count] if count < len(nulls) else nulls[-1] + 2.0
  return float((below + above) / 2.0), 100.0 * float(totals[count]) / len(nulls)
