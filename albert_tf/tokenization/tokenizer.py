"""`AlbertTokenizer`: normalisation, SentencePiece, the digit-comma rule; the ids of the original ALBERT."""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
import functools
import hashlib
import os
import re
from typing import Any

from google.protobuf.message import DecodeError
import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as model_proto

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.tokenization import config as config_lib
from albert_tf.tokenization.normalization import check_text, normalize_text
from albert_tf.tokenization.packing import PackingTokenizer
from albert_tf.tokenization.word_starts import SPIECE_UNDERLINE, torn_piece_table, word_start_table

MASK_PIECE = "[MASK]"
_PAD_ID = 0  # The original hard-wires this one id.


def _fault(model: bytes) -> str:
  """What is wrong with a serialized model; empty if it is whole.

  The pieces come first in the file and what splits and normalises text after them: an upload or a copy that
  broke off between two fields is valid protobuf, loads, and crashes at the first call.
  """
  if not model:
    return "which is empty"
  try:
    proto = model_proto.ModelProto.FromString(model)
  except DecodeError:
    return "which cannot be read as one: it is another file, or cut off"
  if not (proto.pieces and proto.HasField("trainer_spec") and proto.HasField("normalizer_spec")):
    return f"which is cut off after {len(proto.pieces)} pieces ({len(model):,} bytes)"
  return ""


def load_processor(model: bytes, *, source: str) -> sentencepiece.SentencePieceProcessor:
  """The processor of a serialized model.

  Args:
    model: the bytes of a `.model` file.
    source: names it in the message.

  Raises:
    UserError: it is empty, cut off, or no SentencePiece model.
  """
  fault = _fault(model)
  if not fault:
    try:
      return sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
      fault = f"which the library refuses ({str(error).strip().splitlines()[0]})"
  raise UserError(
    f"A SentencePiece model was expected. Received: {source}, {fault}. "
    "Check the path (a text vocabulary, .vocab, is not the model), and copy or train the model again."
  )


def ends_in_digit_comma(piece: str) -> bool:
  """Whether the digit-comma rule applies: the last character is a comma and a digit is before it.

  "▁1990," is encoded as "▁1990" and ",", so that a comma does not change a number. The rule looks at one piece alone,
  so it is a constant table over the vocabulary.
  """
  return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def split_digit_comma(
  processor: sentencepiece.SentencePieceProcessor, piece: str, *, strip: bool
) -> list[str]:
  """The pieces that replace `piece`, for which `ends_in_digit_comma` holds.

  Args:
    processor: the vocabulary.
    piece: for example "▁1990," or "90,".
    strip: where `piece` did not begin with "▁" but its re-encoding does, drop that "▁".
  """
  pieces: list[str] = processor.encode(piece[:-1].replace(SPIECE_UNDERLINE, ""), out_type=str)
  if strip and not piece.startswith(SPIECE_UNDERLINE) and pieces[0].startswith(SPIECE_UNDERLINE):
    bare = pieces[0].removeprefix(SPIECE_UNDERLINE)
    pieces = [bare, *pieces[1:]] if bare else pieces[1:]
  return [*pieces, ","]


def digit_comma_table(
  processor: sentencepiece.SentencePieceProcessor, pieces: Sequence[str], *, strip: bool
) -> dict[int, list[str]]:
  """For the id of each piece the rule applies to, the pieces that replace it."""
  return {
    index: split_digit_comma(processor, piece, strip=strip)
    for index, piece in enumerate(pieces)
    if ends_in_digit_comma(piece)
  }


