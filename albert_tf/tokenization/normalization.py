"""ALBERT's text normalisation, which every data path applies before SentencePiece sees the text.

The order matters: collapse white space, NFKD, drop combining characters, lower-case last. Where accents are kept,
NFKD is left out too: SentencePiece's own rules compose what text has in parts.
"""

import re
from typing import NamedTuple
import unicodedata

_TEX_QUOTES = re.compile("``|''")


def normalize_text(
  text: str,
  *,
  do_lower_case: bool,
  keep_accents: bool = False,
  remove_space: bool = True,
  normalize_quotes: bool = False,
) -> str:
  """Normalises text as the original ALBERT does.

  Args:
    text: any string.
    do_lower_case: whether to lower-case (all released English models do).
    keep_accents: neither take characters apart nor drop combining marks.
    remove_space: strip, and collapse each run of Unicode white space to one space.
    normalize_quotes: Hugging Face's extra rule, `` and '' become a double quote. The original has none.

  Returns:
    The normalised text, which may be empty.

  Example:
    >>> normalize_text("  Café\\u00a0½ ", do_lower_case=True)
    'cafe 1⁄2'
  """
  if remove_space:
    text = " ".join(text.split())
  if normalize_quotes:
    text = _TEX_QUOTES.sub('"', text)
  if (
    not keep_accents and not text.isascii()
  ):  # NFKD and combining characters cannot touch ASCII; most lines stop here.
    text = unicodedata.normalize("NFKD", text)
    if any(map(unicodedata.combining, text)):
      text = "".join(char for char in text if not unicodedata.combining(char))
  return text.lower() if do_lower_case else text


def check_text(text: str) -> str:
  """`text`, if it is one: bytes and missing values would be tokenized as something else, or fail far from here."""
  if not isinstance(text, str):
    raise TypeError(
      f"A text must be a Python string. Received: {text!r:.60} of type {type(text).__name__}. "
      'Decode bytes with .decode("utf-8"), leave missing values out, and give tensors to GraphTokenizer.'
    )
  return text


class AlignedText(NamedTuple):
  """Normalised text with, for each of its characters, where it came from.

  Attributes:
    text: the normalised text, N characters.
    starts: [N] index of the first original character each came from.
    ends: [N] index after the last one.
  """

  text: str
  starts: list[int]
  ends: list[int]


def normalize_with_alignment(
  text: str,
  *,
  do_lower_case: bool,
  keep_accents: bool = False,
  remove_space: bool = True,
  normalize_quotes: bool = False,
) -> AlignedText:
  """`normalize_text` that also says which original characters each result character came from.

  NFKD decomposes character by character and reorders only combining characters, which are dropped, so
  treating each character alone gives the same text. A combining character, dropped or kept, belongs to the
  character before it, to all that this one became.
  """
  if text.isascii() and not normalize_quotes and (not remove_space or text == " ".join(text.split())):
    size = len(text)  # Every character stays, or is lower-cased.
    return AlignedText(text.lower() if do_lower_case else text, list(range(size)), list(range(1, size + 1)))
  spans = [(char, index, index + 1) for index, char in enumerate(text)]
  if remove_space:
    spans = _collapse_space(spans)
  if normalize_quotes:
    spans = _join_quotes(spans)
  result: list[tuple[str, int, int]] = []
  for char, start, end in spans:
    if char.isascii():
      result.append((char, start, end))
      continue
    bases = [part for part in unicodedata.normalize("NFKD", char) if not unicodedata.combining(part)]
    if not bases and result and result[-1][2] == start:
      start = result[-1][1]
      for place in range(len(result) - 1, -1, -1):
        if result[place][1] != start:
          break
        result[place] = (result[place][0], start, end)
    result.extend((part, start, end) for part in ([char] if keep_accents else bases))
  normalized = "".join(part for part, _, _ in result)
  if do_lower_case:
    # As a whole: a final sigma depends on its neighbours. Only "İ" becomes two, and only where accents are kept.
    normalized = normalized.lower()
    result = [each for each in result for _ in each[0].lower()]
    assert len(normalized) == len(result), "lower-casing changes each character's length on its own"
  return AlignedText(normalized, [start for _, start, _ in result], [end for _, _, end in result])


def _collapse_space(spans: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
  result: list[tuple[str, int, int]] = []
  gap: tuple[int, int] | None = None
  for char, start, end in spans:
    if char.isspace():
      gap = (gap[0] if gap else start, end)
      continue
    if gap and result:
      result.append((" ", *gap))
    gap = None
    result.append((char, start, end))
  return result


def _join_quotes(spans: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
  flat = "".join(char for char, _, _ in spans)
  result: list[tuple[str, int, int]] = []
  position = 0
  for match in _TEX_QUOTES.finditer(flat):
    result.extend(spans[position : match.start()])
    result.append(('"', spans[match.start()][1], spans[match.end() - 1][2]))
    position = match.end()
  return result + spans[position:]
