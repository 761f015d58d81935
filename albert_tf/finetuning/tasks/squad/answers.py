"""Answers from the heads' outputs, as parts of the original text; answers of several runs combined."""

import collections
from collections.abc import Mapping, Sequence
import math
import os
from typing import Any, NamedTuple

import numpy as np
from scipy import special
import tensorflow as tf

from albert_tf import json_files
from albert_tf.compat import on_coordinator
from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.squad.features import SquadFeatures
from albert_tf.finetuning.tasks.squad.read import SquadData
from albert_tf.keras_api.examples import blocks_of
from albert_tf.tokenization.graph_offsets import Located
from albert_tf.windows import question_windows
from albert_tf.windows.question_windows import NO_ANSWER_SCORE
from albert_tf.windows.text_windows import Windows

N_BEST_FILE = "nbest_predictions.json"
NULL_ODDS_FILE = "null_odds.json"


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


# ------------------------------------------------------------------ from outputs to answers


def decode(features: SquadFeatures, outputs: Mapping[str, Sequence[np.ndarray]]) -> list[Decoded]:
  """Finds the n best answers of every question in all its windows, with the ops of a SavedModel.

  Args:
    features: the windows given to the model.
    outputs: name → outputs of the model for each window: `start_logits` and `end_logits` `[S]`
      (1.1), or those of `Squad2Head` at inference.
  """
  decoded = []
  for block in blocks_of(len(features.data.questions), desc="Answers"):
    paragraphs = features.paragraphs[block]
    # Windows are in the order of the questions, which are counted from 0 in each block.
    rows = features.windows.row - block.start
    first, last = np.searchsorted(rows, [0, len(paragraphs)])
    rows = rows[first:last]
    window_outputs = {name: column[first:last] for name, column in outputs.items()}

    # The best spans.
    with on_coordinator():
      columns = [tf.constant(column[first:last]) for column in features.windows]
      windows = Windows(*columns)._replace(row=tf.constant(rows))
      located = Located(*[tf.gather(column, paragraphs) for column in features.located])
      spans = question_windows.find_spans(
        windows,
        {name: tf.constant(column) for name, column in window_outputs.items()},
        n_best=features.settings.n_best_size,
        max_answer_length=features.settings.max_answer_length,
      )
      best = question_windows.best_answers(spans, located, n_best=features.settings.n_best_size)

    # The null score of the least unanswerable window counts.
    null_scores: Sequence[float | None] = [None] * len(paragraphs)
    if "cls_logits" in window_outputs:
      cls_logits = np.asarray(window_outputs["cls_logits"], np.float64)
      first_windows = np.searchsorted(rows, np.arange(len(paragraphs)))
      null_scores = np.minimum.reduceat(cls_logits, first_windows).tolist()

    columns = [best[name].numpy().tolist() for name in ("answers", "start_scores", "end_scores")]
    for texts, starts, ends, null_score in zip(*columns, null_scores, strict=True):
      candidates = []
      for text, start_score, end_score in zip(texts, starts, ends, strict=True):
        if text:  # Else padding.
          candidates.append(Candidate(text.decode(), start_score, end_score))
      decoded.append(Decoded(candidates or [NO_CANDIDATE], null_score))
  return decoded


def best_texts(
  data: SquadData, decoded: Sequence[Decoded], *, threshold: float | None
) -> dict[str, str]:
  """Question id → best answer, empty if the null score is at least `threshold` (None: never)."""
  texts = {}
  for question, answer in zip(data.questions, decoded, strict=True):
    best, *_ = answer.candidates
    texts[question.id] = best.text
    if threshold is not None and (answer.null_score or 0.0) >= threshold:
      texts[question.id] = ""
  return texts


# ------------------------------------------------------------------ files


