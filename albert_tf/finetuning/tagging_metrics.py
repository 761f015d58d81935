"""Scores of tagging: of words, and of entities where tags mark them."""

from collections.abc import Iterable, Sequence
import re

import numpy as np

from albert_tf.errors import UserError

OUTSIDE = "O"
_ENTITY_TAG = re.compile(r"[BIESLU]-.+")
_BILOU = {"L": "E", "U": "S"}  # Other letters for the same scheme; seqeval knows E and S.


def marks_entities(tags: Iterable[str]) -> bool:
  """Whether tags are "O" and B-X, I-X (and E-, S- or L-, U-): then entities are scored, not words alone."""
  tags = set(tags) - {OUTSIDE}
  return bool(tags) and all(_ENTITY_TAG.fullmatch(tag) for tag in tags)


def word_accuracy(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
  """Share of words with the right tag."""
  right = [
    a == b for left, right in zip(gold, predicted, strict=True) for a, b in zip(left, right, strict=True)
  ]
  return float(np.mean(right)) if right else 0.0


def entity_kinds(tags: Iterable[str]) -> list[str]:
  """The types of entities that tags such as B-PER mark."""
  return sorted({tag[2:] for tag in tags if tag != OUTSIDE})


def entity_scores(
  gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], *, kinds: Sequence[str]
) -> dict[str, float]:
  """Precision, recall and F1 of whole entities, over all types and `f1_TYPE` of each, as `conlleval` counts.

  An entity is right when its type, first and last word are. IOB1, IOB2, IOBES and BILOU are understood.

  Args:
    gold, predicted: tags of each sentence.
    kinds: the types to score one by one; one that does not occur has 0.

  Raises:
    UserError: seqeval is not installed.
  """
  try:
    from seqeval.metrics import sequence_labeling
  except ImportError as error:
    raise UserError(
      "Scores of entities need the package seqeval, which is not installed. Received: tags such as B-X and I-X. "
      'Install it: pip install "albert-tf[tagging]".'
    ) from error
  left, right = ([[_iobes(tag) for tag in sentence] for sentence in each] for each in (gold, predicted))
  scores = dict.fromkeys(["precision", "recall", "f1", *(f"f1_{kind}" for kind in kinds)], 0.0)
  if not (sequence_labeling.get_entities(left) or sequence_labeling.get_entities(right)):
    return scores
  report = sequence_labeling.classification_report(left, right, output_dict=True, zero_division=0)
  total = report["micro avg"]
  scores |= {"precision": total["precision"], "recall": total["recall"], "f1": total["f1-score"]}
  scores |= {f"f1_{kind}": report[kind]["f1-score"] for kind in kinds if kind in report}
  return {name: float(value) for name, value in scores.items()}


def _iobes(tag: str) -> str:
  return _BILOU.get(tag[0], tag[0]) + tag[1:] if tag[1:2] == "-" else tag
