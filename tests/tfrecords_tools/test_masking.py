"""n-gram masking: equal to the plain twin, within its bounds, and distributed as it should be."""

import collections
import dataclasses
import json

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from reference import masking as twin
from support.goldens import SPM_MODEL

from albert_tf.records import read_records
from albert_tf.records.parse import decode_example
from albert_tf.tokenization import AlbertTokenizer
from tfrecords_tools.inspection import view_instance
from tfrecords_tools.pretraining import masking
from tfrecords_tools.pretraining.randomness import Stream
from tfrecords_tools.pretraining.settings import RecordSettings


def _stream(seed):
  return Stream(seed=seed, file_index=0, document=0, purpose=0)


def _binomial_bound(share, count):
  return 5 * np.sqrt(share * (1 - share) / count)


def _offsets(groups, maskable):
  """`word_offsets` and `num_words` of sequences: the words of each, and its positions without separators."""
  num_words = np.array(list(map(len, groups)))
  offsets = np.repeat([[len(places)] for places in maskable], num_words.max() + 1, axis=1)
  for row, (words, places) in enumerate(zip(groups, maskable, strict=True)):
    offsets[row, : len(words)] = np.searchsorted(places, [word[0] for word in words])
  return {"word_offsets": offsets, "num_words": num_words}


@st.composite
def _sequences(draw):
  """Word starts of A and B, and a budget."""
  a = draw(st.lists(st.booleans(), min_size=1, max_size=25))
  b = draw(st.lists(st.booleans(), min_size=1, max_size=25))
  return a, b, draw(st.integers(0, 30))


@settings(deadline=None, max_examples=150)
@given(
  st.lists(_sequences(), min_size=1, max_size=4),
  st.integers(0, 2**32),
  st.booleans(),
  st.booleans(),
)
def test_spans_equal_the_twin(sequences, seed, whole_words, original):
  groups, maskable, segments = [], [], []
  for a, b, _ in sequences:
    separators = [True] + [False] * len(a) + [True] + [False] * len(b) + [True]
    starts = [True, *a, True, *b, True]
    groups.append(twin.word_groups(starts, separators, whole_words=whole_words, glue=original))
    maskable.append(np.flatnonzero(~np.array(separators)).tolist())
    segments.append([0 if original else int(group[0] > len(a)) for group in groups[-1]])
  arrays = _offsets(groups, maskable)
  boundaries = np.array([segment.count(0) for segment in segments])
  budgets = np.array([budget for _, _, budget in sequences])
  order, ngrams = masking.draw_candidates(
    _stream(seed), arrays["num_words"], np.array([0.5, 0.8, 1.0])
  )
  spans = masking.choose_spans(
    **arrays, boundaries=boundaries, budgets=budgets, candidates=(order, ngrams), fill=not original
  )
  for row, (words, budget) in enumerate(zip(groups, budgets.tolist(), strict=True)):
    found = [(word, word + n) for r, word, n in zip(*spans, strict=True) if r == row]
    masked = [place for begin, end in found for word in words[begin:end] for place in word]
    first = order[row, : len(words)].tolist()
    expected = twin.choose(
      words, segments[row], first, ngrams[row, first].tolist(), budget, fill=not original
    )
    assert sorted(masked) == sorted(expected)
    assert len(masked) <= budget
    if not original:
      for begin, end in found:  # No n-gram has words of both segments.
        assert (begin < boundaries[row]) == (end <= boundaries[row])
      assert all(len(word) > budget - len(masked) for word in words if not set(masked) & set(word))


@pytest.mark.parametrize(
  ("tokens", "share", "budget"),
  [(3, 0.15, 1), (10, 0.15, 2), (30, 0.15, 4), (128, 0.15, 19), (512, 0.15, 20), (512, 0.0, 0)],
)
def test_budget_rounds_as_the_original(tokens, share, budget):
  """1.5 → 2, 4.5 → 4."""
  assert masking.prediction_budget(tokens, masked_lm_prob=share, max_predictions=20) == budget


