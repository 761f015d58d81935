"""SQuAD's exact match and F1, by the official rules of each version, and the search for 2.0's threshold."""

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
  """Lower-cases, then drops ASCII punctuation and the articles, and collapses white space."""
  return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def token_f1(prediction: str, gold: str, *, version: str) -> float:
  r"""$2pr / (p + r)$ of the two bags of words.

  Where one side has no words, 2.0 asks whether both have none; 1.1 gives 0.
  """
  ours, theirs = normalize_answer(prediction).split(), normalize_answer(gold).split()
  if version == "2.0" and not (ours and theirs):
    return float(ours == theirs)
  common = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
  return 2.0 * common / (len(ours) + len(theirs)) if common else 0.0


class Scores(NamedTuple):
  """Exact match and F1 of each question, float64 `[questions]` in 0..1: the best over its gold answers."""

  exact: np.ndarray
  f1: np.ndarray


def score_answers(data: SquadData, predictions: Mapping[str, str]) -> Scores:
  """Scores the answers; a question without one scores 0 in 1.1, and as the empty answer in 2.0.

  Args:
    data: with answers.
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
  """bool `[questions]`."""
  return np.array([bool(question.answers) for question in data.questions], bool)


def summarize(data: SquadData, scores: Scores) -> dict[str, float]:
  """The official report, in percent: `exact`, `f1`, `total`; in 2.0 also `HasAns_…` and `NoAns_…`."""
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
  """The threshold that is best for these questions, and the score (percent) of abstaining from it on.

  It is midway between two null scores; the first best one wins, as officially.

  Args:
    answering: `[n]` score of each question's answer (0..1) if it is given.
    answerable: bool `[n]`; abstaining scores 1 on the others.
    null_scores: `[n]` high = unanswerable.
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
