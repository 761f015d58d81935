"""Pairs of segments to serialized records: masks and bytes, of many pairs at once."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from albert_tf.records import features as names
from albert_tf.records.tfrecord import encode_packed, frame_record, pack_varint_rows
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


class _Sequences(NamedTuple):
  """N sequences [CLS] a [SEP] b [SEP], or [CLS] a [SEP].

  Attributes:
    ids: int32 [N, S] with padding.
    word_starts: bool [N, S] the tokens that start a word; [CLS], [SEP] and padding start none.
    sizes_a: int64 [N] tokens of the first segment.
    sizes: int64 [N] tokens of both segments, the ones that may be masked.
    num_tokens: int64 [N] with [CLS] and [SEP].
  """

  ids: np.ndarray
  word_starts: np.ndarray
  sizes_a: np.ndarray
  sizes: np.ndarray
  num_tokens: np.ndarray


class _Masked(NamedTuple):
  """Masked tokens, int64 [M] each, in the order of sequences and positions; n-grams, int64 [G]."""

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
    self._has_pairs = settings.sentence_pair != "none"
    self._mask_id = tokenizer.mask_id
    self._cls = np.array([tokenizer.cls_id], np.int32)
    self._sep = np.array([tokenizer.sep_id], np.int32)
    self._padding = np.zeros(settings.max_seq_length, np.int32)

    # Tokens that belong to no word are never masked as one.
    self._starts_word = tokenizer.word_starts(settings.whole_word).astype(bool)  # [V]
    self._starts_word[[tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id]] = False

    # The original draws random tokens from the whole vocabulary. A stray [SEP] or <pad> says
    # something false about the structure of the sequence, so the default leaves special tokens out.
    self._random_ids = np.arange(tokenizer.vocab_size, dtype=np.int32)
    if not settings.is_original:
      self._random_ids = np.setdiff1d(self._random_ids, tokenizer.special_ids)
    self._cumulative = np.cumsum(settings.ngram_probabilities)

  def __call__(self, pairs: Sequence[SegmentPair], stream: Stream) -> Instances:
    """The instances of one pair or more; `stream` decides their masks and keys."""
    sequences = self._lay_out(pairs)
    word_offsets, num_words = self._find_words(sequences)

    # All random numbers, in the order that the bytes of the records depend on.
    candidates = draw_candidates(stream, num_words, self._cumulative)
    masked = self._choose(sequences, word_offsets, num_words, candidates)
    num_masked = len(masked.rows)
    kind_draws = stream.uniforms(num_masked)
    id_draws = stream.uniforms(num_masked)
    keys = stream.words(len(pairs))

    # What the model sees, and what it has to predict.
    labels = sequences.ids[masked.rows, masked.positions]
    input_ids = sequences.ids.copy()
    input_ids[masked.rows, masked.positions], kinds = replace_pieces(
      labels, kind_draws, id_draws, mask_id=self._mask_id, random_ids=self._random_ids
    )

    # One row of features for each pair; the predictions of a row come first in it.
    num_predictions = np.bincount(masked.rows, minlength=len(pairs))
    max_predictions = self._settings.max_predictions_per_seq
    is_prediction = np.arange(max_predictions) < num_predictions[:, None]  # [N, P]
    features = _structure_features(sequences)
    features[names.INPUT_IDS] = input_ids
    features[names.MASKED_LM_POSITIONS] = _prediction_rows(masked.positions, is_prediction)
    features[names.MASKED_LM_IDS] = _prediction_rows(labels, is_prediction)
    features[names.SENTENCE_ORDER_LABELS_FEATURE] = np.array([[pair.label] for pair in pairs])
    return Instances(
      pairs=pairs,
      keys=keys,
      records=_encode(features, is_prediction.astype("<f4")),
      num_tokens=sequences.num_tokens,
      num_predictions=num_predictions,
      labels=labels,
      kinds=kinds,
      ngrams=masked.ngrams,
    )

  def _lay_out(self, pairs: Sequence[SegmentPair]) -> _Sequences:
    """The tokens of every sequence."""
    num_special = self._settings.max_seq_length - self._settings.max_num_tokens
    sizes_a = np.array([pair.a.size for pair in pairs], np.int64)
    sizes = sizes_a + [pair.b.size for pair in pairs]
    num_tokens = sizes + num_special

    # The tokens of all sequences, one after the other, are cut into rows at the end: every sequence
    # is padded to S tokens.
    tokens: list[np.ndarray] = []
    for pair, used in zip(pairs, num_tokens.tolist(), strict=True):
      tokens += [self._cls, pair.a.ids, self._sep]
      if self._has_pairs:
        tokens += [pair.b.ids, self._sep]
      tokens.append(self._padding[used:])
    ids = np.concatenate(tokens).reshape(len(pairs), -1)  # [N, S]
    return _Sequences(ids, self._starts_word[ids], sizes_a, sizes, num_tokens)

  def _find_words(self, sequences: _Sequences) -> tuple[np.ndarray, np.ndarray]:
    """The words of every sequence, as places among its maskable tokens.

    Example:
      Tokens [CLS] ▁the ▁re ading [SEP] ▁room [SEP]: three words, which begin at 0, 1 and 3 of the
      four maskable tokens. Their offsets are 0 1 3 4.

    Returns:
      int64 [N, W + 1] where each word begins, and behind the last one the number of maskable
      tokens; int64 [N] words of each sequence, W at most.
    """
    sizes_a = sequences.sizes_a
    begins = sequences.word_starts.copy()  # [N, S]
    begins[:, 1] = True  # The first token of a segment begins a word.
    # The original glues a continuation at the start of B to the last word of A.
    if self._has_pairs and not self._settings.is_original:
      begins[np.arange(len(begins)), sizes_a + 2] = True
    rows, positions = np.nonzero(begins)
    counts = np.bincount(rows, minlength=len(begins))

    # Tokens of A follow [CLS], tokens of B follow [CLS] and [SEP], which are not maskable.
    maskable_places = positions - 1 - (positions > sizes_a[rows])
    # Where a sequence has fewer than W words, the missing ones begin at its end and so are empty.
    offsets = np.repeat(sequences.sizes[:, None], counts.max() + 1, axis=1)  # [N, W + 1]
    is_word = np.arange(offsets.shape[1]) < counts[:, None]
    offsets[is_word] = maskable_places
    return offsets, counts

  def _choose(
    self,
    sequences: _Sequences,
    word_offsets: np.ndarray,
    num_words: np.ndarray,
    candidates: tuple[np.ndarray, np.ndarray],
  ) -> _Masked:
    """The tokens to mask, by the candidates of `draw_candidates`."""
    settings = self._settings
    budgets = prediction_budget(
      sequences.num_tokens,
      masked_lm_prob=settings.masked_lm_prob,
      max_predictions=settings.max_predictions_per_seq,
    )
    boundaries = np.count_nonzero(word_offsets < sequences.sizes_a[:, None], axis=1)
    if settings.is_original:
      boundaries = num_words  # Its n-grams cross [SEP].
    spans = choose_spans(
      word_offsets,
      num_words=num_words,
      boundaries=boundaries,
      budgets=budgets,
      candidates=candidates,
      fill=not settings.is_original,
    )

    # Spans of words to tokens, which are numbered row · S + place among the maskable ones. With
    # S = 10, a span of the places 3 and 4 in row 2 is 23, 24.
    begins = word_offsets[spans.rows, spans.words]
    ends = word_offsets[spans.rows, spans.words + spans.ngrams]
    row_begins = spans.rows * settings.max_seq_length
    tokens = np.sort(ranges(row_begins + begins, ends - begins))
    rows, places_in_row = np.divmod(tokens, settings.max_seq_length)
    is_of_b = places_in_row >= sequences.sizes_a[rows]
    positions = places_in_row + 1 + is_of_b  # Behind [CLS], or [CLS] and [SEP].
    return _Masked(rows, positions, spans.ngrams)


def _structure_features(sequences: _Sequences) -> dict[str, np.ndarray]:
  """uint8 [N, S]: the features of zeros and ones."""
  rows = np.arange(len(sequences.ids))
  positions = np.arange(sequences.ids.shape[1])
  is_token = positions < sequences.num_tokens[:, None]
  is_behind_a = positions > sequences.sizes_a[:, None] + 1  # Behind [CLS], A and [SEP].
  # As in the original's files, [CLS] and [SEP] are marked, too.
  boundaries = sequences.word_starts.copy()
  boundaries[:, 0] = True
  boundaries[rows, sequences.sizes_a + 1] = True
  boundaries[rows, sequences.num_tokens - 1] = True
  return {
    names.INPUT_MASK: is_token.view(np.uint8),
    names.SEGMENT_IDS: (is_token & is_behind_a).view(np.uint8),
    names.TOKEN_BOUNDARY: boundaries.view(np.uint8),
  }


def _prediction_rows(values: np.ndarray, is_prediction: np.ndarray) -> np.ndarray:
  """int64 [N, P]: the values of all predictions, [M], each in the row of its sequence."""
  rows = np.zeros(is_prediction.shape, np.int64)
  rows[is_prediction] = values
  return rows


def _encode(features: Mapping[str, np.ndarray], weights: np.ndarray) -> list[bytes]:
  """The framed Example of each row; float32 [N, P] `weights` are ones for its predictions."""
  # Packed for all rows at once, which takes little more time than for one.
  columns = {name: pack_varint_rows(values) for name, values in features.items()}
  records = []
  for row, row_weights in enumerate(weights):
    payloads = {name: packed_rows[row] for name, packed_rows in columns.items()}
    payloads[names.MASKED_LM_WEIGHTS] = row_weights.tobytes()
    records.append(frame_record(encode_packed(payloads)))
  return records
