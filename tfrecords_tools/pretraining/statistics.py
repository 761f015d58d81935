"""Counts over instances, summed over blocks in any order, and their summary.

The manifest has the summary, and `create_pretraining_data.py` prints it.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any, Self

import numpy as np

from albert_tf.records import Baseline, Manifest
from albert_tf.tokenization import Tokenizer
from tfrecords_tools.pretraining.documents import TokenizedDocument
from tfrecords_tools.pretraining.instances import Instances
from tfrecords_tools.pretraining.settings import Json, RecordSettings

_KINDS = ("masked", "kept", "random")
_MUCH_TORN = 0.05  # English has below 0.001, Russian with a vocabulary of its own 0.15 and more.
# Of the text, above the share of documents that was asked for; documents differ in length.
_MUCH_HELD_OUT = 0.1
_COUNTERS = (
  "documents",
  "empty_documents",
  "sentences",
  "tokens",
  "unknown",
  "torn",
  "truncated_tokens",
)


@dataclasses.dataclass
class Statistics:
  """Integer counts of one split; `a + b` of other blocks.

  Attributes:
    counters: documents, sentences, tokens, unknown tokens, tokens torn out of their words by the
      original's rule (of the text, once); truncated tokens.
    histograms: int64 counts by name: `lengths` [S + 1] instances of each length, `labels` [2] of
      each sentence order label, `predictions` [P + 1] of each number of predictions; `kinds` [3]
      masked, kept, random; `ngrams` [ngram + 1] spans of each length in words; `label_ids` [V] how
      often each token is an answer.
  """

  counters: dict[str, int]
  histograms: dict[str, np.ndarray]

  @classmethod
  def zeros(cls, settings: RecordSettings, vocab_size: int) -> Self:
    # Arrays and not dictionaries: NumPy counts a block's answers in one call.
    sizes = {
      "lengths": settings.max_seq_length + 1,
      "labels": 2,
      "predictions": settings.max_predictions_per_seq + 1,
      "kinds": len(_KINDS),
      "ngrams": settings.ngram + 1,
      "label_ids": vocab_size,
    }
    return cls(
      counters=dict.fromkeys(_COUNTERS, 0),
      histograms={name: np.zeros(size, np.int64) for name, size in sizes.items()},
    )

  def __add__(self, other: "Statistics") -> "Statistics":
    return Statistics(
      counters={name: count + other.counters[name] for name, count in self.counters.items()},
      histograms={
        name: counts + other.histograms[name] for name, counts in self.histograms.items()
      },
    )

  def add_documents(
    self, documents: Sequence[TokenizedDocument], *, unk_id: int, is_torn: np.ndarray
  ) -> None:
    """Counts documents of the text, whatever instances are made of them.

    Args:
      documents: of this split.
      unk_id: id of the unknown token.
      is_torn: bool [V], as `torn_pieces`.
    """
    if not documents:
      return
    # All ids together, because many documents are short.
    ids = np.concatenate([document.ids for document in documents])
    num_sentences = [document.num_sentences for document in documents]
    self.counters["documents"] += len(documents)
    self.counters["empty_documents"] += num_sentences.count(0)
    self.counters["sentences"] += sum(num_sentences)
    self.counters["tokens"] += len(ids)
    self.counters["unknown"] += int(np.count_nonzero(ids == unk_id))
    self.counters["torn"] += int(np.count_nonzero(is_torn[ids]))

  def add_instances(self, instances: Instances) -> None:
    self._count("lengths", instances.num_tokens)
    self._count("labels", [pair.label for pair in instances.pairs])
    self._count("predictions", instances.num_predictions)
    self._count("kinds", instances.kinds)
    self._count("ngrams", instances.ngrams)
    self._count("label_ids", instances.labels)
    self.counters["truncated_tokens"] += sum(pair.truncated for pair in instances.pairs)

  def _count(self, name: str, values: Any) -> None:
    histogram = self.histograms[name]
    histogram += np.bincount(values, minlength=len(histogram))

  @property
  def num_instances(self) -> int:
    return int(self.histograms["labels"].sum())

  @property
  def num_unmasked(self) -> int:
    """The number of instances without a prediction."""
    return int(self.histograms["predictions"][0])

  def to_json(self) -> Json:
    """For a file; sparse, so that it stays small.

    Example:
      The counts 0 5 0 2 of a histogram are [[1, 3], [5, 2]].
    """
    histograms = {}
    for name, counts in self.histograms.items():
      values = np.flatnonzero(counts)
      histograms[name] = [values.tolist(), counts[values].tolist()]
    return {"counters": self.counters, "histograms": histograms}

  @classmethod
  def from_json(cls, fields: Json, settings: RecordSettings, vocab_size: int) -> Self:
    statistics = cls.zeros(settings, vocab_size)
    statistics.counters |= fields["counters"]
    for name, (values, counts) in fields["histograms"].items():
      statistics.histograms[name][values] = counts
    return statistics

  def summary(self) -> Json:
    """Shares and means for people and for the manifest."""
    # What the shares are of.
    counters = self.counters
    lengths = self.histograms["lengths"]
    kinds = self.histograms["kinds"]
    spans = self.histograms["ngrams"][1:]  # From n = 1.
    instances = self.num_instances
    tokens = int(lengths @ np.arange(len(lengths)))  # Without padding.
    tokens_before = tokens + counters["truncated_tokens"]

    # Counts, then what a person compares with other corpora.
    summary: Json = {"instances": instances} | counters
    summary["mean_length"] = _share(tokens, instances)
    summary["label_1_share"] = _share(self.histograms["labels"][1], instances)
    summary["mean_predictions"] = _share(kinds.sum(), instances)
    summary["truncated_share"] = _share(counters["truncated_tokens"], tokens_before)
    summary["unknown_share"] = _share(counters["unknown"], counters["tokens"])
    summary["torn_share"] = _share(counters["torn"], counters["tokens"])
    for kind, count in zip(_KINDS, kinds, strict=True):
      summary[f"{kind}_share"] = _share(count, kinds.sum())
    summary["ngram_shares"] = []
    if spans.any():  # Without a mask there are none.
      summary["ngram_shares"] = [_share(count, spans.sum()) for count in spans]
    return summary


def _share(count: Any, total: Any) -> float | None:
  if not total:
    return None
  return round(float(count / total), 6)


def baseline(train: Statistics, held_out: Statistics, tokenizer: Tokenizer) -> Baseline | None:
  """The most frequent answer in train, and its share of the answers in train and held out."""
  train_answers = train.histograms["label_ids"]
  eval_answers = held_out.histograms["label_ids"]
  if not train_answers.sum():
    return None
  # A model that has learned anything is better than this.
  piece_id = int(train_answers.argmax())
  return Baseline(
    piece_id=piece_id,
    piece=tokenizer.pieces[piece_id],
    train_share=_share(train_answers[piece_id], train_answers.sum()) or 0.0,
    eval_share=_share(eval_answers[piece_id], eval_answers.sum()),
  )


def torn_pieces(tokenizer: Tokenizer) -> np.ndarray:
  """Bool [V]: tokens with non-ASCII letters that are word starts only by the original's rule."""
  # By the original's rule a piece with a digit begins a word, too. That does no harm; letters belong
  # to the word before them.
  is_torn = ~tokenizer.word_starts("sentencepiece") & tokenizer.word_starts("original")
  for index in np.flatnonzero(is_torn).tolist():
    piece = tokenizer.pieces[index]
    is_torn[index] = any(char.isalpha() and not char.isascii() for char in piece)
  return is_torn