def write_answers(
  directory: str, data: SquadData, decoded: Sequence[Decoded], *, threshold: float | None
) -> None:
  """Writes predictions.json, nbest_predictions.json and, for 2.0, null_odds.json, as the original."""
  # The names and keys of the original's files, which the official script reads.
  texts = best_texts(data, decoded, threshold=threshold)
  n_best = [_n_best(answer.candidates) for answer in decoded]
  contents: dict[str, Any] = {
    "predictions.json": texts,
    N_BEST_FILE: dict(zip(texts, n_best, strict=True)),
  }
  if data.version == "2.0":
    null_scores = [answer.null_score for answer in decoded]
    contents[NULL_ODDS_FILE] = dict(zip(texts, null_scores, strict=True))
  for name, content in contents.items():
    json_files.write(os.path.join(directory, name), content)


def _n_best(candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
  """Candidates with their probability among all candidates of the question."""
  probabilities = special.softmax([candidate.score for candidate in candidates]).tolist()
  entries = []
  for candidate, probability in zip(candidates, probabilities, strict=True):
    entries.append(
      {
        "text": candidate.text,
        "probability": probability,
        "start_log_prob": candidate.start_score,
        "end_log_prob": candidate.end_score,
      }
    )
  return entries


def read_answers(directory: str, data: SquadData) -> list[Decoded]:
  """Reads the stored answers of a run, in the order of the questions.

  Raises:
    UserError: a file is missing, or is for other questions.
  """
  n_best = json_files.read(os.path.join(directory, N_BEST_FILE))
  null_odds: dict[str, Any] = {}
  if data.version == "2.0":
    null_odds = json_files.read(os.path.join(directory, NULL_ODDS_FILE))
  # Of the same questions, in any order.
  ids = [question.id for question in data.questions]
  if n_best.keys() != set(ids):
    raise UserError(
      f"All runs of an ensemble answer the same questions. Received: {directory} with "
      f"{len(n_best)} questions for {len(ids)} of --predict_file, not the same ones. Let that run "
      "answer this file."
    )
  decoded = []
  for question_id in ids:
    candidates = [
      Candidate(entry["text"], entry["start_log_prob"], entry["end_log_prob"])
      for entry in n_best[question_id]
    ]
    decoded.append(Decoded(candidates, null_odds.get(question_id)))
  return decoded


# ------------------------------------------------------------------ ensembles


def merge_answers(models: Sequence[Sequence[Decoded]], *, n_best_size: int) -> list[Decoded]:
  r"""Combines answers of models: the mean of each text's probability, and of that of no answer.

  $p_m(t)$ is the probability of a text among the n best of model m, 0 if it is not one of them. The
  result has the `n_best_size` texts with the greatest $\bar p(t) = \frac{1}{M} \sum_m p_m(t)$, equal
  ones sorted by text. Their start score is $\log \bar p$, their end score 0.

  Args:
    models: the answers of each model, with the questions in the same order.
    n_best_size: number of candidates to keep.

  Reference: ALBERT, section 4.9.
  """
  merged = []
  for answers in zip(*models, strict=True):
    probabilities = collections.defaultdict(list)
    for answer in answers:
      for entry in _n_best(answer.candidates):
        probabilities[entry["text"]].append(entry["probability"])
    # The empty text stands where a model found no span at all.
    probabilities.pop("", None)
    # `fsum` gives the same sum for any order of the models.
    means = {text: math.fsum(values) / len(answers) for text, values in probabilities.items()}
    candidates = []
    for text in sorted(means, key=lambda text: (-means[text], text))[:n_best_size]:
      score = math.log(means[text]) if means[text] > 0 else NO_ANSWER_SCORE
      candidates.append(Candidate(text, score, 0.0))
    null_scores = [answer.null_score for answer in answers if answer.null_score is not None]
    null_score = mean_logit(null_scores) if null_scores else None
    merged.append(Decoded(candidates or [NO_CANDIDATE], null_score))
  return merged


def mean_logit(logits: Sequence[float]) -> float:
  r"""$\mathrm{logit}(\frac{1}{M} \sum_m \sigma(x_m))$, without rounding either probability to 1."""
  values = np.asarray(logits, np.float64)
  log_yes = special.logsumexp(special.log_expit(values))
  log_no = special.logsumexp(special.log_expit(-values))
  return float(log_yes - log_no)
