"""The command and the job: equal bytes everywhere, held-out documents, restarts, and users' mistakes."""

import contextlib
import dataclasses
import importlib.metadata
import itertools
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import google_crc32c
import numpy as np
import psutil
import pytest
from support import tiny_corpus
from support.commands.script_runs import run_command
from support.made_records import contents, flags, make

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.records import Manifest, read_records
from albert_tf.records.parse import decode_example
from tfrecords_tools.corpus import CorpusOptions
from tfrecords_tools.inspection import view_instance
from tfrecords_tools.pretraining import create, job, local, stages
from tfrecords_tools.pretraining.local import LocalRunner
from tfrecords_tools.pretraining.settings import RecordSettings
from tfrecords_tools.pretraining.stages import write_runs

_SCRIPT = "tfrecords_tools/create_pretraining_data.py"
_COMMAND = pathlib.Path(__file__).parents[2] / _SCRIPT
_CHOICES = RecordSettings(
  max_seq_length=64, max_predictions_per_seq=8, dupe_factor=2, num_shards=2, eval_fraction=0.1
)


def _write_texts(directory, counts):
  """A file of so many documents for each."""
  paths = [directory / f"{number}.txt" for number in range(len(counts))]
  for number, (path, count) in enumerate(zip(paths, counts, strict=True)):
    text = tiny_corpus.as_text(tiny_corpus.documents(np.random.default_rng(number), count))
    path.write_text(text, encoding="utf-8")
  return list(map(str, paths))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  """Of two workers each reads one of the small files; the large one is read by the command."""
  return _write_texts(tmp_path_factory.mktemp("corpus"), (80, 3, 37))


def _make(
  corpus, output_dir, tokenizer, *, choices=_CHOICES, block_bytes=4000, num_workers=1, **more
):
  runner = LocalRunner(num_workers=num_workers)
  return make(
    corpus, output_dir, tokenizer, settings=choices, block_bytes=block_bytes, runner=runner, **more
  )


@pytest.fixture(scope="module")
def whole(corpus, tiny_tokenizer, tmp_path_factory):
  """The records of an undisturbed run: their directory, and its manifest."""
  directory = tmp_path_factory.mktemp("whole")
  return directory, _make(corpus, directory, tiny_tokenizer)


def _command(arguments, *, always_workers=False):
  """The command; with `always_workers` it starts them for little text too."""
  program = [str(_COMMAND)]
  if always_workers:
    code = "import runpy; from tfrecords_tools.pretraining import local; local._WORTH_PROCESSES = 0"
    program = ["-c", f"{code}; runpy.run_path({str(_COMMAND)!r}, run_name='__main__')"]
  return [sys.executable, *program, *map(str, arguments)]


def _run(arguments, *, always_workers=False, **kwargs):
  return subprocess.run(
    _command(arguments, always_workers=always_workers),
    capture_output=True,
    text=True,
    check=False,
    **kwargs,
  )


def test_bytes_do_not_depend_on_workers_or_machine(
  corpus, whole, tiny_tokenizer, tmp_path, monkeypatch
):
  expected = contents(whole[0])
  records = ["eval-00000-of-00001", "train-00000-of-00002", "train-00001-of-00002"]
  names = {f"{name}.tfrecord" for name in records}
  names |= {f"index/offsets-{name}.tfrecord.npy" for name in records}
  assert expected.keys() == names | {"manifest.json", "spm.model", "tokenizer.json"}
  monkeypatch.setattr(stages, "SORTED_BYTES", 700)  # Each file in many parts.
  _make(corpus, tmp_path / "parts", tiny_tokenizer)
  assert contents(tmp_path / "parts") == expected
  _make(corpus, tmp_path / "two", tiny_tokenizer, num_workers=2)
  assert contents(tmp_path / "two") == expected


