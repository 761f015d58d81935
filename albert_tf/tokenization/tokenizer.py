"""`AlbertTokenizer`: normalisation, SentencePiece and the digit-comma rule, with the original ALBERT's ids."""

from collections.abc import Callable, Iterable, Sequence
import functools

from google.protobuf.message import DecodeError
import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as model_proto

from albert_tf.errors import UserError
from albert_tf.tokenization.base import MASK_PIECE, Tokenizer
from albert_tf.tokenization.config import MODEL_FILE, TokenizerConfig
from albert_tf.tokenization.normalization import normalize_text
from albert_tf.tokenization.word_starts import SPIECE_UNDERLINE, WORD_RULES

_MOST_CHARACTERS = 1_000  # Of a piece: 100,000 overflow the stack of SentencePiece's code.


def load_processor(model: bytes, *, source: str) -> sentencepiece.SentencePieceProcessor:
  """The SentencePiece processor of a serialized model.

  Args:
    model: the bytes of a `.model` file.
    source: its name in messages.

  Raises:
    UserError: it is empty, cut off, or no SentencePiece model.
  """
  try:
    fault = _fault(model_proto.ModelProto.FromString(model))
    if not fault:
      return sentencepiece.SentencePieceProcessor(model_proto=model)
  except (DecodeError, RuntimeError, ValueError) as error:
    fault = str(error).strip()
  raise UserError(
    f"A SentencePiece model was expected. Received: {source}, which is another file or damaged ({fault}). "
    "Check the path (a text vocabulary, .vocab, is not the model), and copy or train the model again."
  )


def _fault(proto: model_proto.ModelProto) -> str:
  """The fault of a model that would crash SentencePiece's code, which trusts valid protobuf; empty for none."""
  if not (proto.pieces and proto.HasField("trainer_spec") and proto.HasField("normalizer_spec")):
    return f"{proto.ByteSize():,} bytes, {len(proto.pieces)} pieces"
  pieces = [piece.piece for piece in proto.pieces]
  # The library gives bytes that are not UTF-8, or raises a UnicodeDecodeError; a NUL ends a piece of its code.
  if not all(
    isinstance(text, str) and "\0" not in text for text in (*pieces, proto.trainer_spec.unk_surface)
  ):
    return "pieces that are not UTF-8, or hold a NUL"
  lengths = list(map(len, pieces))
  if min(lengths) < 1 or max(lengths) > _MOST_CHARACTERS:
    return f"pieces of {min(lengths)} to {max(lengths):,} characters"
  for spec in (proto.normalizer_spec, proto.denormalizer_spec):
    if spec.precompiled_charsmap and not _is_sound(spec.precompiled_charsmap):
      return "a damaged table of normalisation"
  return ""


def _is_sound(charsmap: bytes) -> bool:
  """Whether no text leads out of a table: the size of its trie, a double array of nodes, and what replaces text."""
  size = int.from_bytes(charsmap[:4], "little")
  trie, texts = charsmap[4 : 4 + size], charsmap[4 + size :]
  # The first node is no value.
  if not size or size % 1024 or len(trie) < size or trie[3] & 128 or not texts or texts[-1]:
    return False
  units = np.frombuffer(trie, np.uint32)
  nodes = np.flatnonzero(units < 1 << 31)  # Others are values: where in `texts` the replacement begins.
  offsets = (units[nodes] >> 10) << ((units[nodes] & 512) >> 6)
  children = nodes ^ offsets
  values = children[(units[nodes] & 256) > 0]
  return children.max() < len(units) and bool((units[values] & 0x7FFFFFFF < len(texts)).all())


def ends_in_digit_comma(piece: str) -> bool:
  """Whether the digit-comma rule applies: the last character is a comma and a digit is before it."""
  return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def digit_comma_table(
  processor: sentencepiece.SentencePieceProcessor, pieces: Sequence[str], *, strip: bool
) -> dict[int, list[int]]:
  """Id of each token that the digit-comma rule replaces → the new ids.

  "▁1990," is encoded as "▁1990" and ",", so that a comma does not change a number. The rule depends on one piece
  only, so it is a table over the vocabulary.

  Args:
    processor, pieces: the vocabulary.
    strip: drop the "▁" of a re-encoding if the piece itself has none.
  """
  table = {}
  for index, piece in enumerate(pieces):
    if ends_in_digit_comma(piece):
      parts: list[str] = processor.encode(piece[:-1].replace(SPIECE_UNDERLINE, ""), out_type=str)
      if strip and not piece.startswith(SPIECE_UNDERLINE):
        parts = [part for part in (parts[0].removeprefix(SPIECE_UNDERLINE), *parts[1:]) if part]
      table[index] = processor.piece_to_id([*parts, ","])
  return table


class AlbertTokenizer(Tokenizer):
  """Converts text to ids and back, with the exact ids of the released models.

  text → normalised text → SentencePiece's best segmentation → "12," split into "12" and "," → ids

  Control pieces in text ("[CLS]", "<pad>") are ordinary text.

  Raises:
    UserError: the vocabulary is not a SentencePiece model, or lacks ALBERT's special tokens.

  Example:
    >>> tokenizer = AlbertTokenizer.from_pretrained("30k-clean.model")
    >>> tokenizer.encode_pieces("In 1990, it worked.")
    ['▁in', '▁1990', ',', '▁it', '▁worked', '.']
  """

  FILE = MODEL_FILE
  CONFIG = TokenizerConfig
  config: TokenizerConfig

  def __init__(self, model: bytes, config: TokenizerConfig, *, source: str = "bytes"):
    super().__init__(model, config)
    self._processor = processor = load_processor(model, source=source)
    self.pieces = processor.id_to_piece(list(range(processor.vocab_size())))
    self._normalize: Callable[[str], str] = functools.partial(normalize_text, **config.normalization)
    special = {piece: processor.piece_to_id(piece) for piece in ("[CLS]", "[SEP]", MASK_PIECE)}
    lacking = [piece for piece, index in special.items() if not processor.is_control(index)]
    if lacking or processor.pad_id() != 0:  # The original hard-wires this one id.
      raise UserError(
        "An ALBERT vocabulary has <pad> at id 0 and the control pieces [CLS], [SEP], [MASK]. Received: "
        f"{source}, with <pad> at {processor.pad_id()} and without {lacking or 'none of the others'}. "
        "Train one with tfrecords_tools/train_vocab.py."
      )
    self.pad_id, self.unk_id = 0, processor.unk_id()
    self.cls_id, self.sep_id, self.mask_id = special.values()
    self.digit_comma_ids = digit_comma_table(processor, self.pieces, strip=config.digit_comma == "strip")
    self._digit_comma_keys = frozenset(self.digit_comma_ids)

  def word_starts(self, rule: str) -> np.ndarray:
    return np.array(list(map(WORD_RULES[rule], self.pieces)))

  def piece_text(self, piece: str) -> str:
    return piece.replace(SPIECE_UNDERLINE, " ")

  def normalize(self, text: str) -> str:
    """The normalised text."""
    return self._normalize(text)

  def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
    normalized = [self._normalize(text) for text in texts]
    rows: list[list[int]] = self._processor.encode(normalized, out_type=int, num_threads=1)
    split = self.digit_comma_ids
    return [
      row if self._digit_comma_keys.isdisjoint(row) else [part for i in row for part in split.get(i, (i,))]
      for row in rows
    ]

  def decode(self, ids: Iterable[int]) -> str:
    return self._processor.decode([int(index) for index in ids])