def torn_words_warning(share: float | None) -> str:
  """Advice for a share of tokens torn out of their words by the original's rule; "" if small."""
  if share is None or share < _MUCH_TORN:
    return ""
  return (
    f"warning: {share:.1%} of the pieces continue a word and are masked as words of their own, for "
    "their letters beyond ASCII; --whole_word=sentencepiece masks whole words of such languages "
    "(docs/data.md)"
  )


def held_out_warning(manifest: Manifest) -> str:
  """Advice where much more of the text is held out than of the documents; "" if not."""
  train = manifest.statistics["train"]
  held_out = manifest.statistics["eval"]
  num_tokens = train["tokens"] + held_out["tokens"]
  share = held_out["tokens"] / max(1, num_tokens)
  eval_fraction = manifest.settings["eval_fraction"]
  if share <= eval_fraction + _MUCH_HELD_OUT:
    return ""
  return (
    f"warning: {share:.1%} of the text is held out ({held_out['tokens']:,} of {num_tokens:,} tokens, "
    f"{held_out['documents']:,} of {train['documents'] + held_out['documents']:,} documents); "
    f"--eval_fraction={eval_fraction:g} is a share of documents, and the first one is always held "
    "out. Divide long documents, or hold nothing out: --eval_fraction=0 and another --output_dir"
  )


def format_summary(manifest: Manifest) -> str:
  """A summary of the records for the user: a line of corpus, train and eval each, and advice."""
  lines = []
  for part, summary in manifest.statistics.items():
    # What did not happen is left out, such as damaged lines.
    values = [f"{name} {format_value(value)}" for name, value in summary.items() if value]
    if summary.get("mean_length"):
      # Padding costs as much time as text.
      values.append(f"{summary['mean_length'] / manifest.max_seq_length:.1%} of the row")
    if values:  # Of eval there are none where nothing is held out.
      lines.append(f"{part:6}  {', '.join(values)}")
  answer = manifest.baseline
  if answer is not None:
    shares = f"{answer.train_share:.4f} of train"
    if answer.eval_share is not None:
      shares += f", {answer.eval_share:.4f} of eval"
    lines.append(f"always answering {answer.piece!r} is right for {shares}")
  warnings = [
    torn_words_warning(manifest.statistics["train"]["torn_share"]),
    held_out_warning(manifest),
  ]
  return "\n".join(lines + [warning for warning in warnings if warning])


def format_value(value: Any) -> str:
  """A number, or some by name or in a list, as text: 12,345; 0.8004; 1 0.55 2 0.27."""
  if isinstance(value, int):
    return f"{value:,}"
  if isinstance(value, float):
    return f"{value:.4g}"
  if isinstance(value, dict):
    return " ".join(f"{name} {format_value(number)}" for name, number in value.items())
  return " ".join(format_value(number) for number in value)
