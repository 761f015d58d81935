"""n-gram whole-word masking, paper section 4.1: which tokens are masked, and what replaces them."""

import bisect
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from albert_tf.records.ngrams import KEEP_SHARE, MASK_SHARE
from tfrecords_tools.pretraining.randomness import Stream


class Span(NamedTuple):
  """Words [word, word + ngram) that are masked together; tokens [begin, end)."""

  word: int
  ngram: int
  begin: int
  end: int


def prediction_budget(num_tokens: int, *, masked_lm_prob: float, max_predictions: int) -> int:
  """min(P, max(1, round(masked_lm_prob · tokens))); tokens with [CLS] and [SEP]."""
  if masked_lm_prob == 0:
    return 0
  return min(max_predictions, max(1, round(num_tokens * masked_lm_prob)))


def choose_spans(
  word_offsets: Sequence[int],
  *,
  boundary: int,
  budget: int,
  candidates: Iterable[tuple[int, int]],
  fill: bool = True,
) -> list[Span]:
  """Chooses n-grams of whole words until `budget` tokens are covered.

  Each candidate is a word and a length n. The window of n words is cut at the
  end of its segment, then shortened word by word while it has more tokens than
  are left; it is skipped where it touches a covered word.

  Args:
    word_offsets: [W + 1] where each word begins among the maskable tokens; the last entry is their number.
    boundary: words before it are segment A; no window crosses it. W or 0 for a single segment.
    budget: tokens to cover.
    candidates: every word once, in random order, each with its n.
    fill: cover single words, in the same order, where the candidates leave some of the budget.

  Returns:
    The chosen spans, without overlap. The budget is used up unless no uncovered word fits in what is left.
  """
  num_words = len(word_offsets) - 1
  covered = bytearray(num_words)
  spans: list[Span] = []
  order = []
  for word, ngram in candidates:
    if budget <= 0:
      return spans
    order.append(word)
    stop, segment_end = word + ngram, boundary if word < boundary else num_words
    if stop > segment_end:
      stop = segment_end
    begin = word_offsets[word]
    while word_offsets[stop] - begin > budget:
      stop -= 1
    if stop == word or covered.find(1, word, stop) >= 0:
      continue
    covered[word:stop] = b"\1" * (stop - word)
    end = word_offsets[stop]
    spans.append(Span(word, stop - word, begin, end))
    budget -= end - begin
  if not fill:
    return spans
  for word in order:
    begin, end = word_offsets[word], word_offsets[word + 1]
    if not covered[word] and end - begin <= budget:
      covered[word] = 1
      spans.append(Span(word, 1, begin, end))
      budget -= end - begin
  return spans


def draw_lengths(uniforms: np.ndarray, cumulative: np.ndarray) -> np.ndarray:
  """int64 [N]: n of an n-gram for each uniform number; `cumulative` [ngram] is the running sum of p(n)."""
  return cumulative[:-1].searchsorted(uniforms, side="right") + 1


def draw_candidates(
  stream: Stream, num_words: int, cumulative: np.ndarray, budget: int
) -> Iterator[tuple[int, int]]:
  """Every word once in random order, each with its n; drawn as needed, as few are looked at before the budget is spent.

  Words drawn with replacement, without those already seen, are in the order of a random permutation.
  """
  few = min(2 * budget + 8, num_words)
  seen = bytearray(num_words)
  if few < num_words:
    edges = cumulative[:-1].tolist()
    draws = stream.uniforms(2 * few).tolist()
    for place, draw in zip(draws[:few], draws[few:], strict=True):
      word = int(place * num_words)
      if not seen[word]:
        seen[word] = 1
        yield word, bisect.bisect_right(edges, draw) + 1
  rest = np.flatnonzero(np.frombuffer(seen, np.uint8) == 0)
  words = rest[stream.permutation(len(rest))].tolist()
  yield from zip(words, draw_lengths(stream.uniforms(len(rest)), cumulative).tolist(), strict=True)


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
