"""Answers from the heads' outputs, as parts of the original text; answers of several runs combined."""

from collections.abc import Mapping, Sequence
import math
import os
from typing import Any, NamedTuple

import numpy as np
from scipy import special
import tensorflow as tf

from albert_tf import files
from albert_tf.checkpoints.bundle import coordinator_cpu
from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.squad.features import SquadFeatures
from albert_tf.finetuning.tasks.squad.read import SquadData
from albert_tf.tokenization.graph_offsets import Located
from albert_tf.windows import question_windows
from albert_tf.windows.question_windows import NO_ANSWER_SCORE
from albert_tf.windows.text_windows import Windows

PREDICTIONS_FILE, N_BEST_FILE = "predictions.json", "nbest_predictions.json"
NULL_ODDS_FILE = "null_odds.json"
_QUESTIONS_AT_ONCE = 1024


class Candidate(NamedTuple):
  """An answer: its text, and its scores (logits in 1.1, log-probabilities in 2.0)."""

  text: str
  start_score: float
  end_score: float

  @property
  def score(self) -> float:
    return self.start_score + self.end_score


class Decoded(NamedTuple):
  """Answers to one question: at least one candidate, the best first; in 2.0 the null score, else None."""

  candidates: list[Candidate]
  null_score: float | None


NO_CANDIDATE = Candidate("", NO_ANSWER_SCORE, NO_ANSWER_SCORE)


def decode(features: SquadFeatures, outputs: Mapping[str, Sequence[np.ndarray]]) -> list[Decoded]:
  """Finds the n best answers of every question in all its windows, with the ops of a SavedModel.

  Args:
    features: the windows given to the model.
    outputs: name → outputs of the model for each window: `start_logits` and `end_logits` `[S]` (1.1), or those of
      `Squad2Head` at inference.
  """
  found: list[Decoded] = []
  for begin in range(0, len(features.data.questions), _QUESTIONS_AT_ONCE):
    questions = features.data.questions[begin : begin + _QUESTIONS_AT_ONCE]
    first, last = np.searchsorted(features.windows.row, [begin, begin + len(questions)])
    parts = {name: column[first:last] for name, column in outputs.items()}
    row = features.windows.row[first:last] - begin
    with tf.device(coordinator_cpu()):
      columns = (tf.constant(column[first:last]) for column in features.windows)
      windows = Windows(*columns)._replace(row=tf.constant(row))
      padded = {  # Rows of windows may have different lengths.
        name: tf.constant(rows) if isinstance(rows, np.ndarray) else tf.ragged.stack(rows).to_tensor()
        for name, rows in parts.items()
      }
      paragraphs = [question.paragraph for question in questions]
      located = Located(*(tf.gather(column, paragraphs) for column in features.located))
      n_best, longest = features.settings.n_best_size, features.settings.max_answer_length
      spans = question_windows.find_spans(windows, padded, n_best=n_best, max_answer_length=longest)
      best = question_windows.best_answers(spans, located, n_best=n_best)
    nulls: Sequence[float | None] = [None] * len(questions)
    if "cls_logits" in parts:  # The least unanswerable window counts.
      of_windows = np.asarray(parts["cls_logits"], np.float64)
      nulls = np.minimum.reduceat(of_windows, np.searchsorted(row, np.arange(len(questions)))).tolist()
    lists = (best[name].numpy().tolist() for name in ("answers", "start_scores", "end_scores"))
    for texts, starts, ends, null in zip(*lists, nulls, strict=True):
      candidates = [
        Candidate(text.decode(), start, end)
        for text, start, end in zip(texts, starts, ends, strict=True)
        if text
      ]
      found.append(Decoded(candidates or [NO_CANDIDATE], null))
  return found


def best_texts(data: SquadData, decoded: Sequence[Decoded], *, threshold: float | None) -> dict[str, str]:
  """Question id → best answer, empty if the null score is at least `threshold` (None: never)."""
  return {
    question.id: ""
    if threshold is not None and (each.null_score or 0.0) >= threshold
    else each.candidates[0].text
    for question, each in zip(data.questions, decoded, strict=True)
  }


