"""What records depend on, and what an unfinished or finished run is taken for when its command is given again."""

import dataclasses
import importlib.metadata
import os
import pathlib

import numpy as np
import pytest
from support import tiny_corpus
from support.made_records import contents, make

from albert_tf.errors import UserError
from tfrecords_tools.pretraining import create, local, sorted_runs
from tfrecords_tools.pretraining.instances import Instance
from tfrecords_tools.pretraining.local import LocalRunner
from tfrecords_tools.pretraining.settings import RecordSettings
from tfrecords_tools.pretraining.sorted_runs import KEY_SPACE, RunWriter, read_sorted

_SETTINGS = RecordSettings(
  max_seq_length=64,
  max_predictions_per_seq=8,
  dupe_factor=2,
  num_shards=3,
  num_eval_shards=1,
  eval_fraction=0.1,
)
_TEXT = tiny_corpus.as_text(tiny_corpus.documents(np.random.default_rng(5), 40))


class _StopError(Exception):
  """Ends a job where it stands."""


def _stop_at_write(stage, done, total):
  if (stage, done) == ("write", 2):
    raise _StopError


@pytest.fixture
def corpus(tmp_path):
  paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
  for path in paths:
    path.write_text(_TEXT, encoding="utf-8")
  return [str(path) for path in paths]


def _make(corpus, output_dir, tokenizer, settings=_SETTINGS, **more):
  return make(corpus, output_dir, tokenizer, settings=settings, **more)


def _touch(path):
  os.utime(path, ns=(0, os.stat(path).st_mtime_ns + 1_000_000_000))


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_work_of_another_plan_is_never_taken(corpus, tiny_tokenizer, tmp_path, scheme):
  """Even where nothing but the files of finished work tells whose they are."""
  output = f"{scheme}{tmp_path}/out"
  with pytest.raises(_StopError):
    _make(corpus, output, tiny_tokenizer, progress=_stop_at_write, work_dir=str(tmp_path / "work"))
  assert len(list((tmp_path / "out" / "_unfinished").glob("*.tfrecord"))) == 2
  for directory in (tmp_path / "out" / "_unfinished", tmp_path / "work" / "_unfinished"):
    (directory / "plan.json").unlink()
  other = dataclasses.replace(_SETTINGS, random_seed=1)
  _make(corpus, output, tiny_tokenizer, settings=other, work_dir=str(tmp_path / "work"))
  _make(corpus, tmp_path / "whole", tiny_tokenizer, settings=other)
  assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_an_upgrade_is_refused_in_the_middle_of_a_job_and_not_at_its_end(
  corpus, tiny_tokenizer, tmp_path, monkeypatch
):
  with pytest.raises(_StopError):
    _make(corpus, tmp_path / "out", tiny_tokenizer, progress=_stop_at_write)
  installed = importlib.metadata.version
  before = installed("sentencex")

  def upgraded(name):
    return "99.0" if name == "sentencex" else installed(name)

  with monkeypatch.context() as patch:
    patch.setattr(importlib.metadata, "version", upgraded)
    with pytest.raises(UserError, match=rf'versions\.sentencex: there "{before}", now "99\.0"'):
      _make(corpus, tmp_path / "out", tiny_tokenizer)
  made = _make(corpus, tmp_path / "out", tiny_tokenizer)
  assert {"unicode", "sentencex", "sentencepiece", "mwparserfromhell", "pyarrow"} <= set(made.versions)
  monkeypatch.setattr(importlib.metadata, "version", upgraded)
  assert _make(corpus, tmp_path / "out", tiny_tokenizer) == made  # Nothing is made by another version.


def test_finished_files_are_not_read_again(tiny_tokenizer, tmp_path, monkeypatch):
  paths = [tmp_path / f"{number}.txt" for number in range(5)]
  for number, path in enumerate(paths):
    path.write_text(
      tiny_corpus.as_text(tiny_corpus.documents(np.random.default_rng(number), 20)), encoding="utf-8"
    )
  paths = [str(path) for path in paths]
  _make(paths, tmp_path / "whole", tiny_tokenizer)
  read_blocks = local.read_blocks
  opened = []

  def only_three(job, file_index, count):
    opened.append(file_index)
    if len(opened) == 4:
      raise _StopError
    return read_blocks(job, file_index, count)

  monkeypatch.setattr(local, "read_blocks", only_three)
  with pytest.raises(_StopError):
    _make(paths, tmp_path / "cut", tiny_tokenizer)
  # As a machine that loses power may leave them: two runs of one of the finished files.
  runs = sorted((tmp_path / "cut" / "_unfinished").glob(f"block-{opened[0]:05}*.run"))
  runs[0].write_bytes(runs[0].read_bytes()[:-5])
  runs[1].unlink()
  _make(paths, tmp_path / "cut", tiny_tokenizer)
  assert sorted(opened[4:]) == sorted({0, 1, 2, 3, 4} - set(opened[1:3]))
  assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_the_directory_for_work_keeps_what_is_not_of_the_job(corpus, tiny_tokenizer, tmp_path, monkeypatch):
  scratch, output = tmp_path / "scratch", tmp_path / "out"
  scratch.mkdir()
  (scratch / "thesis.txt").write_text("mine")
  with monkeypatch.context() as patch:
    patch.setattr(create.jobs, "remove_work", lambda job: 1 / 0)  # Killed before it is removed.
    with pytest.raises(ZeroDivisionError):
      _make(corpus, output, tiny_tokenizer, work_dir=str(scratch))
  assert (scratch / "_unfinished").exists()
  monkeypatch.setattr(local, "read_blocks", None)  # Nothing is made again.
  _make(corpus, output, tiny_tokenizer, work_dir=str(scratch))
  assert [path.name for path in scratch.iterdir()] == ["thesis.txt"]
  assert not (output / "_unfinished").exists()


