"""Whether the shares of many instances are what the settings ask for, up to chance."""

from collections.abc import Mapping
import math

_SIGMAS = 5.0  # One false alarm in about two million checks.
_REPLACEMENTS = {"masked": 0.8, "kept": 0.1, "random": 0.1}


def proportion_problems(
  counts: Mapping[str, int], *, vocab_size: int, balanced_labels: bool, masked: bool = True
) -> list[str]:
  """Shares that are further from what they should be than chance explains.

  Args:
    counts: masked, kept, random, label_0, label_1.
    vocab_size: a random piece is the original one once in so many times, and is then counted as kept.
    balanced_labels: both sentence order labels are equally likely.
    masked: whether there should be predictions at all.
  """
  found = []
  total = sum(counts[name] for name in _REPLACEMENTS)
  if masked and not total:
    found.append("no piece is masked")
  for name, expected in _REPLACEMENTS.items():
    if total and _too_far(counts[name], total, expected, slack=0.1 / vocab_size):
      found.append(f"{name} pieces are {counts[name] / total:.4f} of {total} and not about {expected}")
  labels = counts["label_0"] + counts["label_1"]
  if balanced_labels and labels and _too_far(counts["label_1"], labels, 0.5):
    found.append(f"sentence order label 1 is {counts['label_1'] / labels:.4f} of {labels} and not about 0.5")
  if not balanced_labels and not counts["label_0"]:
    found.append("every sentence order label is 1")
  return found


def _too_far(count: int, total: int, expected: float, *, slack: float = 0.0) -> bool:
  deviation = math.sqrt(expected * (1 - expected) / total)
  return abs(count / total - expected) > _SIGMAS * deviation + slack
