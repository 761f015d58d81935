"""Which SentencePiece pieces begin a word: the original's rule for whole-word masking."""

from collections.abc import Sequence
import string

import numpy as np

SPIECE_UNDERLINE = "▁"  # U+2581, SentencePiece's mark for a space.
_PUNCTUATION = frozenset(string.punctuation) - frozenset("'<=>")
_CONTINUING = _PUNCTUATION | frozenset(string.ascii_letters)


def is_word_start(piece: str) -> bool:
  """Whether `piece` starts a word.

  It does when it begins with "▁" or "<", is one punctuation character, or holds any character that is
  neither an ASCII letter nor punctuation (apostrophe and <, =, > do not count as punctuation here). So
  every piece with a digit, an accent or a CJK character is a word of its own.

  Example:
    >>> [is_word_start(piece) for piece in ("▁the", "s", ".", "..", "12", "'")]
    [True, False, True, False, True, True]
  """
  if piece.startswith((SPIECE_UNDERLINE, "<")):
    return True
  if len(piece) == 1 and piece in _PUNCTUATION:
    return True
  return any(char not in _CONTINUING for char in piece)


def word_start_table(pieces: Sequence[str]) -> np.ndarray:
  """Bool array [V]: `is_word_start` of every piece of a vocabulary, indexed by id."""
  return np.fromiter((is_word_start(piece) for piece in pieces), dtype=bool, count=len(pieces))
