"""`Tokenizer`: the base class of the SentencePiece and the WordPiece tokenizer.

Data creation, pretraining and fine-tuning know a tokenizer by this class.
"""

from collections.abc import Iterable
import dataclasses
import functools
import hashlib
import os
from typing import Any, ClassVar, Self

from absl import logging
import numpy as np

from albert_tf import files, json_files
from albert_tf.errors import UserError
from albert_tf.tokenization import config as config_lib

MASK_PIECE = "[MASK]"
_LEAST_CASED_SHARE = 0.05  # Of a vocabulary: a single odd token does not make it cased.


class Tokenizer:
  """Text to ids and back. It can be pickled for worker processes.

  Args:
    model: the content of the vocabulary's file.
    config: the settings.
    source: name of the vocabulary in messages.

  Attributes:
    pieces: all tokens of the vocabulary, by id.
    pad_id, unk_id, cls_id, sep_id, mask_id: ids of the special tokens.
  """

  FILE: ClassVar[str]  # The vocabulary's name in a directory.
  CONFIG: ClassVar[Any]  # The class of its settings.
  config: config_lib.TokenizerConfig | config_lib.WordPieceConfig
  pieces: list[str]
  pad_id: int
  unk_id: int
  cls_id: int
  sep_id: int
  mask_id: int

  def __init__(self, model: bytes, config: Any, *, source: str = "bytes"):
    del source
    self.model_bytes = model
    self.config = config

  @classmethod
  def from_pretrained(cls, path: files.Path, **overrides: Any) -> Self:
    """Loads the tokenizer of a run, a released model, a Hugging Face folder, or a vocabulary file.

    Args:
      path: the directory, or the file.
      **overrides: fields of the settings, which replace the stored ones; None: as stored.
    """
    file, config = config_lib.find_tokenizer(path)
    if not isinstance(config, cls.CONFIG):
      raise UserError(
        f"A vocabulary of {cls.__name__} was expected. Received: {file}. Use load_tokenizer."
      )
    changes = {name: value for name, value in overrides.items() if value is not None}
    config = dataclasses.replace(config, **changes)
    tokenizer = cls(config_lib.vocabulary_bytes(file), config, source=file)
    tokenizer._warn_of_unused_capitals(source=file)
    return tokenizer

  def _warn_of_unused_capitals(self, *, source: str) -> None:
    """A cased checkpoint of the original release has no file that says that it is cased."""
    if not self.config.do_lower_case:
      return
    # Names of special tokens, such as [CLS], are no text.
    unused = sum(piece != piece.lower() and piece[0] not in "[<" for piece in self.pieces)
    if unused > _LEAST_CASED_SHARE * self.vocab_size:
      logging.warning(
        "%s: %d of %d tokens have capitals, but text is lower-cased and never gives them. If the model "
        'was trained with capitals, write {"format": "%s", "do_lower_case": false} into %s beside it.',
        source,
        unused,
        self.vocab_size,
        self.config.format,
        config_lib.CONFIG_FILE,
      )

  def save_pretrained(self, directory: files.Path) -> None:
    """Writes vocabulary and tokenizer.json, which `from_pretrained` reads."""
    files.makedirs(files.text_of(directory))
    files.write_bytes(os.path.join(directory, self.FILE), self.model_bytes)
    json_files.write(os.path.join(directory, config_lib.CONFIG_FILE), self.config.to_dict())

  # SentencePiece's processor cannot be pickled: a worker process makes its own.
  def __reduce__(self) -> Any:
    return _made_once, (type(self), self.model_bytes, self.config)

  @functools.cached_property
  def model_sha256(self) -> str:
    """SHA-256 of the vocabulary's file."""
    return hashlib.sha256(self.model_bytes).hexdigest()

  @property
  def vocab_size(self) -> int:
    return len(self.pieces)

  @property
  def special_ids(self) -> list[int]:
    """The ids of tokens that are no text."""
    return [self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id]

  @functools.cached_property
  def ids(self) -> dict[str, int]:
    """Token → id; a repeated token has its first id."""
    ids: dict[str, int] = {}
    for index, piece in enumerate(self.pieces):
      ids.setdefault(piece, index)
    return ids

  def piece_text(self, piece: str) -> str:
    """The token as text, with a space before it if it begins a word."""
    raise NotImplementedError

  def word_starts(self, rule: str) -> np.ndarray:
    """Bool [V]: whether the token of each id starts a word, for whole-word masking.

    `rule` is a name of `WORD_RULES`.
    """
    raise NotImplementedError

  def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
    """Ids of many texts; much faster than `encode` for each."""
    raise NotImplementedError

  def encode_pieces(self, text: str) -> list[str]:
    """The tokens of a text, as strings; `encode` returns their ids."""
    return [self.pieces[index] for index in self.encode(text)]

  def encode(self, text: str) -> list[int]:
    """Ids of one text, without [CLS] and [SEP]; "[MASK]" in it is ordinary text."""
    return self.encode_batch([text])[0]

  def decode(self, ids: Iterable[int]) -> str:
    """Text of ids, without special tokens, normalised: lower case does not become upper case again."""
    raise NotImplementedError


@functools.lru_cache(maxsize=1)
def _made_once(cls: type[Tokenizer], model: bytes, config: Any) -> Tokenizer:
  """A tokenizer that was pickled: each task of a process has one, and to make it takes 50 ms."""
  return cls(model, config)
