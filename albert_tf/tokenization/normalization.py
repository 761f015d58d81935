"""ALBERT's text normalisation, which every data path applies before SentencePiece sees the text.

The order matters: collapse white space, NFKD, drop combining characters, lower-case. If accents are
kept, NFKD is not applied: SentencePiece's own rules compose characters.
"""

import re
import unicodedata

from albert_tf.tokenization.word_starts import SPIECE_UNDERLINE

_TEX_QUOTES = re.compile("``|''")


def normalize_text(
  text: str,
  *,
  do_lower_case: bool,
  keep_accents: bool = False,
  normalize_quotes: bool = False,
) -> str:
  """Normalises text as the original ALBERT does.

  Args:
    text: any string.
    do_lower_case: whether to lower-case (all released English models do).
    keep_accents: do not apply NFKD, and keep combining marks.
    normalize_quotes: `` and '' become a double quote, as at Hugging Face; the original has no such
      rule.

  Returns:
    The normalised text, which may be empty.

  Example:
    >>> normalize_text("  Café\\u00a0½ ", do_lower_case=True)
    'cafe 1⁄2'
  """
  text = " ".join(text.split())
  if normalize_quotes:
    text = _TEX_QUOTES.sub('"', text)
  if not keep_accents and not text.isascii():  # ASCII has no accents; most lines stop here.
    text = unicodedata.normalize("NFKD", text)
    if any(map(unicodedata.combining, text)):
      text = "".join(char for char in text if not unicodedata.combining(char))
  if do_lower_case:
    text = text.lower()
  return text


def visible_width(text: str) -> int:
  """Number of characters of a decomposed text or piece, without combining marks and white space.

  Example:
    >>> visible_width("▁é½")
    4
  """
  width = 0
  for char in unicodedata.normalize("NFKD", text):
    is_space = char.isspace() or char == SPIECE_UNDERLINE
    if not is_space and not unicodedata.combining(char):
      width += 1
  return width
