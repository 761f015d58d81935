"""Settings of fresh masks for training records. No TensorFlow."""

from albert_tf.settings import Settings, setting


class MaskingConfig(Settings):
  """Settings of `pipelines.fresh_masks`; all but the share come from the records.

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
