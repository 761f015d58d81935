"""A replayed update for a person: masked pieces marked in the text, the worst predictions named."""

from collections.abc import Iterable, Iterator
import itertools
import math
import os
import textwrap
from typing import Any

import numpy as np

from albert_tf.tokenization import AlbertTokenizer
from albert_tf.tokenization.word_starts import SPIECE_UNDERLINE
from albert_tf.training.replay import ReplayedExample, ReplayedStep

_ORDERS = ("in order", "swapped")
_INDENT = "    "


def render(
  replayed: ReplayedStep, tokenizer: AlbertTokenizer | None, *, num_shown: int, max_chars: int, width: int
) -> Iterator[str]:
  """Lines for a terminal.

  Args:
    replayed: the update.
    tokenizer: of the run; None shows ids.
    num_shown: examples shown with their text.
    max_chars: of each text; 0 for all.
    width: of a line.
  """
  yield from _summary(replayed)
  yield ""
  yield "In the texts, {braces} hold what was masked: {as predicted}, {as it was ~ as predicted}."
  for rank, example in enumerate(replayed.examples[:num_shown], 1):
    yield ""
    yield _headline(rank, example, len(replayed.examples) * example.share / replayed.loss)
    place = f"{os.path.basename(example.place.path)}, record {example.place.record:,}"
    yield f"{_INDENT}row {example.row} of the batch: {place}"
    text = example_text(example, tokenizer)
    if 0 < max_chars < len(text):
      text = f"{text[:max_chars].rsplit(' ', 1)[0]} … ({len(text):,} characters)"
    yield from textwrap.wrap(
      text, width, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False
    )
    yield from (f"{_INDENT}{line}" for line in _worst(example, tokenizer))


def _summary(replayed: ReplayedStep) -> Iterator[str]:
  tokens = sum(int(example.features["input_mask"].sum()) for example in replayed.examples)
  yield f"update {replayed.step:,}: {len(replayed.examples):,} examples, {tokens:,} tokens without padding"
  away = replayed.step - 1 - replayed.weights_step
  exact = "those that the update was made from"
  nearby = f"{abs(away):,} update(s) {'before' if away > 0 else 'after'} those that the update was made from"
  yield f"weights: {replayed.weights}, {nearby if away else exact}"
  yield (
    f"batch: loss {replayed.loss:.4g} = masked LM {replayed.masked_lm_loss:.4g} "
    f"({replayed.masked_lm_accuracy:.1%} right) + order {replayed.sentence_order_loss:.4g} "
    f"({replayed.sentence_order_accuracy:.1%} right) · gradient norm {replayed.gradient_norm:.4g}"
    + (" · computed without the dropout that training had" if replayed.has_dropout else "")
  )
  if replayed.reported:
    report, first = replayed.reported, replayed.reported["first_step"]
    said = ", ".join(
      f"{name.replace('_', ' ')} {_number(report[name])}"
      for name in ("loss", "gradient_norm")
      if name in report
    )
    updates = f"update {first:,}" if first == report["step"] else f"updates {first:,} to {report['step']:,}"
    yield f"reported for {updates}: {said or 'nothing'}"
  losses = np.array([example.loss for example in replayed.examples])
  finite = losses[np.isfinite(losses)]
  if len(finite):
    low, half, high = np.percentile(finite, [0, 50, 90])
    yield (
      f"losses of the examples: lowest {low:.3g}, half below {half:.3g}, nine in ten below {high:.3g}, highest "
      f"{finite.max():.3g}"
    )
  if len(finite) < len(losses):
    yield f"NOT FINITE: {len(losses) - len(finite)} of {len(losses)} examples, listed first"


def _number(value: Any) -> str:
  return "not finite" if value is None else f"{value:.4g}"


def _headline(rank: int, example: ReplayedExample, times_mean: float) -> str:
  label = int(example.features["sentence_order_labels"])
  order = f"order {example.sentence_order_loss:.3g} ({_ORDERS[label]}"
  order += ")" if example.predicted_order == label else f", taken for {_ORDERS[example.predicted_order]})"
  parts = [f"#{rank}", f"loss {example.loss:.4g}", f"masked LM {example.masked_lm_loss:.4g}", order]
  if math.isfinite(times_mean):
    parts.append(f"{times_mean:.1f} × the mean share")
  if example.gradient_norm is not None:
    parts.append(f"own gradient {example.gradient_norm:.3g}")
  return " · ".join(parts)


