"""Counts over instances, which add up over blocks in any order, and the summary made of them."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from albert_tf.records import Baseline
from albert_tf.tokenization import Tokenizer
from tfrecords_tools.pretraining.instances import Instance
from tfrecords_tools.pretraining.randomness import Place, SplitDraw
from tfrecords_tools.pretraining.settings import SPLITS, RecordSettings
from tfrecords_tools.pretraining.sources import Source

KINDS = ("masked", "kept", "random")
_MUCH_TORN = 0.05  # English has below 0.001, Russian with a vocabulary of its own 0.15 and more.
ALONE = "alone_documents"
_COUNTERS = (
  "documents",
  "empty_documents",
  "sentences",
  "tokens",
  "unknown",
  "torn",
  "truncated_tokens",
)


class Statistics:
  """Integer counts of one split.

  Attributes:
    counters: documents, sentences, tokens, unknown pieces, pieces torn out of their words by the original's rule
      (of the text, once); truncated tokens; of `nsp`, documents that had no other one in their block and split.
    lengths: int64 [S + 1] instances of each length.
    labels: int64 [2] instances of each sentence order label.
    predictions: int64 [P + 1] instances with each number of predictions.
    kinds: int64 [3] masked, kept, random.
    ngrams: int64 [ngram + 1] spans of each length in words.
    label_ids: int64 [V] how often each piece is an answer.
  """

  def __init__(self, settings: RecordSettings, vocab_size: int):
    self.counters = dict.fromkeys(_COUNTERS, 0)
    if settings.sentence_pair == "nsp":
      self.counters[ALONE] = 0
    self.arrays = {
      "lengths": np.zeros(settings.max_seq_length + 1, np.int64),
      "labels": np.zeros(2, np.int64),
      "predictions": np.zeros(settings.max_predictions_per_seq + 1, np.int64),
      "kinds": np.zeros(3, np.int64),
      "ngrams": np.zeros(settings.ngram + 1, np.int64),
      "label_ids": np.zeros(vocab_size, np.int64),
    }

  def add_instances(self, instances: Sequence[Instance]) -> None:
    """Counts many instances with one NumPy call each."""
    if not instances:
      return
    columns = {
      "lengths": [instance.num_tokens for instance in instances],
      "labels": [instance.pair.label for instance in instances],
      "predictions": [len(instance.labels) for instance in instances],
      "kinds": np.concatenate([instance.kinds for instance in instances]),
      "ngrams": [span.ngram for instance in instances for span in instance.spans],
      "label_ids": np.concatenate([instance.labels for instance in instances]),
    }
    for name, values in columns.items():
      total = self.arrays[name]
      total += np.bincount(np.asarray(values, np.int64), minlength=len(total))
    self.counters["truncated_tokens"] += sum(instance.pair.truncated for instance in instances)

  def add(self, other: "Statistics") -> None:
    for name, value in other.counters.items():
      self.counters[name] += value
    for name, array in other.arrays.items():
      self.arrays[name] += array

  @property
  def num_instances(self) -> int:
    return int(self.arrays["labels"].sum())

  @property
  def instance_tokens(self) -> int:
    """Tokens of all instances, without padding."""
    lengths = self.arrays["lengths"]
    return int(lengths @ np.arange(len(lengths)))

  def to_json(self) -> dict[str, Any]:
    """Sparse, so that a block's file stays small."""
    return {
      "counters": self.counters,
      "arrays": {
        name: [np.flatnonzero(array).tolist(), array[array > 0].tolist()]
        for name, array in self.arrays.items()
      },
    }

  def add_json(self, fields: dict[str, Any]) -> None:
    """Adds what `to_json` gave."""
    for name, value in fields["counters"].items():
      self.counters[name] += value
    for name, (indexes, values) in fields["arrays"].items():
      self.arrays[name][indexes] += np.array(values, np.int64)

  def summary(self) -> dict[str, Any]:
    """Shares and means for people and for the manifest."""
    arrays = self.arrays
    instances = self.num_instances
    lengths, kinds, ngrams = arrays["lengths"], arrays["kinds"], arrays["ngrams"]
    tokens = self.instance_tokens
    predictions = int(kinds.sum())
    placed = tokens + self.counters["truncated_tokens"]
    return {
      "instances": instances,
      **self.counters,
      "instance_tokens": tokens,
      "mean_length": _share(tokens, instances),
      "length_percentiles": _percentiles(lengths),
      "full_length_share": _share(int(lengths[-1]), instances),
      "label_1_share": _share(int(arrays["labels"][1]), instances),
      "mean_predictions": _share(predictions, instances),
      "truncated_share": _share(self.counters["truncated_tokens"], placed),
      "unknown_share": _share(self.counters["unknown"], self.counters["tokens"]),
      "torn_share": _share(self.counters["torn"], self.counters["tokens"]),
      **{f"{kind}_share": _share(int(count), predictions) for kind, count in zip(KINDS, kinds, strict=True)},
      "ngram_shares": [_share(int(count), int(ngrams.sum())) for count in ngrams[1:]],
    }