def test_manifest_tells_the_truth(whole, tiny_tokenizer):
  directory, manifest = whole
  assert Manifest.find(str(directory)) == manifest
  manifest.check(vocab_size=tiny_tokenizer.vocab_size, vocab_sha256=tiny_tokenizer.model_sha256)
  labels = {"train": [], "eval": []}
  for file in manifest.files:
    data = (directory / file.name).read_bytes()
    records = list(read_records(str(directory / file.name)))
    assert (len(records), len(data)) == (file.num_records, file.num_bytes)
    assert f"{google_crc32c.value(data):08x}" == file.crc32c
    labels[file.split] += [view_instance(decode_example(record)).labels for record in records]
  train, held_out = (np.concatenate(labels[split]) for split in ("train", "eval"))
  count = len(labels["train"])
  assert manifest.num_records("train") == manifest.statistics["train"]["instances"] == count
  piece, baseline = int(np.bincount(train).argmax()), manifest.baseline
  assert (baseline.piece_id, baseline.piece) == (piece, tiny_tokenizer.pieces[piece])
  assert baseline.train_share == pytest.approx((train == piece).mean(), abs=1e-6)
  assert baseline.eval_share == pytest.approx((held_out == piece).mean(), abs=1e-6)


def _document_numbers(corpus, directory, manifest, tokenizer):
  """Split → numbers of the documents of `corpus` that its records hold."""
  documents = []
  for path in corpus:
    for text in pathlib.Path(path).read_text(encoding="utf-8").split("\n\n"):
      ids = itertools.chain.from_iterable(tokenizer.encode_batch(text.splitlines()))
      documents.append(f",{','.join(map(str, ids))},")
  numbers = {"train": set(), "eval": set()}
  for file in manifest.files:
    for record in read_records(str(directory / file.name)):
      view = view_instance(decode_example(record))
      a, b, _ = np.split(view.restored, np.flatnonzero(view.restored == tokenizer.sep_id) + 1)
      if len(a) < 10 or len(b) < 9:
        continue  # So short that it may occur by chance.
      a, b = (f",{','.join(map(str, part))}," for part in (a[1:-1], b[:-1]))
      (number,) = (
        number for number, document in enumerate(documents) if a in document and b in document
      )
      numbers[file.split].add(number)
      first, second = (b, a) if view.order_label else (a, b)
      assert documents[number].index(first) < documents[number].rindex(second)
  return numbers


def test_held_out_documents_are_never_in_train(corpus, whole, tiny_tokenizer):
  numbers = _document_numbers(corpus, *whole, tiny_tokenizer)
  assert numbers["eval"]
  assert not numbers["eval"] & numbers["train"]
  statistics = whole[1].statistics
  assert statistics["eval"]["documents"] + statistics["train"]["documents"] == 120


def test_a_part_and_the_whole_never_train_documents_that_the_other_holds_out(
  corpus, tiny_tokenizer, tmp_path
):
  """As in the study `more_data`: more text has larger blocks, and so other draws by place."""
  numbers = {}
  for name, paths, block_bytes in (("part", corpus[:1], 2000), ("whole", corpus, 3000)):
    manifest = _make(paths, tmp_path / name, tiny_tokenizer, block_bytes=block_bytes)
    numbers[name] = _document_numbers(corpus, tmp_path / name, manifest, tiny_tokenizer)
  assert len(numbers["part"]["eval"]) > 3
  assert numbers["part"]["eval"] <= numbers["whole"]["eval"]
  assert not numbers["whole"]["eval"] & numbers["part"]["train"]


def test_copies_of_a_document_are_in_one_split(tiny_tokenizer, tmp_path):
  (path,) = _write_texts(tmp_path, [30])
  other = pathlib.Path(shutil.copy(path, tmp_path / "copy.txt"))
  manifest = _make([path, str(other)], tmp_path / "out", tiny_tokenizer)
  numbers = _document_numbers([path], tmp_path / "out", manifest, tiny_tokenizer)
  # The first document is held out whatever is drawn.
  assert numbers["train"] & numbers["eval"] <= {0}


def test_a_small_corpus_still_has_a_held_out_document(tiny_tokenizer, tmp_path):
  choices = dataclasses.replace(_CHOICES, eval_fraction=1e-9)
  manifest = _make(
    _write_texts(tmp_path, [3]), tmp_path / "out", tiny_tokenizer, choices=choices, block_bytes=100
  )
  assert [manifest.statistics[split]["documents"] for split in ("train", "eval")] == [2, 1]


class _StopError(Exception):
  """Ends a job where it stands."""


@contextlib.contextmanager
def _stopping(name, number):
  """A function of the local runner fails when it is called for the `number`-th time."""
  calls, original = [], getattr(local, name)

  def stop(*arguments, **more):
    calls.append(arguments)
    if len(calls) == number:
      raise _StopError
    return original(*arguments, **more)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(local, name, stop)
    with pytest.raises(_StopError):
      yield