def _piece(index: int, tokenizer: AlbertTokenizer | None) -> str:
  return str(index) if tokenizer is None else tokenizer.id_to_piece(index)


def _bare(index: int, tokenizer: AlbertTokenizer | None) -> str:
  return _piece(index, tokenizer).removeprefix(SPIECE_UNDERLINE) or "▁"


def _predictions(example: ReplayedExample) -> list[int]:
  return np.flatnonzero(example.features["masked_lm_weights"]).tolist()


def _joined(indices: Iterable[int], tokenizer: AlbertTokenizer | None) -> str:
  """Pieces as running text; special ones stand apart."""
  if tokenizer is None:
    return "".join(f" {index}" for index in indices)
  pieces = (tokenizer.id_to_piece(index) for index in indices)
  apart = (f" {piece} " if piece.startswith("[") and len(piece) > 1 else piece for piece in pieces)
  return "".join(apart).replace(SPIECE_UNDERLINE, " ")


def example_text(example: ReplayedExample, tokenizer: AlbertTokenizer | None) -> str:
  """The example as it was before masking; successive predicted pieces in one pair of braces."""
  features, slots = example.features, {}
  for p in _predictions(example):
    slots[int(features["masked_lm_positions"][p])] = p
  length = int(features["input_mask"].sum())
  words = []
  for masked, group in itertools.groupby(range(length), lambda position: position in slots):
    positions = list(group)
    if not masked:
      words.append(_joined((int(features["input_ids"][position]) for position in positions), tokenizer))
      continue
    true = [int(features["masked_lm_ids"][slots[position]]) for position in positions]
    guessed = [int(example.predicted_ids[slots[position]]) for position in positions]
    text = _joined(true, tokenizer)
    other = " ".join(_bare(index, tokenizer) for index in guessed)
    wrong = "" if guessed == true else f" ~ {other}"
    words.append((" " if text.startswith(" ") else "") + f"{{{text.strip()}{wrong}}}")
  return " ".join("".join(words).split())


def _worst(example: ReplayedExample, tokenizer: AlbertTokenizer | None, limit: int = 5) -> list[str]:
  """The predictions with the highest losses, one a line."""
  used = sorted(_predictions(example), key=lambda p: -float(example.prediction_losses[p]))
  rows = []
  for p in used[:limit]:
    position = int(example.features["masked_lm_positions"][p])
    rows.append(
      (
        f"{example.prediction_losses[p]:.2f} nats",
        f"at {position}",
        f"is {_bare(int(example.features['masked_lm_ids'][p]), tokenizer)}",
        f"seen {_bare(int(example.features['input_ids'][position]), tokenizer)}",
        f"predicted {_bare(int(example.predicted_ids[p]), tokenizer)} {example.predicted_probabilities[p]:.1%}",
      )
    )
  widths = [max(len(row[i]) for row in rows) for i in range(5)] if rows else []
  return [
    "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
  ]


def to_json(replayed: ReplayedStep, tokenizer: AlbertTokenizer | None) -> dict[str, Any]:
  """Everything, as plain values; what is not finite becomes null."""
  scalars = {
    name: _plain(getattr(replayed, name))
    for name in replayed.__dataclass_fields__
    if name not in ("examples", "reported")
  }
  return {
    **scalars,
    "reported": replayed.reported,
    "examples": [
      {
        "row": example.row,
        "file": example.place.path,
        "record": example.place.record,
        "loss": _plain(example.loss),
        "share": _plain(example.share),
        "masked_lm_loss": _plain(example.masked_lm_loss),
        "sentence_order_loss": _plain(example.sentence_order_loss),
        "gradient_norm": _plain(example.gradient_norm),
        "text": example_text(example, tokenizer),
        "predictions": [
          {
            "position": int(example.features["masked_lm_positions"][p]),
            "true": _piece(int(example.features["masked_lm_ids"][p]), tokenizer),
            "predicted": _piece(int(example.predicted_ids[p]), tokenizer),
            "probability": _plain(float(example.predicted_probabilities[p])),
            "loss": _plain(float(example.prediction_losses[p])),
          }
          for p in _predictions(example)
        ],
      }
      for example in replayed.examples
    ],
  }


def _plain(value: Any) -> Any:
  return None if isinstance(value, float) and not math.isfinite(value) else value
