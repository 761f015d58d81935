"""2.0's ensemble: several models' beams as one, scored by the mean of their log-probabilities."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def merge_beams(models: Sequence[Mapping[str, Sequence[np.ndarray]]]) -> dict[str, Any]:
  """Averages models whose heads have each chosen their own starts and ends.

  A window's spans are those of any model. A span that a model did not choose has at most the log-probability of the
  least one that it did; that is what it counts there.

  Args:
    models: outputs of `Squad2Head` at inference, of each model, one row a window.

  Returns:
    The same outputs with one end for each start, padded with spans at [CLS], which are no answers.
  """
  beams = [_Beam(outputs) for outputs in models]
  windows = [_merge_window([beam.spans(window) for beam in beams]) for window in range(len(beams[0]))]
  width = max(len(window) for window in windows)
  index = np.zeros((2, len(windows), width), np.int32)
  score = np.full((2, len(windows), width), -np.inf)
  for row, window in enumerate(windows):
    for column, (span, scores) in enumerate(window.items()):
      index[:, row, column], score[:, row, column] = span, scores
  return {
    "cls_logits": np.mean([np.asarray(outputs["cls_logits"], np.float64) for outputs in models], axis=0),
    "start_top_index": index[0],
    "end_top_index": index[1],
    "start_top_log_probs": score[0],
    "end_top_log_probs": score[1],
  }


_Spans = dict[tuple[int, int], np.ndarray]  # (start, end) → [2] log-probabilities.


class _Beam:
  """One model's spans."""

  def __init__(self, outputs: Mapping[str, Sequence[np.ndarray]]):
    ends = np.asarray(outputs["end_top_index"])  # [W, K L]
    each = ends.shape[1] // np.asarray(outputs["start_top_index"]).shape[1]
    starts = np.repeat(np.asarray(outputs["start_top_index"]), each, axis=1)
    self._index = np.stack([starts, ends], axis=-1)
    start_scores = np.repeat(np.asarray(outputs["start_top_log_probs"], np.float64), each, axis=1)
    self._scores = np.stack([start_scores, np.asarray(outputs["end_top_log_probs"], np.float64)], axis=-1)

  def __len__(self) -> int:
    return len(self._index)

  def spans(self, window: int) -> _Spans:
    keys = map(tuple, self._index[window].tolist())
    return dict(zip(keys, self._scores[window], strict=True))


def _merge_window(models: Sequence[_Spans]) -> _Spans:
  lowest = [min(spans.values(), key=np.sum) for spans in models]
  keys = dict.fromkeys(key for spans in models for key in spans)
  return {
    key: np.mean([spans.get(key, low) for spans, low in zip(models, lowest, strict=True)], axis=0)
    for key in keys
  }
