"""Cuts a document into pairs of segments: which text, in which order, with which label.

Sentence order (`sop`) is pure: label 1 is the two segments swapped, nothing else. `ordered` is the
same text with nothing to learn of its order. In `nsp`, label 1 is a second segment of another
document, and never of the same one. What the original does otherwise is behind
`compatibility=original`.
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
  """The text of one instance: [CLS] a [SEP] b [SEP], or of `none` [CLS] a [SEP] with an empty `b`.

  Attributes:
    label: 0 in order, 1 swapped (sop) or from another document (nsp); of `ordered` and `none`
      always 0.
    truncated: tokens cut off.
  """

  a: Segment
  b: Segment
  label: int
  truncated: int


def make_pairs(
  document: TokenizedDocument,
  stream: Stream,
  settings: RecordSettings,
  *,
  candidates: Sequence[TokenizedDocument] = (),
) -> Iterator[SegmentPair]:
  """All pairs of one pass over a document.

  Sentences are taken until they hold `target` tokens or the document ends. The chunk is then cut in
  two at a random sentence, a chunk of one sentence at a random word. In `nsp`, a coin says whether
  B comes from another document instead; where there is none all pairs are in order. (`original`: B
  of a lone sentence always comes from another document.)

  Args:
    document: not empty.
    stream: random numbers.
    settings: lengths and kind of pair.
    candidates: documents to draw from where B comes from another one; may hold `document`.
  """
  target = _draw_target(stream, settings)
  begin = 0
  while begin < document.num_sentences:
    end = _end_of_chunk(document, begin, target)
    if settings.sentence_pair == "none":
      chunk = _segment(document, begin, end)
      nothing = _segment(document, end, end)
      pair: SegmentPair | None = _fit(chunk, nothing, 0, stream, settings)
    else:
      pair, end = _cut_chunk(document, begin, end, target, stream, settings, candidates)
    if pair is not None:
      yield pair
    begin = end
    if not settings.is_original:  # The original draws the target once a document.
      target = _draw_target(stream, settings)


def _draw_target(stream: Stream, settings: RecordSettings) -> int:
  """The number of tokens of the next chunk: seldom a random smaller one."""
  if stream.uniform() < settings.short_seq_prob:
    return stream.integer(2, settings.max_num_tokens)
  return settings.max_num_tokens


def _end_of_chunk(document: TokenizedDocument, begin: int, num_tokens: int) -> int:
  """The end of the fewest sentences from `begin` that hold `num_tokens`, at least one.

  Example:
    Sentences of 4, 3 and 6 tokens have offsets 0 4 7 13. From sentence 0, six tokens are in two.
  """
  offsets = document.sentence_offsets
  end = bisect.bisect_left(offsets, offsets[begin] + num_tokens, begin + 1)
  return min(end, document.num_sentences)


def _segment(document: TokenizedDocument, begin: int, end: int) -> Segment:
  """Sentences [begin, end)."""
  offsets = document.sentence_offsets
  return Segment(document, offsets[begin], offsets[end])


def _cut_chunk(
  document: TokenizedDocument,
  begin: int,
  end: int,
  target: int,
  stream: Stream,
  settings: RecordSettings,
  candidates: Sequence[TokenizedDocument],
) -> tuple[SegmentPair | None, int]:
  """The pair of sentences [begin, end), and the sentence the next chunk begins with.

  The order of the draws from `stream` decides the bytes of the records.
  """
  kind = settings.sentence_pair
  is_lone = end - begin == 1
  # The original never cuts a lone sentence in two.
  must_be_elsewhere = is_lone and settings.is_original and kind != "ordered"

  # Where the chunk is cut: behind sentence `cut`, at token `middle`.
  cut = begin + 1
  if not is_lone:
    cut = stream.integer(begin + 1, end - 1)
  chunk = _segment(document, begin, end)
  middle: int | None = document.sentence_offsets[cut]
  if is_lone:
    middle = None
    if not must_be_elsewhere:
      middle = _random_word(chunk, stream)
      if middle is None:
        # A sentence of one word cannot be a pair; in `nsp` of neither label, for the balance.
        return None, end

  # B of another document. The sentences behind the cut come again with the next chunk.
  if must_be_elsewhere or (kind == "nsp" and stream.uniform() < 0.5):
    other_document = _draw_document(document, stream, candidates, settings)
    if other_document is not None:
      a = _segment(document, begin, cut)
      b = _draw_segment(other_document, target - a.size, stream)
      return _fit(a, b, 1, stream, settings), cut
  if middle is None:
    return None, end

  # Both segments of this document.
  a = Segment(document, chunk.begin, middle)
  b = Segment(document, middle, chunk.end)
  if kind in ("sop", "ordered"):
    # The coin is thrown for `ordered` too: with one seed it has the segments of `sop`, but for ties
    # of the truncation.
    is_heads = stream.uniform() < 0.5
    if is_heads and kind == "sop":
      return _fit(b, a, 1, stream, settings), end
  return _fit(a, b, 0, stream, settings), end


def _random_word(segment: Segment, stream: Stream) -> int | None:
  """A random word start inside of a segment, which is not its first token; None without one."""
  word_positions = segment.document.word_positions
  low, high = word_positions.searchsorted([segment.begin + 1, segment.end])
  if high <= low:
    return None
  return int(word_positions[stream.integer(low, high - 1)])


def _draw_document(
  document: TokenizedDocument,
  stream: Stream,
  candidates: Sequence[TokenizedDocument],
  settings: RecordSettings,
) -> TokenizedDocument | None:
  """A random document that is not `document`.

  Where it finds none, the original takes `document`; `nsp` looks at all, and takes None.
  """
  for _ in range(_OTHER_DOCUMENT_TRIES):
    candidate = candidates[stream.integer(0, len(candidates) - 1)]
    if candidate is not document:
      return candidate
  if settings.sentence_pair != "nsp":
    return document
  different = [candidate for candidate in candidates if candidate is not document]
  if not different:
    return None
  return different[stream.integer(0, len(different) - 1)]


def _draw_segment(document: TokenizedDocument, num_tokens: int, stream: Stream) -> Segment:
  """From a random sentence on: one at least, and `num_tokens` where there are as many."""
  first = stream.integer(0, document.num_sentences - 1)
  return _segment(document, first, _end_of_chunk(document, first, num_tokens))


def _fit(
  a: Segment, b: Segment, label: int, stream: Stream, settings: RecordSettings
) -> SegmentPair:
  """Cuts both to fit: always from the longer one (from `b` on a tie), each token at a random end.

  Example:
    Of 9 and 5 tokens 7 are to go. The first four leave 5 and 5. The last three are b, a, b.
  """
  excess = max(0, a.size + b.size - settings.max_num_tokens)

  # The longer shrinks to the size of the other, then both in turn, b first.
  cut_a = min(excess, max(0, a.size - b.size))
  cut_b = min(excess, max(0, b.size - a.size))
  in_turn = excess - cut_a - cut_b
  cut_a += in_turn // 2
  cut_b += in_turn - in_turn // 2
  a = _cut_ends(a, cut_a, stream)
  b = _cut_ends(b, cut_b, stream)
  return SegmentPair(a, b, label, excess)


def _cut_ends(segment: Segment, num_tokens: int, stream: Stream) -> Segment:
  if num_tokens == 0:
    return segment
  num_front = stream.coin_flips(num_tokens)
  num_back = num_tokens - num_front
  return Segment(segment.document, segment.begin + num_front, segment.end - num_back)
