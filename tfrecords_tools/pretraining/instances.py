"""A document and a pass to serialized records: segments, masks, bytes."""

from collections.abc import Iterator, Sequence
import itertools
from typing import NamedTuple

import numpy as np

from albert_tf.records import encode_packed, frame_record, pack_varints
from albert_tf.records import features as names
from albert_tf.records.compact import encode_compact
from albert_tf.tokenization import Tokenizer
from tfrecords_tools.pretraining.documents import TokenizedDocument
from tfrecords_tools.pretraining.masking import (
  Span,
  choose_spans,
  draw_candidates,
  prediction_budget,
  replace_pieces,
)
from tfrecords_tools.pretraining.randomness import Stream
from tfrecords_tools.pretraining.segments import Segment, SegmentPair, make_pairs
from tfrecords_tools.pretraining.settings import PretrainingSettings


class Instance(NamedTuple):
  """One instance, as far as statistics want to know it.

  Attributes:
    key: uint64, where the record comes in the shuffled order.
    record: framed TFRecord bytes.
    pair: the segments it was made from.
    num_tokens: with [CLS] and [SEP].
    labels: int32 [M] original pieces of the masked positions.
    kinds: uint8 [M] 0 masked, 1 kept, 2 random.
    spans: the n-grams.
  """

  key: int
  record: bytes
  pair: SegmentPair
  num_tokens: int
  labels: np.ndarray
  kinds: np.ndarray
  spans: list[Span]


