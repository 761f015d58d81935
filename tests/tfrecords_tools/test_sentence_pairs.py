"""What the two segments of an instance are, and what its label says: sop, nsp, ordered."""

import dataclasses

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support import tiny_corpus
from support.made_records import contents, make

from tfrecords_tools.pretraining.documents import BlockTokenizer
from tfrecords_tools.pretraining.local import LocalRunner
from tfrecords_tools.pretraining.randomness import Stream
from tfrecords_tools.pretraining.segments import make_pairs
from tfrecords_tools.pretraining.settings import RecordSettings


def _pairs(tokenizer, documents, choices, seed):
  limit = None if choices.is_original else choices.max_num_tokens // 2
  tokenized = BlockTokenizer(tokenizer, choices.whole_word)(documents, max_sentence_tokens=limit)
  for number, document in enumerate(tokenized):
    stream = Stream(seed=seed, file_index=0, document=number, dupe=0)
    for pair in make_pairs(document, stream, choices, others=tokenized):
      yield document, pair


@pytest.mark.parametrize("compatibility", ["none", "original"])
@pytest.mark.parametrize("sentence_pair", ["sop", "nsp"])
def test_labels_are_balanced(tiny_tokenizer, sentence_pair, compatibility):
  choices = RecordSettings(
    max_seq_length=256, short_seq_prob=0.0, sentence_pair=sentence_pair, compatibility=compatibility
  )
  # Of three documents one is a lone sentence.
  documents = tiny_corpus.documents(np.random.default_rng(2), 100, max_sentences=80)
  documents += [[sentence] for document in documents[:40] for sentence in document[:1]]
  labels = [
    pair.label
    for document, pair in _pairs(tiny_tokenizer, documents, choices, 4)
    if compatibility == "none" or pair.b.document is document or sentence_pair == "nsp"
  ]
  assert len(labels) > 500
  # The original's lone sentence always gets a B from elsewhere; elsewhere a coin decides.
  lone = 0.2 if (sentence_pair, compatibility) == ("nsp", "original") else 0.0
  assert -5 < (np.mean(labels) - 0.5) / (0.5 / np.sqrt(len(labels))) < 5 + lone * np.sqrt(len(labels)) * 2


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
  sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
  compatibility=st.sampled_from(["none", "original"]),
  seed=st.integers(0, 2**32),
)
def test_nsp_takes_a_random_b_from_another_document_or_not_at_all(tiny_tokenizer, sizes, compatibility, seed):
  """Ten tries found the same document of two once in a thousand, and always where there was no other."""
  choices = RecordSettings(max_seq_length=24, sentence_pair="nsp", compatibility=compatibility)
  rng = np.random.default_rng(seed)
  documents = [[tiny_corpus.sentence(rng) for _ in range(size)] for size in sizes]
  for document, pair in _pairs(tiny_tokenizer, documents, choices, seed):
    assert pair.a.document is document
    assert (pair.b.document is document) == (pair.label == 0)
    assert pair.label == 0 or len(sizes) > 1
    if pair.label == 0:
      assert pair.a.end <= pair.b.begin


def test_ordered_is_the_text_of_sop_without_the_swap(tiny_tokenizer):
  """So that a model of either sees the same input, and only the loss differs."""
  choices = RecordSettings(max_seq_length=64)
  documents = tiny_corpus.documents(np.random.default_rng(9), 60)
  sop, ordered = (
    [
      pair
      for _, pair in _pairs(tiny_tokenizer, documents, dataclasses.replace(choices, sentence_pair=kind), 5)
    ]
    for kind in ("sop", "ordered")
  )

  def places(pair):
    first, second = (pair.b, pair.a) if pair.label else (pair.a, pair.b)
    return (first.begin, first.end, second.begin, second.end)

  for pair, other in zip(ordered, sop, strict=True):
    assert pair.truncated == other.truncated
    assert pair.truncated or places(pair) == places(other)
  assert len(ordered) > 200
  assert np.mean([places(pair) == places(other) for pair, other in zip(ordered, sop, strict=True)]) > 0.5
  assert not any(pair.label for pair in ordered)
  assert 0.3 < np.mean([pair.label for pair in sop]) < 0.7


_CHOICES = RecordSettings(
  max_seq_length=64, max_predictions_per_seq=8, dupe_factor=2, num_shards=2, eval_fraction=0.1
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  """Two files of 60 documents."""
  paths = [tmp_path_factory.mktemp("corpus") / f"{name}.txt" for name in "ab"]
  for number, path in enumerate(paths):
    path.write_text(tiny_corpus.as_text(tiny_corpus.documents(np.random.default_rng(number), 60)))
  return [str(path) for path in paths]


@pytest.mark.parametrize(("kind", "label_1"), [("nsp", 0.5), ("ordered", 0.0)])
def test_every_kind_of_pair_has_the_same_bytes_from_any_number_of_workers(
  corpus, tiny_tokenizer, tmp_path, kind, label_1
):
  choices = dataclasses.replace(_CHOICES, sentence_pair=kind)
  for workers in (1, 2):
    runner = LocalRunner(num_workers=workers)
    manifest = make(corpus, tmp_path / str(workers), tiny_tokenizer, settings=choices, runner=runner)
  assert contents(tmp_path / "1") == contents(tmp_path / "2")
  train = manifest.statistics["train"]
  spread = 0.5 / np.sqrt(train["instances"])
  assert abs(train["label_1_share"] - label_1) < 5 * spread * (label_1 > 0) + 1e-9
