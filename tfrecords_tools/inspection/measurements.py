"""Histograms of what records hold, and shares in them that chance does not explain."""

import collections
from collections.abc import Mapping, Sequence
import math
from typing import Any

import numpy as np

from albert_tf.tokenization import Tokenizer
from tfrecords_tools.inspection.validation import View
from tfrecords_tools.pretraining.masking import KEEP_SHARE, MASK_SHARE
from tfrecords_tools.pretraining.statistics import KINDS

_SIGMAS = 5.0  # One false alarm in about two million checks.
_SHARES = dict(zip(KINDS, (MASK_SHARE, KEEP_SHARE, 1 - MASK_SHARE - KEEP_SHARE), strict=True))


class Measurements:
  """Histograms over instances, of records made by any program; named as those of `Statistics`."""

  def __init__(self, tokenizer: Tokenizer):
    self._mask_id = tokenizer.mask_id
    self._torn = tokenizer.torn_pieces
    self.vocab_size = tokenizer.vocab_size
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

  def counts(self) -> dict[str, int]:
    """Numbers behind the shares, for tests of significance."""
    labels, kinds = self._histograms["labels"], self._histograms["kinds"]
    return {"label_0": labels[0], "label_1": labels[1], **{kind: kinds[kind] for kind in KINDS}}

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


def proportion_problems(
  counts: Mapping[str, int], *, vocab_size: int, balanced_labels: bool, masked: bool = True
) -> list[str]:
  """Shares that are further from what the settings ask for than chance explains.

  Args:
    counts: masked, kept, random, label_0, label_1.
    vocab_size: a random piece is the original one once in so many times, and is then counted as kept.
    balanced_labels: both sentence order labels are equally likely.
    masked: whether there should be predictions at all.
  """
  found = []
  total = sum(counts[name] for name in KINDS)
  if masked and not total:
    found.append("no piece is masked")
  for name, expected in _SHARES.items():
    if total and _too_far(counts[name], total, expected, slack=0.1 / vocab_size):
      found.append(f"{name} pieces are {counts[name] / total:.4f} of {total} and not about {expected:g}")
  labels = counts["label_0"] + counts["label_1"]
  if balanced_labels and labels and _too_far(counts["label_1"], labels, 0.5):
    found.append(f"sentence order label 1 is {counts['label_1'] / labels:.4f} of {labels} and not about 0.5")
  if not balanced_labels and not counts["label_0"]:
    found.append("every sentence order label is 1")
  return found


def _too_far(count: int, total: int, expected: float, *, slack: float = 0.0) -> bool:
  deviation = math.sqrt(expected * (1 - expected) / total)
  return abs(count / total - expected) > _SIGMAS * deviation + slack