@pytest.mark.parametrize("stop_at", [("write_runs", 5), ("write_shard", 2)])
def test_an_interrupted_run_shows_nothing_and_continues(
  corpus, whole, tiny_tokenizer, tmp_path, stop_at, monkeypatch
):
  with _stopping(*stop_at):
    _make(corpus, tmp_path / "cut", tiny_tokenizer)
  assert [path.name for path in (tmp_path / "cut").iterdir()] == ["_unfinished"]
  finished = {path.stem for path in (tmp_path / "cut" / "_unfinished").glob("block*.json")}
  assert finished
  again = []
  monkeypatch.setattr(
    local, "write_runs", lambda *block: again.append(block[0]) or write_runs(*block)
  )
  _make(corpus, tmp_path / "cut", tiny_tokenizer)
  assert not finished & {pathlib.Path(prefix).name for prefix in again}
  assert contents(tmp_path / "cut") == contents(whole[0])


def test_blocks_that_were_cut_otherwise_are_not_taken(corpus, tiny_tokenizer, tmp_path):
  """The size of a block follows that of all input files, and a changed file leaves the work on others."""
  with _stopping("write_runs", 5):
    _make(corpus, tmp_path / "cut", tiny_tokenizer)
  for name in ("cut", "whole"):
    _make(corpus, tmp_path / name, tiny_tokenizer, block_bytes=2000)
  assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_a_killed_command_continues(tiny_model, tmp_path):
  text, cut = tmp_path / "text.txt", tmp_path / "cut"
  documents = tiny_corpus.documents(np.random.default_rng(2), 3000)
  text.write_text(tiny_corpus.as_text(documents) * 6, encoding="utf-8")

  def arguments(directory):
    return flags([str(text)], tiny_model, directory, dupe_factor=1, num_workers=2)

  began = time.monotonic()
  whole = _run(arguments(tmp_path / "whole"), always_workers=True)
  seconds = time.monotonic() - began
  assert whole.returncode == 0, whole.stderr
  finished, moments = 0, random.Random(5)
  for kill in range(6):
    process = subprocess.Popen(
      _command(arguments(cut), always_workers=True),
      stderr=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL,
    )
    if kill < 3:  # One more block, then the end comes; later at any moment.
      before = finished
      while process.poll() is None and finished < before + 1:
        time.sleep(0.05)
        finished = len(list(cut.glob("_unfinished/block*.json")))
    else:
      time.sleep(moments.uniform(0, seconds))
    workers = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.send_signal(signal.SIGKILL)
    if process.wait() == 0:
      break
    assert not psutil.wait_procs(workers, timeout=10)[1]  # No worker is left behind.
    assert kill >= 3 or not [*cut.glob("manifest.json"), *cut.glob("train-*")]
  again = _run(arguments(cut), always_workers=True)
  assert again.returncode == 0, again.stderr
  assert contents(cut) == contents(tmp_path / "whole")


def test_finished_output_is_kept_and_other_settings_are_refused(corpus, tiny_tokenizer, tmp_path):
  first = _make(corpus, tmp_path / "out", tiny_tokenizer)
  times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
  assert _make(corpus, tmp_path / "out", tiny_tokenizer) == first
  assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == times
  with pytest.raises(UserError, match=r"settings\.dupe_factor 2 → 3"):
    _make(
      corpus, tmp_path / "out", tiny_tokenizer, choices=dataclasses.replace(_CHOICES, dupe_factor=3)
    )
  with pytest.raises(UserError, match=r"input \["):
    _make(corpus[:1], tmp_path / "out", tiny_tokenizer)
  (tmp_path / "out" / "train-00000-of-00002.tfrecord").unlink()
  with pytest.raises(UserError, match=r"train-00000-of-00002\.tfrecord"):
    _make(corpus, tmp_path / "out", tiny_tokenizer)
  (tmp_path / "out" / "manifest.json").unlink()
  with pytest.raises(UserError, match=rf"Received: .*{tmp_path}/out"):
    _make(corpus, tmp_path / "out", tiny_tokenizer)


