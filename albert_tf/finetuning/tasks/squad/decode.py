"""From the heads' outputs to answers cut from the original text; several models' outputs as one."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from albert_tf.finetuning.tasks.squad.windows import SquadFeatures

NO_ANSWER_SCORE = -1e6  # Of the empty answer where nothing else is left (original code).
_BLOCK = 256  # Windows decoded at once.


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


class _Spans(NamedTuple):
  """Valid spans of some windows: `[spans]` window, first and last piece of the paragraph, both scores."""

  window: np.ndarray
  first: np.ndarray
  last: np.ndarray
  start_score: np.ndarray
  end_score: np.ndarray


def decode(features: SquadFeatures, outputs: Mapping[str, Sequence[np.ndarray]]) -> list[Decoded]:
  """The n best answers of every question, over all its windows.

  Args:
    features: whose windows were given to the model.
    outputs: of the model, by name, one row a window: `start_logits` and `end_logits` `[S]` (1.1), or those of
      `Squad2Head` at inference.

  Returns:
    In the order of the questions.
  """
  spans_of = _spans_1 if "start_logits" in outputs else _spans_2
  spans = spans_of(features, outputs)
  question = features.windows.question[spans.window]
  # By question, then best first; equal scores in the order of windows, starts and ends.
  order = np.lexsort((-(spans.start_score + spans.end_score), question))
  bounds = np.searchsorted(question[order], np.arange(len(features.questions) + 1))
  nulls = _null_scores(features, outputs)
  columns = [column[order].tolist() for column in spans[1:]]
  return [
    Decoded(
      _distinct(features, index, [column[bounds[index] : bounds[index + 1]] for column in columns]),
      None if nulls is None else float(nulls[index]),
    )
    for index in range(len(features.questions))
  ]


def _distinct(features: SquadFeatures, question: int, columns: Sequence[list[Any]]) -> list[Candidate]:
  """The best spans with different texts."""
  place = features.data.questions[question].paragraph
  context, paragraph = features.data.paragraphs[place].context, features.paragraphs[place]
  found: dict[str, Candidate] = {}
  for first, last, start_score, end_score in zip(*columns, strict=True):
    text = context[paragraph.starts[first] : paragraph.ends[last]]
    if text and text not in found:
      found[text] = Candidate(text, start_score, end_score)
      if len(found) == features.settings.n_best_size:
        break
  return list(found.values()) or [Candidate("", NO_ANSWER_SCORE, NO_ANSWER_SCORE)]


def _null_scores(features: SquadFeatures, outputs: Mapping[str, Sequence[np.ndarray]]) -> np.ndarray | None:
  """The least unanswerable window counts."""
  if "cls_logits" not in outputs:
    return None
  scores = np.full(len(features.questions), np.inf)
  np.minimum.at(scores, features.windows.question, np.asarray(outputs["cls_logits"], np.float64))
  return scores


def _spans_1(features: SquadFeatures, outputs: Mapping[str, Sequence[np.ndarray]]) -> _Spans:
  """1.1: the best starts times the best ends of each window, among the places where they may be."""
  parts = [
    _best_pairs(features, outputs, np.arange(begin, min(begin + _BLOCK, len(features))))
    for begin in range(0, len(features), _BLOCK)
  ]
  return _Spans(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _best_pairs(
  features: SquadFeatures,
  outputs: Mapping[str, Sequence[np.ndarray]],
  block: np.ndarray,
) -> _Spans:
  starts = np.full((len(block), features.max_context.shape[1]), -np.inf)
  ends = starts.copy()
  for row, window in enumerate(block):
    first, length = features.text_begins[window], features.windows.length[window]
    starts[row, :length] = outputs["start_logits"][window][first : first + length]
    ends[row, :length] = outputs["end_logits"][window][first : first + length]
  starts[~features.max_context[block]] = -np.inf
  k = features.settings.n_best_size
  start, end = (np.argsort(-logits, axis=1, kind="stable")[:, :k] for logits in (starts, ends))  # [W, k]
  start_score, end_score = np.take_along_axis(starts, start, 1), np.take_along_axis(ends, end, 1)
  extent = end[:, None, :] - start[:, :, None]  # [W, k, k]
  possible = (extent >= 0) & (extent < features.settings.max_answer_length)
  possible &= np.isfinite(start_score)[:, :, None] & np.isfinite(end_score)[:, None, :]
  place, i, j = np.nonzero(possible)
  begin = features.windows.begin[block[place]]
  return _Spans(
    block[place], begin + start[place, i], begin + end[place, j], start_score[place, i], end_score[place, j]
  )


def _spans_2(features: SquadFeatures, outputs: Mapping[str, Sequence[np.ndarray]]) -> _Spans:
  """2.0: the head has already chosen starts, and ends for each."""
  start_index = np.asarray(outputs["start_top_index"])  # [W, K]
  end_index = np.asarray(outputs["end_top_index"])  # [W, K L]
  per_start = end_index.shape[1] // start_index.shape[1]
  text_begin, length = features.text_begins[:, None], features.windows.length[:, None]
  start = np.repeat(start_index - text_begin, per_start, axis=1)  # [W, K L] by place in the text
  end = end_index - text_begin
  possible = (start >= 0) & (end < length) & (end >= start)
  possible &= end - start < features.settings.max_answer_length
  window, column = np.nonzero(possible)
  most = features.max_context[window, start[window, column]]
  window, column = window[most], column[most]
  begin = features.windows.begin[window]
  return _Spans(
    window,
    begin + start[window, column],
    begin + end[window, column],
    np.asarray(outputs["start_top_log_probs"], np.float64)[window, column // per_start],
    np.asarray(outputs["end_top_log_probs"], np.float64)[window, column],
  )


def answers(
  features: SquadFeatures, decoded: Sequence[Decoded], *, threshold: float | None
) -> dict[str, str]:
  """Question id → answer; the empty one where the null score is at least `threshold` (None: never)."""
  return {
    question.id: ""
    if threshold is not None and each.null_score is not None and each.null_score >= threshold
    else each.candidates[0].text
    for question, each in zip(features.data.questions, decoded, strict=True)
  }


def n_best_json(features: SquadFeatures, decoded: Sequence[Decoded]) -> dict[str, list[dict[str, Any]]]:
  """Question id → candidates with their probability among each other and both scores, under the original's names."""
  result: dict[str, list[dict[str, Any]]] = {}
  for question, each in zip(features.data.questions, decoded, strict=True):
    probabilities = special.softmax([candidate.score for candidate in each.candidates])
    result[question.id] = [
      {
        "text": candidate.text,
        "probability": float(probability),
        "start_log_prob": candidate.start_score,
        "end_log_prob": candidate.end_score,
      }
      for candidate, probability in zip(each.candidates, probabilities, strict=True)
    ]
  return result


