"""Pairs of segments to serialized records: masks and bytes, of many pairs at once."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from albert_tf.records import encode_packed, frame_record, pack_varint_rows
from albert_tf.records import features as names
from albert_tf.tokenization import Tokenizer
from tfrecords_tools.pretraining.documents import ranges
from tfrecords_tools.pretraining.masking import (
  choose_spans,
  draw_candidates,
  prediction_budget,
  replace_pieces,
)
from tfrecords_tools.pretraining.randomness import Stream
from tfrecords_tools.pretraining.segments import SegmentPair
from tfrecords_tools.pretraining.settings import RecordSettings


class Instances(NamedTuple):
  """N instances with M masked tokens in G n-grams.

  Attributes:
    pairs: the segments they were made from.
    keys: uint64 [N], where the records come in the shuffled order.
    records: framed TFRecord bytes of each.
    num_tokens: int64 [N], with [CLS] and [SEP].
    num_predictions: int64 [N], their sum is M.
    labels: int32 [M] original tokens of the masked positions.
    kinds: uint8 [M] 0 masked, 1 kept, 2 random.
    ngrams: int64 [G] words of each n-gram.
  """

  pairs: Sequence[SegmentPair]
  keys: np.ndarray
  records: list[bytes]
  num_tokens: np.ndarray
  num_predictions: np.ndarray
  labels: np.ndarray
  kinds: np.ndarray
  ngrams: np.ndarray


class _Masked(NamedTuple):
  """Masked tokens in the order of their sequences and positions, int64 [M] each; the n-grams, int64 [G]."""

  rows: np.ndarray
  positions: np.ndarray
  ngrams: np.ndarray


class InstanceMaker:
  """Makes instances of many pairs at once.

  Args:
    tokenizer: for the special tokens and the vocabulary.
    settings: everything else.

  Example:
    >>> make = InstanceMaker(tokenizer, settings)
    >>> instances = make(list(make_pairs(document, stream, settings)), stream)
  """

  def __init__(self, tokenizer: Tokenizer, settings: RecordSettings):
    self._settings = settings
    self._mask = tokenizer.mask_id
    self._cls, self._sep = (np.array([piece], np.int32) for piece in (tokenizer.cls_id, tokenizer.sep_id))
    self._padding = np.zeros(settings.max_seq_length, np.int32)
    special = [tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id]
    self._word_starts = tokenizer.word_starts(settings.whole_word).astype(np.uint8)
    self._word_starts[special] = 0
    # The original draws random tokens from the whole vocabulary. A stray [SEP] or <pad> says something false
    # about the structure of the sequence, so the default leaves special tokens out.
    special += [tokenizer.unk_id, self._mask]
    self._random_ids = np.setdiff1d(
      np.arange(tokenizer.vocab_size, dtype=np.int32), [] if settings.is_original else special
    )
    self._cumulative = np.cumsum(settings.ngram_probabilities)
    used = np.tri(settings.max_predictions_per_seq + 1, settings.max_predictions_per_seq, -1, dtype="<f4")
    self._weights = [row.tobytes() for row in used]

  def __call__(self, pairs: Sequence[SegmentPair], stream: Stream) -> Instances:
    """The instances of one pair or more; `stream` decides their masks and keys."""
    settings = self._settings
    sizes = np.array([(pair.a.size, pair.b.size if pair.b else 0) for pair in pairs]).reshape(-1, 2)
    num_tokens = sizes.sum(axis=1) + settings.max_seq_length - settings.max_num_tokens  # [N]
    ids = self._sequences(pairs, num_tokens.tolist())  # [N, S]
    starts = self._word_starts[ids]  # [N, S]
    masked = self._choose(starts, sizes, num_tokens, stream)
    counts = np.bincount(masked.rows, minlength=len(pairs))
    places = masked.rows, masked.positions
    labels = ids[places]  # [M]
    ids[places], kinds = replace_pieces(
      labels,
      stream.uniforms(len(labels)),
      stream.uniforms(len(labels)),
      mask_id=self._mask,
      random_ids=self._random_ids,
    )
    slots = np.zeros((2, len(pairs), settings.max_predictions_per_seq), np.int64)
    slots[:, np.arange(slots.shape[-1]) < counts[:, None]] = masked.positions, labels  # [2, N, P]
    features = dict(zip((names.MASKED_LM_POSITIONS, names.MASKED_LM_IDS), slots, strict=True))
    features |= self._structure(starts, sizes[:, 0], num_tokens)
    features[names.INPUT_IDS] = ids
    features[names.SENTENCE_ORDER_LABELS_FEATURE] = np.array([[pair.label] for pair in pairs])
    records = list(map(frame_record, self._encode(features, counts.tolist())))
    return Instances(
      pairs, stream.words(len(pairs)), records, num_tokens, counts, labels, kinds, masked.ngrams
    )

  def _sequences(self, pairs: Sequence[SegmentPair], num_tokens: list[int]) -> np.ndarray:
    """int32 [N, S]: [CLS] a [SEP] b [SEP] and padding."""
    parts = []
    for (a, b, _, _), used in zip(pairs, num_tokens, strict=True):
      parts += [self._cls, a.document.ids[a.begin : a.end], self._sep]
      if b:
        parts += [b.document.ids[b.begin : b.end], self._sep]
      parts.append(self._padding[used:])
    return np.concatenate(parts).reshape(len(pairs), -1)

  def _choose(self, starts: np.ndarray, sizes: np.ndarray, num_tokens: np.ndarray, stream: Stream) -> _Masked:
    """The tokens to mask.

    Args:
      starts: uint8 [N, S] whether a word starts; [CLS] and [SEP] start none.
      sizes: int64 [N, 2] tokens of both segments.
      num_tokens: int64 [N] of the sequences.
      stream: random numbers.
    """
    settings, sizes_a = self._settings, sizes[:, 0]
    begins = starts.copy()
    begins[:, 1] = 1  # The first token of a segment begins a word.
    # The original glues a continuation at the start of B to the last word of A.
    if settings.sentence_pair != "none" and not settings.is_original:
      begins[np.arange(len(begins)), sizes_a + 2] = 1
    rows, positions = np.nonzero(begins.view(bool))
    num_words = np.bincount(rows, minlength=len(begins))
    # Tokens of A follow [CLS], tokens of B follow [CLS] and [SEP]: without these, the maskable tokens.
    word_offsets = np.repeat(sizes.sum(axis=1, keepdims=True), num_words.max() + 1, axis=1)
    word_offsets[np.arange(word_offsets.shape[1]) < num_words[:, None]] = (
      positions - 1 - (positions > sizes_a[rows])
    )
    words_a = np.count_nonzero(word_offsets < sizes_a[:, None], axis=1)
    spans = choose_spans(
      word_offsets,
      num_words=num_words,
      boundaries=num_words if settings.is_original else words_a,
      budgets=prediction_budget(
        num_tokens,
        masked_lm_prob=settings.masked_lm_prob,
        max_predictions=settings.max_predictions_per_seq,
      ),
      candidates=draw_candidates(stream, num_words, self._cumulative),
      fill=not settings.is_original,
    )
    first = word_offsets[spans.rows, spans.words]
    counts = word_offsets[spans.rows, spans.words + spans.ngrams] - first
    tokens = np.sort(ranges(spans.rows * settings.max_seq_length + first, counts))  # Of all rows in one.
    rows, places = np.divmod(tokens, settings.max_seq_length)
    return _Masked(rows, places + 1 + (places >= sizes_a[rows]), spans.ngrams)

  def _structure(
    self, starts: np.ndarray, sizes_a: np.ndarray, num_tokens: np.ndarray
  ) -> dict[str, np.ndarray]:
    """uint8 [N, S]: the features of zeros and ones; `starts` is changed."""
    rows, place = np.arange(len(starts)), np.arange(starts.shape[1])
    real = place < num_tokens[:, None]
    starts[:, 0] = starts[rows, sizes_a + 1] = starts[rows, num_tokens - 1] = 1
    second = real & (place > sizes_a[:, None] + 1)
    return {
      names.INPUT_MASK: real.view(np.uint8),
      names.SEGMENT_IDS: second.view(np.uint8),
      names.TOKEN_BOUNDARY: starts,
    }

  def _encode(self, features: dict[str, np.ndarray], counts: list[int]) -> Iterator[bytes]:
    """The serialized Example of each row; its weights are ones for `counts` predictions."""
    rows = zip(*map(pack_varint_rows, features.values()), strict=True)
    for row, count in zip(rows, counts, strict=True):
      yield encode_packed(
        {**dict(zip(features, row, strict=True)), names.MASKED_LM_WEIGHTS: self._weights[count]}
      )
