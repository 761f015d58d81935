"""Fresh masks for stored records: undo the stored masks, draw n-grams again (paper section 4.1).

The answers of a pre-masked record give back its text. So one copy of a corpus gets other masks in every epoch, a
function of (seed, epoch, number of the record). The order of the two segments is drawn again, too: with a fixed
order, a model would memorize which records are swapped.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.pipelines.masking import MaskingConfig
from albert_tf.records import features as names
from albert_tf.records.ngrams import KEEP_SHARE, MASK_SHARE
from albert_tf.tokenization import Tokenizer

Batch = dict[str, tf.Tensor]


class Words(NamedTuple):
  """Words in the order in which they may begin an n-gram; K of them, [B, K] each.

  Attributes:
    begins: position of the first token; S for a missing word.
    ends: [B, K, N] end of the n-gram of 1, 2, … N words, cut at the end of the segment.
    lengths: the n drawn for the word; 0 for a missing word.
  """

  begins: tf.Tensor
  ends: tf.Tensor
  lengths: tf.Tensor


def unmasked(batch: Batch) -> tf.Tensor:
  """int32 [B, S]: the ids of a batch without its stored masks."""
  ids, positions = batch[names.INPUT_IDS], batch[names.MASKED_LM_POSITIONS]
  answers = tf.where(
    batch[names.MASKED_LM_WEIGHTS] > 0, batch[names.MASKED_LM_IDS], tf.gather(ids, positions, batch_dims=1)
  )
  rows = tf.broadcast_to(tf.range(tf.shape(ids)[0])[:, tf.newaxis], tf.shape(positions))
  return tf.tensor_scatter_nd_update(ids, tf.stack([rows, positions], axis=-1), answers)


class FreshMasks:
  """Draws fresh masks, in TensorFlow operations on whole batches.

  Args:
    masking: the rules.
    tokenizer: knows special tokens and tokens that begin a word.
    seed: keys the draws, with epoch and record.
  """

  def __init__(self, masking: MaskingConfig, tokenizer: Tokenizer, *, seed: int):
    self._masking = masking
    self._seed = seed
    self._cls_id, self._sep_id, self._mask_id = tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id
    special = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
    # Inputs of the function, not constants in its graph.
    self._word_starts = tf.constant(tokenizer.word_starts(masking.whole_word))
    self._random_ids = tf.constant(np.setdiff1d(np.arange(tokenizer.vocab_size), special), tf.int32)
    self._cumulative = np.cumsum(masking.ngram_probabilities)[:-1]

  def __call__(self, batch: Batch, epochs: tf.Tensor, records: tf.Tensor) -> Batch:
    """The batch with fresh masks and, with `redraw_order`, a fresh order of the segments.

    Args:
      batch: parsed records with the stored masks, S tokens a row.
      epochs, records: int64 [B], key the draws of each row.

    Returns:
      The batch, `masked_lm_*` now [B, P].
    """
    masking = self._masking
    batch = {**batch, names.INPUT_IDS: unmasked(batch)}
    if masking.redraw_order:
      batch = with_order(batch, _row_keys(self._seed, epochs, records, _ORDER_STREAM) >= np.uint64(2**63))
    ids = batch[names.INPUT_IDS]  # [B, S]
    length = tf.shape(ids)[1]
    draws = [_draws(_row_keys(self._seed, epochs, records, stream), length) for stream in _MASK_STREAMS]
    tokens = tf.reduce_sum(batch[names.INPUT_MASK], axis=1)  # [B]
    budget = tf.cast(tf.round(tf.cast(tokens, tf.float64) * masking.masked_lm_prob), tf.int32)
    budget = tf.minimum(tf.maximum(budget, 1), masking.max_predictions_per_seq)
    words = self.words_of(ids, batch[names.INPUT_MASK], *draws[0])
    masked = chosen_positions(words, budget, length)  # [B, S]
    return {**batch, **self._replaced(ids, masked, *draws[1])}

  def words_of(self, ids: tf.Tensor, mask: tf.Tensor, ranks: tf.Tensor, ngram_draws: tf.Tensor) -> Words:
    """The first words of a random order: more than the budget can use, unless almost all of them overlap."""
    masking, length = self._masking, tf.shape(ids)[1]
    separator = (ids == self._cls_id) | (ids == self._sep_id) | (mask == 0)
    # The first token of a segment.
    behind = tf.concat([tf.ones_like(separator[:, :1]), separator[:, :-1]], axis=1)
    begins_word = ~separator & (behind | tf.gather(self._word_starts, ids))
    place = tf.range(length)[tf.newaxis]
    # One more at the end, for a text that fills its row without a final [SEP].
    bounds, stops = (
      tf.pad(
        tf.sort(tf.where(ends, place, length), axis=1), [[0, 0], [0, 1]], constant_values=length
      )  # [B, S + 1]
      for ends in (begins_word | separator, separator)
    )
    priority = tf.where(begins_word, ranks, -1)
    count = tf.minimum(masking.max_predictions_per_seq + 16, length)
    value, begins = tf.math.top_k(priority, count)  # [B, K]
    rank = tf.searchsorted(bounds, begins, side="right")  # Of the next bound.
    ngrams = tf.range(len(masking.ngram_probabilities))
    ends = tf.gather(bounds, tf.minimum(rank[..., tf.newaxis] + ngrams, length), batch_dims=1)
    stop = tf.gather(stops, tf.searchsorted(stops, begins, side="right"), batch_dims=1)
    uniform = tf.gather(tf.cast(ngram_draws, tf.float32) / 2.0**31, begins, batch_dims=1)
    lengths = 1 + tf.reduce_sum(
      tf.cast(uniform[..., tf.newaxis] >= self._cumulative.astype(np.float32), tf.int32), axis=-1
    )
    exists = value >= 0
    return Words(
      tf.where(exists, begins, length),
      tf.minimum(ends, stop[..., tf.newaxis]),
      tf.where(exists, lengths, 0),
    )

  def _replaced(self, ids: tf.Tensor, masked: tf.Tensor, kinds: tf.Tensor, picks: tf.Tensor) -> Batch:
    """The features that depend on the masks: 80 % [MASK], 10 % the token itself, 10 % a random token."""
    masking, length = self._masking, tf.shape(ids)[1]
    kind = tf.cast(kinds, tf.float32) / 2.0**31
    pick = tf.cast(picks, tf.int64) * tf.size(self._random_ids, tf.int64) // 2**31
    other = tf.where(kind < MASK_SHARE, self._mask_id, tf.gather(self._random_ids, pick))
    replaced = masked & ((kind < MASK_SHARE) | (kind >= MASK_SHARE + KEEP_SHARE))
    slots = min(masking.max_predictions_per_seq, ids.shape[1] or masking.max_predictions_per_seq)
    places = tf.sort(tf.where(masked, tf.range(length)[tf.newaxis], length), axis=1)[:, :slots]  # [B, P]
    used = places < length
    places = tf.where(used, places, 0)
    return {
      names.INPUT_IDS: tf.where(replaced, other, ids),
      names.MASKED_LM_POSITIONS: places,
      names.MASKED_LM_IDS: tf.where(used, tf.gather(ids, places, batch_dims=1), 0),
      names.MASKED_LM_WEIGHTS: tf.cast(used, tf.float32),
    }


def chosen_positions(words: Words, budget: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
  """The tokens that n-grams cover until the budget is spent; bool [B, S].

  Words are taken in order. An n-gram with more tokens than are left is shortened word by word; an n-gram that touches
  a covered word is skipped. Single words use the remaining budget. All n-grams before the first that must be
  shortened are found in one pass.

  Args:
    words: in the order in which they are tried.
    budget: int32 [B] number of tokens to cover.
    length: S.
  """
  begins = words.begins
  ends = _shortened(words, budget)
  order = tf.range(tf.shape(begins)[1])
  earlier = order[tf.newaxis, :] < order[:, tf.newaxis]
  touches = (begins[:, :, tf.newaxis] < ends[:, tf.newaxis, :]) & (
    begins[:, tf.newaxis, :] < ends[:, :, tf.newaxis]
  )
  touches &= earlier[tf.newaxis]  # [B, K, K] of an earlier n-gram.
  some = ends > begins

  def settle(taken: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    again = some & ~tf.reduce_any(touches & taken[:, tf.newaxis, :], axis=2)
    return again, tf.reduce_any(again != taken)

  # Each pass settles at least one more n-gram of every row; a few passes settle all.
  taken, _ = tf.while_loop(lambda _, changed: changed, settle, (some, tf.constant(True)))
  before = tf.cumsum(tf.where(taken, ends - begins, 0), axis=1, exclusive=True)
  too_long = tf.cast(ends - begins > budget[:, tf.newaxis] - before, tf.int32)
  in_time = tf.cumsum(too_long, axis=1) == 0
  next_word = tf.reduce_sum(tf.cast(in_time, tf.int32), axis=1)
  taken &= in_time
  left = budget - tf.reduce_sum(tf.where(taken, ends - begins, 0), axis=1)
  covered = _cover(tf.where(taken, begins, length), tf.where(taken, ends, length), length)
  covered, left = _spend(words, covered, left, next_word)
  singles = words._replace(lengths=tf.minimum(words.lengths, 1))
  covered, _ = _spend(singles, covered, left, tf.zeros_like(next_word))
  return covered


def _shortened(words: Words, left: tf.Tensor) -> tf.Tensor:
  """int32 [B, K]: end of each n-gram with at most `left` [B] tokens; its begin if no word fits."""
  begins = words.begins[..., tf.newaxis]
  fits = words.ends - begins <= left[:, tf.newaxis, tf.newaxis]
  fits &= tf.range(tf.shape(words.ends)[2]) < words.lengths[..., tf.newaxis]
  return tf.reduce_max(tf.where(fits, words.ends, begins), axis=2)


def _cover(begins: tf.Tensor, ends: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
  """bool [B, S]: the positions in disjoint spans [B, K]; a span with begin and end S is empty."""
  rows = tf.shape(begins)[0]
  row = tf.broadcast_to(tf.range(rows)[:, tf.newaxis], tf.shape(begins))
  flat = tf.concat([tf.stack([row, begins], -1), tf.stack([row, ends], -1)], axis=1)
  ones = tf.ones_like(begins)
  steps = tf.scatter_nd(flat, tf.concat([ones, -ones], axis=1), [rows, length + 1])
  return tf.cumsum(steps, axis=1)[:, :-1] > 0


def _spend(
  words: Words, covered: tf.Tensor, left: tf.Tensor, next_word: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """Takes one n-gram at a time from word `next_word` [B] on; returns the covered and the remaining tokens."""
  order = tf.range(tf.shape(words.begins)[1])[tf.newaxis]
  place = tf.range(tf.shape(covered)[1])[tf.newaxis]

  def take(
    covered: tf.Tensor, left: tf.Tensor, next_word: tf.Tensor, _: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    ends = _shortened(words, left)
    before = tf.cumsum(tf.cast(covered, tf.int32), axis=1)
    before = tf.pad(before, [[0, 0], [1, 0]])
    touched = tf.gather(before, ends, batch_dims=1) > tf.gather(before, words.begins, batch_dims=1)
    can = (ends > words.begins) & ~touched & (order >= next_word[:, tf.newaxis])
    first = tf.argmax(can, axis=1, output_type=tf.int32)
    found = tf.reduce_any(can, axis=1)
    begin, end = (tf.gather(values, first, batch_dims=1) for values in (words.begins, ends))
    new = found[:, tf.newaxis] & (place >= begin[:, tf.newaxis]) & (place < end[:, tf.newaxis])
    left -= tf.where(found, end - begin, 0)
    return covered | new, left, tf.where(found, first + 1, next_word), tf.reduce_any(found & (left > 0))

  covered, left, _, _ = tf.while_loop(
    lambda *state: state[-1], take, (covered, left, next_word, tf.reduce_any(left > 0))
  )
  return covered, left


def with_order(batch: Batch, swap: tf.Tensor) -> Batch:
  """Swaps the two segments of some rows, and their labels.

  `[CLS] A [SEP] B [SEP]` becomes `[CLS] B [SEP] A [SEP]`; a row of one segment stays as it is. Label 1 is the swapped
  order (ALBERT, section 3.1).
  """
  second = tf.reduce_sum(batch[names.SEGMENT_IDS], axis=1, keepdims=True)  # B and its [SEP]
  tokens = tf.reduce_sum(batch[names.INPUT_MASK], axis=1, keepdims=True)
  first = tokens - 1 - second  # A and its [SEP]
  swap = swap & (second > 1)[:, 0] & (first > 1)[:, 0]
  place = tf.range(tf.shape(batch[names.INPUT_IDS])[1])[tf.newaxis]
  # Every segment keeps its [SEP].
  source = tf.where(place <= second, place + first, place - second)
  source = tf.where((place >= 1) & (place < tokens) & swap[:, tf.newaxis], source, place)  # [B, S]
  segments = tf.cast((place > second) & (place < tokens), tf.int32)
  labels = batch[names.SENTENCE_ORDER_LABELS]
  return {
    **batch,
    names.INPUT_IDS: tf.gather(batch[names.INPUT_IDS], source, batch_dims=1),
    names.SEGMENT_IDS: tf.where(swap[:, tf.newaxis], segments, batch[names.SEGMENT_IDS]),
    names.SENTENCE_ORDER_LABELS: tf.where(swap, 1 - labels, labels),
  }


def _row_keys(seed: int, epochs: tf.Tensor, records: tf.Tensor, stream: int) -> tf.Tensor:
  """uint64 [B]: a hash of all arguments."""
  key = _splitmix64(tf.constant(seed % 2**64, tf.uint64))
  for part in (epochs, records, tf.constant(stream, tf.int64)):
    key = _splitmix64(key ^ tf.cast(part, tf.uint64))
  return key


def _draws(keys: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Two independent int32 [B, count] in [0, 2^31), for each key [B] and place."""
  places = tf.range(tf.cast(count, tf.int64))[tf.newaxis]
  bits = _splitmix64(keys[:, tf.newaxis] + tf.cast(places, tf.uint64) * _GOLDEN)
  return (
    tf.cast(tf.bitwise.right_shift(bits, np.uint64(33)), tf.int32),
    tf.cast(tf.bitwise.bitwise_and(bits, np.uint64(2**31 - 1)), tf.int32),
  )


def _splitmix64(state: tf.Tensor) -> tf.Tensor:
  """The generator of Steele, Lea and Flood (OOPSLA 2014): the output after `state`."""
  bits = state + _GOLDEN
  for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
    bits = (bits ^ tf.bitwise.right_shift(bits, np.uint64(shift))) * np.uint64(factor)
  return bits ^ tf.bitwise.right_shift(bits, np.uint64(31))


_MASK_STREAMS, _ORDER_STREAM = (0, 1), 2
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd.
