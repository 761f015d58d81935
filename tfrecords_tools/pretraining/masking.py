"""n-gram whole-word masking, paper section 4.1: which tokens are masked, and what replaces them."""

from typing import NamedTuple

import numpy as np

from albert_tf.records.masking import KEEP_SHARE, MASK_SHARE
from tfrecords_tools.pretraining.randomness import Stream

_LOW = np.uint64(2**32 - 1)  # The lower half of a 64-bit number.


class Spans(NamedTuple):
  """G masked n-grams, int64 [G] each: words [words, words + ngrams) of sequence `rows`."""

  rows: np.ndarray
  words: np.ndarray
  ngrams: np.ndarray


def prediction_budget(
  num_tokens: np.ndarray | int, *, masked_lm_prob: float, max_predictions: int
) -> np.ndarray:
  """int64: min(P, max(1, round(masked_lm_prob · tokens))) of each number of tokens.

  [CLS] and [SEP] are among the tokens.
  """
  if masked_lm_prob == 0:
    return np.zeros_like(num_tokens)
  expected = np.rint(np.multiply(num_tokens, masked_lm_prob)).astype(np.int64)
  return expected.clip(1, max_predictions)


def draw_candidates(
  stream: Stream, num_words: np.ndarray, cumulative: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """The words of N sequences in random order, and the n of the n-gram that begins with each.

  Each word draws one 64-bit number: the upper half decides its turn, the lower half its n.

  Args:
    stream: random numbers.
    num_words: int64 [N]; W is the largest.
    cumulative: float64 [ngram] the running sum of p(n).

  Returns:
    order: uint64 [N, W] every word once, behind them the missing words `num_words` to W - 1.
    ngrams: uint8 [N, W] n of each word.

  Example:
    Words 0 and 1 with the upper halves 9 and 4, a third one missing: the keys are (9, 0), (4, 1)
    and (the largest, 2). Sorted, their lower halves are the order 1 0 2.
  """
  words = np.arange(num_words.max(initial=0), dtype=np.uint64)
  numbers = stream.words(len(num_words) * len(words)).reshape(-1, len(words))

  # Sort the words by the upper halves; a missing word has the largest.
  keys = numbers & ~_LOW | words
  is_missing = words >= num_words[:, None].astype(np.uint64)
  keys[is_missing] |= ~_LOW
  keys.sort(axis=1)
  keys &= _LOW  # In place, as the arrays are large.

  # n is one more than the number of edges that the lower half reaches.
  numbers &= _LOW
  ngrams = np.ones(numbers.shape, np.uint8)
  for edge in cumulative[:-1].tolist():
    ngrams += numbers >= np.uint64(edge * 2**32)
  return keys, ngrams


def choose_spans(
  word_offsets: np.ndarray,
  *,
  num_words: np.ndarray,
  boundaries: np.ndarray,
  budgets: np.ndarray,
  candidates: tuple[np.ndarray, np.ndarray],
  fill: bool = True,
) -> Spans:
  """Chooses n-grams of whole words in N sequences until `budgets` tokens are covered.

  Each candidate is a word and a length n. The window of n words is cut at the end of its segment,
  then shortened word by word while it has more tokens than are left; it is skipped where it touches
  a covered word. All sequences look at their first candidate together, then at their second one,
  and so on.

  Args:
    word_offsets: int64 [N, W + 1] where each word begins among the maskable tokens; behind the last
      one, their number.
    num_words: int64 [N].
    boundaries: int64 [N] words before it are segment A; no window crosses it. 0 or `num_words` for
      a single segment.
    budgets: int64 [N] tokens to cover.
    candidates: integers [N, W]: every word once, in random order; the n of each word.
    fill: cover single words, in the same order, where the candidates leave some of the budget.

  Returns:
    The chosen spans, without overlap. A budget is used up unless no uncovered word fits in what is
    left.

  Example:
    Words of 1, 2, 1 and 3 tokens have the offsets 0 1 3 4 7. The budget is 3. Candidate word 1 with
    n = 3 has 6 tokens, so it is shortened to the words 1 and 2, which have 3.
  """
  # First the n-grams that were drawn, then single words.
  order, drawn_ngrams = candidates
  passes = [drawn_ngrams]
  if fill:
    passes.append(np.ones_like(drawn_ngrams))
  is_covered = np.zeros(order.shape, bool)
  left = budgets.copy()
  nothing = np.zeros(0, np.int64)
  chosen = [Spans(nothing, nothing, nothing)]
  for ngrams in passes:
    longest = int(ngrams.max(initial=0))
    for rank in range(order.shape[1]):
      rows = np.flatnonzero(left)
      if not len(rows):
        break

      # The windows [words, stops), cut at the end of their segment.
      words = order[rows, rank].astype(np.int64)
      is_of_a = words < boundaries[rows]
      segment_ends = np.where(is_of_a, boundaries[rows], num_words[rows])
      stops = np.minimum(words + ngrams[rows, words], segment_ends)

      # Shortened until they fit in what is left.
      begins = word_offsets[rows, words]
      sizes = word_offsets[rows, stops] - begins
      left_in_rows = left[rows]
      while (is_long := sizes > left_in_rows).any():
        stops -= is_long
        sizes = word_offsets[rows, stops] - begins

      # Taken where no word of them is covered. A missing word has no tokens.
      last_words = stops - 1
      words_of_windows = [np.minimum(words + step, last_words) for step in range(longest)]
      is_free = stops > words
      for window_words in words_of_windows:
        is_free &= ~is_covered[rows, window_words]
      rows = rows[is_free]
      for window_words in words_of_windows:
        is_covered[rows, window_words[is_free]] = True
      left[rows] -= sizes[is_free]
      chosen.append(Spans(rows, words[is_free], (stops - words)[is_free]))
  return Spans(*map(np.concatenate, zip(*chosen, strict=True)))


def replace_pieces(
  labels: np.ndarray,
  kind_draws: np.ndarray,
  id_draws: np.ndarray,
  *,
  mask_id: int,
  random_ids: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
  """The input ids at masked tokens: 80 % [MASK], 10 % the token itself, 10 % a random token.

  Args:
    labels: int32 [M] the original tokens.
    kind_draws: float64 [M] uniform in [0, 1): which of the three.
    id_draws: float64 [M] likewise: which random token.
    mask_id: id of [MASK].
    random_ids: int32 [R] the ids that random tokens are drawn from.

  Returns:
    int32 [M] ids, and uint8 [M]: 0 masked, 1 kept, 2 random.
  """
  is_masked = kind_draws < MASK_SHARE
  is_random = kind_draws >= MASK_SHARE + KEEP_SHARE
  kinds = np.ones(len(labels), np.uint8)
  kinds[is_masked] = 0
  kinds[is_random] = 2
  ids = labels.copy()
  ids[is_masked] = mask_id
  ids[is_random] = random_ids[(id_draws[is_random] * len(random_ids)).astype(np.int64)]
  return ids, kinds
