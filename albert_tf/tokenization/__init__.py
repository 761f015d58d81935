"""Tokenizers with the original ALBERT's ids.

`albert_tf.tokenization.graph` has them as TensorFlow ops.
"""

from typing import Any

from albert_tf import files
from albert_tf.tokenization.base import Tokenizer as Tokenizer
from albert_tf.tokenization.config import TokenizerConfig as TokenizerConfig
from albert_tf.tokenization.config import find_tokenizer
from albert_tf.tokenization.normalization import normalize_text as normalize_text
from albert_tf.tokenization.tokenizer import AlbertTokenizer as AlbertTokenizer
from albert_tf.tokenization.word_starts import WORD_RULES as WORD_RULES
from albert_tf.tokenization.wordpiece import WordPieceTokenizer as WordPieceTokenizer


def load_tokenizer(path: files.Path, **choices: Any) -> Tokenizer:
  """Loads the tokenizer of a run, records, a released model, a Hugging Face folder, or a file.

  Args:
    path: the directory, or the vocabulary's file (.model, .txt).
    **choices: fields of the tokenizer's settings, which replace those stored with the vocabulary;
      None: as stored.

  Raises:
    UserError: there is no vocabulary, or it is damaged.
  """
  _, config = find_tokenizer(path)
  if isinstance(config, TokenizerConfig):
    return AlbertTokenizer.from_pretrained(path, **choices)
  return WordPieceTokenizer.from_pretrained(path, **choices)
