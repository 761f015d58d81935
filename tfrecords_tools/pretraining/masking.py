"""n-gram whole-word masking, paper section 4.1: which tokens are masked, and what replaces them."""

from typing import NamedTuple

import numpy as np

from albert_tf.records.ngrams import KEEP_SHARE, MASK_SHARE
from tfrecords_tools.pretraining.randomness import Stream

_LOW = np.uint64(2**32 - 1)  # The lower half of a 64-bit number.


class Spans(NamedTuple):
  """G n-grams that are masked, int64 [G] each: words [words, words + ngrams) of sequence `rows`."""

  rows: np.ndarray
  words: np.ndarray
  ngrams: np.ndarray


def prediction_budget(
  num_tokens: np.ndarray | int, *, masked_lm_prob: float, max_predictions: int
) -> np.ndarray:
  """int64: min(P, max(1, round(masked_lm_prob · tokens))) of each number of tokens, [CLS] and [SEP] among them."""
  if masked_lm_prob == 0:
    return np.zeros_like(num_tokens)
  return np.rint(np.multiply(num_tokens, masked_lm_prob)).astype(np.int64).clip(1, max_predictions)


def draw_candidates(
  stream: Stream, num_words: np.ndarray, cumulative: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """The words of N sequences in random order, and the n of the n-gram that begins with each.

  Args:
    stream: random numbers.
    num_words: int64 [N]; W is the largest.
    cumulative: float64 [ngram] the running sum of p(n).

  Returns:
    order: uint64 [N, W] every word once, behind them the missing words `num_words` to W - 1.
    ngrams: uint8 [N, W] n of each word.
  """
  words = np.arange(num_words.max(initial=0), dtype=np.uint64)
  numbers = stream.words(len(num_words) * len(words)).reshape(-1, len(words))
  # The upper half of each number, above that of its word, gives the order; the lower half gives n.
  keys = numbers & ~_LOW | words
  keys[words >= num_words[:, None].astype(np.uint64)] |= ~_LOW
  keys.sort(axis=1)
  numbers &= _LOW
  ngrams = np.ones(numbers.shape, np.uint8)
  for edge in cumulative[:-1].tolist():
    ngrams += numbers >= np.uint64(edge * 2**32)
  keys &= _LOW
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

  Each candidate is a word and a length n. The window of n words is cut at the
  end of its segment, then shortened word by word while it has more tokens than
  are left; it is skipped where it touches a covered word. All sequences look at
  their first candidate together, then at their second one, and so on.

  Args:
    word_offsets: int64 [N, W + 1] where each word begins among the maskable tokens; behind the last one, their number.
    num_words: int64 [N].
    boundaries: int64 [N] words before it are segment A; no window crosses it. 0 or `num_words` for a single segment.
    budgets: int64 [N] tokens to cover.
    candidates: integers [N, W]: every word once, in random order; the n of each word.
    fill: cover single words, in the same order, where the candidates leave some of the budget.

  Returns:
    The chosen spans, without overlap. A budget is used up unless no uncovered word fits in what is left.
  """
  order, drawn = candidates
  covered = np.zeros(order.shape, bool)
  left = budgets.copy()
  found = [(left[:0],) * 3]
  for ngrams in (drawn, np.ones_like(drawn)) if fill else (drawn,):
    longest = int(ngrams.max(initial=0))
    for rank in range(order.shape[1]):
      rows = np.flatnonzero(left)
      if not len(rows):
        break
      words, budget = order[rows, rank].astype(np.int64), left[rows]
      ends = np.where(words < boundaries[rows], boundaries[rows], num_words[rows])
      stops = np.minimum(words + ngrams[rows, words], ends)
      begins = word_offsets[rows, words]
      sizes = word_offsets[rows, stops] - begins
      while (long := sizes > budget).any():
        stops -= long
        sizes = word_offsets[rows, stops] - begins
      free = stops > words  # A missing word has no tokens.
      last = stops - 1
      windows = [np.minimum(words + place, last) for place in range(longest)]
      for window in windows:
        free &= ~covered[rows, window]
      rows = rows[free]
      for window in windows:
        covered[rows, window[free]] = True
      left[rows] -= sizes[free]
      found.append((rows, words[free], (stops - words)[free]))
  return Spans(*map(np.concatenate, zip(*found, strict=True)))


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
  kinds = (kind_draws >= MASK_SHARE).view(np.uint8) + (kind_draws >= MASK_SHARE + KEEP_SHARE).view(np.uint8)
  random = random_ids[(id_draws * len(random_ids)).astype(np.int64)]
  return np.where(kinds == 0, np.int32(mask_id), np.where(kinds == 1, labels, random)), kinds