@pytest.mark.parametrize("text", ["", "\n\n \n", "Only one document.\nIt has two sentences.\n"])
def test_nothing_to_make_is_an_error(tiny_tokenizer, tmp_path, text):
  (tmp_path / "text.txt").write_text(text)
  with pytest.raises(UserError, match=r"Received: .*text\.txt"):
    _make([str(tmp_path / "text.txt")], tmp_path / "out", tiny_tokenizer)
  assert not (tmp_path / "out" / "manifest.json").exists()


def test_command_works_without_tensorflow_in_any_worker(corpus, tiny_model, tmp_path):
  poison = tmp_path / "poison" / "tensorflow"
  poison.mkdir(parents=True)
  (poison / "__init__.py").write_text("raise AssertionError('a data worker imported TensorFlow')\n")
  path = os.pathsep.join(filter(None, [str(tmp_path / "poison"), os.environ.get("PYTHONPATH")]))
  result = _run(
    flags(corpus, tiny_model, tmp_path / "out", num_workers=2),
    always_workers=True,
    env={**os.environ, "PYTHONPATH": path},
  )
  assert result.returncode == 0, result.stderr
  assert "masked_share 0." in result.stdout
  assert "% of the row" in result.stdout
  assert "documents 120" in result.stdout
  assert Manifest.find(str(tmp_path / "out")).num_records("train") > 100
  finished = _run(flags(corpus, tiny_model, tmp_path / "out"))
  assert finished.stderr == f"nothing to do: {tmp_path / 'out'} is finished\n"


def test_mistakes_are_one_message(corpus, tiny_model, tmp_path):
  cases = {
    "/nonexistent/*.txt": {"input": "/nonexistent/*.txt"},
    "/dev/null/out": {"output_dir": "/dev/null/out"},
    "max_predictions_per_seq": {"max_predictions_per_seq": 999},
    "zipf": {"ngram_distribution": "zipf"},
    "Received: /dev/null": {"spm_model_file": "/dev/null"},
    "gs://bucket/records": {"output_dir": "gs://bucket/records"},
  }
  for received, change in cases.items():
    run = run_command(_SCRIPT, *flags(corpus, tiny_model, tmp_path / "out", **change))
    assert run.returncode == 2, run
    assert run.stderr.splitlines()[-1].startswith("error: ")
    assert received in run.stderr
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_work_of_another_plan_is_never_taken(corpus, tiny_tokenizer, tmp_path, scheme):
  """Also if only the files of finished work tell the plan."""
  output = f"{scheme}{tmp_path}/out"
  with _stopping("write_shard", 3):
    _make(corpus, output, tiny_tokenizer, work_dir=str(tmp_path / "work"))
  assert len(list((tmp_path / "out" / "_unfinished").glob("*.tfrecord"))) == 2
  for directory in (tmp_path / "out" / "_unfinished", tmp_path / "work" / "_unfinished"):
    (directory / "plan.json").unlink()
  other = dataclasses.replace(_CHOICES, random_seed=1)
  _make(corpus, output, tiny_tokenizer, choices=other, work_dir=str(tmp_path / "work"))
  _make(corpus, tmp_path / "whole", tiny_tokenizer, choices=other)
  assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_an_upgrade_is_refused_in_the_middle_of_a_job_and_not_at_its_end(
  corpus, tiny_tokenizer, tmp_path, monkeypatch
):
  with _stopping("write_shard", 2):
    _make(corpus, tmp_path / "out", tiny_tokenizer)
  installed = importlib.metadata.version
  before = installed("sentencex")

  def upgraded(name):
    return "99.0" if name == "sentencex" else installed(name)

  with monkeypatch.context() as patch:
    patch.setattr(importlib.metadata, "version", upgraded)
    with pytest.raises(UserError, match=rf"versions\.sentencex {before} → 99\.0"):
      _make(corpus, tmp_path / "out", tiny_tokenizer)
  made = _make(corpus, tmp_path / "out", tiny_tokenizer)
  names = {"unicode", "sentencex", "sentencepiece", "mwparserfromhell", "pyarrow"}
  assert names <= set(made.versions)
  monkeypatch.setattr(importlib.metadata, "version", upgraded)
  # Nothing is made by another version.
  assert _make(corpus, tmp_path / "out", tiny_tokenizer) == made


