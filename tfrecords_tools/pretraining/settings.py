"""What decides the content of the records; nothing here depends on the machine."""

import dataclasses

import numpy as np

from albert_tf.errors import UserError
from albert_tf.records import PretrainingSpec

SENTENCE_PAIRS = ("sop", "nsp", "none")
NGRAM_DISTRIBUTIONS = ("inverse", "uniform", "reverse")
COMPATIBILITY = ("none", "original")
RECORD_LAYOUTS = ("example", "compact")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingSettings:
  """Every choice that changes the bytes of the records.

  Args:
    max_seq_length: S, tokens with [CLS], [SEP] and padding.
    max_predictions_per_seq: P, the most pieces masked in one sequence.
    masked_lm_prob: share of the tokens to mask; 0 masks nothing.
    dupe_factor: passes over each document, each with its own cuts and masks.
    short_seq_prob: share of the instances with a target length drawn from [2, S - 3].
    sentence_pair: `sop` (label 1 = swapped), `nsp` (label 1 = B from another document), `none` (one segment).
    ngram: longest n-gram, in words.
    ngram_distribution: `inverse` p(n) ~ 1/n, `uniform`, `reverse` p(n) ~ 1/(ngram + 1 - n), or "0.6,0.4".
    whole_word_mask: mask all pieces of a word together.
    eval_fraction: share of the documents held out.
    random_seed: everything random is a function of it.
    num_shards: number of train files.
    num_eval_shards: number of eval files.
    compatibility: `original` follows google-research/albert where the default differs from it.
    record_layout: `example`, which the original code reads, or `compact`, smaller and faster.
  """

  max_seq_length: int = 512
  max_predictions_per_seq: int = 20
  masked_lm_prob: float = 0.15
  dupe_factor: int = 40
  short_seq_prob: float = 0.1
  sentence_pair: str = "sop"
  ngram: int = 3
  ngram_distribution: str = "inverse"
  whole_word_mask: bool = True
  eval_fraction: float = 0.01
  random_seed: int = 12345
  num_shards: int = 1
  num_eval_shards: int = 1
  compatibility: str = "none"
  record_layout: str = "example"

  def __post_init__(self) -> None:
    _ = self.spec  # Checks the lengths.
    for name, allowed in (
      ("sentence_pair", SENTENCE_PAIRS),
      ("compatibility", COMPATIBILITY),
      ("record_layout", RECORD_LAYOUTS),
    ):
      if getattr(self, name) not in allowed:
        raise _refuse(f"{name} must be one of {', '.join(allowed)}", f"{name}={getattr(self, name)!r}")
    for name, low, high in (
      ("masked_lm_prob", 0.0, 1.0),
      ("short_seq_prob", 0.0, 1.0),
      ("eval_fraction", 0.0, 0.5),
    ):
      if not low <= getattr(self, name) <= high:
        raise _refuse(f"{name} must be between {low:g} and {high:g}", f"{name}={getattr(self, name)}")
    for name, low, high in (
      ("dupe_factor", 1, 2**31 - 1),
      ("ngram", 1, 64),
      ("num_shards", 1, 99_999),
      ("num_eval_shards", 1, 99_999),
      ("random_seed", 0, 2**63 - 1),
    ):
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

  @property
  def ngram_probabilities(self) -> np.ndarray:
    """float64 [ngram]: p(n) for n = 1 … ngram. Default p(n) = (1/n) / sum_k (1/k), paper section 4.1."""
    n = np.arange(1, self.ngram + 1, dtype=np.float64)
    if self.ngram_distribution == "inverse":
      weights = 1.0 / n
    elif self.ngram_distribution == "uniform":
      weights = np.ones_like(n)
    elif self.ngram_distribution == "reverse":  # The original's favor_shorter_ngram=false.
      weights = 1.0 / n[::-1]
    else:
      weights = _explicit_weights(self.ngram_distribution, self.ngram)
    return weights / weights.sum()


def _refuse(rule: str, received: str) -> UserError:
  return UserError(f"{rule}. Received: {received}. Change that flag; --help says what each means.")


def _explicit_weights(text: str, ngram: int) -> np.ndarray:
  try:
    weights = np.array([float(part) for part in text.split(",")])
  except ValueError:
    weights = np.array([])
  if len(weights) != ngram or not np.isfinite(weights).all() or weights.min() < 0 or weights.sum() <= 0:
    raise _refuse(
      f"ngram_distribution must be one of {', '.join(NGRAM_DISTRIBUTIONS)}, or {ngram} (ngram) weights",
      f"ngram_distribution={text!r}",
    )
  return weights
