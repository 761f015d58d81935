"""Which characters of the original text each piece stands for, as the original's alignment says it.

The original aligns the paragraph to its pieces by a banded longest common subsequence (LCS), once per question.
Here it is computed once per paragraph, and only where it is needed: when every character normalises to one, the
alignment that matches all characters is the only one of that length, so the LCS would find it too.
"""

import functools
from typing import NamedTuple

import numpy as np

from albert_tf.tokenization import AlbertTokenizer
from albert_tf.tokenization.normalization import normalize_text

_SPACE_MARK = "▁"
_SLACK = 5  # Band of the LCS beyond the difference in length (original code).
_MATCHED_SHARE = 0.8  # Of the paragraph's characters; with fewer the band doubles once (original code).
_MOST_CELLS = (
  20_000_000  # Above (a paragraph that shrinks by thousands of characters) the exact ranges serve.
)
_NONE = -1


class Alignment(NamedTuple):
  """Pieces of one paragraph of n characters, and both directions of their alignment.

  Attributes:
    ids: int32 `[P]`.
    starts, ends: int32 `[P]` first and last (inclusive) original character of each piece.
    start_pieces, end_pieces: int32 `[n]` the piece an answer belongs to that starts, or ends, at a character.
    method: "one_to_one", "lcs", or "ranges".
  """

  ids: np.ndarray
  starts: np.ndarray
  ends: np.ndarray
  start_pieces: np.ndarray
  end_pieces: np.ndarray
  method: str


def align_paragraph(context: str, tokenizer: AlbertTokenizer) -> Alignment:
  """Tokenizes a paragraph and aligns its pieces to its characters.

  Where the original gives up (fewer than 80% of the characters match, as in Korean, whose syllables NFKD
  decomposes) or puts a piece beside its characters, the tokenizer's own ranges are used, so that no paragraph is lost.

  Args:
    context: the original text; may be empty.
    tokenizer: of the model.
  """
  pieces = tokenizer.encode_pieces(context)
  text = "".join(pieces).replace(_SPACE_MARK, " ")
  char_to_text, text_to_char, method = _character_maps(context, text, tokenizer.config.do_lower_case)
  if method == "ranges":
    return _by_ranges(context, tokenizer)
  lengths = np.array([len(piece) for piece in pieces], np.int32)
  last = np.cumsum(lengths, dtype=np.int32) - 1  # [P] last character of each piece in `text`.
  text_to_piece = np.repeat(np.arange(len(pieces), dtype=np.int32), lengths)
  n, m = len(context), len(text)
  aligned = Alignment(
    ids=np.array([tokenizer.piece_to_id(piece) for piece in pieces], np.int32),
    starts=resolve(text_to_char, n, is_start=True)[last - lengths + 1],
    ends=resolve(text_to_char, n, is_start=False)[last],
    start_pieces=text_to_piece[resolve(char_to_text, m, is_start=True)],
    end_pieces=text_to_piece[resolve(char_to_text, m, is_start=False)],
    method=method,
  )
  return (
    aligned
    if method == "one_to_one" or _is_near(aligned, context, tokenizer)
    else _by_ranges(context, tokenizer)
  )


def _is_near(aligned: Alignment, context: str, tokenizer: AlbertTokenizer) -> bool:
  """Whether each piece is aligned with at least one of the characters it was made of.

  The longest common subsequence may skip a character that becomes several ("ﬁ") and move its piece to a neighbour.
  """
  bounds = np.array(tokenizer.encode_with_offsets(context)[1], np.int32).reshape(-1, 2)
  begins, ends = bounds.T
  return bool(np.all((begins == ends) | ((aligned.starts < ends) & (aligned.ends >= begins))))


def _character_maps(context: str, text: str, do_lower_case: bool) -> tuple[np.ndarray, np.ndarray, str]:
  """Both directions of the match between `context` `[n]` and the pieces' `text` `[m]`; -1 = unmatched."""
  n, m = len(context), len(text)
  nothing = np.full(n, _NONE, np.int32), np.full(m, _NONE, np.int32)
  if not n or not m:
    return *nothing, "ranges"
  codes, wanted = _normalized_codes(context, do_lower_case), _codes(text)
  # One space more, in front, and all else equal: an alignment of n matches skips exactly that space, unless the
  # paragraph itself begins with one.
  if m == n + 1 and text[0] == " " != context[0] and np.array_equal(codes, wanted[1:]):
    together = np.arange(n, dtype=np.int32)
    return together + 1, np.concatenate([nothing[1][:1], together]), "one_to_one"
  band = abs(n - m) + _SLACK
  for last in (False, True):
    if 2 * band * n > _MOST_CELLS:
      break
    matched = match_characters(codes, wanted, band)
    if matched is not None and (last or np.count_nonzero(matched[0] != _NONE) > _MATCHED_SHARE * n):
      return *matched, "lcs"
    band *= 2
  return *nothing, "ranges"


@functools.lru_cache(maxsize=1 << 16)
def _normalized_code(char: str, do_lower_case: bool) -> int:
  """Code of the character's normal form; -1 where that is not one character."""
  normal = normalize_text(char, do_lower_case=do_lower_case, remove_space=False)
  return ord(normal) if len(normal) == 1 else _NONE


def _codes(text: str) -> np.ndarray:
  return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.int32)


