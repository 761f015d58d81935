"""Histograms of what records hold."""

import collections
from collections.abc import Mapping, Sequence
import math
from typing import Any

import numpy as np

from albert_tf.tokenization import Tokenizer
from tfrecords_tools.inspection.validation import View
from tfrecords_tools.pretraining.statistics import KINDS


class Measurements:
  """Histograms over instances, of records made by any program; named as those of `Statistics`."""

  def __init__(self, tokenizer: Tokenizer):
    self._mask_id = tokenizer.mask_id
    self._torn = tokenizer.torn_pieces
    self._histograms: dict[str, collections.Counter[Any]] = collections.defaultdict(collections.Counter)

  def add(self, view: View) -> None:
    shown = view.ids[view.positions]
    masked, kept = int((shown == self._mask_id).sum()), int((shown == view.labels).sum())
    kinds = {"masked": masked, "kept": kept, "random": len(shown) - masked - kept}
    runs = np.split(view.positions, np.flatnonzero(np.diff(view.positions) > 1) + 1) if len(shown) else []
    columns: dict[str, Mapping[Any, int] | Sequence[Any]] = {
      "lengths": [len(view.ids)],
      "predictions": [len(view.positions)],
      "segment_a": [int((view.segments == 0).sum())],
      "word_starts": [int(view.boundary.sum())],
      "torn": [int((self._torn[view.restored] & (view.boundary > 0)).sum())],
      "labels": [view.order_label],
      "kinds": kinds,
      "run_pieces": [len(run) for run in runs],
      "run_words": [max(1, int(view.boundary[run].sum())) for run in runs],
    }
    for name, values in columns.items():
      self._histograms[name].update(values)

  def update(self, other: "Measurements") -> None:
    """Adds those of other files."""
    for name, histogram in other._histograms.items():
      self._histograms[name].update(histogram)

  def summary(self) -> dict[str, Any]:
    """Means, percentiles and shares; {} without an instance."""
    instances = self._histograms["lengths"].total()
    if not instances:
      return {}
    lengths, predictions = self._histograms["lengths"], self._histograms["predictions"]
    answers = max(1, _total(predictions))
    return {
      "instances": instances,
      "label1_fraction": self._histograms["labels"][1] / instances,
      "seq_len_mean": _total(lengths) / instances,
      "seq_len_pct": {str(p): _percentile(lengths, p) for p in (0, 5, 10, 25, 50, 75, 90, 100)},
      "full_fraction": lengths[max(lengths)] / instances,
      "segA_len_mean": _total(self._histograms["segment_a"]) / instances,
      "predictions_mean": _total(predictions) / instances,
      "predictions_min": min(predictions),
      "predictions_max": max(predictions),
      **{kind: self._histograms["kinds"][kind] / answers for kind in KINDS},
      "word_start_fraction": _total(self._histograms["word_starts"]) / _total(lengths),
      "torn_fraction": _total(self._histograms["torn"]) / _total(lengths),
      **{name: _distribution(self._histograms[name]) for name in ("run_pieces", "run_words")},
    }


def _total(histogram: collections.Counter[int]) -> int:
  return sum(value * count for value, count in histogram.items())


def _percentile(histogram: collections.Counter[int], percent: float) -> float:
  """As NumPy's, with linear interpolation, of the values that the histogram counts."""
  values = sorted(histogram)
  last = np.cumsum([histogram[value] for value in values]) - 1  # Place of the last of each value.
  place = percent / 100 * last[-1]
  low, high = (values[int(np.searchsorted(last, at))] for at in (math.floor(place), math.ceil(place)))
  return float(low + (high - low) * (place - math.floor(place)))


def _distribution(histogram: collections.Counter[int]) -> dict[str, float]:
  return {str(value): histogram[value] / histogram.total() for value in sorted(histogram)}
