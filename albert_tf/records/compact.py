"""The compact record: the same instance as machine words, a quarter of the size or so, and twice as fast to read.

A record is little-endian words of 2 bytes (4 where the vocabulary has more than
65,536 pieces): a mark, tokens, tokens of [CLS] A [SEP], sentence order label,
predictions, P positions, P answers, and the tokens without padding. Masks,
segments and weights follow from the counts; `token_boundary`, which training
does not use, is left out.
"""

from collections.abc import Mapping
import struct
from typing import Any

import numpy as np

from albert_tf.errors import UserError
from albert_tf.records import features as names
from albert_tf.records.features import PretrainingSpec

MARKS = {2: b"\xa1\xb2", 4: b"\xa1\xb4\x00\x00"}  # By bytes a word. An Example begins with \x0a.
HEADER_WORDS = 5
_TYPES: dict[int, Any] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
_HEADERS = {2: struct.Struct("<4H"), 4: struct.Struct("<4I")}


def word_bytes(vocab_size: int) -> int:
  """Bytes of a word that holds every piece id."""
  return 2 if vocab_size <= 65_536 else 4


def word_bytes_of(data: bytes) -> int | None:
  """Bytes a word of a compact record; None for any other record."""
  return next((size for size, mark in MARKS.items() if data[: len(mark)] == mark), None)


def encode_compact(
  *,
  tokens: np.ndarray,
  first_segment: int,
  label: int,
  positions: np.ndarray,
  answers: np.ndarray,
  max_predictions: int,
  vocab_size: int,
) -> bytes:
  """The bytes of one instance.

  Args:
    tokens: [T] piece ids, without padding.
    first_segment: tokens of [CLS] A [SEP].
    label: sentence order label.
    positions, answers: [M] masked positions and their pieces.
    max_predictions: P.
    vocab_size: decides the size of a word.
  """
  size = word_bytes(vocab_size)
  slots = np.zeros((2, max_predictions), _TYPES[size])  # [2, P]
  slots[:, : len(positions)] = positions, answers
  header = _HEADERS[size].pack(len(tokens), first_segment, label, len(positions))
  return b"".join((MARKS[size], header, slots.tobytes(), tokens.astype(_TYPES[size]).tobytes()))


def decode_compact(data: bytes, spec: PretrainingSpec) -> Mapping[str, np.ndarray]:
  """The features of a compact record, as `decode_example` gives them, without `token_boundary`.

  Raises:
    UserError: not a compact record of these lengths.
  """
  size = word_bytes_of(data)
  length, predictions = spec.max_seq_length, spec.max_predictions_per_seq
  whole = size is not None and len(data) % size == 0
  words = np.frombuffer(data if whole else b"", _TYPES[size or 2]).astype(np.int64)
  tokens = len(words) - HEADER_WORDS - 2 * predictions
  if not 0 <= tokens <= length or words[1] != tokens or words[4] > predictions:
    raise UserError(
      "A compact record must have the lengths of its manifest. Received: "
      f"{len(data)} bytes with max_seq_length={length}, max_predictions_per_seq={predictions}. "
      "Give the lengths that the records were made with."
    )
  slots = words[HEADER_WORDS : HEADER_WORDS + 2 * predictions].reshape(2, predictions)
  place = np.arange(length)
  return {
    names.INPUT_IDS: np.pad(words[HEADER_WORDS + 2 * predictions :], (0, length - tokens)),
    names.INPUT_MASK: (place < tokens).astype(np.int64),
    names.SEGMENT_IDS: ((place >= words[2]) & (place < tokens)).astype(np.int64),
    names.MASKED_LM_POSITIONS: slots[0],
    names.MASKED_LM_IDS: slots[1],
    names.MASKED_LM_WEIGHTS: (np.arange(predictions) < words[4]).astype(np.float32),
    names.SENTENCE_ORDER_LABELS_FEATURE: words[3:4],
  }
