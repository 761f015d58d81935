"""Cuts a document into pairs of segments: which text, in which order, with which label.

Sentence order (`sop`) is pure: label 1 is the two segments swapped, nothing
else. `ordered` is the same text with nothing to learn of its order. In `nsp`,
label 1 is a second segment of another document, and never of the same one.
What the original does otherwise is behind `compatibility=original`.
"""

import bisect
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tfrecords_tools.pretraining.documents import TokenizedDocument
from tfrecords_tools.pretraining.randomness import Stream
from tfrecords_tools.pretraining.settings import RecordSettings

_OTHER_DOCUMENT_TRIES = 10


class Segment(NamedTuple):
  """Tokens [begin, end) of a document."""

  document: TokenizedDocument
  begin: int
  end: int

  @property
  def size(self) -> int:
    return self.end - self.begin

  @property
  def ids(self) -> np.ndarray:
    """int32 [size]."""
    return self.document.ids[self.begin : self.end]


class SegmentPair(NamedTuple):
  """The text of one instance: [CLS] a [SEP] b [SEP], or [CLS] a [SEP] where `b` is None.

  Attributes:
    label: 0 in order, 1 swapped (sop) or from another document (nsp); of `ordered` and `none` always 0.
    truncated: tokens cut off.
  """

  a: Segment
  b: Segment | None
  label: int
  truncated: int


def make_pairs(
  document: TokenizedDocument,
  stream: Stream,
  settings: RecordSettings,
  *,
  others: Sequence[TokenizedDocument] = (),
) -> Iterator[SegmentPair]:
  """All pairs of one pass over a document.

  Sentences are taken until they hold `target` tokens or the document ends; the
  chunk is then cut in two at a random sentence, a chunk of one sentence at a
  random word. In `nsp`, a coin says whether B comes from another document
  instead; where there is none all pairs are in order. (`original`: B of a lone
  sentence always comes from another document.)

  Args:
    document: not empty.
    stream: random numbers.
    settings: lengths and kind of pair.
    others: documents to draw from where B comes from another one; may hold `document`.
  """
  offsets = document.sentence_offsets
  target = _draw_target(stream, settings)
  begin = 0
  while begin < document.num_sentences:
    end = min(bisect.bisect_left(offsets, offsets[begin] + target, begin + 1), document.num_sentences)
    pair, begin = _make_pair(document, begin, end, target, stream, settings, others)
    if pair is not None:
      yield pair
    if not settings.is_original:  # The original draws the target once a document.
      target = _draw_target(stream, settings)


def _draw_target(stream: Stream, settings: RecordSettings) -> int:
  if stream.uniform() < settings.short_seq_prob:
    return stream.integer(2, settings.max_num_tokens)
  return settings.max_num_tokens


def _make_pair(
  document: TokenizedDocument,
  begin: int,
  end: int,
  target: int,
  stream: Stream,
  settings: RecordSettings,
  others: Sequence[TokenizedDocument],
) -> tuple[SegmentPair | None, int]:
  """The pair of sentences [begin, end) of `document`, and the sentence the next chunk begins with."""
  offsets = document.sentence_offsets
  kind, lone = settings.sentence_pair, end - begin == 1
  if kind == "none":
    return _fit(Segment(document, offsets[begin], offsets[end]), None, 0, stream, settings), end
  cut = begin + 1 if lone else stream.integer(begin + 1, end - 1)
  # The original never cuts a lone sentence in two.
  elsewhere = lone and settings.is_original and kind != "ordered"
  middle: int | None = None
  if not elsewhere:
    middle = _random_word(document, offsets[begin], offsets[end], stream) if lone else offsets[cut]
    if middle is None:
      return (
        None,
        end,
      )  # One sentence of one word cannot be a pair; in `nsp` of neither label, for the balance.
    elsewhere = kind == "nsp" and stream.uniform() < 0.5
  other = _another(document, stream, others, settings) if elsewhere else None
  if other is not None:
    a = Segment(document, offsets[begin], offsets[cut])
    b = _from_another(other, target - a.size, stream)
    return _fit(a, b, 1, stream, settings), cut  # Sentences not used are put back.
  if middle is None:
    return None, end
  a, b = Segment(document, offsets[begin], middle), Segment(document, middle, offsets[end])
  # The coin is thrown for `ordered` too: with one seed it has the segments of `sop`, but for ties of the truncation.
  swapped = kind in ("sop", "ordered") and stream.uniform() < 0.5
  if swapped and kind == "sop":
    return _fit(b, a, 1, stream, settings), end
  return _fit(a, b, 0, stream, settings), end


def _random_word(document: TokenizedDocument, begin: int, end: int, stream: Stream) -> int | None:
  """A random word start strictly inside [begin, end)."""
  low, high = document.word_positions.searchsorted([begin + 1, end])
  return int(document.word_positions[stream.integer(low, high - 1)]) if high > low else None


def _another(
  document: TokenizedDocument,
  stream: Stream,
  others: Sequence[TokenizedDocument],
  settings: RecordSettings,
) -> TokenizedDocument | None:
  """A random document; None where `nsp` has no other than `document`. The original gives up and takes `document`."""
  for _ in range(_OTHER_DOCUMENT_TRIES):
    other = others[stream.integer(0, len(others) - 1)]
    if other is not document:
      return other
  if settings.sentence_pair != "nsp":
    return document
  apart = [other for other in others if other is not document]
  return apart[stream.integer(0, len(apart) - 1)] if apart else None


def _from_another(other: TokenizedDocument, wanted: int, stream: Stream) -> Segment:
  """At least one sentence, and at least `wanted` tokens where there are as many, from a random place."""
  first = stream.integer(0, other.num_sentences - 1)
  offsets = other.sentence_offsets
  last = min(bisect.bisect_left(offsets, offsets[first] + wanted, first + 1), other.num_sentences)
  return Segment(other, offsets[first], offsets[last])


def _fit(a: Segment, b: Segment | None, label: int, stream: Stream, settings: RecordSettings) -> SegmentPair:
  """Cuts both to fit: always from the longer one (from `b` on a tie), each token from a random end."""
  size_b = b.size if b else 0
  excess = a.size + size_b - settings.max_num_tokens
  if excess <= 0:
    return SegmentPair(a, b, label, 0)
  # One token after the other gives: the longer shrinks to the other's size, then both in turn, b first.
  cut_a = min(excess, max(0, a.size - size_b))
  cut_b = min(excess, max(0, size_b - a.size))
  rest = excess - cut_a - cut_b
  cut_a, cut_b = cut_a + rest // 2, cut_b + rest - rest // 2
  if b is None:
    cut_a, cut_b = excess, 0
  return SegmentPair(_cut_ends(a, cut_a, stream), _cut_ends(b, cut_b, stream) if b else None, label, excess)


def _cut_ends(segment: Segment, cut: int, stream: Stream) -> Segment:
  if not cut:
    return segment
  front = stream.coin_flips(cut)
  return Segment(segment.document, segment.begin + front, segment.end - (cut - front))
