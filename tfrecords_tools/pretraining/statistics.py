"""Counts over instances, summed over blocks in any order, and their summary for the user and the manifest."""

from typing import Any

import numpy as np

from albert_tf.records import Baseline, Manifest
from albert_tf.tokenization import Tokenizer
from tfrecords_tools.pretraining.instances import Instances
from tfrecords_tools.pretraining.settings import SPLITS, RecordSettings

KINDS = ("masked", "kept", "random")
_MUCH_TORN = 0.05  # English has below 0.001, Russian with a vocabulary of its own 0.15 and more.
_COUNTERS = ("documents", "empty_documents", "sentences", "tokens", "unknown", "torn", "truncated_tokens")
# Fields of `CorpusStats`, shown where they are not 0.
_ODD = ("empty_files", "bad_text_replaced", "long_lines", "long_documents", "skipped_records")


class Statistics:
  """Integer counts of one split.

  Attributes:
    counters: documents, sentences, tokens, unknown tokens, tokens torn out of their words by the original's rule
      (of the text, once); truncated tokens.
    arrays: int64 counts by name: `lengths` [S + 1] instances of each length, `labels` [2] of each sentence order label,
      `predictions` [P + 1] of each number of predictions; `kinds` [3] masked, kept, random; `ngrams` [ngram + 1] spans
      of each length in words; `label_ids` [V] how often each token is an answer.
  """

  def __init__(self, settings: RecordSettings, vocab_size: int):
    self.counters = dict.fromkeys(_COUNTERS, 0)
    self.arrays = {
      "lengths": np.zeros(settings.max_seq_length + 1, np.int64),
      "labels": np.zeros(2, np.int64),
      "predictions": np.zeros(settings.max_predictions_per_seq + 1, np.int64),
      "kinds": np.zeros(3, np.int64),
      "ngrams": np.zeros(settings.ngram + 1, np.int64),
      "label_ids": np.zeros(vocab_size, np.int64),
    }

  def add_instances(self, instances: Instances) -> None:
    columns: dict[str, Any] = {
      "lengths": instances.num_tokens,
      "labels": [pair.label for pair in instances.pairs],
      "predictions": instances.num_predictions,
      "kinds": instances.kinds,
      "ngrams": instances.ngrams,
      "label_ids": instances.labels,
    }
    for name, values in columns.items():
      total = self.arrays[name]
      total += np.bincount(values, minlength=len(total))
    self.counters["truncated_tokens"] += sum(pair.truncated for pair in instances.pairs)

  @property
  def num_instances(self) -> int:
    return int(self.arrays["labels"].sum())

  def to_json(self) -> dict[str, Any]:
    """Sparse, so that a block's file stays small."""
    arrays = {
      name: [np.flatnonzero(array).tolist(), array[array > 0].tolist()] for name, array in self.arrays.items()
    }
    return {"counters": self.counters, "arrays": arrays}

  def add(self, fields: dict[str, Any]) -> None:
    """Adds what `to_json` gave."""
    for name, value in fields["counters"].items():
      self.counters[name] += value
    for name, (indexes, values) in fields["arrays"].items():
      self.arrays[name][indexes] += np.array(values, np.int64)

  def summary(self) -> dict[str, Any]:
    """Shares and means for people and for the manifest."""
    arrays, counters, instances = self.arrays, self.counters, self.num_instances
    kinds, ngrams = arrays["kinds"], arrays["ngrams"][1:]
    tokens = int(arrays["lengths"] @ np.arange(len(arrays["lengths"])))  # Without padding.
    return {
      "instances": instances,
      **counters,
      "mean_length": _share(tokens, instances),
      "label_1_share": _share(arrays["labels"][1], instances),
      "mean_predictions": _share(kinds.sum(), instances),
      "truncated_share": _share(counters["truncated_tokens"], tokens + counters["truncated_tokens"]),
      "unknown_share": _share(counters["unknown"], counters["tokens"]),
      "torn_share": _share(counters["torn"], counters["tokens"]),
      **{f"{kind}_share": _share(count, kinds.sum()) for kind, count in zip(KINDS, kinds, strict=True)},
      "ngram_shares": [_share(count, ngrams.sum()) for count in ngrams],
    }


def _share(count: Any, total: Any) -> float | None:
  return round(float(count / total), 6) if total else None


def baseline(train: Statistics, held_out: Statistics, tokenizer: Tokenizer) -> Baseline | None:
  """The most frequent answer in train, and its share of the answers in train and held out."""
  train_counts, eval_counts = train.arrays["label_ids"], held_out.arrays["label_ids"]
  if not train_counts.sum():
    return None
  piece_id = int(train_counts.argmax())
  shares = [_share(counts[piece_id], counts.sum()) for counts in (train_counts, eval_counts)]
  return Baseline(piece_id, tokenizer.pieces[piece_id], shares[0] or 0.0, shares[1])


def torn_words_warning(share: float | None) -> str:
  """Advice for a share of tokens torn out of their words by the original's rule; empty where it is small."""
  if not share or share < _MUCH_TORN:
    return ""
  return (
    f"warning: {share:.1%} of the pieces continue a word and are masked as words of their own, for their letters "
    "beyond ASCII; --whole_word=sentencepiece masks whole words of such languages (docs/data.md)"
  )


def format_summary(manifest: Manifest) -> str:
  """A summary of the records for the user."""
  corpus = manifest.statistics["corpus"]
  formats = ", ".join(f"{count:,} of {kind}" for kind, count in corpus["formats"].items())
  odd = {name: corpus[name] for name in _ODD if corpus[name]}
  lines = [
    f"read   {corpus['bytes_read'] / 1e6:,.1f} MB in {corpus['files']:,} file(s), {formats}: "
    f"{corpus['documents']:,} documents, {corpus['sentences']:,} sentences"
    + "".join(f"; {name.replace('_', ' ')}: {count:,}" for name, count in odd.items())
  ]
  for split in SPLITS:
    s = manifest.statistics[split]
    if not s["instances"]:
      continue
    lines.append(
      f"{split:5}  {s['instances']:,} instances of {s['documents']:,} documents in "
      f"{len(manifest.files_of(split))} file(s); mean length {s['mean_length']:.1f}, "
      f"{s['mean_length'] / manifest.max_seq_length:.1%} of the row; label 1 "
      f"{s['label_1_share']:.3f}; predictions {s['mean_predictions']:.1f}; unknown pieces "
      f"{s['unknown_share'] or 0:.5f}; cut off {s['truncated_share'] or 0:.4f}"
    )
    if s["masked_share"] is not None:
      ngrams = " ".join(f"{n}:{share:.3f}" for n, share in enumerate(s["ngram_shares"], 1))
      lines.append(
        f"       masked {s['masked_share']:.3f} kept {s['kept_share']:.3f} random {s['random_share']:.3f}; "
        f"n-grams {ngrams}"
      )
  if manifest.baseline is not None:
    b = manifest.baseline
    held_out = "" if b.eval_share is None else f", {b.eval_share:.4f} of eval"
    lines.append(f"always answering {b.piece!r} is right for {b.train_share:.4f} of train{held_out}")
  lines += filter(None, [torn_words_warning(manifest.statistics["train"]["torn_share"])])
  return "\n".join(lines)