# ------------------------------------------------------------------ files


def write_answers(
  directory: str, data: SquadData, decoded: Sequence[Decoded], *, threshold: float | None
) -> None:
  """Writes predictions.json, nbest_predictions.json and, for 2.0, null_odds.json, under the original's names."""
  ids = [question.id for question in data.questions]
  contents: dict[str, Sequence[Any]] = {N_BEST_FILE: [_n_best(each.candidates) for each in decoded]}
  if data.version == "2.0":
    contents[NULL_ODDS_FILE] = [each.null_score for each in decoded]
  files.write_json(os.path.join(directory, PREDICTIONS_FILE), best_texts(data, decoded, threshold=threshold))
  for name, values in contents.items():
    files.write_json(os.path.join(directory, name), dict(zip(ids, values, strict=True)))


def _n_best(candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
  """Candidates with their probability among all candidates of the question."""
  probabilities = special.softmax([candidate.score for candidate in candidates]).tolist()
  return [
    {"text": text, "probability": probability, "start_log_prob": start, "end_log_prob": end}
    for (text, start, end), probability in zip(candidates, probabilities, strict=True)
  ]


def read_answers(directory: str, data: SquadData) -> list[Decoded]:
  """Reads the stored answers of a run, in the order of the questions.

  Raises:
    UserError: a file is missing, or is for other questions.
  """
  ids = [question.id for question in data.questions]
  names = [N_BEST_FILE, *([NULL_ODDS_FILE] if data.version == "2.0" else [])]
  n_best, *nulls = [files.read_json(os.path.join(directory, name)) for name in names]
  if n_best.keys() != set(ids):
    raise UserError(
      f"All runs of an ensemble answer the same questions. Received: {directory} with {len(n_best)} questions for "
      f"{len(ids)} of --predict_file, not the same ones. Let that run answer this file."
    )
  names = ["text", "start_log_prob", "end_log_prob"]
  return [
    Decoded(
      [Candidate(*(each[name] for name in names)) for each in n_best[key]], nulls[0][key] if nulls else None
    )
    for key in ids
  ]


# ------------------------------------------------------------------ ensembles


def merge_answers(models: Sequence[Sequence[Decoded]], *, n_best_size: int) -> list[Decoded]:
  r"""Combines answers of models: the mean of each text's probability, and of the probability of no answer.

  $p_m(t)$ is the probability of a text among the n best of model m, 0 if it is not one of them. The result has the
  `n_best_size` texts with the greatest $\bar p(t) = \frac{1}{M} \sum_m p_m(t)$, equal ones sorted by text. Their start
  score is $\log \bar p$, their end score 0.

  Args:
    models: the answers of each model, with the questions in the same order.
    n_best_size: number of candidates to keep.

  Reference: ALBERT, section 4.9.
  """
  merged = []
  for answers in zip(*models, strict=True):
    parts: dict[str, list[float]] = {}
    for entry in (entry for answer in answers for entry in _n_best(answer.candidates)):
      parts.setdefault(entry["text"], []).append(entry["probability"])
    parts.pop("", None)  # It stands where a model found no span at all.
    # In any order the same sum.
    means = {text: math.fsum(each) / len(answers) for text, each in parts.items()}
    best = sorted(means.items(), key=lambda pair: (-pair[1], pair[0]))[:n_best_size]
    candidates = [Candidate(text, math.log(mean) if mean else NO_ANSWER_SCORE, 0.0) for text, mean in best]
    nulls = [answer.null_score for answer in answers if answer.null_score is not None]
    merged.append(Decoded(candidates or [NO_CANDIDATE], mean_logit(nulls) if nulls else None))
  return merged


def mean_logit(logits: Sequence[float]) -> float:
  r"""$\mathrm{logit}(\frac{1}{M} \sum_m \sigma(x_m))$, without rounding either probability to 1."""
  values = np.asarray(logits, np.float64)
  yes, no = special.logsumexp(special.log_expit(values)), special.logsumexp(special.log_expit(-values))
  return float(yes - no)
