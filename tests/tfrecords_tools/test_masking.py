"""n-gram masking: equal to the plain twin, within its bounds, and distributed as it should be."""

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
from tfrecords_tools.inspection import Measurements, view_instance
from tfrecords_tools.pretraining import masking
from tfrecords_tools.pretraining.randomness import Stream
from tfrecords_tools.pretraining.settings import RecordSettings


def _stream(seed: int) -> Stream:
  return Stream(seed=seed, file_index=0, document=0, dupe=0)


def _binomial_bound(share: float, count: int) -> float:
  return 5 * np.sqrt(share * (1 - share) / count)


@st.composite
def _sequences(draw):
  """Word starts of A and B, and a seed."""
  a = draw(st.lists(st.booleans(), min_size=1, max_size=25))
  b = draw(st.lists(st.booleans(), min_size=1, max_size=25))
  return a, b, draw(st.integers(0, 2**32)), draw(st.integers(1, 30)), draw(st.booleans())


@settings(deadline=None, max_examples=300)
@given(_sequences(), st.booleans())
def test_spans_equal_the_twin(sequence, original):
  a, b, seed, budget, whole_words = sequence
  separators = [True] + [False] * len(a) + [True] + [False] * len(b) + [True]
  starts = [True, *a, True, *b, True]
  groups = twin.word_groups(starts, separators, whole_words=whole_words, glue=original)
  maskable = [position for position, separator in enumerate(separators) if not separator]
  place = {position: number for number, position in enumerate(maskable)}
  offsets = [place[group[0]] for group in groups] + [len(maskable)]
  segments = [0 if original else int(group[0] > len(a)) for group in groups]
  boundary = segments.count(0)
  stream = _stream(seed)
  order = stream.permutation(len(groups)).tolist()
  lengths = masking.draw_lengths(stream.uniforms(len(groups)), np.array([0.5, 0.8, 1.0])).tolist()
  spans = masking.choose_spans(
    offsets,
    boundary=len(groups) if original else boundary,
    budget=budget,
    candidates=zip(order, lengths, strict=True),
    fill=not original,
  )
  masked = {maskable[piece] for span in spans for piece in range(span.begin, span.end)}
  assert masked == twin.choose(groups, segments, order, lengths, budget, fill=not original)
  assert sum(span.end - span.begin for span in spans) == len(masked) <= budget
  if not original:
    for span in spans:  # No n-gram has words of both segments.
      assert (span.word < boundary) == (span.word + span.ngram <= boundary)
    left = budget - len(masked)
    assert all(len(group) > left for group in groups if not masked & set(group))


@pytest.mark.parametrize(
  ("tokens", "share", "budget"),
  [(3, 0.15, 1), (10, 0.15, 2), (30, 0.15, 4), (128, 0.15, 19), (512, 0.15, 20), (512, 0.0, 0)],
)
def test_budget_rounds_as_the_original(tokens: int, share: float, budget: int):
  """1.5 → 2, 4.5 → 4."""
  assert masking.prediction_budget(tokens, masked_lm_prob=share, max_predictions=20) == budget


@pytest.mark.parametrize("distribution", ["inverse", "uniform", "reverse", "0.6,0.3,0.1"])
def test_lengths_follow_p_of_n(distribution):
  p = RecordSettings(ngram_distribution=distribution).ngram_probabilities
  expected = {
    "inverse": [6 / 11, 3 / 11, 2 / 11],
    "uniform": [1 / 3] * 3,
    "reverse": [2 / 11, 3 / 11, 6 / 11],
  }
  np.testing.assert_allclose(p, expected.get(distribution, [0.6, 0.3, 0.1]))
  count = 200_000
  drawn = np.bincount(masking.draw_lengths(_stream(1).uniforms(count), np.cumsum(p)), minlength=4)[1:] / count
  for share, probability in zip(drawn, p, strict=True):
    assert abs(share - probability) < _binomial_bound(probability, count)


def test_candidates_are_every_word_in_uniform_order():
  cumulative = np.cumsum(RecordSettings().ngram_probabilities)
  firsts, lengths = [], []
  for seed in range(4000):
    # The first words are drawn, the rest permuted; both must be without pattern.
    candidates = list(masking.draw_candidates(_stream(seed), 30, cumulative, budget=2))
    words = [word for word, _ in candidates]
    assert sorted(words) == list(range(30))
    firsts.append([words[0], words[5], words[29]])
    lengths += [ngram for _, ngram in candidates]
  for column in np.transpose(firsts):
    counts = np.bincount(column, minlength=30)
    assert abs(counts - 4000 / 30).max() < 5 * np.sqrt(4000 / 30)
  shares = np.bincount(lengths, minlength=4)[1:] / len(lengths)
  for share, probability in zip(shares, (6 / 11, 3 / 11, 2 / 11), strict=True):
    assert abs(share - probability) < _binomial_bound(probability, len(lengths))


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
  assert abs(counts - counts.mean()).max() < 6 * np.sqrt(counts.mean())  # Uniform over the vocabulary.


def test_masked_runs_match_the_original_on_its_own_sequences(shared_dir):
  """The original's recorded sequences, masked again here, give its distribution of masked runs."""
  tokenizer = AlbertTokenizer.from_pretrained(SPM_MODEL)
  golden = json.loads((shared_dir / "oracle/golden_data_stats_small.json").read_text())
  measured, again = Measurements(tokenizer), Measurements(tokenizer)
  cumulative = np.cumsum(RecordSettings().ngram_probabilities)
  stream = _stream(5)
  for record in read_records(str(shared_dir / "oracle/golden_pretrain_strip.tfrecord")):
    view = view_instance(decode_example(record))
    measured.add(view)
    separators = (view.restored == tokenizer.cls_id) | (view.restored == tokenizer.sep_id)
    groups = twin.word_groups(
      tokenizer.word_starts("original")[view.restored], separators.tolist(), whole_words=True, glue=True
    )
    maskable = np.flatnonzero(~separators)
    offsets = [int(np.searchsorted(maskable, group[0])) for group in groups] + [len(maskable)]
    budget = masking.prediction_budget(len(view.ids), masked_lm_prob=0.15, max_predictions=20)
    assert len(view.positions) == budget  # The original meets it exactly.
    for _ in range(5):
      spans = masking.choose_spans(
        offsets,
        boundary=len(groups),
        budget=budget,
        candidates=masking.draw_candidates(stream, len(groups), cumulative, budget),
        fill=False,
      )
      positions = maskable[sorted(piece for span in spans for piece in range(span.begin, span.end))]
      again.add(dataclasses.replace(view, positions=positions, labels=view.restored[positions]))
  theirs, ours = measured.summary(), again.summary()
  for name in ("instances", "label1_fraction", "seq_len_mean", "predictions_mean", "masked", "run_pieces"):
    assert theirs[name] == pytest.approx(golden[name], abs=1e-12), name  # We measure as the oracle did.
  runs = golden["instances"] * 6  # About as many runs as were recorded.
  for name in ("run_words", "run_pieces"):
    for length, share in golden[name].items():
      assert abs(ours[name].get(length, 0.0) - share) < 1.2 * _binomial_bound(share, runs) + 1e-3, (
        name,
        length,
      )
