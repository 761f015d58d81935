"""The tokenizer of a directory or file, whichever kind it is."""

from typing import Any

from albert_tf.tokenization.config import (
  TokenizerConfig,
  WordPieceConfig,
  find_model,
  find_vocabulary,
  model_in,
  vocabulary_in,
)
from albert_tf.tokenization.tokenizer import AlbertTokenizer
from albert_tf.tokenization.wordpiece import WordPieceTokenizer

Tokenizer = AlbertTokenizer | WordPieceTokenizer


def _is_wordpiece(path: str) -> bool:
  """A .txt file, or a directory with such a vocabulary and no SentencePiece model."""
  if path.endswith((".txt", ".model")):
    return path.endswith(".txt")
  return bool(vocabulary_in(path)) and not model_in(path)


def load_tokenizer(path: str, **choices: Any) -> Tokenizer:
  """Loads from a run directory, records, a released model's, Hugging Face's, or a vocabulary file (.model, .txt).

  Args:
    path: the directory, or the file.
    **choices: fields of the tokenizer's settings, instead of what is noted beside the vocabulary.

  Raises:
    UserError: there is no vocabulary, or it is damaged.
  """
  return (WordPieceTokenizer if _is_wordpiece(path) else AlbertTokenizer).from_pretrained(path, **choices)


def find_tokenizer(path: str) -> tuple[str, TokenizerConfig | WordPieceConfig] | None:
  """(vocabulary file, settings) of a directory or such a file; None where a directory holds no tokenizer."""
  if _is_wordpiece(path):
    return find_vocabulary(path)
  return find_model(path) if path.endswith(".model") or model_in(path) else None
