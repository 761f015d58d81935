"""A replayed update for a person: masked pieces marked in the text, the worst predictions named."""

from collections.abc import Iterable, Iterator
import dataclasses
import itertools
import math
import os
import textwrap
from typing import Any

import numpy as np

from albert_tf.tokenization import Tokenizer
from albert_tf.tokenization.word_starts import SPIECE_UNDERLINE
from albert_tf.training.replay.compute import ReplayedExample, ReplayedStep

# Sentence task → what its reports are called, and its labels 0 and 1.
_TASKS = {
  "sentence_order": ("order", "in order", "swapped"),
  "next_sentence": ("next sentence", "the next", "from another document"),
}
_INDENT = "    "


def render(
  replayed: ReplayedStep, tokenizer: Tokenizer | None, *, num_shown: int, max_chars: int, width: int
) -> Iterator[str]:
  """Lines of `width` for a terminal, `num_shown` examples with at most `max_chars` of their text (0: all).

  Without the run's tokenizer, ids are shown.
  """
  yield from _summary(replayed)
  yield ""
  yield "In the texts, {braces} hold what was masked: {as predicted}, {as it was ~ as predicted}."
  for rank, example in enumerate(replayed.examples[:num_shown], 1):
    yield ""
    times_mean = len(replayed.examples) * example.share / replayed.loss
    yield _headline(rank, example, times_mean, replayed.sentence_task)
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
  sentence = ""
  if replayed.sentence_task:
    named = _TASKS[replayed.sentence_task][0]
    sentence = f" + {named} {replayed.sentence_loss:.4g} ({replayed.sentence_accuracy:.1%} right)"
  yield (
    f"batch: loss {replayed.loss:.4g} = masked LM {replayed.masked_lm_loss:.4g} "
    f"({replayed.masked_lm_accuracy:.1%} right){sentence} · gradient norm {replayed.gradient_norm:.4g}"
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


def _number(value: float | None, form: str = ".4g") -> str:
  return "not finite" if value is None else format(value, form)


def _headline(rank: int, example: ReplayedExample, times_mean: float, sentence_task: str) -> str:
  parts = [f"#{rank}", f"loss {example.loss:.4g}", f"masked LM {example.masked_lm_loss:.4g}"]
  if sentence_task:
    named, *labels = _TASKS[sentence_task]
    label = int(example.features["sentence_order_labels"])
    taken = "" if example.predicted_label == label else f", taken for {labels[example.predicted_label]}"
    parts.append(f"{named} {example.sentence_loss:.3g} ({labels[label]}{taken})")
  if math.isfinite(times_mean):
    parts.append(f"{times_mean:.1f} × the mean share")
  if example.gradient_norm is not None:
    parts.append(f"own gradient {example.gradient_norm:.3g}")
  return " · ".join(parts)


def _piece(index: int, tokenizer: Tokenizer | None) -> str:
  return str(index) if tokenizer is None else tokenizer.id_to_piece(int(index))


def _bare(piece: str) -> str:
  return piece.removeprefix(SPIECE_UNDERLINE) or SPIECE_UNDERLINE


def _predictions(example: ReplayedExample, tokenizer: Tokenizer | None) -> list[dict[str, Any]]:
  """What was predicted for each masked piece; `[P]` without the unused slots."""
  features = example.features
  return [
    {
      "position": int(features["masked_lm_positions"][p]),
      "true": _piece(features["masked_lm_ids"][p], tokenizer),
      "predicted": _piece(example.predicted_ids[p], tokenizer),
      "probability": _plain(float(example.predicted_probabilities[p])),
      "loss": _plain(float(example.prediction_losses[p])),
    }
    for p in np.flatnonzero(features["masked_lm_weights"])
  ]


def _joined(pieces: Iterable[str], tokenizer: Tokenizer | None) -> str:
  """Pieces as running text; special ones stand apart."""
  if tokenizer is None:
    return "".join(f" {piece}" for piece in pieces)
  return "".join(
    f" {piece} " if piece.startswith("[") and len(piece) > 1 else tokenizer.piece_text(piece)
    for piece in pieces
  )


def example_text(example: ReplayedExample, tokenizer: Tokenizer | None) -> str:
  """The example as it was before masking; successive predicted pieces in one pair of braces."""
  slots = {prediction["position"]: prediction for prediction in _predictions(example, tokenizer)}
  ids = example.features["input_ids"][: int(example.features["input_mask"].sum())]
  words = []
  for masked, group in itertools.groupby(range(len(ids)), lambda position: position in slots):
    positions = list(group)
    if not masked:
      words.append(_joined((_piece(ids[position], tokenizer) for position in positions), tokenizer))
      continue
    true, guessed = ([slots[position][name] for position in positions] for name in ("true", "predicted"))
    text = _joined(true, tokenizer)
    wrong = "" if guessed == true else f" ~ {' '.join(map(_bare, guessed))}"
    words.append((" " if text.startswith(" ") else "") + f"{{{text.strip()}{wrong}}}")
  return " ".join("".join(words).split())


def _worst(example: ReplayedExample, tokenizer: Tokenizer | None, limit: int = 5) -> list[str]:
  """The predictions with the highest losses, one a line."""
  # What is not finite is None by now, and comes first.
  by_loss = sorted(
    _predictions(example, tokenizer), key=lambda row: (row["loss"] is not None, -(row["loss"] or 0))
  )
  rows = [
    (
      f"{_number(row['loss'], '.2f')} nats",
      f"at {row['position']}",
      f"is {_bare(row['true'])}",
      f"seen {_bare(_piece(example.features['input_ids'][row['position']], tokenizer))}",
      f"predicted {_bare(row['predicted'])} {_number(row['probability'], '.1%')}",
    )
    for row in by_loss[:limit]
  ]
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def to_json(replayed: ReplayedStep, tokenizer: Tokenizer | None) -> dict[str, Any]:
  """Everything, as plain values; what is not finite becomes null."""
  sentence = ("sentence_task", "sentence_loss", "sentence_accuracy")
  apart = ("examples", "reported", *sentence)
  names = [field.name for field in dataclasses.fields(replayed) if field.name not in apart]
  of_example = ("row", "loss", "share", "masked_lm_loss", "gradient_norm")

  def of_sentences(of: ReplayedStep | ReplayedExample) -> dict[str, Any]:
    """Losses and accuracy of the sentence task, by the names of metrics.jsonl; nothing where there is none."""
    known = [name for name in sentence[1:] if replayed.sentence_task and hasattr(of, name)]
    return {name.replace("sentence", replayed.sentence_task): _plain(getattr(of, name)) for name in known}

  return {
    **{name: _plain(getattr(replayed, name)) for name in names},
    **of_sentences(replayed),
    "reported": replayed.reported,
    "examples": [
      {
        **{name: _plain(getattr(example, name)) for name in of_example},
        **of_sentences(example),
        "file": example.place.path,
        "record": example.place.record,
        "text": example_text(example, tokenizer),
        "predictions": _predictions(example, tokenizer),
      }
      for example in replayed.examples
    ],
  }


def _plain(value: Any) -> Any:
  return None if isinstance(value, float) and not math.isfinite(value) else value
