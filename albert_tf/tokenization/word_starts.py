"""Rules for tokens that begin a word: the original's, and SentencePiece's marks.

Whole-word masking reads them, in data creation and for fresh masks.
"""

from collections.abc import Callable
import string
import unicodedata

SPIECE_UNDERLINE = "▁"  # U+2581, SentencePiece's mark for a space.
# Of the original; neither ' nor <, = and > belong to it.
_PUNCTUATION = frozenset(string.punctuation) - frozenset("'<=>")
_CONTINUING = _PUNCTUATION | frozenset(string.ascii_letters)
# Scripts written without spaces between words, as the names of their characters begin.
_WITHOUT_SPACES = (
  "CJK ",
  "HIRAGANA ",
  "KATAKANA ",
  "THAI ",
  "LAO ",
  "KHMER ",
  "MYANMAR ",
  "TIBETAN ",
)


def is_word_start(piece: str) -> bool:
  """Whether `piece` starts a word, by the original's rule.

  A piece starts a word if it begins with "▁" or "<", is one punctuation character, or contains a
  character that is neither an ASCII letter nor punctuation (without the apostrophe and <, =, >). So
  every piece with a digit, an accent or a CJK character is a word.

  Example:
    >>> [is_word_start(piece) for piece in ("▁the", "s", ".", "..", "12", "'", "ния")]
    [True, False, True, False, True, True, True]
  """
  if piece.startswith((SPIECE_UNDERLINE, "<")):
    return True
  if len(piece) == 1 and piece in _PUNCTUATION:
    return True
  return not _CONTINUING.issuperset(piece)


def is_marked_start(piece: str) -> bool:
  """Whether `piece` starts a word, by SentencePiece's mark for a space.

  In scripts without spaces between words, every token counts as a word.

  Example:
    >>> [is_marked_start(piece) for piece in ("▁при", "ния", ".", "12", "天气")]
    [True, False, False, False, True]
  """
  if piece.startswith(SPIECE_UNDERLINE):
    return True
  return unicodedata.name(piece[:1], "").startswith(_WITHOUT_SPACES)


# Whether a piece of a SentencePiece vocabulary starts a word.
WORD_RULES: dict[str, Callable[[str], bool]] = {
  "original": is_word_start,
  "sentencepiece": is_marked_start,
  "none": lambda piece: True,
}
