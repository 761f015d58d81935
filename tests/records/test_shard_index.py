"""Damaged record files are reported; the index is correct, and saves reading whole files at the start."""

import os
import pathlib
import shutil

import numpy as np

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.pipelines.record_index import build_record_index
from albert_tf.records import frame_record, shard_index
from albert_tf.records.shard_index import index_path


def write_shard(path: pathlib.Path, count: int, *, seed: int = 0, length: int | None = None) -> str:
  rng = np.random.default_rng(seed)
  with path.open("wb") as stream:
    for _ in range(count):
      stream.write(
        frame_record(rng.bytes(length if length is not None else int(rng.integers(0, 300))))
      )
  return str(path)


def test_no_pattern_for_shards_matches_it(tmp_path):
  shard = write_shard(tmp_path / "train-0.tfrecord", 3)
  build_record_index([shard])
  assert os.path.exists(index_path(shard))
  for pattern in ("train-*", "*.tfrecord", "**/train-*", "**/*.tfrecord"):
    assert files.expand_globs(f"{tmp_path}/{pattern}") == [shard]


def test_a_start_reads_indexes_only(tmp_path, monkeypatch, capsys):
  shards = [write_shard(tmp_path / f"train-{n}.tfrecord", 200, seed=n) for n in range(3)]
  first = build_record_index(shards)
  assert capsys.readouterr().err == (
    "3 of 3 record files have no index, or are newer than it: reading them once\n"
  )
  opened = []
  read = files.open_binary
  monkeypatch.setattr(files, "open_binary", lambda path: opened.append(path) or read(path))
  again = build_record_index(shards)
  assert capsys.readouterr().err == ""
  assert not set(opened) & set(shards)
  assert again.content == first.content
  np.testing.assert_array_equal(again.block_bytes, first.block_bytes)


def test_the_index_of_another_size_is_made_again(tmp_path):
  shard = write_shard(tmp_path / "train-0.tfrecord", 100)
  build_record_index([shard])
  write_shard(pathlib.Path(shard), 130)
  assert build_record_index([shard]).num_records == 130


def test_records_changed_in_place_have_another_content_and_copied_ones_the_same(tmp_path):
  shard = write_shard(tmp_path / "train-0.tfrecord", 100, length=40)
  before = build_record_index([shard]).content
  made = os.stat(index_path(shard)).st_mtime_ns

  # A copy is newer than its index, too.
  copied = tmp_path / "copied"
  shutil.copytree(tmp_path, copied)
  os.utime(copied / "train-0.tfrecord", ns=(made + 1, made + 1))
  assert build_record_index([str(copied / "train-0.tfrecord")]).content == before

  write_shard(pathlib.Path(shard), 100, length=40, seed=1)
  os.utime(shard, ns=(made + 1, made + 1))
  changed = build_record_index([shard]).content
  assert changed != before
  assert build_record_index([shard]).content == changed  # By the new index.


def test_records_that_may_only_be_read_are_walked_in_memory(tmp_path, monkeypatch):
  shard = write_shard(tmp_path / "train-0.tfrecord", 100)

  def refuse(path):
    raise UserError("The directory must be writable.")

  monkeypatch.setattr(shard_index.files, "makedirs", refuse)
  assert build_record_index([shard]).num_records == 100
  assert not os.path.exists(index_path(shard))


def test_other_records_of_the_same_sizes_have_another_content(tmp_path):
  indexes = []
  for seed in (0, 1):
    folder = tmp_path / str(seed)
    folder.mkdir()
    indexes.append(
      build_record_index([write_shard(folder / "train-0.tfrecord", 100, seed=seed, length=40)])
    )
  assert indexes[0].content != indexes[1].content
