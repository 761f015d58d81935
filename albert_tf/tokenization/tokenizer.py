"""`AlbertTokenizer`: normalisation, SentencePiece and the digit-comma rule, as in the original.

`load_processor` checks and loads a SentencePiece model; training a vocabulary uses it, too.
"""

from collections.abc import Callable, Iterable
import functools
import itertools

from google.protobuf.message import DecodeError
import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as model_proto

from albert_tf.errors import UserError
from albert_tf.tokenization.base import MASK_PIECE, Tokenizer
from albert_tf.tokenization.config import MODEL_FILE, TokenizerConfig
from albert_tf.tokenization.normalization import normalize_text
from albert_tf.tokenization.word_starts import SPIECE_UNDERLINE, WORD_RULES


class AlbertTokenizer(Tokenizer):
  """Converts text to ids and back, with the exact ids of the released models.

  It loads neither TensorFlow nor Keras. It adds no [CLS], [SEP] or padding: `AlbertPreprocessor`
  does. It has no offsets: `answer` and `tag` of the models give characters.

  text → normalised text → SentencePiece's best segmentation → "12," split into "12" and "," → ids

  The split is the original's: a number has the same tokens with a comma behind it and without. Ids of
  SentencePiece alone differ there.

  Control pieces in text ("[CLS]", "<pad>") are ordinary text.

  Attributes:
    normalize: gives the normalised text.
    digit_comma_ids: id of each token that the digit-comma rule replaces → the new ids.

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
    processor = load_processor(model, source=source)
    special = {piece: processor.piece_to_id(piece) for piece in ("[CLS]", "[SEP]", MASK_PIECE)}
    missing = [piece for piece, index in special.items() if not processor.is_control(index)]
    if missing or processor.pad_id() != 0:  # The original hard-wires this one id.
      raise UserError(
        "An ALBERT vocabulary has <pad> at id 0 and the control pieces [CLS], [SEP], [MASK]. "
        f"Received: {source}, with <pad> at {processor.pad_id()} and without "
        f"{missing or 'none of the others'}. Train one with tfrecords_tools/train_vocab.py."
      )

    self._processor = processor
    self.pieces = processor.id_to_piece(list(range(processor.vocab_size())))
    self.pad_id = 0
    self.unk_id = processor.unk_id()
    self.cls_id, self.sep_id, self.mask_id = special.values()
    self.normalize: Callable[[str], str] = functools.partial(normalize_text, **config.normalization)
    self.digit_comma_ids = self._digit_comma_table()

  def _digit_comma_table(self) -> dict[int, list[int]]:
    """What the digit-comma rule makes of each token that it replaces.

    "▁1990," is encoded as "▁1990" and ",", so that a comma does not change a number. The rule
    depends on one piece only, so it is a table over the vocabulary.
    """
    table = {}
    for index, piece in enumerate(self.pieces):
      if not ends_in_digit_comma(piece):
        continue
      number = piece[:-1].replace(SPIECE_UNDERLINE, "")
      new_pieces: list[str] = self._processor.encode(number, out_type=str)
      if self.config.digit_comma == "strip" and not piece.startswith(SPIECE_UNDERLINE):
        # SentencePiece began a word, which the piece itself does not.
        new_pieces[0] = new_pieces[0].removeprefix(SPIECE_UNDERLINE)
      new_pieces.append(",")
      table[index] = [self._processor.piece_to_id(new) for new in new_pieces if new]
    return table

  def word_starts(self, rule: str) -> np.ndarray:
    return np.array(list(map(WORD_RULES[rule], self.pieces)))

  def piece_text(self, piece: str) -> str:
    return piece.replace(SPIECE_UNDERLINE, " ")

  def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
    normalized = [self.normalize(text) for text in texts]
    # One thread: data creation runs a process on each core.
    rows: list[list[int]] = self._processor.encode(normalized, out_type=int, num_threads=1)
    table = self.digit_comma_ids
    for row in rows:
      # Most texts have no such token, and their rows stay as they are.
      if not table.keys().isdisjoint(row):
        row[:] = itertools.chain.from_iterable(table.get(index, (index,)) for index in row)
    return rows

  def decode(self, ids: Iterable[int]) -> str:
    return self._processor.decode([int(index) for index in ids])


def ends_in_digit_comma(piece: str) -> bool:
  """Whether the digit-comma rule applies: the last two characters are a digit and a comma."""
  return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


# SentencePiece's code trusts a model. A damaged one can end the process, so it is checked before.

_MAX_PIECE_CHARS = 1_000  # 100,000 overflow the stack of SentencePiece's code.

# Bits of a unit of 32 bits in a double array (Darts), the trie of a table of normalisation.
_IS_VALUE = 1 << 31  # The unit is a value, in its other bits; else it is a node, with these bits:
_VALUE = _IS_VALUE - 1
_HAS_VALUE = 1 << 8  # A text ends here, and its value is the first child.
_IS_FAR = 1 << 9  # The distance to the children counts blocks of 256 units.
_DISTANCE_SHIFT = 10
_BLOCK_BYTES = (
  256 * 4
)  # A child is in the block where the distance leads: its place differs in 8 bits.


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
    f"A SentencePiece model was expected. Received: {source}, which is another file or damaged "
    f"({fault}). Check the path (a text vocabulary, .vocab, is not the model), and copy or train the "
    "model again."
  )


def _fault(proto: model_proto.ModelProto) -> str:
  """The fault of a model that would crash SentencePiece's code; empty for none."""
  is_complete = proto.HasField("trainer_spec") and proto.HasField("normalizer_spec")
  if not proto.pieces or not is_complete:
    return f"{proto.ByteSize():,} bytes, {len(proto.pieces)} pieces"

  pieces = [piece.piece for piece in proto.pieces]
  for text in pieces + [proto.trainer_spec.unk_surface]:
    # Protobuf gives bytes for what is not UTF-8, or raises an error; a NUL ends a string early.
    if not isinstance(text, str) or "\0" in text:
      return "pieces that are not UTF-8, or hold a NUL"
  lengths = [len(piece) for piece in pieces]
  if min(lengths) < 1 or max(lengths) > _MAX_PIECE_CHARS:
    return f"pieces of {min(lengths)} to {max(lengths):,} characters"

  for spec in (proto.normalizer_spec, proto.denormalizer_spec):
    if spec.precompiled_charsmap and not _is_sound(spec.precompiled_charsmap):
      return "a damaged table of normalisation"
  return ""


