"""BERT's WordPiece tokenizer, for the Chinese ALBERT models with their vocab_chinese.txt."""

from collections.abc import Iterable
import functools
import os
from typing import Any

import numpy as np

from albert_tf.errors import UserError, optional_package
from albert_tf.tokenization.base import MASK_PIECE, Tokenizer
from albert_tf.tokenization.config import VOCABULARY_FILE, WordPieceConfig
from albert_tf.tokenization.word_starts import SPIECE_UNDERLINE

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", MASK_PIECE)
MAX_WORD_CHARS = 200  # A longer word is unknown, as in the original.
_CONTINUES = "##"  # Before a token that continues a word.
_LEAST_SENTENCEPIECE_SHARE = 0.1  # BERT's vocabularies have a single "▁" at most.


def _tokenizers() -> Any:
  """Hugging Face's library, an optional package."""
  os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # Parallel work is done by processes.
  return optional_package("tokenizers", extra="wordpiece", purpose="WordPiece needs")


def text_rules(config: WordPieceConfig) -> tuple[Any, Any]:
  """BERT's text rules: the normalizer, and the pre-tokenizer that finds words."""
  library = _tokenizers()
  normalizer = library.normalizers.BertNormalizer(
    lowercase=config.do_lower_case, strip_accents=config.strip_accents
  )
  return normalizer, library.pre_tokenizers.BertPreTokenizer()


class WordPieceTokenizer(Tokenizer):
  """Converts text to ids and back with a BERT vocabulary; it has the methods of `AlbertTokenizer`.

  The vocabulary is a text file with one token a line (the first field). The line number is the id;
  a repeated token has its first id.

  Raises:
    UserError: the file lacks BERT's special tokens.

  Example:
    >>> WordPieceTokenizer.from_pretrained("vocab_chinese.txt").encode_pieces("unaffable")
    ['una', '##ffa', '##ble']
  """

  FILE = VOCABULARY_FILE
  CONFIG = WordPieceConfig
  config: WordPieceConfig

  def __init__(self, model: bytes, config: WordPieceConfig, *, source: str = "bytes"):
    try:
      lines = model.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
      raise UserError(f"A vocabulary must be UTF-8. Received: {source} ({error}).") from error
    # Only the first field is a token; an empty line is the token " ", so that each line has an id.
    self.pieces = [(line.split() + [" "])[0] for line in lines]
    super().__init__(("\n".join(self.pieces) + "\n").encode(), config)
    has_special = self.ids.keys() >= set(_SPECIAL)
    if not has_special or self.ids["[PAD]"] != 0:
      raise UserError(
        f"A WordPiece vocabulary has {', '.join(_SPECIAL)}, with [PAD] at id 0. "
        f"Received: {source}, which has not. Name the vocab.txt of the model."
      )
    starts = sum(piece.startswith(SPIECE_UNDERLINE) for piece in self.pieces)
    if starts > _LEAST_SENTENCEPIECE_SHARE * self.vocab_size:
      raise UserError(
        f"The pieces of a WordPiece vocabulary have ## inside words. Received: {source}, where "
        f"{starts:,} of {self.vocab_size:,} begin with {SPIECE_UNDERLINE}, as SentencePiece's do; "
        "nearly all text would be [UNK]. Name the .model file that it was made with."
      )
    self.pad_id = 0
    self.unk_id = self.ids["[UNK]"]
    self.cls_id = self.ids["[CLS]"]
    self.sep_id = self.ids["[SEP]"]
    self.mask_id = self.ids[MASK_PIECE]

  @functools.cached_property
  def _tokenizer(self) -> Any:
    """The `tokenizers.Tokenizer` that splits words into pieces."""
    library = _tokenizers()
    model = library.models.WordPiece(
      self.ids, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_CHARS
    )
    tokenizer = library.Tokenizer(model)
    tokenizer.normalizer, tokenizer.pre_tokenizer = text_rules(self.config)
    return tokenizer

  def word_starts(self, rule: str) -> np.ndarray:
    """Bool [V]: tokens without "##", which start a word; by the rule "none" all tokens."""
    if rule == "none":
      return np.ones(self.vocab_size, bool)
    return np.array([not piece.startswith(_CONTINUES) for piece in self.pieces])

  def piece_text(self, piece: str) -> str:
    if piece.startswith(_CONTINUES):
      return piece.removeprefix(_CONTINUES)
    return f" {piece}"

  def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
    rows = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return [row.ids for row in rows]

  def decode(self, ids: Iterable[int]) -> str:
    """Text of ids, without special tokens, with a space between all words."""
    pieces = [self.pieces[int(index)] for index in ids]
    return " ".join(piece for piece in pieces if piece not in _SPECIAL).replace(
      f" {_CONTINUES}", ""
    )
