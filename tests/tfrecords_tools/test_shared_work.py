"""A job in several sittings: many machines, merges in rounds, full disks. The bytes are those of one go."""

import dataclasses
import errno
import gzip
import pathlib
import types

import numpy as np
import pytest
from support import tiny_corpus

from albert_tf.errors import UserError
from tfrecords_tools.corpus import CorpusOptions
from tfrecords_tools.pretraining import blocks, job, sorted_runs
from tfrecords_tools.pretraining.job import create_records
from tfrecords_tools.pretraining.local import runner as local_runner
from tfrecords_tools.pretraining.local import worker
from tfrecords_tools.pretraining.local.runner import LocalRunner
from tfrecords_tools.pretraining.local.share import Share, WaitForOthersError
from tfrecords_tools.pretraining.settings import RecordSettings

_CHOICES = RecordSettings(
  max_seq_length=64, max_predictions_per_seq=8, dupe_factor=2, num_shards=3, eval_fraction=0.1
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  """A file that is larger than any machine's share, three small ones, and one without text."""
  directory = tmp_path_factory.mktemp("corpus")
  rng = np.random.default_rng(12)
  for name, size in (("large", 90), ("a", 12), ("b", 10), ("c", 7), ("empty", 0)):
    text = tiny_corpus.as_text(tiny_corpus.documents(rng, size)) if size else "\n"
    (directory / f"{name}.txt").write_text(text, encoding="utf-8")
  return sorted(map(str, directory.glob("*.txt")))


@pytest.fixture
def make(corpus, tiny_tokenizer, monkeypatch):
  """Makes the records of the corpus in many small blocks."""
  monkeypatch.setattr(blocks, "SMALLEST_BLOCK", 2000)

  def run(output_dir, *, share=None, choices=_CHOICES, paths=corpus, runner=None, **more):
    return create_records(
      paths,
      str(output_dir),
      tokenizer=tiny_tokenizer,
      settings=choices,
      options=CorpusOptions(input_format="lines"),
      runner=runner or LocalRunner(share=share),
      **more,
    )

  return run


def _contents(directory):
  found = sorted(path for path in pathlib.Path(directory).rglob("*") if path.is_file())
  return {path.relative_to(directory).as_posix(): path.read_bytes() for path in found}


def _told(make, *arguments, **more):
  with pytest.raises(WaitForOthersError) as told:
    make(*arguments, **more)
  return str(told.value)


def _forbid(monkeypatch, owner, name):
  def refuse(*arguments, **more):
    raise AssertionError(f"{name} is not needed any more")

  monkeypatch.setattr(owner, name, refuse)


# The second has no document drawn for eval, and takes segments from the other documents of a block.
@pytest.mark.parametrize(("eval_fraction", "sentence_pair"), [(0.1, "sop"), (1e-9, "nsp")])
def test_three_machines_make_the_records_of_one(make, monkeypatch, tmp_path, eval_fraction, sentence_pair):
  choices = dataclasses.replace(_CHOICES, eval_fraction=eval_fraction, sentence_pair=sentence_pair)
  whole = make(tmp_path / "whole", choices=choices)
  monkeypatch.setattr(sorted_runs, "FAN_IN", 3)  # Two rounds of merging among about twenty runs.
  output = tmp_path / "shared"
  sittings = 0
  told = []
  while not (told and all("its files are written" in each for each in told)):
    told = [_told(make, output, choices=choices, share=Share(task, 3)) for task in range(3)]
    sittings += 1
    assert sittings < 6
  assert not (output / "manifest.json").exists()
  assert not list(output.glob("train-*"))
  _forbid(monkeypatch, job, "read_blocks")
  _forbid(monkeypatch, sorted_runs, "_merge_part")
  assert make(output, choices=choices) == whole  # The command without a task joins them.
  assert _contents(output) == _contents(tmp_path / "whole")


def test_what_a_machine_did_not_do_is_said_and_then_done(make, tmp_path):
  make(tmp_path / "whole")
  output = tmp_path / "shared"
  assert "Missing is at least that of task 1, 2." in _told(make, output, share=Share(0, 3))
  assert "Missing is at least that of task 1." in _told(make, output, share=Share(2, 3))
  with pytest.raises(UserError, match=r"settings\.random_seed: there 12345, now 1"):
    make(output, share=Share(1, 3), choices=dataclasses.replace(_CHOICES, random_seed=1))
  make(output)
  assert _contents(output) == _contents(tmp_path / "whole")


@pytest.mark.parametrize(("index", "count"), [(3, 3), (-1, 2), (0, 0)])
def test_a_share_must_be_one_of_those_there_are(index, count):
  with pytest.raises(UserError, match="Count the tasks from 0"):
    Share(index, count)


def test_shares_are_about_equal_and_everything_is_somebodys():
  sizes = [*range(100, 160), 9000]
  owners = Share(0, 4).owners(sizes)
  assert owners[-1] is None  # Larger than a share: its blocks are shared out.
  loads = [sum(size for size, owner in zip(sizes, owners, strict=True) if owner == task) for task in range(4)]
  assert sum(loads) == sum(sizes[:-1])
  assert max(loads) < 1.1 * min(loads)
  assert Share().owners(sizes) == [0] * len(sizes)


@pytest.mark.parametrize("room", [0.4, 1.6])
def test_a_disk_that_fills_while_merging_leaves_a_job_that_continues(make, monkeypatch, tmp_path, room):
  """`room` is what may be written while merging, over the size of the records."""
  make(tmp_path / "whole")
  size = sum(path.stat().st_size for path in (tmp_path / "whole").glob("*.tfrecord"))
  monkeypatch.setattr(
    sorted_runs, "FAN_IN", 3
  )  # Two rounds: the runs of the first are gone when the second is done.
  left = room * size
  merge_part = sorted_runs._merge_part

  def on_a_small_disk(*arguments, **more):
    nonlocal left
    part = merge_part(*arguments, **more)
    left -= len(part.data)
    if left < 0:
      raise OSError(errno.ENOSPC, "No space left on device")
    return part

  with monkeypatch.context() as patch:
    patch.setattr(sorted_runs, "_merge_part", on_a_small_disk)
    patch.setattr(sorted_runs, "PART_BYTES", 4000)
    with pytest.raises(UserError, match=r"No space left.*it continues"):
      make(tmp_path / "cut")
  assert [path.name for path in (tmp_path / "cut").iterdir()] == ["_unfinished"]
  assert not list((tmp_path / "cut" / "_unfinished").glob("*.tmp-*"))
  _forbid(monkeypatch, job, "read_blocks")  # The text is not read again.
  make(tmp_path / "cut")
  assert _contents(tmp_path / "cut") == _contents(tmp_path / "whole")


def test_what_another_machine_merges_meanwhile_is_not_made_again(make, monkeypatch, tmp_path):
  make(tmp_path / "whole")
  monkeypatch.setattr(sorted_runs, "FAN_IN", 6)
  merge_group = sorted_runs.merge_group
  groups = []

  def stop(runs, path):
    groups.append((runs, path))
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(worker, "merge_group", stop)
    with pytest.raises(KeyboardInterrupt):
      make(tmp_path / "cut")
  is_whole = sorted_runs.Run.is_whole

  def after_a_merge(run):
    while groups:  # By another machine, between the first look at the notes and the look at the runs.
      merge_group(*groups.pop())
    return is_whole(run)

  monkeypatch.setattr(sorted_runs.Run, "is_whole", after_a_merge)
  _forbid(monkeypatch, job, "read_blocks")
  make(tmp_path / "cut")
  assert _contents(tmp_path / "cut") == _contents(tmp_path / "whole")


def test_the_directory_for_work_keeps_what_is_not_of_the_job(make, monkeypatch, tmp_path):
  scratch, output = tmp_path / "scratch", tmp_path / "out"
  scratch.mkdir()
  (scratch / "thesis.txt").write_text("mine")

  def killed(*arguments):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(job, "remove_work", killed)  # The records are finished, their removal is not.
    with pytest.raises(KeyboardInterrupt):
      make(output, work_dir=str(scratch))
  assert (scratch / "_unfinished").exists()
  _forbid(monkeypatch, job, "read_blocks")
  make(output, work_dir=str(scratch))
  assert [path.name for path in scratch.iterdir()] == ["thesis.txt"]
  assert not (output / "_unfinished").exists()


def test_finished_files_are_not_read_again(make, monkeypatch, tmp_path):
  make(tmp_path / "whole")
  read_blocks = job.read_blocks
  opened = []

  def only_three(path, *arguments, **more):
    opened.append(path)
    if len(opened) == 4:
      raise KeyboardInterrupt
    return read_blocks(path, *arguments, **more)

  with monkeypatch.context() as patch:
    patch.setattr(job, "read_blocks", only_three)
    with pytest.raises(KeyboardInterrupt):
      make(tmp_path / "cut")
  before = opened[:3]
  opened.clear()

  def note(path, *arguments, **more):
    opened.append(path)
    return read_blocks(path, *arguments, **more)

  monkeypatch.setattr(job, "read_blocks", note)
  make(tmp_path / "cut")
  assert len(opened) == 2
  assert not set(opened) & set(before)
  assert _contents(tmp_path / "cut") == _contents(tmp_path / "whole")


def test_a_run_that_is_not_whole_is_made_again(make, tmp_path):
  """As a machine that loses power may leave it."""
  make(tmp_path / "whole")
  assert "Missing" in _told(make, tmp_path / "cut", share=Share(0, 2))
  runs = sorted((tmp_path / "cut" / "_unfinished").glob("block*.run"))
  runs[1].write_bytes(runs[1].read_bytes()[:-5])
  runs[2].unlink()
  make(tmp_path / "cut")
  assert _contents(tmp_path / "cut") == _contents(tmp_path / "whole")


@pytest.mark.parametrize(
  ("text_sizes", "passes", "expected"),
  [
    ([3_000_000], 2, False),  # Their start would take longer than the work.
    ([30_000_000], 2, True),
    ([3_000_000], 40, True),
    ([1_900_000], 40, False),  # Cut in a large block and a small one: one process would make nearly all.
    ([950_000, 950_000], 40, True),
  ],
)
def test_processes_start_only_where_they_save_time(text_sizes, passes, expected):
  some = types.SimpleNamespace(
    text_sizes=text_sizes, block_bytes=1 << 20, settings=RecordSettings(dupe_factor=passes)
  )
  assert local_runner.is_worth_processes(some) is expected


def test_a_large_compressed_file_is_mentioned_once(make, corpus, monkeypatch, tmp_path):
  large = tmp_path / "large.txt.gz"
  large.write_bytes(gzip.compress(pathlib.Path(corpus[-1]).read_bytes()))
  told = []
  plain = make(tmp_path / "plain", paths=[corpus[-1], corpus[0]])
  monkeypatch.setattr(local_runner, "_WORTH_PROCESSES", 0)
  runner = LocalRunner(num_workers=2, notice=told.append)
  manifest = make(tmp_path / "out", paths=[str(large), corpus[0]], runner=runner)
  assert [text.split(":")[0] for text in told] == [str(large)]
  assert [file.crc32c for file in manifest.files] == [file.crc32c for file in plain.files]
