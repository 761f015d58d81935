"""What a SQuAD model's scores look like, as a PNG."""

from collections.abc import Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
import numpy as np

from albert_tf.finetuning.tasks.plots import save_figure
from albert_tf.finetuning.tasks.squad.decode import NO_ANSWER_SCORE, Decoded
from albert_tf.finetuning.tasks.squad.metrics import Scores, has_answer
from albert_tf.finetuning.tasks.squad.read import SquadData

_YES, _NO, _LINE = "#2f6fab", "#d1495b", "#444444"
_QUESTION_WORDS = ("what", "who", "when", "where", "which", "how", "why")
_BINS = 40
_LEGEND: Final = "upper left"  # Matplotlib takes seconds to find the best place among many questions.


def draw_scores(
  data: SquadData, decoded: Sequence[Decoded], scores: Scores, *, threshold: float | None, path: str
) -> None:
  """1.1: scores of right and wrong answers, and F1 by question word. 2.0: null scores of both kinds of question, and
  F1 over the threshold.

  Args:
    data: the questions, with answers.
    decoded: the model's answers to them.
    scores: of the best answers, none withheld.
    threshold: 2.0's; None for 1.1.
    path: of the PNG, written atomically.
  """
  figure = Figure(figsize=(11, 4.2), layout="constrained")
  left, right = figure.subplots(1, 2)
  if threshold is None:
    _draw_answer_scores(left, decoded, scores)
    _draw_question_words(right, data, scores)
  else:
    nulls = np.array([each.null_score or 0.0 for each in decoded])
    _draw_null_scores(left, nulls, has_answer(data), threshold)
    _draw_threshold(right, nulls, has_answer(data), scores, threshold)
  for axes in (left, right):
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
  figure.suptitle(f"SQuAD {data.version}, {len(data.questions):,} questions")
  save_figure(figure, path)


def _two_histograms(axes: Axes, values: np.ndarray, first: np.ndarray, labels: tuple[str, str]) -> None:
  edges = np.histogram_bin_edges(values, bins=_BINS).tolist()
  for chosen, label, color in ((first, labels[0], _YES), (~first, labels[1], _NO)):
    axes.hist(values[chosen], bins=edges, color=color, alpha=0.6, label=f"{label} ({chosen.sum():,})")
  axes.set_ylabel("questions")
  axes.margins(y=0.28)  # Room for the legend.
  axes.legend(loc=_LEGEND, framealpha=0.8)


def _draw_answer_scores(axes: Axes, decoded: Sequence[Decoded], scores: Scores) -> None:
  values = np.array([each.candidates[0].score for each in decoded])
  sound = values > 2 * NO_ANSWER_SCORE
  if sound.any():
    _two_histograms(axes, values[sound], scores.exact[sound] > 0, ("exactly right", "not exactly right"))
  axes.set_title("score of the best answer (start + end logit)", loc="left")


def _draw_question_words(axes: Axes, data: SquadData, scores: Scores) -> None:
  words = [
    next((word for word in question.text.lower().split() if word in _QUESTION_WORDS), "other")
    for question in data.questions
  ]
  found = sorted(set(words), key=lambda word: -words.count(word))
  means = [100 * scores.f1[[other == word for other in words]].mean() for word in found]
  axes.barh(range(len(found)), means, color=_YES)
  axes.set_yticks(range(len(found)), [f"{word} ({words.count(word):,})" for word in found])
  axes.invert_yaxis()
  axes.set_xlim(0, 100)
  axes.set_title("F1 (%) by question word", loc="left")


def _draw_null_scores(axes: Axes, nulls: np.ndarray, answerable: np.ndarray, threshold: float) -> None:
  _two_histograms(axes, nulls, answerable, ("has an answer", "has none"))
  axes.axvline(threshold, color=_LINE, linestyle="--", linewidth=1.2)
  axes.set_title("null score; no answer from the dashed line on", loc="left")


def _draw_threshold(
  axes: Axes, nulls: np.ndarray, answerable: np.ndarray, scores: Scores, threshold: float
) -> None:
  order = np.argsort(nulls, kind="stable")
  for values, label, color in ((scores.f1, "F1", _YES), (scores.exact, "exact", _NO)):
    gain = np.where(answerable, values, values - 1.0)[order]
    totals = np.count_nonzero(~answerable) + np.cumsum(gain)
    axes.plot(
      nulls[order], 100 * totals / len(nulls), color=color, label=label, linewidth=1.8, drawstyle="steps-post"
    )
  axes.axvline(threshold, color=_LINE, linestyle="--", linewidth=1.2)
  axes.set_title("score (%) over the threshold", loc="left")
  axes.legend(loc=_LEGEND, framealpha=0.8)