@pytest.mark.parametrize("distribution", ["inverse", "uniform", "reverse", "0.6,0.3,0.1"])
def test_candidates_are_every_word_in_uniform_order_with_p_of_n(distribution):
  p = RecordSettings(ngram_distribution=distribution).ngram_probabilities
  expected = {
    "inverse": [6 / 11, 3 / 11, 2 / 11],
    "uniform": [1 / 3] * 3,
    "reverse": [2 / 11, 3 / 11, 6 / 11],
  }
  np.testing.assert_allclose(p, expected.get(distribution, [0.6, 0.3, 0.1]))
  order, ngrams = masking.draw_candidates(_stream(1), np.array([30, 20] * 4000), np.cumsum(p))
  np.testing.assert_array_equal(order[1::2, 20:], [range(20, 30)] * 4000)  # Missing words are last.
  for size, rows in ((30, order[::2]), (20, order[1::2, :20])):
    np.testing.assert_array_equal(np.sort(rows), [range(size)] * 4000)
    for column in rows[:, [0, 5, size - 1]].T.astype(np.int64):
      assert abs(np.bincount(column, minlength=size) - 4000 / size).max() < 5 * np.sqrt(4000 / size)
  shares = np.bincount(ngrams[::2].ravel(), minlength=4)[1:] / ngrams[::2].size
  for share, probability in zip(shares, p, strict=True):
    assert abs(share - probability) < _binomial_bound(probability, ngrams[::2].size)


def test_replacements_are_80_10_10():
  count, vocabulary = 300_000, np.arange(5, 105, dtype=np.int32)
  labels = np.full(count, 7, np.int32)
  draws = _stream(2).uniforms(2 * count).reshape(2, count)
  ids, kinds = masking.replace_pieces(labels, *draws, mask_id=4, random_ids=vocabulary)
  shares = np.bincount(kinds, minlength=3) / count
  for share, probability in zip(shares, (0.8, 0.1, 0.1), strict=True):
    assert abs(share - probability) < _binomial_bound(probability, count)
  assert (ids[kinds == 0] == 4).all()
  assert (ids[kinds == 1] == 7).all()
  counts = np.bincount(ids[kinds == 2], minlength=105)[5:]
  # Uniform over the vocabulary.
  assert abs(counts - counts.mean()).max() < 6 * np.sqrt(counts.mean())


def _shares_of_runs(views):
  """Length, in pieces and in words, of a run of masked tokens → its share; 3 4 7 are two runs."""
  counts = {"run_pieces": collections.Counter(), "run_words": collections.Counter()}
  for view in views:
    for run in np.split(view.positions, np.flatnonzero(np.diff(view.positions) > 1) + 1):
      counts["run_pieces"][str(len(run))] += 1
      counts["run_words"][str(max(1, int(view.boundary[run].sum())))] += 1
  return {
    name: {length: number / of_runs.total() for length, number in of_runs.items()}
    for name, of_runs in counts.items()
  }


def test_masked_runs_match_the_original_on_its_own_sequences(shared_dir):
  """The original's recorded sequences, masked again here, give its distribution of masked runs."""
  tokenizer = AlbertTokenizer.from_pretrained(SPM_MODEL)
  golden = json.loads((shared_dir / "oracle/golden_data_stats_small.json").read_text())
  recorded, again = [], []
  cumulative = np.cumsum(RecordSettings().ngram_probabilities)
  starts, stream = tokenizer.word_starts("original"), _stream(5)
  for record in read_records(str(shared_dir / "oracle/golden_pretrain_strip.tfrecord")):
    view = view_instance(decode_example(record))
    recorded.append(view)
    separators = np.isin(view.restored, [tokenizer.cls_id, tokenizer.sep_id])
    groups = twin.word_groups(starts[view.restored], separators, whole_words=True, glue=True)
    maskable = np.flatnonzero(~separators)
    budget = masking.prediction_budget(len(view.ids), masked_lm_prob=0.15, max_predictions=20)
    assert len(view.positions) == budget  # The original meets it exactly.
    arrays = _offsets([groups] * 3, [maskable.tolist()] * 3)
    spans = masking.choose_spans(
      **arrays,
      boundaries=arrays["num_words"],
      budgets=np.full(3, budget),
      candidates=masking.draw_candidates(stream, arrays["num_words"], cumulative),
      fill=False,
    )
    for row in range(3):
      found = [groups[word : word + n] for r, word, n in zip(*spans, strict=True) if r == row]
      positions = np.sort([place for words in found for word in words for place in word])
      again.append(dataclasses.replace(view, positions=positions, labels=view.restored[positions]))
  theirs, ours = _shares_of_runs(recorded), _shares_of_runs(again)
  # We measure as the oracle did.
  assert theirs["run_pieces"] == pytest.approx(golden["run_pieces"], abs=1e-12)
  runs = golden["instances"] * 6  # About as many runs as were recorded.
  for name in ("run_words", "run_pieces"):
    for length, share in golden[name].items():
      difference = abs(ours[name].get(length, 0.0) - share)
      assert difference < 1.2 * _binomial_bound(share, runs) + 1e-3, (name, length)
