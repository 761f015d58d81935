"""Where each piece comes from in the original text."""

from collections.abc import Callable, Mapping
import functools
import itertools
import unicodedata

import sentencepiece

from albert_tf.tokenization.config import TokenizerConfig
from albert_tf.tokenization.normalization import normalize_with_alignment
from albert_tf.tokenization.word_starts import SPIECE_UNDERLINE


def encode_with_offsets(
  processor: sentencepiece.SentencePieceProcessor,
  text: str,
  *,
  config: TokenizerConfig,
  digit_commas: Mapping[int, list[str]],
  is_visible: Callable[[str], bool],
) -> tuple[list[int], list[tuple[int, int]]]:
  """Ids of `text`, and the half-open range of its characters each id stands for.

  Args:
    processor: the vocabulary.
    text: the original, un-normalised text.
    config: the tokenizer's settings.
    digit_commas: the digit-comma rule's table, id → pieces.
    is_visible: of this vocabulary, by `visibility`.
  """
  aligned = normalize_with_alignment(text, **config.normalization)
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


def visibility(processor: sentencepiece.SentencePieceProcessor) -> Callable[[str], bool]:
  """Whether a normalised character leaves anything in pieces: not white space, nor what SentencePiece drops.

  SentencePiece drops control characters and signs of direction, and takes zero-width spaces for spaces. No piece
  begins or ends with one of them, so that the same words are the same answer. `graph_offsets` counts as this does.
  """
  return functools.cache(lambda char: visible_width(processor.normalize(char)) > 0)


def visible_width(text: str) -> int:
  """Characters of `text` when decomposed and freed of combining marks and white space."""
  decomposed = (part for char in text for part in unicodedata.normalize("NFKD", char))
  return sum(
    not unicodedata.combining(part) and not part.isspace() and part != SPIECE_UNDERLINE for part in decomposed
  )
