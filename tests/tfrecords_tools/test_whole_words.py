"""Words of other languages are masked whole by SentencePiece's marks; a warning if the original's rule divides them."""

import dataclasses

import numpy as np
import pytest
from support import tiny_corpus
from support.languages import sentences, train_model
from support.made_records import make

from albert_tf.records import read_records
from albert_tf.records.parse import decode_example
from albert_tf.tokenization import AlbertTokenizer
from tfrecords_tools.inspection import inspect_files, view_instance
from tfrecords_tools.pretraining import documents
from tfrecords_tools.pretraining.documents import BlockTokenizer
from tfrecords_tools.pretraining.settings import RecordSettings
from tfrecords_tools.pretraining.statistics import torn_words_warning

_CHOICES = RecordSettings(
  max_seq_length=64, max_predictions_per_seq=9, dupe_factor=2, eval_fraction=0.0, random_seed=5
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
  path = tmp_path_factory.mktemp("vocab") / "many.model"
  return AlbertTokenizer.from_pretrained(train_model(path, keep_accents=True))


def _make(directory, tokenizer, language, rule):
  """Records of 30 documents of 8 sentences."""
  rows = sentences(language, 240)
  text, settings = directory / "text.txt", dataclasses.replace(_CHOICES, whole_word=rule)
  documents = ["\n".join(rows[start : start + 8]) for start in range(0, 240, 8)]
  text.write_text("\n\n".join(documents), encoding="utf-8")
  return make([str(text)], directory / "records", tokenizer, settings=settings)


def _views(directory, manifest):
  for record in read_records(str(directory / "records" / manifest.files[0].name)):
    yield view_instance(decode_example(record))


def _torn_words(views, tokenizer):
  """Words between spaces, cut at the segments' ends, of which a part is masked."""
  marked, special = (
    np.array([piece.startswith(sign) for piece in tokenizer.pieces]) for sign in ("▁", "[")
  )
  torn = 0
  for view in views:
    is_special = special[view.restored]
    behind_special = np.concatenate([[False], is_special[:-1]])
    word = np.cumsum(marked[view.restored] | is_special | behind_special)
    masked = np.isin(np.arange(len(view.ids)), view.positions)
    torn += len(set(word[masked]) & set(word[~masked]))
  return torn


@pytest.mark.parametrize("language", ["Russian", "Arabic"])
def test_words_are_masked_whole(tmp_path, tokenizer, language):
  found = {}
  for rule in ("original", "sentencepiece"):
    (tmp_path / rule).mkdir()
    manifest = _make(tmp_path / rule, tokenizer, language, rule)
    assert manifest.whole_word == rule
    found[rule] = _torn_words(_views(tmp_path / rule, manifest), tokenizer)
    # The summary says it, and what to do, where it goes wrong.
    warning = torn_words_warning(manifest.statistics["train"]["torn_share"])
    assert ("--whole_word=sentencepiece" in warning) == (rule == "original")
    path = str(tmp_path / rule / "records" / manifest.files[0].name)
    assert inspect_files([path], tokenizer).problems == []
  assert found["sentencepiece"] == 0 < found["original"]


def test_chinese_is_masked_by_pieces(tmp_path, tokenizer):
  """A whole sentence is between two spaces; as one word it would not fit the budget, or use all of it."""
  manifest = _make(tmp_path, tokenizer, "Chinese", "sentencepiece")
  views = list(_views(tmp_path, manifest))
  masked = sum(len(view.positions) for view in views)
  assert masked > 0.12 * sum(len(view.ids) for view in views)
  runs = []
  for view in views:
    gaps = np.flatnonzero(np.diff(view.positions) > 1)
    runs += [len(run) for run in np.split(view.positions, gaps + 1)]
  assert np.mean(np.array(runs) <= 4) > 0.8
  (tmp_path / "other").mkdir()
  original = _make(tmp_path / "other", tokenizer, "Chinese", "original")
  assert torn_words_warning(original.statistics["train"]["torn_share"]) == ""


def test_words_are_remembered_up_to_a_bound_and_found_again(tiny_tokenizer, monkeypatch):
  """Without a limit the memory of a worker would grow with the number of words."""
  portions = [tiny_corpus.documents(np.random.default_rng(seed), 3) for seed in (1, 2, 1, 3)]
  expected = [BlockTokenizer(tiny_tokenizer)(few) for few in portions]
  tokenize = BlockTokenizer(tiny_tokenizer)
  tokenized, encode_batch = [], tiny_tokenizer.encode_batch

  def counted(texts):
    tokenized.append(set(texts))
    return encode_batch(texts)

  monkeypatch.setattr(documents, "KNOWN_CHARACTERS", 40)
  monkeypatch.setattr(tiny_tokenizer, "encode_batch", counted)
  for few, wanted in zip(portions, expected, strict=True):
    for found, same in zip(tokenize(few), wanted, strict=True):
      np.testing.assert_array_equal(found.ids, same.ids)
      assert found.sentence_offsets == same.sentence_offsets
    words = {word for document in few for sentence in document for word in sentence.split()}
    assert tokenized[-1] == words  # Those of earlier portions are forgotten.
