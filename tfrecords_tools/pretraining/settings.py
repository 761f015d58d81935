"""What decides the content of the records; nothing here depends on the machine."""

import dataclasses

import numpy as np

from albert_tf.errors import UserError
from albert_tf.records import PretrainingSpec
from albert_tf.records.ngrams import ngram_probabilities
from albert_tf.tokenization import WORD_RULES

SENTENCE_PAIRS = ("sop", "nsp", "none", "ordered")
COMPATIBILITY = ("none", "original")
RECORD_LAYOUTS = ("example", "compact")
DEDUP = ("none", "exact")
SPLITS = ("train", "eval")
MOST_SHARDS = 99_999  # Five digits in a name.

_CHOICES = {
  "sentence_pair": SENTENCE_PAIRS,
  "whole_word": WORD_RULES,
  "compatibility": COMPATIBILITY,
  "record_layout": RECORD_LAYOUTS,
  "dedup": DEDUP,
}
_RANGES: dict[str, tuple[float, float]] = {
  "masked_lm_prob": (0, 1),
  "short_seq_prob": (0, 1),
  "eval_fraction": (0, 0.5),
  "dupe_factor": (1, 2**31 - 1),
  "ngram": (1, 64),
  "num_shards": (0, MOST_SHARDS),
  "num_eval_shards": (0, MOST_SHARDS),
  "random_seed": (0, 2**63 - 1),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordSettings:
  """Every choice that changes the bytes of the records.

  Args:
    max_seq_length: S, tokens with [CLS], [SEP] and padding.
    max_predictions_per_seq: P, the most pieces masked in one sequence.
    masked_lm_prob: share of the tokens to mask; 0 masks nothing.
    dupe_factor: passes over each document, each with its own cuts and masks.
    short_seq_prob: share of the instances with a target length drawn from [2, S - 3].
    sentence_pair: `sop` (label 1 = swapped), `nsp` (label 1 = B from another document), `ordered` (two segments, never
      swapped), `none` (one segment); the last two have label 0 alone.
    ngram: longest n-gram, in words.
    ngram_distribution: `inverse` p(n) ~ 1/n, `uniform`, `reverse` p(n) ~ 1/(ngram + 1 - n), or "0.6,0.4".
    whole_word: where a word begins, whose pieces are masked together: by the rule of the `original`, which makes every
      piece with letters beyond ASCII a word, by `sentencepiece`'s marks, or at every piece (`none`).
    eval_fraction: share of the documents held out.
    random_seed: everything random is a function of it.
    num_shards: number of train files; 0: as many as the size of the corpus asks for (`sizing.py`).
    num_eval_shards: number of eval files; 0 likewise.
    compatibility: `original` follows google-research/albert where the default differs from it.
    record_layout: `example`, which the original code reads, or `compact`, smaller and faster.
    dedup: `exact` leaves out copies of earlier documents.
  """

  max_seq_length: int = 512
  max_predictions_per_seq: int = 20
  masked_lm_prob: float = 0.15
  dupe_factor: int = 40
  short_seq_prob: float = 0.1
  sentence_pair: str = "sop"
  ngram: int = 3
  ngram_distribution: str = "inverse"
  whole_word: str = "original"
  eval_fraction: float = 0.01
  random_seed: int = 12345
  num_shards: int = 0
  num_eval_shards: int = 0
  compatibility: str = "none"
  record_layout: str = "example"
  dedup: str = "none"

  def __post_init__(self) -> None:
    _ = self.spec  # Checks the lengths.
    for name, allowed in _CHOICES.items():
      if getattr(self, name) not in allowed:
        raise _refuse(f"{name} must be one of {', '.join(allowed)}", f"{name}={getattr(self, name)!r}")
    for name, (low, high) in _RANGES.items():
      if not low <= getattr(self, name) <= high:
        raise _refuse(f"{name} must be between {low} and {high}", f"{name}={getattr(self, name)}")
    _ = self.ngram_probabilities  # Checks the distribution.

  @property
  def spec(self) -> PretrainingSpec:
    return PretrainingSpec(self.max_seq_length, self.max_predictions_per_seq)

  @property
  def max_num_tokens(self) -> int:
    """Room for text beside [CLS] and the [SEP] of each segment."""
    return self.max_seq_length - (2 if self.sentence_pair == "none" else 3)

  @property
  def is_original(self) -> bool:
    return self.compatibility == "original"

  def num_shards_of(self, split: str) -> int:
    if split == "train":
      return self.num_shards
    return self.num_eval_shards if self.eval_fraction else 0

  def shard_names(self, split: str) -> list[str]:
    total = self.num_shards_of(split)
    return [f"{split}-{shard:05d}-of-{total:05d}.tfrecord" for shard in range(total)]

  @property
  def ngram_probabilities(self) -> np.ndarray:
    """float64 [ngram]: p(n) for n = 1 … ngram."""
    return ngram_probabilities(self.ngram, self.ngram_distribution)


def _refuse(rule: str, received: str) -> UserError:
  return UserError(f"{rule}. Received: {received}. Change that flag; --help says what each means.")