_OF_A_SOURCE = ("documents", "empty_documents", "sentences", "tokens", "instances", "instance_tokens")


@dataclasses.dataclass
class SourceCounts:
  """What was made of one source.

  Attributes:
    counts: split → name → number; of the text once, but for instances and instance_tokens.
    duplicates: documents that were left out as copies of an earlier one.
    nearest: the document with text that is nearest to being held out; None without one.
  """

  counts: dict[str, dict[str, int]] = dataclasses.field(
    default_factory=lambda: {split: dict.fromkeys(_OF_A_SOURCE, 0) for split in SPLITS}
  )
  duplicates: int = 0
  nearest: SplitDraw | None = None

  def count(self, statistics: Mapping[str, Statistics]) -> None:
    """Adds the statistics of a block, by split."""
    for split, each in statistics.items():
      found = {**each.counters, "instances": each.num_instances, "instance_tokens": each.instance_tokens}
      for name in _OF_A_SOURCE:
        self.counts[split][name] += found[name]

  def add(self, other: "SourceCounts") -> None:
    for split, counts in other.counts.items():
      for name, value in counts.items():
        self.counts[split][name] += value
    self.duplicates += other.duplicates
    self.nearest = min(filter(None, (self.nearest, other.nearest)), default=None)

  @property
  def lacks_held_out(self) -> bool:
    """Whether nothing is held out though one of several documents could be."""
    with_text = sum(each["documents"] - each["empty_documents"] for each in self.counts.values())
    return with_text > 1 and not self.counts["eval"]["instances"]

  @classmethod
  def from_json(cls, fields: Mapping[str, Any]) -> "SourceCounts":
    """The inverse of `dataclasses.asdict`, through JSON."""
    nearest = fields["nearest"]
    draw = SplitDraw(nearest[0], Place(*nearest[1])) if nearest else None
    return cls(**{**fields, "nearest": draw})


def summarize_sources(counted: Mapping[str, SourceCounts], sources: Sequence[Source]) -> dict[str, Any]:
  """What the manifest says of each named source; `train_share` is its share of the tokens of train."""
  total = sum(each.counts["train"]["instance_tokens"] for each in counted.values())
  summary = {}
  for source in sorted(set(sources)):
    each = counted.get(source.name, SourceCounts())
    share = _share(each.counts["train"]["instance_tokens"], total)
    if source.name:
      summary[source.name] = {"weight": source.weight, "train_share": share, **each.counts}
  return summary


def _share(part: int, whole: int) -> float | None:
  return round(part / whole, 6) if whole else None


def _percentiles(histogram: np.ndarray) -> dict[str, int]:
  total = histogram.sum()
  if not total:
    return {}
  running = np.cumsum(histogram)
  return {str(p): int(np.searchsorted(running, max(1, p / 100 * total))) for p in (0, 5, 25, 50, 75, 95, 100)}


def torn_words_warning(share: float | None) -> str:
  """What to do about a share of pieces torn out of their words by the original's rule; empty where it is small."""
  if not share or share < _MUCH_TORN:
    return ""
  return (
    f"warning: {share:.1%} of the pieces continue a word and are masked as words of their own, for their letters "
    "beyond ASCII; --whole_word=sentencepiece masks whole words of such languages (docs/data.md)"
  )


def alone_warning(summary: Mapping[str, Any]) -> str:
  """What `nsp` did with documents beside which there was no other one to draw from; empty where there were none."""
  alone = summary.get(ALONE, 0)
  if not alone:
    return ""
  return (
    f"warning: {alone:,} document(s) had no other one in their block and split: all their pairs are in order, label 0 "
    "(docs/data.md)"
  )


def baseline(train: Statistics, held_out: Statistics, tokenizer: Tokenizer) -> Baseline | None:
  """The most frequent answer in train, and its share of the answers in train and held out."""
  train_counts, eval_counts = train.arrays["label_ids"], held_out.arrays["label_ids"]
  if not train_counts.sum():
    return None
  piece_id = int(train_counts.argmax())
  return Baseline(
    piece_id=piece_id,
    piece=tokenizer.id_to_piece(piece_id),
    train_share=round(float(train_counts[piece_id] / train_counts.sum()), 6),
    eval_share=round(float(eval_counts[piece_id] / eval_counts.sum()), 6) if eval_counts.sum() else None,
  )
