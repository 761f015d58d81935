"""Settings of fresh masks for training records. No TensorFlow."""

from albert_tf.settings import Settings, setting


class MaskingConfig(Settings):
  """Settings of `pipelines.fresh_masks`; all but the share come from the records."""

  masked_lm_prob: float = setting(
    help="Share of the tokens to mask.", above=0.0, below=1.0, flag=""
  )
  max_predictions_per_seq: int = setting(
    help="P of training: most masked tokens in a sequence.", flag=""
  )
  ngram_probabilities: tuple[float, ...] = setting(help="p(n) for n = 1, 2, … words.", flag="")
  whole_word: str = setting("original", "Where a word begins, as of the records.", flag="")
  redraw_order: bool = setting(False, "Also draw the order of the two segments again.", flag="")
  vocab_sha256: str = setting("", "SHA-256 of the vocabulary.", flag="")
