"""From the heads' outputs to answers cut from the original text; several runs' answers as one."""

from collections.abc import Mapping, Sequence
import json
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
from albert_tf.serving.signatures import question_windows
from albert_tf.serving.signatures.question_windows import NO_ANSWER_SCORE
from albert_tf.serving.signatures.windows import Windows
from albert_tf.tokenization.graph_offsets import Located

PREDICTIONS_FILE, N_BEST_FILE, NULL_ODDS_FILE = (
  "predictions.json",
  "nbest_predictions.json",
  "null_odds.json",
)
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
  """One question: candidates, best first and at least one; in 2.0 how unanswerable it is, else None."""

  candidates: list[Candidate]
  null_score: float | None


NO_CANDIDATE = Candidate("", NO_ANSWER_SCORE, NO_ANSWER_SCORE)


def decode(features: SquadFeatures, outputs: Mapping[str, Sequence[np.ndarray]]) -> list[Decoded]:
  """The n best answers of every question, over all its windows, by the ops that a SavedModel has in its graph.

  Args:
    features: whose windows were given to the model.
    outputs: of the model, by name, one row a window: `start_logits` and `end_logits` `[S]` (1.1), or those of
      `Squad2Head` at inference.

  Returns:
    In the order of the questions.
  """
  questions = features.data.questions
  found: list[Decoded] = []
  with tf.device(coordinator_cpu()):
    for begin in range(0, len(questions), _QUESTIONS_AT_ONCE):
      found += _decode(features, outputs, begin, min(begin + _QUESTIONS_AT_ONCE, len(questions)))
  return found


def _decode(
  features: SquadFeatures, outputs: Mapping[str, Sequence[np.ndarray]], begin: int, end: int
) -> list[Decoded]:
  """Of the questions from `begin` to `end`."""
  first, last = np.searchsorted(features.windows.row, [begin, end])
  windows = Windows(*(tf.constant(column[first:last]) for column in features.windows))
  windows = windows._replace(row=windows.row - begin)
  paragraphs = [question.paragraph for question in features.data.questions[begin:end]]
  located = Located(*(tf.gather(column, paragraphs) for column in features.located))
  settings = features.settings
  spans = question_windows.find_spans(
    windows,
    {name: _stacked(column[first:last]) for name, column in outputs.items()},
    n_best=settings.n_best_size,
    max_answer_length=settings.max_answer_length,
  )
  best = question_windows.best_answers(spans, located, n_best=settings.n_best_size)
  texts, *scores = (best[name].numpy() for name in ("answers", "start_scores", "end_scores"))
  candidates = [
    [Candidate(text.decode(), *each) for text, *each in zip(*row, strict=True) if text] or [NO_CANDIDATE]
    for row in zip(texts.tolist(), *(column.tolist() for column in scores), strict=True)
  ]
  if "cls_logits" not in outputs:
    return [Decoded(each, None) for each in candidates]
  nulls = np.asarray(outputs["cls_logits"][first:last], np.float64)
  # The least unanswerable window counts.
  nulls = np.minimum.reduceat(nulls, np.searchsorted(windows.row, np.arange(end - begin)))
  return [Decoded(each, null) for each, null in zip(candidates, nulls.tolist(), strict=True)]


def _stacked(rows: Any) -> tf.Tensor:
  """Rows, perhaps of different lengths, as one tensor."""
  return tf.constant(rows) if isinstance(rows, np.ndarray) else tf.ragged.stack(rows).to_tensor()


def best_texts(data: SquadData, decoded: Sequence[Decoded], *, threshold: float | None) -> dict[str, str]:
  """Question id → answer; the empty one where the null score is at least `threshold` (None: never)."""
  return {
    question.id: ""
    if threshold is not None and each.null_score is not None and each.null_score >= threshold
    else each.candidates[0].text
    for question, each in zip(data.questions, decoded, strict=True)
  }


# ------------------------------------------------------------------ files


def write_answers(
  directory: str, data: SquadData, decoded: Sequence[Decoded], *, threshold: float | None
) -> None:
  """Writes predictions.json, nbest_predictions.json and, for 2.0, null_odds.json, under the original's names."""
  ids = [question.id for question in data.questions]
  contents: dict[str, Any] = {
    PREDICTIONS_FILE: best_texts(data, decoded, threshold=threshold),
    N_BEST_FILE: {key: _n_best(each.candidates) for key, each in zip(ids, decoded, strict=True)},
  }
  if data.version == "2.0":
    contents[NULL_ODDS_FILE] = {key: each.null_score for key, each in zip(ids, decoded, strict=True)}
  for name, content in contents.items():
    files.write_json(os.path.join(directory, name), content)


