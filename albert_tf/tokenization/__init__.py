"""Text to ids as the original ALBERT does it. The TensorFlow form is in `albert_tf.tokenization.graph`."""

from albert_tf.tokenization.config import TokenizerConfig
from albert_tf.tokenization.loading import Tokenizer, load_tokenizer
from albert_tf.tokenization.normalization import normalize_text
from albert_tf.tokenization.tokenizer import AlbertTokenizer
from albert_tf.tokenization.word_starts import WORD_RULES, is_word_start
from albert_tf.tokenization.wordpiece import WordPieceTokenizer

__all__ = [
  "WORD_RULES",
  "AlbertTokenizer",
  "Tokenizer",
  "TokenizerConfig",
  "WordPieceTokenizer",
  "is_word_start",
  "load_tokenizer",
  "normalize_text",
]
