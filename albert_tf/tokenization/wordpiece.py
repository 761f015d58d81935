"""BERT's WordPiece tokenizer, which the Chinese ALBERT models use (they come with vocab_chinese.txt)."""

from collections.abc import Iterable
import dataclasses
import functools
import hashlib
import os
from typing import Any

import numpy as np

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.tokenization.config import (
  CONFIG_FILE,
  VOCABULARY_FILE,
  WordPieceConfig,
  find_vocabulary,
)
from albert_tf.tokenization.packing import PackingTokenizer

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_WORD_CHARS = 200  # A longer word is unknown, as in the original.
CONTINUES = "##"


def _tokenizers() -> Any:
  """Hugging Face's library."""
  os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # Who wants many cores starts as many processes.
  try:
    import tokenizers
  except ImportError as error:
    raise UserError(
      f"WordPiece needs Hugging Face's tokenizers. Received: {error}. pip install 'albert-tf[wordpiece]'."
    ) from error
  return tokenizers


def text_rules(config: WordPieceConfig) -> tuple[Any, Any]:
  """What BERT does to a text before its words are split into pieces: a normalizer, and what finds the words."""
  library = _tokenizers()
  normalizer = library.normalizers.BertNormalizer(
    lowercase=config.do_lower_case, strip_accents=not config.keep_accents
  )
  return normalizer, library.pre_tokenizers.BertPreTokenizer()


class WordPieceTokenizer(PackingTokenizer):
  """Text to ids by a BERT vocabulary; the same calls as `AlbertTokenizer` for ids, pieces and batches.

  Args:
    vocab_file: a text file, one piece a line (its first field); the line number is the id, and of a
      repeated piece the first counts.
    do_lower_case: lower-case the text.
    keep_accents: keep combining marks; None: BERT's rule, lower-cased text loses them and other text keeps them.

  Raises:
    UserError: the file cannot be read, or lacks BERT's special pieces.

  Example:
    >>> WordPieceTokenizer(vocab_file="vocab_chinese.txt").encode_pieces("unaffable")
    ['una', '##ffa', '##ble']
  """

  def __init__(self, *, vocab_file: str, do_lower_case: bool = True, keep_accents: bool | None = None):
    self.config = WordPieceConfig(
      do_lower_case=do_lower_case, keep_accents=not do_lower_case if keep_accents is None else keep_accents
    )
    self._pieces = _read_vocabulary(vocab_file)
    self._ids: dict[str, int] = {}
    for index, piece in enumerate(self._pieces):
      self._ids.setdefault(piece, index)
    lacking = [piece for piece in _SPECIAL if piece not in self._ids]
    if lacking or self._ids["[PAD]"] != 0:
      raise UserError(
        f"A WordPiece vocabulary has {', '.join(_SPECIAL)}, with [PAD] at id 0. Received: {vocab_file}, "
        f"without {lacking or 'that order'}. Name the vocab.txt of the model."
      )
    self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
      self._ids[piece] for piece in _SPECIAL
    )

  @classmethod
  def from_pretrained(cls, path: str, **overrides: Any) -> "WordPieceTokenizer":
    """Loads a vocabulary (.txt), or vocab.txt of a directory, by the settings noted beside it and `overrides`.

    Where case is overridden and accents are not, BERT's rule says what becomes of them.
    """
    vocab_file, config = find_vocabulary(path)
    noted = dataclasses.asdict(config)
    if overrides.get("do_lower_case", config.do_lower_case) != config.do_lower_case:
      noted["keep_accents"] = None
    return cls(vocab_file=vocab_file, **{**noted, **overrides})

  def save_pretrained(self, directory: str) -> None:
    """Writes vocab.txt, a piece a line, and tokenizer.json, which `from_pretrained` reads."""
    files.makedirs(directory)
    with files.atomic_writer(os.path.join(directory, VOCABULARY_FILE)) as stream:
      stream.write(self._vocabulary)
    with files.atomic_writer(os.path.join(directory, CONFIG_FILE)) as stream:
      stream.write(self.config.to_json().encode())

  @property
  def _vocabulary(self) -> bytes:
    return ("\n".join(self._pieces) + "\n").encode()

  @functools.cached_property
  def model_sha256(self) -> str:
    """Of vocab.txt, as `save_pretrained` writes it."""
    return hashlib.sha256(self._vocabulary).hexdigest()

  def __getstate__(self) -> dict[str, Any]:
    return {name: value for name, value in self.__dict__.items() if name != "_tokenizer"}

  @functools.cached_property
  def _tokenizer(self) -> Any:
    """The `tokenizers.Tokenizer` that splits words into pieces."""
    library = _tokenizers()
    model = library.models.WordPiece(self._ids, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_CHARS)
    tokenizer = library.Tokenizer(model)
    tokenizer.normalizer, tokenizer.pre_tokenizer = text_rules(self.config)
    return tokenizer

  def word_starts(self, rule: str) -> np.ndarray:
    """Bool [V]: whether each piece starts a word: "##" says so, whatever the rule but "none"."""
    return np.array([rule == "none" or not piece.startswith(CONTINUES) for piece in self._pieces])

  @property
  def torn_pieces(self) -> np.ndarray:
    """Bool [V]: as of `AlbertTokenizer`; none here."""
    return np.zeros(self.vocab_size, bool)

  def piece_to_id(self, piece: str) -> int:
    return self._ids.get(piece, self.unk_id)

  def piece_text(self, piece: str) -> str:
    """The piece as text: behind a space where it begins a word."""
    return piece.removeprefix(CONTINUES) if piece.startswith(CONTINUES) else f" {piece}"

  def encode_pieces(self, text: str) -> list[str]:
    return [self._pieces[index] for index in self.encode(text)]

  def encode(self, text: str, *, allow_mask: bool = False) -> list[int]:
    """Ids of one text, without [CLS] and [SEP]; `allow_mask` reads a literal "[MASK]" as the mask piece."""
    first, *others = self.encode_batch(text.split("[MASK]") if allow_mask else [text])
    return first + [index for row in others for index in (self.mask_id, *row)]

  def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
    """Ids of many texts."""
    rows = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return [row.ids for row in rows]

  def decode(self, ids: Iterable[int]) -> str:
    """Text of ids without special pieces; spaces between words stay, also where the text had none."""
    pieces = [self._pieces[int(index)] for index in ids]
    return " ".join(piece for piece in pieces if piece not in _SPECIAL).replace(f" {CONTINUES}", "")


def _read_vocabulary(path: str) -> list[str]:
  try:
    with files.open_binary(path) as stream:
      text = stream.read().decode("utf-8")
  except (OSError, UnicodeDecodeError) as error:
    raise UserError(
      f"A vocabulary must be a readable UTF-8 file. Received: {path} ({error}). Check it."
    ) from error
  lines = text.removesuffix("\n").split("\n")
  return [fields[0] if (fields := line.split()) else " " for line in lines]