def _n_best(candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
  """Candidates with their probability among each other."""
  probabilities = special.softmax([candidate.score for candidate in candidates]).tolist()
  names = ("text", "probability", "start_log_prob", "end_log_prob")
  return [
    dict(zip(names, (text, probability, start, end), strict=True))
    for (text, start, end), probability in zip(candidates, probabilities, strict=True)
  ]


def read_answers(directory: str, data: SquadData) -> list[Decoded]:
  """What a run has answered, in the order of the questions.

  Raises:
    UserError: a file is missing, or answers other questions.
  """
  ids = [question.id for question in data.questions]
  n_best = _read(directory, N_BEST_FILE, ids)
  nulls = _read(directory, NULL_ODDS_FILE, ids) if data.version == "2.0" else dict.fromkeys(ids)
  return [
    Decoded(
      [Candidate(each["text"], each["start_log_prob"], each["end_log_prob"]) for each in n_best[key]],
      nulls[key],
    )
    for key in ids
  ]


def _read(directory: str, name: str, ids: Sequence[str]) -> dict[str, Any]:
  path = os.path.join(directory, name)
  if not files.exists(path):
    raise UserError(
      f"A run must have answered the questions to be one of an ensemble. Received: {directory} without {name}. Let it "
      "answer them: run_squad.py --do_predict with it as --init_checkpoint."
    )
  with files.open_binary(path) as stream:
    found = dict(json.load(stream))
  if found.keys() != set(ids):
    raise UserError(
      f"All runs of an ensemble answer the same questions. Received: {path} with {len(found)} questions for "
      f"{len(ids)} of --predict_file, not the same ones. Let that run answer this file."
    )
  return found


# ------------------------------------------------------------------ ensembles


def merge_answers(models: Sequence[Sequence[Decoded]], *, n_best_size: int) -> list[Decoded]:
  r"""The mean over models of each text's probability, and of the probability that there is no answer.

  A model's probabilities are those of its own n best among each other, $p_m(t)$; a text that it does not list counts 0
  there. The result's candidates are the `n_best_size` best of the union by $\bar p(t) = \frac{1}{M} \sum_m p_m(t)$,
  equal ones by their best place in any model, then by text: the order of the models has no say. As scores they
  have $\log \bar p$ at the start and 0 at the end.

  Args:
    models: of each model, the questions in one order.
    n_best_size: candidates that are kept.

  Reference: ALBERT, section 4.9.
  """
  return [_merge(answers, n_best_size) for answers in zip(*models, strict=True)]


def _merge(answers: Sequence[Decoded], n_best_size: int) -> Decoded:
  parts: dict[str, list[float]] = {}
  places: dict[str, int] = {}
  for answer in answers:
    probabilities = special.softmax(np.array([candidate.score for candidate in answer.candidates]))
    for place, (candidate, probability) in enumerate(zip(answer.candidates, probabilities, strict=True)):
      if candidate.text:  # The empty one stands where a model found no span at all.
        parts.setdefault(candidate.text, []).append(float(probability))
        places[candidate.text] = min(place, places.get(candidate.text, place))
  means = {text: math.fsum(each) / len(answers) for text, each in parts.items()}
  best = sorted(means, key=lambda text: (-means[text], places[text], text))[:n_best_size]
  candidates = [
    Candidate(text, math.log(means[text]) if means[text] else NO_ANSWER_SCORE, 0.0) for text in best
  ]
  nulls = [answer.null_score for answer in answers if answer.null_score is not None]
  return Decoded(candidates or [NO_CANDIDATE], mean_logit(nulls) if nulls else None)


def mean_logit(logits: Sequence[float]) -> float:
  r"""$\mathrm{logit}(\frac{1}{M} \sum_m \sigma(x_m))$, without rounding either probability to 1."""
  values = np.asarray(logits, np.float64)
  yes, no = special.logsumexp(special.log_expit(values)), special.logsumexp(special.log_expit(-values))
  return float(yes - no)