def _normalized_codes(context: str, do_lower_case: bool) -> np.ndarray:
  if context.isascii():
    return _codes(context.lower() if do_lower_case else context)
  return np.array([_normalized_code(char, do_lower_case) for char in context], np.int32)


def match_characters(
  codes: np.ndarray, wanted: np.ndarray, band: int
) -> tuple[np.ndarray, np.ndarray] | None:
  r"""The original's banded longest common subsequence.

  $f_{ij} = \max(f_{i-1,j},\; f_{i,j-1},\; f_{i-1,j-1} + [a_i = b_j])$ for $-d \le j - i < d$, 0 elsewhere; on the
  way back the first of these that reaches the maximum is taken.

  Args:
    codes: int32 `[n]` normalised characters of the paragraph; -1 never matches.
    wanted: int32 `[m]` characters of the pieces.
    band: d.

  Returns:
    For each of the n characters its partner or -1, and for each of the m; None where fewer than 80% match.
  """
  n, m = len(codes), len(wanted)
  # Column k of row i is j = i - d + k. A margin of d on both sides keeps j inside the padded array.
  padded = np.full(n + m + 2 * band, _NONE - 1, np.int32)
  padded[band : band + m] = wanted
  same = np.lib.stride_tricks.sliding_window_view(padded, 2 * band)[:n] == codes[:, None]  # [n, 2d]
  lengths = np.zeros((n + 1, 2 * band + 1), np.int32)  # Row 0 and the last column are the zeros outside.
  row = np.empty(2 * band, np.int32)
  for i in range(n):
    above = lengths[i]
    np.maximum(above[1:], above[:-1] + same[i], out=row)
    np.maximum.accumulate(row, out=lengths[i + 1, :-1])
  if lengths[n, m - n + band] < _MATCHED_SHARE * n or not lengths[n, m - n + band]:
    return None
  return _walk_back(lengths, same, m, band)


def _walk_back(lengths: np.ndarray, same: np.ndarray, m: int, band: int) -> tuple[np.ndarray, np.ndarray]:
  n = len(same)
  to_text, to_char = np.full(n, _NONE, np.int32), np.full(m, _NONE, np.int32)
  i, j = n - 1, m - 1
  while i >= 0 and j >= 0:
    k = j - i + band
    if not 0 <= k < 2 * band:
      break
    best = lengths[i, k + 1]  # From above; 0 in the first row.
    step = "up"
    if k and j and lengths[i + 1, k - 1] > best:
      best, step = lengths[i + 1, k - 1], "left"
    if same[i, k] and lengths[i, k] + 1 > best:
      to_text[i], to_char[j] = j, i
      step = "both"
    i -= step != "left"
    j -= step != "up"
  return to_text, to_char


def resolve(matches: np.ndarray, limit: int, *, is_start: bool) -> np.ndarray:
  """Gives the unmatched a partner, from their matched neighbours.

  A start takes what follows the left neighbour's partner, an end what precedes the right one's; where those two
  are adjacent the start takes the right one and the end the left one. Beyond the last match an end takes the last
  character, before the first match a start takes the first.

  Args:
    matches: int32 `[n]` with -1 for the unmatched, at least one of them matched.
    limit: size of the other side.
    is_start: whether starts or ends are asked for.

  Returns:
    int32 `[n]`.
  """
  present = matches != _NONE
  if present.all():
    return matches
  places = np.arange(len(matches))
  left = np.maximum.accumulate(np.where(present, places, _NONE))
  right = np.minimum.accumulate(np.where(present, places, len(matches))[::-1])[::-1]
  front = np.where(left >= 0, matches[left], _NONE)
  rear = np.where(right < len(matches), matches[np.minimum(right, len(matches) - 1)], limit)
  gap = rear > front + 1
  if is_start:
    found = np.where(gap, front + 1, np.minimum(rear, limit - 1))
  else:
    found = np.where(gap, rear - 1, np.maximum(front, 0))
  return np.where(present, matches, found).astype(np.int32)


def cut(context: str, first: int, last: int) -> str:
  """The answer from its first to its last character, without white space around it.

  Characters that normalisation drops, as a combining accent, go with the one before them: the original would return
  "cafe" of a "café" that is spelled with one.
  """
  end = last + 1
  while end < len(context) and _vanishes(context[end]):
    end += 1
  return context[first:end].strip()


@functools.lru_cache(maxsize=1 << 16)
def _vanishes(char: str) -> bool:
  return not char.isascii() and not normalize_text(char, do_lower_case=False, remove_space=False)


def _by_ranges(context: str, tokenizer: AlbertTokenizer) -> Alignment:
  """The exact ranges the tokenizer knows; a piece without characters takes the one where it stands."""
  ids, ranges = tokenizer.encode_with_offsets(context)
  bounds = np.array(ranges, np.int32).reshape(-1, 2)
  last = max(len(context) - 1, 0)
  starts = np.minimum(bounds[:, 0], last)
  ends = np.clip(bounds[:, 1] - 1, starts, last)
  places = np.arange(len(context))
  size = max(len(ids) - 1, 0)
  return Alignment(
    ids=np.array(ids, np.int32),
    starts=starts,
    ends=ends,
    start_pieces=np.minimum(np.searchsorted(ends, places, side="left"), size).astype(np.int32),
    end_pieces=np.clip(np.searchsorted(starts, places, side="right") - 1, 0, size).astype(np.int32),
    method="ranges",
  )
