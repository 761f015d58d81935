"""Exact copies of documents: which are found, which one stays, and that nothing else changes."""

import dataclasses
import itertools
import pathlib
import tracemalloc

import numpy as np
import pytest
from support import made_records, tiny_corpus
from support.made_records import contents

from albert_tf.records import read_records
from albert_tf.records.decode import decode_example
from tfrecords_tools.corpus import CorpusOptions
from tfrecords_tools.inspection.validation import view_instance
from tfrecords_tools.pretraining import duplicates
from tfrecords_tools.pretraining.blocks import Block
from tfrecords_tools.pretraining.duplicates import Duplicates
from tfrecords_tools.pretraining.local.runner import LocalRunner
from tfrecords_tools.pretraining.local.share import Share, WaitForOthersError
from tfrecords_tools.pretraining.settings import RecordSettings

_NONE = RecordSettings(
  max_seq_length=32, max_predictions_per_seq=4, dupe_factor=2, num_shards=2, eval_fraction=0.2
)
_EXACT = dataclasses.replace(_NONE, dedup="exact")
_LINES = CorpusOptions(input_format="lines")


@pytest.fixture(scope="module")
def originals():
  return tiny_corpus.documents(np.random.default_rng(3), 60)


@pytest.fixture(scope="module")
def corpus(originals, tmp_path_factory):
  """Three files: 60 documents, the first two of them again; half of them in other lines; one of nothing new."""
  directory = tmp_path_factory.mktemp("corpus")
  in_other_lines = [" ".join(document).replace(" ", "  \t ").split(" ", 1) for document in originals[10:40]]
  new = tiny_corpus.documents(np.random.default_rng(4), 20)
  contents = [[*originals, *originals[:2]], [*new[:10], *in_other_lines, *new[10:]], originals[20:]]
  paths = []
  for number, documents in enumerate(contents):
    paths.append(str(directory / f"{number}.txt"))
    pathlib.Path(paths[-1]).write_text(tiny_corpus.as_text(documents), encoding="utf-8")
  return paths


EXPECTED = {0: [60, 61], 1: list(range(10, 40)), 2: list(range(40))}  # File → numbers of its copies.


def _make(corpus, output_dir, tokenizer, *, settings=_EXACT, **more):
  return made_records.make(corpus, output_dir, tokenizer, settings=settings, **more)


def _records(directory, pattern):
  paths = sorted(map(str, pathlib.Path(directory).glob(pattern)))
  return list(itertools.chain.from_iterable(map(read_records, paths)))


def _texts(directory, pattern):
  """The token sequences of instances, as they were before masking."""
  views = (view_instance(decode_example(record)) for record in _records(directory, pattern))
  return {tuple(view.restored) for view in views if len(view.restored) > 12}


def _found(work_dir, num_files):
  """Numbers of the copies in each file."""
  everything = [Block(index, 0, 0, [["x"]] * 100) for index in range(num_files)]
  known = Duplicates(str(work_dir))
  return {
    block.file_index: sorted(next(known.drop_from([block], block.file_index)).dropped) for block in everything
  }


@pytest.mark.parametrize(("run_documents", "part_bytes"), [(1 << 20, 1 << 20), (16, 200)])
def test_all_but_the_first_are_found_whatever_fits_into_memory(
  corpus, tmp_path, monkeypatch, run_documents, part_bytes
):
  monkeypatch.setattr(duplicates, "_RUN_DOCUMENTS", run_documents)
  monkeypatch.setattr(duplicates, "_PART_BYTES", part_bytes)
  found = Duplicates(str(tmp_path))
  for index in (2, 0, 1):
    found.hash(index, corpus[index], _LINES)
  assert not found.is_known()
  found.compare(3)
  assert found.is_known()
  assert _found(tmp_path, 3) == EXPECTED


def test_a_block_keeps_the_numbers_of_its_documents(tmp_path):
  known = Duplicates(str(tmp_path))
  known.write(7, np.array([12, 9, 40]))
  documents = [[f"document {number}"] for number in range(9, 14)]
  (block,) = known.drop_from([Block(7, 2, 9, documents)], 7)
  assert block.dropped == {9, 12}
  assert block.documents == [[], ["document 10"], ["document 11"], [], ["document 13"]]
  assert [place.document for place in block.places] == [9, 10, 11, 12, 13]
  untouched = Block(7, 3, 20, documents)
  assert next(known.drop_from([untouched], 7)) is untouched
  assert next(known.drop_from([untouched], 8)) is untouched


