"""A document and a pass to serialized records: segments, masks, bytes."""

from collections.abc import Iterator, Sequence
import itertools
from typing import NamedTuple

import numpy as np

from albert_tf.records import encode_packed, frame_record, pack_varint_rows
from albert_tf.records import features as names
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
from tfrecords_tools.pretraining.settings import RecordSettings


class Draft(NamedTuple):
  """An instance of which everything random is drawn, and nothing is written yet.

  Attributes:
    pair: the segments it is made from.
    num_tokens: with [CLS] and [SEP].
    spans: the n-grams.
    pieces: the places of their M tokens in both segments, sorted.
    kind_draws, id_draws: float64 [M] for `replace_pieces`.
    key: uint64, where the record comes in the shuffled order.
  """

  pair: SegmentPair
  num_tokens: int
  spans: list[Span]
  pieces: list[int]
  kind_draws: np.ndarray
  id_draws: np.ndarray
  key: int


class Instance(NamedTuple):
  """One instance, as far as statistics want to know it.

  Attributes:
    key: uint64, where the record comes in the shuffled order.
    record: framed TFRecord bytes.
    pair: the segments it was made from.
    num_tokens: with [CLS] and [SEP].
    labels: int32 [M] original tokens of the masked positions.
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
  """Makes instances in two steps: what is random is drawn one by one, what follows from it is computed for many.

  Args:
    tokenizer: for the special tokens and the vocabulary.
    settings: everything else.

  Example:
    >>> make = InstanceMaker(tokenizer, settings)
    >>> instances = make.finish(list(make.drafts(document, stream)))
  """

  def __init__(self, tokenizer: Tokenizer, settings: RecordSettings):
    self._settings = settings
    self._mask = tokenizer.mask_id
    self._cls, self._sep = (np.array([piece], np.int32) for piece in (tokenizer.cls_id, tokenizer.sep_id))
    self._padding = np.zeros(settings.max_seq_length, np.int32)
    special = {tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, self._mask}
    # The original draws random tokens from the whole vocabulary. A stray [SEP] or <pad> says something false
    # about the structure of the sequence, so the default leaves special tokens out.
    self._random_ids = np.array(
      [i for i in range(tokenizer.vocab_size) if settings.is_original or i not in special], np.int32
    )
    self._cumulative = np.cumsum(settings.ngram_probabilities)
    self._weights = [
      np.array([1.0] * used + [0.0] * (settings.max_predictions_per_seq - used), "<f4").tobytes()
      for used in range(settings.max_predictions_per_seq + 1)
    ]

  def drafts(
    self,
    document: TokenizedDocument,
    stream: Stream,
    *,
    others: Sequence[TokenizedDocument] = (),
  ) -> Iterator[Draft]:
    """All instances of one pass over a document."""
    for pair in make_pairs(document, stream, self._settings, others=others):
      yield self._draft(pair, stream)

  def _draft(self, pair: SegmentPair, stream: Stream) -> Draft:
    settings = self._settings
    a, b = pair.a, pair.b
    num_tokens = a.size + (b.size + 3 if b else 2)
    budget = prediction_budget(
      num_tokens,
      masked_lm_prob=settings.masked_lm_prob,
      max_predictions=settings.max_predictions_per_seq,
    )
    spans = self._spans(a, b, budget, stream) if budget else []
    pieces = [piece for span in spans for piece in range(span.begin, span.end)]
    pieces.sort()
    kind_draws, id_draws = stream.uniforms(len(pieces)), stream.uniforms(len(pieces))
    return Draft(pair, num_tokens, spans, pieces, kind_draws, id_draws, key=int(stream.words(1)[0]))

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

  def finish(self, drafts: Sequence[Draft]) -> list[Instance]:
    """Masks the tokens and writes the records of N drafts."""
    if not drafts:
      return []
    ids = self._sequences(drafts)  # [N, S]
    counts = np.array([len(draft.pieces) for draft in drafts])
    rows = np.repeat(np.arange(len(drafts)), counts)  # [M], the masked tokens of all drafts together.
    positions = _positions(drafts, rows)  # [M]
    labels = ids[rows, positions]  # [M]
    ids[rows, positions], kinds = replace_pieces(
      labels,
      np.concatenate([draft.kind_draws for draft in drafts]),
      np.concatenate([draft.id_draws for draft in drafts]),
      mask_id=self._mask,
      random_ids=self._random_ids,
    )
    slots = np.zeros((2, len(drafts), self._settings.max_predictions_per_seq), np.int64)
    slots[:, np.arange(slots.shape[-1]) < counts[:, None]] = positions, labels  # [2, N, P]
    ends = np.cumsum(counts).tolist()
    return [
      Instance(
        draft.key,
        frame_record(data),
        draft.pair,
        draft.num_tokens,
        labels[end - len(draft.pieces) : end],
        kinds[end - len(draft.pieces) : end],
        draft.spans,
      )
      for draft, data, end in zip(drafts, self._encode(drafts, ids, *slots), ends, strict=True)
    ]

  def _sequences(self, drafts: Sequence[Draft]) -> np.ndarray:
    """int32 [N, S]: [CLS] a [SEP] b [SEP] and padding."""
    parts = []
    for draft in drafts:
      a, b = draft.pair.a, draft.pair.b
      parts += [self._cls, a.document.ids[a.begin : a.end], self._sep]
      if b:
        parts += [b.document.ids[b.begin : b.end], self._sep]
      parts.append(self._padding[draft.num_tokens :])
    return np.concatenate(parts).reshape(len(drafts), -1)

  def _encode(
    self, drafts: Sequence[Draft], ids: np.ndarray, positions: np.ndarray, labels: np.ndarray
  ) -> Iterator[bytes]:
    """Zeros and ones are their own varints, so the masks are written as bytes directly."""
    packed = (pack_varint_rows(values) for values in (ids, positions, labels))
    for draft, packed_ids, packed_positions, packed_labels in zip(drafts, *packed, strict=True):
      a, b, label, _ = draft.pair
      padding = bytes(self._settings.max_seq_length - draft.num_tokens)
      boundary = [b"\1", a.document.starts[a.begin : a.end].tobytes(), b"\1"]
      if b:
        boundary += [b.document.starts[b.begin : b.end].tobytes(), b"\1"]
      yield encode_packed(
        {
          names.INPUT_IDS: packed_ids,
          names.INPUT_MASK: b"\1" * draft.num_tokens + padding,
          names.SEGMENT_IDS: bytes(a.size + 2) + b"\1" * (b.size + 1 if b else 0) + padding,
          names.TOKEN_BOUNDARY: b"".join(boundary) + padding,
          names.MASKED_LM_POSITIONS: packed_positions,
          names.MASKED_LM_IDS: packed_labels,
          names.MASKED_LM_WEIGHTS: self._weights[len(draft.pieces)],
          names.SENTENCE_ORDER_LABELS_FEATURE: b"\1" if label else b"\0",
        }
      )


def _word_offsets(a: Segment, b: Segment | None, settings: RecordSettings) -> tuple[list[int], int]:
  """Where words begin among the tokens of A and B (without [CLS], [SEP]), and how many words A has."""
  words_a = _words_of(a, 0)
  if b is None:
    return [*words_a, a.size], len(words_a)
  words_b = _words_of(b, a.size)
  if settings.is_original and not b.document.starts[b.begin]:
    words_b = words_b[1:]  # The original glues a continuation at the start of B to the last word of A.
  return [*words_a, *words_b, a.size + b.size], len(words_a)


def _words_of(segment: Segment, first: int) -> list[int]:
  """Where its words begin if its first token is at `first`; the first token always begins a word."""
  words = segment.document.word_positions
  low, high = words.searchsorted((segment.begin, segment.end))
  begins: list[int] = (words[low:high] + (first - segment.begin)).tolist()
  return begins if begins[:1] == [first] else [first, *begins]


def _positions(drafts: Sequence[Draft], rows: np.ndarray) -> np.ndarray:
  """Positions in the sequence: tokens of A follow [CLS], tokens of B follow [CLS] and [SEP]."""
  pieces = np.array(list(itertools.chain.from_iterable(draft.pieces for draft in drafts)), np.int64)
  sizes_a = np.array([draft.pair.a.size for draft in drafts])
  return pieces + 1 + (pieces >= sizes_a[rows])