class AlbertTokenizer(PackingTokenizer):
  """Text to ids and back, with the released models' exact ids.

  text → normalise → SentencePiece's best segmentation → "12," into "12" and "," → ids

  Control pieces in text ("[CLS]", "<pad>") are ordinary text; only `allow_mask` gives "[MASK]" a meaning.
  It may be pickled, so worker processes can have it as it is.

  Args:
    spm_model_file: a SentencePiece model with <pad>, <unk>, [CLS], [SEP], [MASK].
    do_lower_case: as the vocabulary was made; true for the released English models.
    **settings: the other fields of `TokenizerConfig`.

  Raises:
    UserError: the file is not a SentencePiece model, or lacks ALBERT's special pieces.

  Example:
    >>> tokenizer = AlbertTokenizer(spm_model_file="30k-clean.model")
    >>> tokenizer.encode_pieces("In 1990, it worked.")
    ['▁in', '▁1990', ',', '▁it', '▁worked', '.']
  """

  def __init__(self, *, spm_model_file: str, do_lower_case: bool = True, **settings: Any):
    config = config_lib.TokenizerConfig(do_lower_case=do_lower_case, **settings)
    try:
      with files.open_binary(spm_model_file) as stream:
        model = stream.read()
    except OSError as error:
      raise UserError(
        f"The SentencePiece model must be readable. Received: {spm_model_file} ({error.strerror or error}). "
        "Check --spm_model_file."
      ) from error
    self._load(model, config, source=spm_model_file)

  @classmethod
  def from_pretrained(cls, path: str, **overrides: Any) -> "AlbertTokenizer":
    """Loads from a run directory, a released model's, Hugging Face's, or a SentencePiece model file.

    Args:
      path: the directory, or the file.
      **overrides: fields of `TokenizerConfig` to change.
    """
    model_path, config = config_lib.find_model(path)
    return cls(spm_model_file=model_path, **{**dataclasses.asdict(config), **overrides})

  @classmethod
  def from_model_bytes(
    cls, model: bytes, config: config_lib.TokenizerConfig, *, source: str = "bytes"
  ) -> "AlbertTokenizer":
    """Makes a tokenizer of a serialized SentencePiece model; `source` names it in messages."""
    tokenizer = cls.__new__(cls)
    tokenizer._load(model, config, source=source)
    return tokenizer

  def save_pretrained(self, directory: str) -> None:
    """Writes spm.model and tokenizer.json, which `from_pretrained` reads."""
    files.makedirs(directory)
    with files.atomic_writer(os.path.join(directory, config_lib.MODEL_FILE)) as stream:
      stream.write(self._model)
    with files.atomic_writer(os.path.join(directory, config_lib.CONFIG_FILE)) as stream:
      stream.write(self.config.to_json().encode())

  def _load(self, model: bytes, config: config_lib.TokenizerConfig, *, source: str) -> None:
    self.config = config
    self._model = model
    self._processor = load_processor(model, source=source)
    self._pieces: list[str] = self._processor.id_to_piece(list(range(self._processor.vocab_size())))
    self._normalize: Callable[[str], str] = functools.partial(normalize_text, **config.normalization)
    self._check_special_pieces(source)
    self._digit_commas = digit_comma_table(self._processor, self._pieces, strip=config.digit_comma == "strip")
    to_ids = self._processor.piece_to_id
    self._digit_comma_ids = {index: to_ids(pieces) for index, pieces in self._digit_commas.items()}
    self._digit_comma_keys = frozenset(self._digit_commas)

  def _check_special_pieces(self, source: str) -> None:
    unk = self._processor.unk_id()
    lacking = [
      piece
      for piece in ("[CLS]", "[SEP]", MASK_PIECE)
      if self._processor.piece_to_id(piece) == unk
      or not self._processor.is_control(self._processor.piece_to_id(piece))
    ]
    if lacking or self._processor.pad_id() != _PAD_ID:
      raise UserError(
        "An ALBERT vocabulary has <pad> at id 0 and the control pieces [CLS], [SEP], [MASK]. Received: "
        f"{source}, with <pad> at {self._processor.pad_id()} and without {lacking or 'none of the others'}. "
        "Train one with tfrecords_tools/train_vocab.py."
      )
    self.unk_id: int = unk
    self.pad_id: int = _PAD_ID
    self.cls_id: int = self._processor.piece_to_id("[CLS]")
    self.sep_id: int = self._processor.piece_to_id("[SEP]")
    self.mask_id: int = self._processor.piece_to_id(MASK_PIECE)

  def __getstate__(self) -> dict[str, Any]:
    return {"model": self._model, "config": self.config}

  def __setstate__(self, state: dict[str, Any]) -> None:
    self._load(state["model"], state["config"], source="pickle")

  # ------------------------------------------------------------------ vocabulary

  @property
  def model_bytes(self) -> bytes:
    """The serialized SentencePiece model."""
    return self._model

  @functools.cached_property
  def model_sha256(self) -> str:
    return hashlib.sha256(self._model).hexdigest()

  def word_starts(self, rule: str) -> np.ndarray:
    """Bool [V]: whether the piece of each id starts a word by one of `WORD_RULES`, for whole-word masking."""
    return word_start_table(self._pieces, rule)

  @property
  def torn_pieces(self) -> np.ndarray:
    """Bool [V]: pieces that the original's rule takes out of their words, for letters beyond ASCII."""
    return torn_piece_table(self._pieces)

  @property
  def digit_comma_ids(self) -> dict[int, list[int]]:
    """For each id the digit-comma rule replaces, the ids that replace it."""
    return dict(self._digit_comma_ids)

  def piece_to_id(self, piece: str) -> int:
    return self._processor.piece_to_id(piece)

  def piece_text(self, piece: str) -> str:
    """The piece as text: a space where "▁" is."""
    return piece.replace(SPIECE_UNDERLINE, " ")

  # ------------------------------------------------------------------ text to ids

  def normalize(self, text: str) -> str:
    """The text SentencePiece sees."""
    return self._normalize(check_text(text))

  def encode(self, text: str, *, allow_mask: bool = False) -> list[int]:
    """Ids of one text, without [CLS] and [SEP]; `allow_mask` reads a literal "[MASK]" as the mask piece."""
    if allow_mask and MASK_PIECE in check_text(text):
      return self._encode_with_masks(text)
    return self.encode_batch([text])[0]

  def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
    """Ids of many texts; much faster than one call a text."""
    normalized = [self._normalize(check_text(text)) for text in texts]
    rows: list[list[int]] = self._processor.encode(normalized, out_type=int, num_threads=1)
    return [row if self._digit_comma_keys.isdisjoint(row) else self._split_digit_commas(row) for row in rows]

  def encode_pieces(self, text: str) -> list[str]:
    """The pieces whose ids `encode` returns; characters outside the vocabulary stay as they are."""
    pieces: list[str] = []
    for piece in self._processor.encode(self.normalize(text), out_type=str):
      pieces.extend(self._digit_commas.get(self._processor.piece_to_id(piece), (piece,)))
    return pieces

  def _split_digit_commas(self, row: list[int]) -> list[int]:
    return [part for index in row for part in self._digit_comma_ids.get(index, (index,))]

  def _encode_with_masks(self, text: str) -> list[int]:
    """Encodes what is between the masks; text that touches a mask gets no "▁" at that place."""
    parts = re.split(re.escape(MASK_PIECE), text)
    ids: list[int] = []
    for number, (part, row) in enumerate(zip(parts, self.encode_batch(parts), strict=True)):
      if number:
        ids.append(self.mask_id)
        if row and part[0] and not part[0].isspace():
          row = self.without_space_mark.get(row[0], [row[0]]) + row[1:]
      ids.extend(row)
    return ids

  @functools.cached_property
  def without_space_mark(self) -> dict[int, list[int]]:
    """For each id of a piece "▁x" whose "x" is in the vocabulary too, [id of "x"]; for "▁" alone, []."""
    table: dict[int, list[int]] = {}
    for index, piece in enumerate(self._pieces):
      if piece.startswith(SPIECE_UNDERLINE):
        bare = piece[1:]
        if not bare:
          table[index] = []
        elif self._processor.piece_to_id(bare) != self.unk_id:
          table[index] = [self._processor.piece_to_id(bare)]
    return table

  # ------------------------------------------------------------------ ids to text

  def decode(self, ids: Iterable[int]) -> str:
    """Text of ids, without control pieces."""
    return self._processor.decode([int(index) for index in ids])