def test_copies_change_no_other_record(corpus, tiny_tokenizer, tmp_path):
  _make(corpus, tmp_path / "none", tiny_tokenizer, settings=_NONE)
  manifest = _make(corpus, tmp_path / "exact", tiny_tokenizer)
  assert manifest.statistics["duplicates"] == sum(map(len, EXPECTED.values())) == 72
  assert sum(manifest.statistics[split]["documents"] for split in ("train", "eval")) == 80
  assert manifest.statistics["corpus"]["documents"] == 152
  for pattern in ("train-*", "eval-*"):
    with_copies, without = (_records(tmp_path / name, pattern) for name in ("none", "exact"))
    assert set(without) < set(with_copies)
    assert len(without) < len(with_copies)
  held_out, trained = (
    {name: _texts(tmp_path / name, p) for name in ("none", "exact")} for p in ("eval-*", "train-*")
  )
  assert held_out["none"] & trained["none"]  # What is measured had been learned.
  assert held_out["exact"]
  assert not held_out["exact"] & trained["exact"]


def test_without_copies_the_bytes_are_those_of_no_search(originals, tiny_tokenizer, tmp_path):
  path = tmp_path / "unique.txt"
  path.write_text(tiny_corpus.as_text(originals), encoding="utf-8")
  _make([str(path)], tmp_path / "none", tiny_tokenizer, settings=_NONE)
  _make([str(path)], tmp_path / "exact", tiny_tokenizer)
  none, exact = contents(tmp_path / "none"), contents(tmp_path / "exact")
  del none["manifest.json"], exact["manifest.json"]
  assert exact == none


def test_workers_machines_and_beam_find_the_same(corpus, tiny_tokenizer, tmp_path):
  _make(corpus, tmp_path / "one", tiny_tokenizer)
  expected = contents(tmp_path / "one")
  _make(corpus, tmp_path / "two", tiny_tokenizer, runner=LocalRunner(num_workers=2))
  assert contents(tmp_path / "two") == expected
  for index in (0, 1, 0, 1):  # Hashing, then making: each machine waits for the other.
    with pytest.raises(WaitForOthersError):
      _make(corpus, tmp_path / "shared", tiny_tokenizer, runner=LocalRunner(share=Share(index, 2)))
  _make(corpus, tmp_path / "shared", tiny_tokenizer)
  assert contents(tmp_path / "shared") == expected


def test_beam_finds_the_same(corpus, tiny_tokenizer, tmp_path):
  pytest.importorskip("apache_beam")
  from tfrecords_tools.pretraining.beam.runner import BeamRunner

  _make(corpus, tmp_path / "local", tiny_tokenizer)
  _make(corpus, tmp_path / "beam", tiny_tokenizer, runner=BeamRunner())
  assert contents(tmp_path / "beam") == contents(tmp_path / "local")


def test_an_interrupted_search_continues(corpus, tiny_tokenizer, tmp_path):
  class StopError(Exception):
    pass

  def stop(stage, done, total):
    if (stage, done) == ("compare", 2):
      raise StopError

  with pytest.raises(StopError):
    _make(corpus, tmp_path / "cut", tiny_tokenizer, progress=stop)
  hashed = {path: path.stat().st_mtime_ns for path in (tmp_path / "cut/_unfinished/duplicates").iterdir()}
  assert sum(path.suffix == ".json" for path in hashed) == 2
  done = []

  def look(stage, *counts):
    if stage == "compare":
      done.append(counts)
      assert all(path.stat().st_mtime_ns == before for path, before in hashed.items())

  _make(corpus, tmp_path / "cut", tiny_tokenizer, progress=look)
  assert done == [(1, 1)]
  _make(corpus, tmp_path / "whole", tiny_tokenizer)
  assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_memory_is_bounded_by_what_is_compared_together(tmp_path, monkeypatch):
  monkeypatch.setattr(duplicates, "_RUN_DOCUMENTS", 5000)
  monkeypatch.setattr(duplicates, "_PART_BYTES", 200_000)
  rng = np.random.default_rng(1)
  monkeypatch.setattr(
    duplicates, "hash_file", lambda path, options: iter([rng.bytes(16) for _ in range(10_000)])
  )
  found = Duplicates(str(tmp_path))
  for index in range(12):
    found.hash(index, "", _LINES)
  tracemalloc.start()
  found.compare(12)
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  assert peak < 4 * 200_000 < 12 * 10_000 * 20 / 2  # Of 2.4 MB of hashes.