_Beam = dict[tuple[int, int], np.ndarray]  # A window's (start, end) → [2] log-probabilities.


def merge_beams(models: Sequence[Mapping[str, Sequence[np.ndarray]]]) -> dict[str, Any]:
  """2.0's ensemble: averages models whose heads have each chosen their own starts and ends.

  A window's spans are those of any model. A span that a model did not choose has at most the log-probability of the
  least one that it did; that is what it counts there.

  Args:
    models: outputs of `Squad2Head` at inference, of each model, one row a window.

  Returns:
    The same outputs with one end for each start, padded with spans at [CLS], which are no answers.
  """
  windows = [_merge_window(beams) for beams in zip(*map(_beams, models), strict=True)]
  width = max(len(window) for window in windows)
  index = np.zeros((2, len(windows), width), np.int32)
  score = np.full((2, len(windows), width), -np.inf)
  for row, window in enumerate(windows):
    index[:, row, : len(window)] = np.array(list(window)).T
    score[:, row, : len(window)] = np.stack(list(window.values())).T
  return {
    "cls_logits": np.mean([np.asarray(outputs["cls_logits"], np.float64) for outputs in models], axis=0),
    "start_top_index": index[0],
    "end_top_index": index[1],
    "start_top_log_probs": score[0],
    "end_top_log_probs": score[1],
  }


def _beams(outputs: Mapping[str, Sequence[np.ndarray]]) -> list[_Beam]:
  """One model's spans of each window."""
  ends = np.asarray(outputs["end_top_index"])  # [W, K L]
  each = ends.shape[1] // np.asarray(outputs["start_top_index"]).shape[1]
  starts = np.repeat(np.asarray(outputs["start_top_index"]), each, axis=1)
  start_scores = np.repeat(np.asarray(outputs["start_top_log_probs"], np.float64), each, axis=1)
  scores = np.stack([start_scores, np.asarray(outputs["end_top_log_probs"], np.float64)], axis=-1)
  keys = np.stack([starts, ends], axis=-1).tolist()
  return [dict(zip(map(tuple, spans), row, strict=True)) for spans, row in zip(keys, scores, strict=True)]


def _merge_window(models: Sequence[_Beam]) -> _Beam:
  lowest = [min(spans.values(), key=np.sum) for spans in models]
  keys = dict.fromkeys(key for spans in models for key in spans)
  return {
    key: np.mean([spans.get(key, low) for spans, low in zip(models, lowest, strict=True)], axis=0)
    for key in keys
  }
