"""Ranges of pieces in the original text, in plain Python: the reference of `tokenization.graph_offsets`."""

import functools
import itertools
import re
from typing import Any, NamedTuple
import unicodedata

import sentencepiece

from albert_tf.tokenization import AlbertTokenizer
from albert_tf.tokenization.normalization import visible_width

_TEX_QUOTES = re.compile("``|''")


def encode_with_offsets(
  tokenizer: AlbertTokenizer, text: str
) -> tuple[list[int], list[tuple[int, int]]]:
  """Ids, and the half-open character range of `text` for each.

  A range never begins or ends with white space, nor with signs that SentencePiece drops (U+200E); a lone "▁" has an
  empty one.
  """
  processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model_bytes)
  digit_commas = {
    index: [tokenizer.pieces[part] for part in parts]
    for index, parts in tokenizer.digit_comma_ids.items()
  }
  # SentencePiece drops control characters and signs of direction, and takes zero-width spaces for spaces. No piece
  # begins or ends with one of them, so that the same words are the same answer. `graph_offsets` counts as this does.
  is_visible = functools.cache(lambda char: visible_width(processor.normalize(char)) > 0)
  aligned = normalize_with_alignment(text, **tokenizer.config.normalization)
  shown = [is_visible(char) for char in aligned.text]
  visible = list(itertools.compress(range(len(shown)), shown))  # Places in `aligned`.
  before = [0, *itertools.accumulate(shown)]  # Visible characters before each place.

  def original_range(first: int, last: int) -> tuple[int, int]:
    """From one visible character up to another; an empty range lies where the next one begins."""
    if first < last:
      return aligned.starts[visible[first]], aligned.ends[visible[last - 1]]
    at = aligned.starts[visible[first]] if first < len(visible) else len(text)
    return at, at

  ids: list[int] = []
  ranges: list[tuple[int, int]] = []
  for piece in processor.encode(aligned.text, out_type="immutable_proto").pieces:
    first, end = before[piece.begin], before[piece.end]
    if first == end < len(visible) and visible_width(piece.piece):
      end += 1  # A part of what SentencePiece takes apart ("½", where accents are kept): the last part has its place.
    if piece.id not in digit_commas:
      ids.append(piece.id)
      ranges.append(original_range(first, end))
      continue
    for part in digit_commas[piece.id]:
      last = min(first + visible_width(part), end)
      ids.append(processor.piece_to_id(part))
      ranges.append(original_range(first, last))
      first = last
  return ids, ranges


def differences(
  tokenizer: AlbertTokenizer, located: Any, texts: list[str]
) -> list[tuple[str, ...]]:
  """(text, piece, its characters here, those of `GraphOffsets`' result) of each piece that differs."""
  ragged = (located.ids, located.starts, located.ends)
  rows = zip(texts, *(rows.to_list() for rows in ragged), strict=True)
  found = []
  for text, ids, starts, ends in rows:
    expected_ids, expected = encode_with_offsets(tokenizer, text)
    assert ids == expected_ids
    before = 0  # Of a lone "▁", the graph gives the end of the piece before.
    for piece, (start, end), a, b in zip(ids, expected, starts, ends, strict=True):
      before = end if start < end else before
      if (start, max(start, before)) != (a, max(a, b)):
        found.append((text, tokenizer.pieces[piece], text[start:before], text[a:b]))
  return found


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
  text: str, *, do_lower_case: bool, keep_accents: bool = False, normalize_quotes: bool = False
) -> AlignedText:
  """`normalize_text` that also says which original characters each result character came from.

  NFKD decomposes character by character and reorders only combining characters, which are dropped, so
  treating each character alone gives the same text. A combining character, dropped or kept, belongs to the
  character before it, to all that this one became.
  """
  spans = _collapse_space([(char, index, index + 1) for index, char in enumerate(text)])
  if normalize_quotes:
    spans = _join_quotes(spans)
  result: list[tuple[str, int, int]] = []
  for char, start, end in spans:
    if char.isascii():
      result.append((char, start, end))
      continue
    parts = unicodedata.normalize("NFKD", char)
    bases = [part for part in parts if not unicodedata.combining(part)]
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