def test_finished_files_are_not_read_again(tiny_tokenizer, tmp_path, monkeypatch):
  paths = _write_texts(tmp_path, [20] * 5)
  _make(paths, tmp_path / "whole", tiny_tokenizer)
  opened, read_blocks = [], local.read_blocks
  monkeypatch.setattr(
    local, "read_blocks", lambda job, index: opened.append(index) or read_blocks(job, index)
  )
  with _stopping("read_blocks", 4):
    _make(paths, tmp_path / "cut", tiny_tokenizer)
  # As a machine that loses power may leave them: two runs of one of the finished files.
  runs = sorted((tmp_path / "cut" / "_unfinished").glob(f"block-{opened[0]:05}*.run"))
  runs[0].write_bytes(runs[0].read_bytes()[:-5])
  runs[1].unlink()
  _make(paths, tmp_path / "cut", tiny_tokenizer)
  assert sorted(opened[3:]) == sorted({0, 1, 2, 3, 4} - set(opened[1:3]))
  assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_the_directory_for_work_keeps_what_is_not_of_the_job(
  corpus, tiny_tokenizer, tmp_path, monkeypatch
):
  scratch, output = tmp_path / "scratch", tmp_path / "out"
  scratch.mkdir()
  (scratch / "thesis.txt").write_text("mine")
  with monkeypatch.context() as patch:
    patch.setattr(job.Job, "remove_work", lambda self: 1 / 0)  # Killed before it is removed.
    with pytest.raises(ZeroDivisionError):
      _make(corpus, output, tiny_tokenizer, work_dir=str(scratch))
  assert (scratch / "_unfinished").exists()
  monkeypatch.setattr(local, "read_blocks", None)  # Nothing is made again.
  _make(corpus, output, tiny_tokenizer, work_dir=str(scratch))
  assert [path.name for path in scratch.iterdir()] == ["thesis.txt"]
  assert not (output / "_unfinished").exists()


def test_the_same_input_is_known_wherever_it_is(corpus, tiny_tokenizer, tmp_path):
  manifest = _make(corpus, tmp_path / "out", tiny_tokenizer)
  moved = [shutil.copy(path, tmp_path) for path in corpus]
  assert _make(moved, tmp_path / "out", tiny_tokenizer) == manifest
  with open(moved[0], "ab") as stream:
    stream.write(b"More.\n")
  with pytest.raises(UserError, match=r"input\.num_bytes \d+ → \d+"):
    _make(moved, tmp_path / "out", tiny_tokenizer)


