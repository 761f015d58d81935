"""Fresh masks for stored records: undo the stored masks, draw n-grams again (paper section 4.1).

The answers of a masked record give back its text. So one copy of a corpus gets other masks in
every epoch, a function of (seed, epoch, number of the record). The order of the two segments is
drawn again, too: with a fixed order, a model would memorize which records are swapped.
`pretraining/inputs.py` passes `FreshMasks` to `batches.training_batches`.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.pipelines.batches import Batch
from albert_tf.records import features as names
from albert_tf.records.masking import KEEP_SHARE, MASK_SHARE, MaskingConfig
from albert_tf.tokenization import Tokenizer

# Every record has independent streams of random numbers.
_NGRAM_STREAM = 0
_REPLACEMENT_STREAM = 1
_ORDER_STREAM = 2

# Words are drawn beyond the budget, because some n-grams touch earlier ones.
_SPARE_WORDS = 16

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd.


class Words(NamedTuple):
  """Words in the order in which they may begin an n-gram; K of them, [B, K] each.

  Attributes:
    begins: position of the first token.
    ends: [B, K, N] end of the n-gram of 1, 2, … N words, cut at the end of the segment.
    lengths: the n drawn for the word; 0 for a missing word.
  """

  begins: tf.Tensor
  ends: tf.Tensor
  lengths: tf.Tensor


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
    self._tokenizer = tokenizer
    ordinary_ids = np.setdiff1d(np.arange(tokenizer.vocab_size), tokenizer.special_ids)
    # Tensors are inputs of the function; arrays would be constants in its graph.
    self._word_starts = tf.constant(tokenizer.word_starts(masking.whole_word))
    self._random_ids = tf.constant(ordinary_ids, tf.int32)
    # p(n) = 6/11, 3/11, 2/11 → 0.55, 0.82: an n-gram has one word more for each that a draw passes.
    self._ngram_limits = np.cumsum(masking.ngram_probabilities)[:-1].astype(np.float32)

  def __call__(self, batch: Batch, epochs: tf.Tensor, records: tf.Tensor) -> Batch:
    """The batch with fresh masks and, with `redraw_order`, a fresh order of the segments.

    Args:
      batch: parsed records with the stored masks, S tokens a row.
      epochs, records: int64 [B], key the draws of each row.

    Returns:
      The batch, `masked_lm_*` now [B, P].
    """
    masking = self._masking

    def keys(stream: int) -> tf.Tensor:
      return row_keys(self._seed, epochs, records, stream)

    # The text, and its order.
    batch = batch | {names.INPUT_IDS: unmasked(batch)}
    if masking.redraw_order:
      batch = with_order(batch, keys(_ORDER_STREAM) >= np.uint64(2**63))
    ids = batch[names.INPUT_IDS]  # [B, S]
    length = tf.shape(ids)[1]

    # How many tokens to mask; 15 % of 512 are 77.
    num_tokens = tf.reduce_sum(batch[names.INPUT_MASK], axis=1)  # [B]
    share = tf.cast(num_tokens, tf.float64) * masking.masked_lm_prob
    budget = tf.maximum(tf.cast(tf.round(share), tf.int32), 1)
    budget = tf.minimum(budget, masking.max_predictions_per_seq)

    # Which tokens, and what stands in their place.
    words = self.words_of(ids, batch[names.INPUT_MASK], *random_draws(keys(_NGRAM_STREAM), length))
    masked = chosen_positions(words, budget, length)  # [B, S]
    return batch | self._replaced(ids, masked, *random_draws(keys(_REPLACEMENT_STREAM), length))

  def words_of(
    self, ids: tf.Tensor, mask: tf.Tensor, ranks: tf.Tensor, ngram_draws: tf.Tensor
  ) -> Words:
    """The first words of a random order: enough for the budget, unless almost all overlap.

    Args:
      ids, mask: int32 [B, S].
      ranks: int32 [B, S], the order of the words by their first tokens, the highest first.
      ngram_draws: int32 [B, S], draw the length of the n-gram that begins at a token.
    """
    masking = self._masking
    length = tf.shape(ids)[1]
    is_separator = (ids == self._tokenizer.cls_id) | (ids == self._tokenizer.sep_id) | (mask == 0)
    # The first token of a segment begins a word, whatever it is.
    follows = tf.pad(is_separator[:, :-1], [[0, 0], [1, 0]], constant_values=True)
    begins_word = ~is_separator & (follows | tf.gather(self._word_starts, ids))

    # Words in a random order.
    num_words = tf.minimum(masking.max_predictions_per_seq + _SPARE_WORDS, length)
    rank, begins = tf.math.top_k(tf.where(begins_word, ranks, -1), num_words)  # [B, K]

    # An n-gram ends where the n-th next word begins, at most where its segment ends.
    word_ends = _positions(begins_word | is_separator)
    first_end = tf.searchsorted(word_ends, begins, side="right")[..., tf.newaxis]
    ngram_ends = first_end + tf.range(len(masking.ngram_probabilities))  # [B, K, N]
    ends = tf.gather(word_ends, tf.minimum(ngram_ends, length), batch_dims=1)
    segment_ends = _positions(is_separator)
    segment_end = tf.searchsorted(segment_ends, begins, side="right")
    segment_end = tf.gather(segment_ends, segment_end, batch_dims=1)[..., tf.newaxis]

    # How many words each n-gram has.
    draws = tf.gather(_as_uniform(ngram_draws), begins, batch_dims=1)[..., tf.newaxis]
    lengths = 1 + tf.math.count_nonzero(draws >= self._ngram_limits, axis=-1, dtype=tf.int32)
    return Words(begins, tf.minimum(ends, segment_end), tf.where(rank >= 0, lengths, 0))

  def _replaced(
    self, ids: tf.Tensor, masked: tf.Tensor, kinds: tf.Tensor, picks: tf.Tensor
  ) -> Batch:
    """The features that depend on the masks.

    Of the tokens 80 % become [MASK], 10 % stay, 10 % become a random token.

    Args:
      ids, masked: [B, S], the text and the tokens to mask.
      kinds: int32 [B, S], draw which of the three a token becomes.
      picks: int32 [B, S], draw the random token.
    """
    kind = _as_uniform(kinds)
    stays = (kind >= MASK_SHARE) & (kind < MASK_SHARE + KEEP_SHARE)
    # 31 random bits, times the number of ids, divided by 2^31.
    pick = tf.cast(picks, tf.int64) * tf.size(self._random_ids, tf.int64) // 2**31
    random_ids = tf.gather(self._random_ids, pick)
    replacements = tf.where(kind < MASK_SHARE, self._tokenizer.mask_id, random_ids)

    positions = _positions(masked)[:, : self._masking.max_predictions_per_seq]  # [B, P]
    used = positions < tf.shape(ids)[1]
    positions = tf.where(used, positions, 0)
    return {
      names.INPUT_IDS: tf.where(masked & ~stays, replacements, ids),
      names.MASKED_LM_POSITIONS: positions,
      names.MASKED_LM_IDS: tf.where(used, tf.gather(ids, positions, batch_dims=1), 0),
      names.MASKED_LM_WEIGHTS: tf.cast(used, tf.float32),
    }


def unmasked(batch: Batch) -> tf.Tensor:
  """int32 [B, S]: the ids of a batch without its stored masks."""
  ids = batch[names.INPUT_IDS]
  positions = batch[names.MASKED_LM_POSITIONS]
  # Unused predictions have position 0, and write the [CLS] that is there.
  present = tf.gather(ids, positions, batch_dims=1)
  is_used = batch[names.MASKED_LM_WEIGHTS] > 0
  answers = tf.where(is_used, batch[names.MASKED_LM_IDS], present)
  rows = tf.range(tf.shape(ids)[0])[:, tf.newaxis]
  places = tf.stack([tf.broadcast_to(rows, tf.shape(positions)), positions], axis=-1)  # [B, P, 2]
  return tf.tensor_scatter_nd_update(ids, places, answers)


def with_order(batch: Batch, swap: tf.Tensor) -> Batch:
  """Swaps the two segments of the rows with `swap` [B], and their labels.

  A row of one segment stays as it is. Label 1 is the swapped order (ALBERT, section 3.1).

  Example: [CLS] a b [SEP] c [SEP] becomes [CLS] c [SEP] a b [SEP]; `source` is 0 4 5 1 2 3.
  """
  num_tokens = tf.reduce_sum(batch[names.INPUT_MASK], axis=1, keepdims=True)
  # Every segment keeps its [SEP]; in the example the first has 3 tokens, the second 2.
  second = tf.reduce_sum(batch[names.SEGMENT_IDS], axis=1, keepdims=True)
  first = num_tokens - 1 - second
  swap = swap[:, tf.newaxis] & (second > 1) & (first > 1)  # [B, 1]

  position = tf.range(tf.shape(batch[names.INPUT_IDS])[1])[tf.newaxis]
  is_text = (position >= 1) & (position < num_tokens)
  source = tf.where(position <= second, position + first, position - second)
  source = tf.where(swap & is_text, source, position)  # [B, S]
  segments = tf.cast(is_text & (position > second), tf.int32)
  labels = batch[names.SENTENCE_ORDER_LABELS]
  return batch | {
    names.INPUT_IDS: tf.gather(batch[names.INPUT_IDS], source, batch_dims=1),
    names.SEGMENT_IDS: tf.where(swap, segments, batch[names.SEGMENT_IDS]),
    names.SENTENCE_ORDER_LABELS: tf.where(swap[:, 0], 1 - labels, labels),
  }


def chosen_positions(words: Words, budget: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
  """The tokens that n-grams cover until the budget is spent; bool [B, S].

  Words are taken in order. An n-gram with more tokens than the budget has left is shortened word
  by word; an n-gram that touches a covered word is skipped. Single words use what is left then.

  Args:
    words: in the order in which they are tried.
    budget: int32 [B] number of tokens to cover.
    length: S.
  """
  covered = tf.zeros([tf.shape(budget)[0], length], tf.bool)
  covered, budget = _spend(words, covered, budget)
  single_words = words._replace(lengths=tf.minimum(words.lengths, 1))
  covered, _ = _spend(single_words, covered, budget)
  return covered


def _spend(words: Words, covered: tf.Tensor, budget: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Takes n-grams, one word after the other, until the budget is spent or no word is left.

  Example: 5 tokens are left, and n-grams have 2, 2 and 3. The first two are taken. The third is
  shortened to the words that fit into 1 token, and taken if there is one.

  Returns:
    `covered` [B, S] with the tokens of the taken n-grams, and what is left of the budget [B].
  """
  position = tf.range(tf.shape(covered)[1])
  num_words = tf.shape(words.begins)[1]
  lengths = tf.range(1, tf.shape(words.ends)[2] + 1)

  def take(
    number: tf.Tensor, covered: tf.Tensor, budget: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    # The longest n-gram of word `number` that the budget allows; of size 0 if there is none.
    begin = words.begins[:, number, tf.newaxis]  # [B, 1]
    sizes = words.ends[:, number] - begin  # [B, N]
    fits = (sizes <= budget[:, tf.newaxis]) & (lengths <= words.lengths[:, number, tf.newaxis])
    size = tf.reduce_max(tf.where(fits, sizes, 0), axis=1, keepdims=True)  # [B, 1]

    ngram = (position >= begin) & (position < begin + size)  # [B, S]
    is_free = ~tf.reduce_any(covered & ngram, axis=1, keepdims=True)
    spent = tf.where(is_free, size, 0)[:, 0]
    return number + 1, covered | (ngram & is_free), budget - spent

  # The rows of a batch go through their words together, as far as one of them has a budget.
  _, covered, budget = tf.while_loop(
    lambda number, _, budget: (number < num_words) & tf.reduce_any(budget > 0),
    take,
    (0, covered, budget),
  )
  return covered, budget


def _positions(flags: tf.Tensor) -> tf.Tensor:
  """int32 [B, S + 1]: where `flags` [B, S] are true, ascending; S in the other places.

  There are more places than flags: a text may fill its row without a final [SEP].
  """
  length = tf.shape(flags)[1]
  positions = tf.sort(tf.where(flags, tf.range(length), length), axis=1)
  return tf.pad(positions, [[0, 0], [0, 1]], constant_values=length)


def row_keys(seed: int, epochs: tf.Tensor, records: tf.Tensor, stream: int) -> tf.Tensor:
  """uint64 [B]: a hash of all arguments."""
  key = _splitmix64(tf.constant(seed % 2**64, tf.uint64))
  for number in (epochs, records, stream):
    key = _splitmix64(key ^ tf.cast(number, tf.uint64))
  return key


def random_draws(keys: tf.Tensor, length: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Two independent int32 [B, S] in [0, 2^31) for each key [B] and position."""
  position = tf.cast(tf.range(tf.cast(length, tf.int64)), tf.uint64)
  bits = _splitmix64(keys[:, tf.newaxis] + position * _GOLDEN)
  # The highest 31 of 64 bits, and the lowest.
  high = tf.bitwise.right_shift(bits, np.uint64(33))
  low = tf.bitwise.bitwise_and(bits, np.uint64(2**31 - 1))
  return tf.cast(high, tf.int32), tf.cast(low, tf.int32)


def _as_uniform(draws: tf.Tensor) -> tf.Tensor:
  """float32 in [0, 1] of 31 random bits."""
  return tf.cast(draws, tf.float32) / 2.0**31


def _splitmix64(state: tf.Tensor) -> tf.Tensor:
  """The generator of Steele, Lea and Flood (OOPSLA 2014): the output after `state`."""
  bits = state + _GOLDEN
  for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
    bits = (bits ^ tf.bitwise.right_shift(bits, np.uint64(shift))) * np.uint64(factor)
  return bits ^ tf.bitwise.right_shift(bits, np.uint64(31))