class InstanceMaker:
  """Makes all instances of one pass over a document.

  Args:
    tokenizer: for the special pieces and the vocabulary.
    settings: everything else.
  """

  def __init__(self, tokenizer: Tokenizer, settings: PretrainingSettings):
    self._settings = settings
    self._vocab_size = tokenizer.vocab_size
    self._cls, self._sep, self._mask = tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id
    special = {tokenizer.pad_id, tokenizer.unk_id, self._cls, self._sep, self._mask}
    # The original draws random pieces from the whole vocabulary. A stray [SEP] or <pad> says something false
    # about the structure of the sequence, so the default leaves special pieces out.
    self._random_ids = np.array(
      [i for i in range(tokenizer.vocab_size) if settings.is_original or i not in special], np.int32
    )
    self._cumulative = np.cumsum(settings.ngram_probabilities)
    self._weights = [
      np.array([1.0] * used + [0.0] * (settings.max_predictions_per_seq - used), "<f4").tobytes()
      for used in range(settings.max_predictions_per_seq + 1)
    ]

  def __call__(
    self,
    document: TokenizedDocument,
    stream: Stream,
    *,
    others: Sequence[TokenizedDocument] = (),
  ) -> Iterator[Instance]:
    for pair in make_pairs(document, stream, self._settings, others=others):
      yield self._instance(pair, stream)

  def _instance(self, pair: SegmentPair, stream: Stream) -> Instance:
    settings = self._settings
    a, b = pair.a, pair.b
    num_tokens = a.size + (b.size + 3 if b else 2)
    ids = np.zeros(settings.max_seq_length, np.int32)  # [S]
    ids[0] = self._cls
    ids[1 : a.size + 1] = a.document.ids[a.begin : a.end]
    ids[a.size + 1] = self._sep
    if b:
      ids[a.size + 2 : num_tokens - 1] = b.document.ids[b.begin : b.end]
      ids[num_tokens - 1] = self._sep
    budget = prediction_budget(
      num_tokens,
      masked_lm_prob=settings.masked_lm_prob,
      max_predictions=settings.max_predictions_per_seq,
    )
    spans = self._spans(a, b, budget, stream) if budget else []
    positions = _positions(spans, a.size)  # [M]
    labels = ids[positions]  # [M]
    ids[positions], kinds = replace_pieces(labels, stream, mask_id=self._mask, random_ids=self._random_ids)
    encode = self._encode_compact if settings.record_layout == "compact" else self._encode
    record = frame_record(encode(ids, pair, num_tokens, positions, labels))
    key = int(stream.words(1)[0])
    return Instance(key, record, pair, num_tokens, labels, kinds, spans)

  def _spans(self, a: Segment, b: Segment | None, budget: int, stream: Stream) -> list[Span]:
    settings = self._settings
    word_offsets, boundary = _word_offsets(a, b, settings)
    num_words = len(word_offsets) - 1
    return choose_spans(
      word_offsets,
      boundary=num_words if settings.is_original else boundary,
      budget=budget,
      candidates=draw_candidates(stream, num_words, self._cumulative, budget),
      fill=not settings.is_original,
    )

  def _encode(
    self, ids: np.ndarray, pair: SegmentPair, num_tokens: int, positions: np.ndarray, labels: np.ndarray
  ) -> bytes:
    """Zeros and ones are their own varints, so the masks are written as bytes directly."""
    settings = self._settings
    a, b = pair.a, pair.b
    padding = bytes(settings.max_seq_length - num_tokens)
    boundary = [b"\1", a.document.starts[a.begin : a.end].tobytes(), b"\1"]
    size_b = 0
    if b:
      boundary += [b.document.starts[b.begin : b.end].tobytes(), b"\1"]
      size_b = b.size + 1
    unused = bytes(settings.max_predictions_per_seq - len(labels))
    return encode_packed(
      {
        names.INPUT_IDS: pack_varints(ids),
        names.INPUT_MASK: b"\1" * num_tokens + padding,
        names.SEGMENT_IDS: bytes(a.size + 2) + b"\1" * size_b + padding,
        names.TOKEN_BOUNDARY: b"".join(boundary) + padding,
        names.MASKED_LM_POSITIONS: pack_varints(positions) + unused,
        names.MASKED_LM_IDS: pack_varints(labels) + unused,
        names.MASKED_LM_WEIGHTS: self._weights[len(labels)],
        names.SENTENCE_ORDER_LABELS_FEATURE: b"\1" if pair.label else b"\0",
      }
    )

  def _encode_compact(
    self, ids: np.ndarray, pair: SegmentPair, num_tokens: int, positions: np.ndarray, labels: np.ndarray
  ) -> bytes:
    return encode_compact(
      tokens=ids[:num_tokens],
      first_segment=pair.a.size + 2,
      label=pair.label,
      positions=positions,
      answers=labels,
      max_predictions=self._settings.max_predictions_per_seq,
      vocab_size=self._vocab_size,
    )


def _word_offsets(a: Segment, b: Segment | None, settings: PretrainingSettings) -> tuple[list[int], int]:
  """Where words begin among the pieces of A and B (without [CLS], [SEP]), and how many words A has."""
  words_a = _words_of(a)
  if b is None:
    return [*words_a.tolist(), a.size], len(words_a)
  words_b = _words_of(b)
  if settings.is_original and not b.document.starts[b.begin]:
    words_b = words_b[1:]  # The original glues a continuation at the start of B to the last word of A.
  return [*words_a.tolist(), *(words_b + a.size).tolist(), a.size + b.size], len(words_a)


def _words_of(segment: Segment) -> np.ndarray:
  """Word starts relative to the segment; its first piece always begins a word."""
  words = segment.document.word_positions
  low, high = words.searchsorted([segment.begin, segment.end])
  words = words[low:high] - segment.begin
  return words if len(words) and words[0] == 0 else np.concatenate([[0], words])


def _positions(spans: list[Span], size_a: int) -> np.ndarray:
  """Sorted positions in the sequence: pieces of A are behind [CLS], those of B behind [CLS] and [SEP]."""
  pieces = list(itertools.chain.from_iterable(range(span.begin, span.end) for span in spans))
  pieces.sort()
  positions = np.array(pieces, np.int64) + 1
  positions[positions > size_a] += 1
  return positions