@pytest.mark.parametrize("keeps_time", [True, False])
def test_a_file_that_is_cut_while_it_is_read_is_noticed_and_read_again(
  tiny_tokenizer, tmp_path, monkeypatch, keeps_time
):
  """Blocks made from the truncated file are not used; earlier ones are, if the file's time is the same."""
  (path,) = _write_texts(tmp_path, [40])
  text, made = pathlib.Path(path).read_bytes(), []
  before, make_block = os.stat(path), local.Worker.make_block

  def cut_and_make(*arguments):
    made.append(arguments)
    if len(made) == 2:
      os.truncate(path, len(text) // 2)
    return make_block(*arguments)

  with monkeypatch.context() as patch:
    patch.setattr(local.Worker, "make_block", cut_and_make)
    with pytest.raises(UserError, match=r"0\.txt, of [\d,]+ bytes"):
      _make([path], tmp_path / "out", tiny_tokenizer)
  assert len(made) == 2
  pathlib.Path(path).write_bytes(text)
  if keeps_time:
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
  again = []
  monkeypatch.setattr(
    local, "write_runs", lambda *block: again.append(block[0]) or write_runs(*block)
  )
  _make([path], tmp_path / "out", tiny_tokenizer)
  assert any("block-00000-000000" in prefix for prefix in again) != keeps_time
  _make([path], tmp_path / "whole", tiny_tokenizer)
  assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("work_dir", [None, "work"])
def test_a_kill_while_it_cleans_up_leaves_what_the_next_start_removes(
  corpus, whole, tiny_tokenizer, tmp_path, monkeypatch, work_dir
):
  """After kills, each one file or folder later, all unfinished work is removed."""
  remove, calls = files.remove, []
  work_dir = work_dir and str(tmp_path / work_dir)

  def remove_once(path):
    if calls:
      raise _StopError
    remove(path)
    calls.append(path)

  monkeypatch.setattr(files, "remove", remove_once)
  calls.append("")
  kills = 0
  while calls:
    calls.clear()
    with contextlib.suppress(_StopError):
      _make(corpus, tmp_path / "out", tiny_tokenizer, work_dir=work_dir)
    kills += bool(calls)
  assert kills > 20
  assert not list(tmp_path.glob("*/_unfinished"))
  assert contents(tmp_path / "out") == contents(whole[0])


class _Deadly:
  """Ends the process that it is sent to."""

  def __reduce__(self):
    return os._exit, (1,)


@pytest.mark.parametrize("found_by", ["result", "submit"])
def test_a_killed_worker_is_one_line(corpus, tiny_tokenizer, tmp_path, monkeypatch, found_by):
  monkeypatch.setattr(local, "_WORTH_PROCESSES", 0)
  monkeypatch.setattr(job, "SMALLEST_BLOCK", 1000)
  options = CorpusOptions(input_format="lines")
  work = job.make_job(
    corpus, str(tmp_path), tokenizer=tiny_tokenizer, settings=_CHOICES, options=options
  )
  with contextlib.closing(local._Workers(work, 2)) as workers:

    def tasks():
      yield local.Worker.make_file, _Deadly()
      while found_by == "submit" and not workers._pool._broken:
        time.sleep(0.05)
      yield local.Worker.make_file, 0

    with pytest.raises(UserError, match="Give the same command again"):
      list(workers.run(tasks()))


def test_the_estimate_is_near_and_comes_before_the_work(
  corpus, tiny_tokenizer, tmp_path, monkeypatch
):
  estimates, notices, estimate = [], [], create.estimate

  def keep(work):
    estimates.append(estimate(work))
    return estimates[0]

  class Runner(LocalRunner):
    def __call__(self, work):
      assert "GB of records" in notices[-1]
      return super().__call__(work)

  monkeypatch.setattr(create, "_WORTH_AN_ESTIMATE", 0)
  monkeypatch.setattr(create, "estimate", keep)
  choices = dataclasses.replace(_CHOICES, dupe_factor=9)
  manifest = make(
    corpus, tmp_path, tiny_tokenizer, settings=choices, runner=Runner(), notice=notices.append
  )
  record_bytes = sum(file.num_bytes for file in manifest.files)
  assert estimates[0].record_bytes == pytest.approx(record_bytes, rel=0.15)
  assert estimates[0].seconds > 0


@pytest.mark.parametrize(
  ("free_bytes", "has_scratch_disk", "fits"),
  [(2.5e9, False, True), (1.5e9, False, False), (1.5e9, True, True), (0.5e9, True, False)],
)
def test_records_without_room_are_refused_before_the_work(
  corpus, tiny_tokenizer, tmp_path, monkeypatch, free_bytes, has_scratch_disk, fits
):
  """A GB of records takes twice that on one disk while they are sorted."""
  scratch, stat, usage = tmp_path / "scratch", os.stat, shutil.disk_usage(tmp_path)
  scratch.mkdir()

  def stat_with_two_disks(path, **more):
    status = stat(path, **more)
    if has_scratch_disk and str(path).startswith(str(scratch)):
      status = os.stat_result([*status[:2], status.st_dev + 1, *status[3:]])
    return status

  monkeypatch.setattr(os, "stat", stat_with_two_disks)
  monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=int(free_bytes)))
  monkeypatch.setattr(create, "estimate", lambda work: create.Estimate(10**9, 60.0))
  received = rf"{free_bytes / 1e9:.1f} GB .*--dupe_factor=2.*--work_dir"
  with contextlib.nullcontext() if fits else pytest.raises(UserError, match=received):
    _make(corpus, tmp_path / "out", tiny_tokenizer, work_dir=str(scratch))
  assert (tmp_path / "out" / "manifest.json").exists() == fits
  # So that the same directory can be used with fewer passes.
  assert (tmp_path / "out").exists() == fits


@pytest.mark.parametrize(
  ("text_bytes", "train", "held_out"),
  [(1_000, 1, 1), (100_000_000, 27, 1), (5_000_000_000, 1341, 14)],
)
def test_a_corpus_has_as_many_files_as_its_size_asks_for(text_bytes, train, held_out):
  decided = RecordSettings(dupe_factor=40).with_num_shards(text_bytes)
  assert (decided.num_shards, decided.num_eval_shards) == (train, held_out)
  assert RecordSettings(num_shards=5, num_eval_shards=2).with_num_shards(text_bytes).num_shards == 5