# ---------------------------------------------------------------------- the same input


def test_the_same_input_is_known_wherever_it_is(corpus, tiny_tokenizer, tmp_path):
  manifest = _make(corpus, tmp_path / "out", tiny_tokenizer)
  (tmp_path / "elsewhere").mkdir()
  moved = [str(tmp_path / "elsewhere" / os.path.basename(path)) for path in corpus]
  for source, target in zip(corpus, moved, strict=True):
    pathlib.Path(target).write_bytes(pathlib.Path(source).read_bytes())
  assert _make(moved, tmp_path / "out", tiny_tokenizer) == manifest
  with open(moved[0], "ab") as stream:
    stream.write(b"More.\n")
  with pytest.raises(UserError, match=r"input\.num_bytes: there \d+, now \d+"):
    _make(moved, tmp_path / "out", tiny_tokenizer)


def test_unfinished_work_goes_on_with_the_same_input_alone(corpus, tiny_tokenizer, tmp_path):
  """Else the blocks that are finished would be of other text than those to come."""
  with pytest.raises(_StopError):
    _make(corpus, tmp_path / "out", tiny_tokenizer, progress=_stop_at_write)
  _touch(corpus[1])
  with pytest.raises(UserError, match=r"input\.modified: there \d+, now \d+"):
    _make(corpus, tmp_path / "out", tiny_tokenizer)


# ---------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
  ("text_bytes", "train", "held_out"), [(1_000, 1, 1), (100_000_000, 27, 1), (5_000_000_000, 1341, 14)]
)
def test_a_corpus_has_as_many_files_as_its_size_asks_for(text_bytes, train, held_out):
  decided = RecordSettings().with_num_shards(text_bytes)
  assert (decided.num_shards, decided.num_eval_shards) == (train, held_out)
  assert RecordSettings(num_shards=5, num_eval_shards=2).with_num_shards(text_bytes).num_shards == 5


@pytest.mark.parametrize("sorted_bytes", [1 << 20, 700])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_reading_runs_is_a_stable_sort_of_a_range(tmp_path, monkeypatch, sorted_bytes, num_shards):
  monkeypatch.setattr(sorted_runs, "SORTED_BYTES", sorted_bytes)
  rng = np.random.default_rng(5)
  shared = rng.integers(0, KEY_SPACE, 40, np.uint64).tolist()  # Drawn again and again: ties across runs.
  runs, everything = [], []
  for number in range(23):
    keys = rng.choice([*shared, *rng.integers(0, KEY_SPACE, 40, np.uint64).tolist()], 50).tolist()
    keys += [0, KEY_SPACE - 1] * (number == 3)  # The two ends of the range.
    pairs = [
      (key, f"<{number}:{place}>".encode() * int(rng.integers(1, 9))) for place, key in enumerate(keys)
    ]
    writer = RunWriter(str(tmp_path / f"block-{number:03d}"), "train")
    writer.add([Instance(key, record, None, 0, None, None, []) for key, record in pairs])
    runs += writer.finish()
    everything += pairs
  for shard in range(num_shards):
    low, high = (number * KEY_SPACE // num_shards for number in (shard, shard + 1))
    expected = sorted((pair for pair in everything if low <= pair[0] < high), key=lambda pair: pair[0])
    assert [bytes(record) for record in read_sorted(runs, low=low, high=high)] == [r for _, r in expected]


def test_several_workers_divide_many_files(tiny_tokenizer, tmp_path):
  """Small ones are read by the workers, a large one by the command."""
  paths = []
  for number, count in enumerate((60, 3, 3, 5)):
    paths.append(str(tmp_path / f"{number}.txt"))
    text = tiny_corpus.as_text(tiny_corpus.documents(np.random.default_rng(number), count))
    pathlib.Path(paths[-1]).write_text(text, encoding="utf-8")
  _make(paths, tmp_path / "one", tiny_tokenizer)
  _make(paths, tmp_path / "two", tiny_tokenizer, runner=LocalRunner(num_workers=2))
  assert contents(tmp_path / "one") == contents(tmp_path / "two")
