"""Several runs' answers as one: what each left is read, and spans are averaged over the union of their n best."""

from collections.abc import Sequence
import json
import math
import os
from typing import Any

import numpy as np
from scipy import special

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.squad.decode import NO_ANSWER_SCORE, Candidate, Decoded
from albert_tf.finetuning.tasks.squad.read import SquadData
from albert_tf.finetuning.tasks.stored import mean_logit


def read_decoded(directory: str, data: SquadData, *, n_best_file: str, null_odds_file: str) -> list[Decoded]:
  """What a run answered, in the order of the questions.

  Raises:
    UserError: a file is missing, or answers other questions.
  """
  ids = [question.id for question in data.questions]
  n_best = _read(directory, n_best_file, ids)
  nulls = _read(directory, null_odds_file, ids) if data.version == "2.0" else dict.fromkeys(ids)
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
  return Decoded(
    candidates or [Candidate("", NO_ANSWER_SCORE, NO_ANSWER_SCORE)], mean_logit(nulls) if nulls else None
  )