def _is_sound(charsmap: bytes) -> bool:
  """Whether no text leads out of a table of normalisation.

  A table is the size of its trie in 4 bytes, the trie, and the replacements, which end with NUL.

  Example: the node 0x1900 at place 3 has the distance 0x1900 >> 10 = 6 and a value (bit 8). Its
  children are in the block of 3 ^ 6 = 5, and unit 5 is the value: where its replacement begins.
  """
  size = int.from_bytes(charsmap[:4], "little")
  trie = charsmap[4 : 4 + size]
  replacements = charsmap[4 + size :]
  if size == 0 or size % _BLOCK_BYTES or len(trie) < size:
    return False
  if not replacements or replacements[-1] != 0:
    return False
  units = np.frombuffer(trie, np.uint32)
  if units[0] & _IS_VALUE:  # The search begins here, with a node.
    return False

  nodes = np.flatnonzero(units < _IS_VALUE)
  is_far = (units[nodes] & _IS_FAR) > 0
  distances = units[nodes] >> _DISTANCE_SHIFT
  children = nodes ^ np.where(is_far, distances << 8, distances)
  if children.max() >= len(units):
    return False
  values = units[children[(units[nodes] & _HAS_VALUE) > 0]] & _VALUE
  return bool((values < len(replacements)).all())
