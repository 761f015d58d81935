"""The same input: recognised without reading it, its checksum taken from the reading that is done anyway."""

import bz2
import gzip
import lzma
import os
import pathlib

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import tiny_corpus
import zstandard

from albert_tf.errors import UserError
from tfrecords_tools.corpus import Checksum, CorpusOptions, CorpusStats, iter_documents
from tfrecords_tools.pretraining import input_files
from tfrecords_tools.pretraining.input_files import describe_input, input_differences
from tfrecords_tools.pretraining.job import create_records
from tfrecords_tools.pretraining.local.runner import LocalRunner
from tfrecords_tools.pretraining.settings import RecordSettings

_SETTINGS = RecordSettings(
  max_seq_length=64,
  max_predictions_per_seq=8,
  dupe_factor=1,
  num_shards=2,
  num_eval_shards=1,
  eval_fraction=0.1,
)
_TEXT = tiny_corpus.as_text(tiny_corpus.documents(np.random.default_rng(5), 40))


class _StopError(Exception):
  """Ends a job where it stands."""


def _stop(stage, done, total):
  if stage == "write":
    raise _StopError


@pytest.fixture
def corpus(tmp_path):
  paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
  for path in paths:
    path.write_text(_TEXT, encoding="utf-8")
  return [str(path) for path in paths]


def _make(corpus, output_dir, tokenizer, **more):
  return create_records(
    corpus,
    str(output_dir),
    tokenizer=tokenizer,
    settings=_SETTINGS,
    options=CorpusOptions(input_format="lines"),
    runner=LocalRunner(),
    **more,
  )


def _change(path):
  """Other text of the same size, at another time."""
  data = pathlib.Path(path).read_bytes()
  pathlib.Path(path).write_bytes(data[:-20] + data[-20:].swapcase())
  _touch(path)


def _touch(path):
  os.utime(path, ns=(0, os.stat(path).st_mtime_ns + 1_000_000_000))


def _crc32c(path):
  return f"{google_crc32c.value(pathlib.Path(path).read_bytes()):08x}"


def _write_parquet(path):
  pq.write_table(pa.table({"text": [_TEXT] * 20, "other": ["skipped by the reader"] * 20}), path)


@pytest.mark.parametrize(
  "write",
  [
    lambda path: path.write_text(_TEXT),
    lambda path: path.write_text(""),
    lambda path: path.write_bytes(gzip.compress(_TEXT.encode()) * 2),
    lambda path: path.write_bytes(bz2.compress(_TEXT.encode()) + b"what is no compressed data" * 5000),
    lambda path: path.write_bytes(lzma.compress(_TEXT.encode())),
    lambda path: path.write_bytes(zstandard.compress(_TEXT.encode())),
    _write_parquet,
  ],
  ids=["text", "empty", "gzip", "bzip2 and a tail", "xz", "zstd", "parquet"],
)
def test_reading_sums_up_every_byte_of_a_file(tmp_path, write):
  path = tmp_path / "file"
  write(path)
  plain, stats, checksum = CorpusStats(), CorpusStats(), Checksum()
  expected = list(iter_documents(str(path), CorpusOptions(), stats=plain))
  assert list(iter_documents(str(path), CorpusOptions(), stats=stats, checksum=checksum)) == expected
  assert stats == plain
  assert (checksum.num_bytes, checksum.crc32c) == (path.stat().st_size, _crc32c(path))


def test_nothing_is_read_before_the_work(corpus, tiny_tokenizer, tmp_path, monkeypatch):
  def read(path):
    raise AssertionError(f"{path} is read to start")

  monkeypatch.setattr(input_files, "size_and_crc32c", read)
  manifest = _make(corpus, tmp_path / "out", tiny_tokenizer)
  assert [file["crc32c"] for file in manifest.input["files"]] == [_crc32c(path) for path in corpus]
  assert "checksums" not in manifest.statistics["corpus"]
  assert _make(corpus, tmp_path / "out", tiny_tokenizer) == manifest
  with pytest.raises(AssertionError, match="is read to start"):
    _make(corpus, tmp_path / "out", tiny_tokenizer, verify_input=True)


def test_finished_records_know_their_input_wherever_it_is(corpus, tiny_tokenizer, tmp_path):
  manifest = _make(corpus, tmp_path / "out", tiny_tokenizer)
  elsewhere = tmp_path / "elsewhere"
  elsewhere.mkdir()
  moved = [str(elsewhere / os.path.basename(path)) for path in corpus]
  for source, target in zip(corpus, moved, strict=True):
    pathlib.Path(target).write_bytes(pathlib.Path(source).read_bytes())
    _touch(target)
  for verify in (False, True):
    assert _make(moved, tmp_path / "out", tiny_tokenizer, verify_input=verify) == manifest
  _change(moved[1])
  assert (
    _make(moved, tmp_path / "out", tiny_tokenizer) == manifest
  )  # As large as it was: that is all that is looked at.
  with pytest.raises(UserError, match=rf"b\.txt, crc32c there {_crc32c(corpus[1])}, now {_crc32c(moved[1])}"):
    _make(moved, tmp_path / "out", tiny_tokenizer, verify_input=True)
  with open(moved[0], "ab") as stream:
    stream.write(b"More.\n")
  with pytest.raises(UserError, match=r'input\.files: there \{"name": "a\.txt", "num_bytes": \d+'):
    _make(moved, tmp_path / "out", tiny_tokenizer)


def test_unfinished_work_goes_on_with_the_same_input_alone(corpus, tiny_tokenizer, tmp_path):
  """Else the blocks that are finished would be of other text than those to come."""
  whole = _make(corpus, tmp_path / "whole", tiny_tokenizer)
  for name, verify in (("timed", False), ("read", True)):
    with pytest.raises(_StopError):
      _make(corpus, tmp_path / name, tiny_tokenizer, progress=_stop, verify_input=verify)
  _touch(corpus[1])
  with pytest.raises(UserError, match=r"b\.txt, modified there \d+, now \d+"):
    _make(corpus, tmp_path / "timed", tiny_tokenizer)
  with pytest.raises(UserError, match=r"b\.txt, modified there"):  # What it held then, nobody knows.
    _make(corpus, tmp_path / "timed", tiny_tokenizer, verify_input=True)
  assert _make(corpus, tmp_path / "read", tiny_tokenizer, verify_input=True) == whole


def test_input_that_changes_meanwhile_is_an_error(corpus, tiny_tokenizer, tmp_path):
  size = os.path.getsize(corpus[1])

  def grow(stage, done, total):
    if os.path.getsize(corpus[1]) == size:  # At the first file's first block; this is the second file.
      with open(corpus[1], "ab") as stream:
        stream.write(b"One sentence more.\n")

  with pytest.raises(UserError, match=rf"must not change.*b\.txt, {size:,} bytes when the work began"):
    _make(corpus, tmp_path / "out", tiny_tokenizer, progress=grow)
  assert [path.name for path in (tmp_path / "out").iterdir()] == ["_unfinished"]


def test_content_decides_where_both_know_it(corpus):
  before = describe_input(corpus, verify=True)
  _touch(corpus[0])
  _change(corpus[1])
  now = describe_input(corpus, verify=True)
  assert [difference.split(" there")[0] for difference in input_differences(before, now)] == [
    "input.files: b.txt, crc32c"
  ]
  assert len(input_differences(before, describe_input(corpus))) == 2  # Times alone.
  assert input_differences(before, now[:1]) == ["input.files: there 2, now 1"]
