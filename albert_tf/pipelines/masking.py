"""How training records are masked anew while they are read. No TensorFlow."""

import dataclasses

from albert_tf.settings import Settings, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingConfig(Settings):
  """How training records are masked anew; `pipelines.fresh_masks` does it. The records say all of it but the share."""

  masked_lm_prob: float = setting(help="Share of the tokens to mask.", above=0.0, below=1.0, flag="")
  max_predictions_per_seq: int = setting(help="P of training: most pieces masked in a sequence.", flag="")
  ngram_probabilities: tuple[float, ...] = setting(help="p(n) for n = 1, 2, … words.", flag="")
  whole_word: str = setting("original", help="Where a word begins, as of the records.", flag="")
  redraw_order: bool = setting(False, help="Draw the order of the two segments anew, too.", flag="")
  vocab_sha256: str = setting("", help="Of the vocabulary.", flag="")
