"""Rules of stored and of fresh masks: lengths of n-grams, replacements (paper, section 4.1).

No TensorFlow.
"""

import numpy as np

from albert_tf.errors import UserError
from albert_tf.settings import Settings, setting

MASK_SHARE = 0.8
KEEP_SHARE = 0.1  # The remaining 0.1 becomes a random token.


def ngram_probabilities(ngram: int, distribution: str = "inverse") -> np.ndarray:
  """Probabilities p(n) of n-gram lengths n = 1 … ngram, float64 [ngram].

  Args:
    ngram: the greatest length, in words.
    distribution: `inverse`, p(n) = (1/n) / sum_k (1/k) as in the paper; `uniform`; `reverse`,
      p(n) ~ 1/(ngram + 1 - n) as favor_shorter_ngram=false of the original; or `ngram` weights such
      as "0.6,0.4".
  """
  n = np.arange(1, ngram + 1, dtype=np.float64)
  named = {"inverse": 1.0 / n, "uniform": np.ones_like(n), "reverse": 1.0 / n[::-1]}
  if distribution in named:
    return named[distribution] / named[distribution].sum()

  # A list of weights.
  try:
    weights = np.array([float(weight) for weight in distribution.split(",")])
  except ValueError:
    weights = np.array([])
  is_valid = len(weights) == ngram and np.isfinite(weights).all() and weights.min() >= 0
  if not is_valid or weights.sum() == 0:
    raise UserError(
      f"ngram_distribution must be one of {', '.join(named)}, or {ngram} (ngram) weights. "
      f"Received: ngram_distribution={distribution!r}. Change that flag; --help says what each "
      "means."
    )
  return weights / weights.sum()


class MaskingConfig(Settings):
  """Settings of fresh masks; all but the share come from the records.

  Attributes:
    masked_lm_prob: share of the tokens to mask.
    max_predictions_per_seq: P of training, the largest number of masked tokens in a sequence.
    ngram_probabilities: p(n) for n = 1, 2, … words.
    whole_word: where a word begins, as in the records.
    redraw_order: also draw the order of the two segments again.
    vocab_sha256: SHA-256 of the vocabulary.
  """

  masked_lm_prob: float = setting(above=0.0, below=1.0)
  max_predictions_per_seq: int
  ngram_probabilities: tuple[float, ...]
  whole_word: str = "original"
  redraw_order: bool = False
  vocab_sha256: str = ""


def predictions_of_share(masked_lm_prob: float, max_seq_length: int) -> int:
  """P of training for a share of masked tokens: 40 % of 512 tokens are 205."""
  return max(1, round(masked_lm_prob * max_seq_length))
