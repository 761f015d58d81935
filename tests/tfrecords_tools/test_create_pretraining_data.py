"""The command and the job: equal bytes everywhere, held-out documents, restarts, and users' mistakes."""

import contextlib
import dataclasses
import functools
import importlib.metadata
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from unittest import mock

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import tiny_corpus
from support.commands.documented_values import documented_values
from support.commands.script_runs import run_command, run_in_turn
from support.made_records import contents, flags, make

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.lock import DirectoryLock
from albert_tf.records import Manifest, read_records
from albert_tf.records.parse import decode_example
from tfrecords_tools.corpus import CorpusOptions
from tfrecords_tools.inspection import view_instance
from tfrecords_tools.pretraining import create as create_module
from tfrecords_tools.pretraining import job, local, stages
from tfrecords_tools.pretraining.local import make_locally
from tfrecords_tools.pretraining.settings import RecordSettings
from tfrecords_tools.pretraining.statistics import format_summary

_SCRIPT = "tfrecords_tools/create_pretraining_data.py"
_WIKI_PAGE = """<page><title>{0}</title><ns>0</ns><id>{0}</id><revision><id>{0}</id>
<timestamp>2014-10-26T04:50:23Z</timestamp><text>Ren sol {0} is. Vi an tur is.</text></revision></page>"""
_COMMAND = pathlib.Path(__file__).parents[2] / _SCRIPT
_CHOICES = RecordSettings(
  max_seq_length=64, max_predictions_per_seq=8, dupe_factor=2, num_shards=2, eval_fraction=0.1
)


def _write_texts(directory, counts):
  """A file of so many documents for each."""
  return [
    tiny_corpus.write_documents(directory / f"{number}.txt", count, seed=number)
    for number, count in enumerate(counts)
  ]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  """Of two workers each reads one of the small files; the large one is read by the command."""
  return _write_texts(tmp_path_factory.mktemp("corpus"), (80, 3, 37))


def _make(
  corpus, output_dir, tokenizer, *, choices=_CHOICES, block_bytes=4000, num_workers=1, **more
):
  runner = functools.partial(make_locally, num_workers=num_workers)
  more |= {"settings": choices, "block_bytes": block_bytes, "runner": runner}
  return make(corpus, output_dir, tokenizer, **more)


@pytest.fixture(scope="module")
def whole(corpus, tiny_tokenizer, tmp_path_factory):
  """The records of an undisturbed run: their directory, and its manifest."""
  directory = tmp_path_factory.mktemp("whole")
  return directory, _make(corpus, directory, tiny_tokenizer)


def _run(arguments, **more):
  """The command, which starts workers for little text too."""
  code = "import runpy; from tfrecords_tools.pretraining import local; local._WORTH_PROCESSES = 0"
  program = f"{code}; runpy.run_path({str(_COMMAND)!r}, run_name='__main__')"
  words = [sys.executable, "-c", program, *arguments]
  return subprocess.run(words, capture_output=True, text=True, check=False, **more)


@pytest.fixture
def create(corpus, tiny_tokenizer, tmp_path):
  """Makes records in a folder of this test."""

  def create_in(name, paths=corpus, **more):
    return _make(paths, tmp_path / name, tiny_tokenizer, **more)

  return create_in


def test_bytes_do_not_depend_on_workers_or_machine(create, whole, tmp_path, monkeypatch):
  expected = contents(whole[0])
  records = ["eval-00000-of-00001", "train-00000-of-00002", "train-00001-of-00002"]
  names = {f"{name}.tfrecord" for name in records}
  names |= {f"index/offsets-{name}.tfrecord.npy" for name in records}
  assert expected.keys() == names | {"manifest.json", "spm.model", "tokenizer.json"}
  monkeypatch.setattr(stages, "SORTED_BYTES", 700)  # Each file in many parts.
  create("parts")
  assert contents(tmp_path / "parts") == expected
  create("two", num_workers=2)
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
  create, corpus, tiny_tokenizer, tmp_path
):
  """As in the study `more_data`: more text has larger blocks, and so other draws by place."""
  numbers = {}
  for name, paths, block_bytes in (("part", corpus[:1], 2000), ("whole", corpus, 3000)):
    manifest = create(name, paths, block_bytes=block_bytes)
    numbers[name] = _document_numbers(corpus, tmp_path / name, manifest, tiny_tokenizer)
  assert len(numbers["part"]["eval"]) > 3
  assert numbers["part"]["eval"] <= numbers["whole"]["eval"]
  assert not numbers["whole"]["eval"] & numbers["part"]["train"]


def test_a_small_corpus_still_has_a_held_out_document(create, tmp_path):
  choices = dataclasses.replace(_CHOICES, eval_fraction=1e-9)
  manifest = create("out", _write_texts(tmp_path, [3]), choices=choices, block_bytes=100)
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


@pytest.mark.parametrize("stop_at", [("write_runs", 5), ("read_blocks", 3), ("write_shard", 2)])
def test_an_interrupted_run_shows_nothing_and_continues(create, whole, tmp_path, stop_at):
  """In the middle of a file of text, between two of them, and between final files."""
  with _stopping(*stop_at):
    create("cut")
  assert [path.name for path in (tmp_path / "cut").iterdir()] == ["_unfinished"]
  create("cut")
  assert contents(tmp_path / "cut") == contents(whole[0])


def test_text_that_was_cut_into_other_blocks_is_not_taken(create, tmp_path):
  """The size of a block follows that of all input files, and a changed file leaves the work on others."""
  with _stopping("write_shard", 1):
    create("cut")
  for name in ("cut", "whole"):
    create(name, block_bytes=2000)
  assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_finished_output_is_kept_and_other_settings_are_refused(create, corpus, tmp_path):
  first = create("out")
  times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
  assert create("out") == first
  assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == times
  with pytest.raises(UserError, match=r"settings\.dupe_factor 2 → 3"):
    create("out", choices=dataclasses.replace(_CHOICES, dupe_factor=3))
  with pytest.raises(UserError, match=r"Received: .*\(input .*0\.txt.* → "):
    create("out", corpus[:1])
  (tmp_path / "out" / "train-00000-of-00002.tfrecord").unlink()
  with pytest.raises(UserError, match=r"train-00000-of-00002\.tfrecord"):
    create("out")
  (tmp_path / "out" / "manifest.json").unlink()
  with pytest.raises(UserError, match=rf"Received: .*{tmp_path}/out"):
    create("out")


def test_a_directory_in_use_is_refused(create, tmp_path):
  (tmp_path / "out" / "_unfinished").mkdir(parents=True)
  lock = DirectoryLock(str(tmp_path / "out" / "_unfinished"))
  lock.acquire()
  with pytest.raises(UserError, match=rf"Received: {tmp_path}/out/.* {os.getpid()} .*--output_dir"):
    create("out")
  lock.release()


@pytest.mark.parametrize("text", ["", "\n\n \n", "Only one document.\nIt has two sentences.\n"])
def test_nothing_to_make_is_an_error(create, tmp_path, text):
  (tmp_path / "text.txt").write_text(text)
  with pytest.raises(UserError, match=r"Received: .*text\.txt"):
    create("out", [str(tmp_path / "text.txt")])
  assert not any((tmp_path / "out").iterdir())


def test_the_advice_for_too_little_text_makes_records(tiny_model, tmp_path):
  """The same command in the same directory, with the flag that the message names."""
  paths = _write_texts(tmp_path, [1])
  words = flags(paths, tiny_model, tmp_path / "out")
  refused = run_command(_SCRIPT, *words)
  assert refused.returncode == 2, refused.stderr
  (advice,) = set(re.findall(r"--eval_fraction=\S+", refused.stderr.partition("pass ")[2]))
  done = run_command(_SCRIPT, *words, advice)
  assert done.returncode == 0, done.stderr
  assert Manifest.find(str(tmp_path / "out")).num_records("train") > 0
  assert "eval" not in done.stdout


def test_text_without_spaces_is_refused_until_each_token_is_a_word(create, tmp_path):
  """As proteins: a line is one word, and no row has a place for a mask of all of it."""
  path = tmp_path / "proteins.txt"
  path.write_text("renvisolanturdelmo" * 12 + "\n\n" + "solturenvidelanmo" * 12 + "\n")
  choices = dataclasses.replace(_CHOICES, sentence_pair="none", eval_fraction=0.0)
  with pytest.raises(UserError, match=rf"Received: .* {path}.*--whole_word=none"):
    create("out", [str(path)], choices=choices)
  by_token = dataclasses.replace(choices, whole_word="none")
  assert create("out", [str(path)], choices=by_token).num_records("train") > 0


def test_text_that_is_held_out_by_the_length_of_a_document_is_told(create, tmp_path):
  """A share of documents: here one of three, which is longer than the others together."""
  long, short = _write_texts(tmp_path, [40, 3])
  text = pathlib.Path(long).read_text(encoding="utf-8")
  pathlib.Path(long).write_text(text.replace("\n\n", "\n"), encoding="utf-8")
  choices = dataclasses.replace(_CHOICES, eval_fraction=0.01)
  summary = format_summary(create("out", [long, short], choices=choices))
  told = re.search(
    r"warning: ([\d.]+)% of the text .*, 1 of 4 documents.*--eval_fraction=0\.01", summary
  )
  assert float(told[1]) > 70
  summary = format_summary(create("even", _write_texts(tmp_path, [80]), choices=choices))
  assert "warning" not in summary


def test_command_works_without_tensorflow_in_any_worker(corpus, tiny_model, tmp_path):
  poison = tmp_path / "poison" / "tensorflow"
  poison.mkdir(parents=True)
  (poison / "__init__.py").write_text("raise AssertionError('a data worker imported TensorFlow')\n")
  path = os.pathsep.join(filter(None, [str(tmp_path / "poison"), os.environ.get("PYTHONPATH")]))
  words = flags(corpus, tiny_model, tmp_path / "out", num_workers=2)
  result = _run(words, env={**os.environ, "PYTHONPATH": path})
  assert result.returncode == 0, result.stderr
  assert "masked_share 0." in result.stdout
  assert "% of the row" in result.stdout
  assert "documents 120" in result.stdout
  assert Manifest.find(str(tmp_path / "out")).num_records("train") > 100
  finished = _run(words)
  assert finished.stderr == f"nothing to do: {tmp_path / 'out'} is finished\n"


def test_mistakes_are_one_message(corpus, tiny_model, tmp_path):
  cases = {
    "/nonexistent/*.txt": {"input": "/nonexistent/*.txt"},
    "/dev/null/out": {"output_dir": "/dev/null/out"},
    "zipf": {"ngram_distribution": "zipf"},
    "--spm_model_file must not be empty. Received: ''": {"spm_model_file": ""},
    "--output_dir must not be empty. Received: ''": {"output_dir": ""},
    "--work_dir must not be empty. Received: ''. Give a value to --work_dir": {"work_dir": ""},
    "gs://bucket/records": {"output_dir": "gs://bucket/records"},
  }
  for received, change in cases.items():
    run = run_command(_SCRIPT, *flags(corpus, tiny_model, tmp_path / "out", **change))
    assert run.returncode == 2, run
    assert run.stderr.splitlines()[-1].startswith("error: ")
    assert received in run.stderr
  assert not (tmp_path / "out").exists()


def test_work_of_another_plan_is_never_taken(create, corpus, tiny_tokenizer, tmp_path):
  """Also if only the files of finished work tell the plan; `file://` stands for a bucket."""
  output = f"file://{tmp_path}/out"
  with _stopping("write_shard", 3):
    _make(corpus, output, tiny_tokenizer, work_dir=str(tmp_path / "work"))
  assert len(list((tmp_path / "out" / "_unfinished").glob("*.tfrecord"))) == 2
  for directory in (tmp_path / "out" / "_unfinished", tmp_path / "work" / "_unfinished"):
    (directory / "plan.json").unlink()
  other = dataclasses.replace(_CHOICES, random_seed=1)
  _make(corpus, output, tiny_tokenizer, choices=other, work_dir=str(tmp_path / "work"))
  create("whole", choices=other)
  assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_an_upgrade_is_refused_in_the_middle_of_a_job_and_not_at_its_end(create, monkeypatch):
  with _stopping("write_shard", 2):
    create("out")
  with monkeypatch.context() as patch:
    patch.setattr(importlib.metadata, "version", lambda name: "99.0")
    with pytest.raises(UserError, match=r"versions\.sentencex [\d.]+ → 99\.0"):
      create("out")
  made = create("out")
  names = {"unicode", "sentencex", "sentencepiece", "mwparserfromhell", "pyarrow"}
  assert names <= set(made.versions)
  monkeypatch.setattr(importlib.metadata, "version", lambda name: "99.0")
  # Nothing is made by another version.
  assert create("out") == made


def test_finished_files_are_not_read_again(create, tmp_path, monkeypatch):
  paths = _write_texts(tmp_path, [20] * 5)
  create("whole", paths)
  reading = mock.Mock(wraps=local.read_blocks)
  monkeypatch.setattr(local, "read_blocks", reading)
  with _stopping("read_blocks", 4):
    create("cut", paths)
  opened = [call.args[1] for call in reading.call_args_list]
  # As a machine that loses power may leave them: two runs of one of the finished files.
  runs = sorted((tmp_path / "cut" / "_unfinished").glob(f"block-{opened[0]:05}*.run"))
  runs[0].write_bytes(runs[0].read_bytes()[:-5])
  runs[1].unlink()
  create("cut", paths)
  reopened = [call.args[1] for call in reading.call_args_list[3:]]
  assert sorted(reopened) == sorted({0, 1, 2, 3, 4} - set(opened[1:3]))
  assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_the_same_input_is_known_wherever_it_is(create, corpus, tmp_path):
  manifest = create("out")
  moved = [shutil.copy(path, tmp_path) for path in corpus]
  assert create("out", moved) == manifest
  with open(moved[0], "ab") as stream:
    stream.write(b"More.\n")
  with pytest.raises(UserError, match=r"input\.num_bytes \d+ → \d+"):
    create("out", moved)


def test_a_file_that_is_cut_while_it_is_read_is_noticed_and_read_again(
  create, tmp_path, monkeypatch
):
  (path,) = _write_texts(tmp_path, [40])
  text, made = pathlib.Path(path).read_bytes(), []
  make_block = local.make_block

  def cut_and_make(*arguments):
    made.append(arguments)
    if len(made) == 2:
      os.truncate(path, len(text) // 2)
    return make_block(*arguments)

  with monkeypatch.context() as patch:
    patch.setattr(local, "make_block", cut_and_make)
    with pytest.raises(UserError, match=rf"Received: {path}, .* 5,291 .* 10,583 "):
      create("out", [path])
  assert len(made) == 2
  pathlib.Path(path).write_bytes(text)
  create("out", [path])
  create("whole", [path])
  assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_the_advice_for_other_text_makes_records_of_it(create, tmp_path, monkeypatch):
  (path,) = _write_texts(tmp_path, [40])
  make_block = local.make_block

  def cut_and_make(*arguments):
    os.truncate(path, 2000)
    return make_block(*arguments)

  scratch = str(tmp_path / "scratch")
  with monkeypatch.context() as patch:
    patch.setattr(local, "make_block", cut_and_make)
    with pytest.raises(UserError, match=f"{scratch}/_unfinished") as refused:
      create("out", [path], work_dir=scratch)
  for directory in re.findall(r"\S+/_unfinished", str(refused.value)):
    shutil.rmtree(directory)
  assert create("out", [path], work_dir=scratch).num_records("train") > 0


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("moment", ["listed", "looked at", "read"])
def test_a_file_that_vanishes_is_named(create, tmp_path, monkeypatch, moment, num_workers):
  path, other = _write_texts(tmp_path, [40, 1])

  def removing_before(function):
    def remove_and_go_on(*arguments, **more):
      pathlib.Path(path).unlink(missing_ok=True)
      return function(*arguments, **more)

    return remove_and_go_on

  module, name = {
    "listed": (job, "make_job"),
    "looked at": (job.Job, "prepare_work"),
    "read": (job.Job, "check_input"),
  }[moment]
  monkeypatch.setattr(module, name, removing_before(getattr(module, name)))
  with pytest.raises(UserError, match=f"Received: {path}:"):
    create("out", [path, other], num_workers=num_workers)


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("name", ["train-0000.run", "eval-0000.run.keys"])
def test_a_full_disk_is_named_and_the_same_command_goes_on(
  create, whole, tmp_path, name, num_workers
):
  full = tmp_path / "out" / "_unfinished" / f"block-00000-000000-{name}"
  full.parent.mkdir(parents=True)
  full.symlink_to("/dev/full")  # Each write fails as on a full disk.
  received = str(full).removesuffix(".keys")
  with pytest.raises(UserError, match=rf"Received: {received}: no space left"):
    create("out", num_workers=num_workers)
  full.unlink()
  create("out")
  assert contents(tmp_path / "out") == contents(whole[0])


def test_a_kill_while_it_cleans_up_leaves_what_the_next_start_removes(
  create, whole, tmp_path, monkeypatch
):
  """After kills, each one file or folder later, all unfinished work is removed, and nothing else."""
  remove, removed = files.remove, []
  (tmp_path / "scratch").mkdir()
  (tmp_path / "scratch" / "thesis.txt").write_text("mine")

  def remove_once(path):
    if removed:
      raise _StopError
    remove(path)
    removed.append(path)

  monkeypatch.setattr(files, "remove", remove_once)
  for kills in itertools.count():  # noqa: B007
    removed.clear()
    with contextlib.suppress(_StopError):
      create("out", work_dir=str(tmp_path / "scratch"))
    if not removed:
      break
    monkeypatch.setattr(local, "read_blocks", None)  # Nothing is made again.
  assert kills > 20
  assert [path.name for path in (tmp_path / "scratch").iterdir()] == ["thesis.txt"]
  assert not (tmp_path / "out" / "_unfinished").exists()
  assert contents(tmp_path / "out") == contents(whole[0])


# Numbers of passes and files that would fill a disk.
_TOO_MANY = {("dupe_factor", 2**31 - 1), ("num_shards", 99_999)}
_FLAG_VALUES = [
  *(value for value in documented_values(CorpusOptions, RecordSettings) if value not in _TOO_MANY),
  *itertools.product(["ngram_distribution"], ["inverse", "uniform", "reverse", "3,2,1"]),
  *itertools.product(["do_lower_case", "keep_accents"], [True, False]),
  ("num_shards", 30),
  *itertools.product(["num_workers"], [1, 1024]),
]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
  """Format → a file of it, of two documents."""
  folder = tmp_path_factory.mktemp("texts")
  rows = [{"text": "Ren sol is here. Vi an tur is."}, {"text": "Ka to is. Mi go is ren."}]
  pages = "".join(_WIKI_PAGE.format(number) for number in (1, 2))
  contents_of = {
    "jsonl": "".join(json.dumps(row) + "\n" for row in rows),
    "paragraphs": "".join(row["text"] + "\n" * 5 for row in rows),
    "lines": "".join(row["text"].replace(". ", ".\n") + "\n\n" for row in rows),
    "mediawiki": f"<mediawiki><siteinfo><namespaces></namespaces></siteinfo>{pages}</mediawiki>",
  }
  for name, text in contents_of.items():
    (folder / name).write_text(text)
  pq.write_table(pa.Table.from_pylist(rows), folder / "parquet")
  return folder


@pytest.mark.slow
def test_every_documented_value_runs_to_the_end_and_again(texts, tiny_model, tmp_path):
  lists = []
  for number, (flag, value) in enumerate(_FLAG_VALUES):
    input_format = "paragraphs" if flag == "language" else "lines"
    if flag == "input_format":
      input_format = value
    path = str(texts / input_format.replace("auto", "lines"))
    given = {"input_format": input_format, "dupe_factor": 1, "num_shards": 1, flag: value}
    words = flags([path], tiny_model, tmp_path / str(number), **given)
    lists += [words, words]
  for words, run in zip(lists, run_in_turn("create_pretraining_data", lists), strict=True):
    assert run.status == 0, (words, run.stderr)
    assert "train   instances " in run.stdout, words


class _Deadly:
  """Ends the process that it is sent to."""

  def __reduce__(self):
    return os._exit, (1,)


@pytest.mark.parametrize("found_by", ["result", "submit"])
def test_a_killed_worker_is_one_line(found_by):
  def items(pool):
    yield _Deadly()
    while found_by == "submit" and not pool._broken:
      time.sleep(0.05)
    yield 0

  with (
    pytest.raises(UserError, match="--num_workers"),
    local.worker_processes(2) as each,
  ):
    list(each(abs, items(each.args[0])))


def test_the_estimate_is_near_and_comes_before_the_work(
  corpus, tiny_tokenizer, tmp_path, monkeypatch
):
  estimates, notices = [], []

  def run(work):
    assert "GB of records" in notices[-1]
    estimates.append(create_module.estimate(work))
    return make_locally(work)

  monkeypatch.setattr(create_module, "WORTH_AN_ESTIMATE", 0)
  choices = dataclasses.replace(_CHOICES, dupe_factor=4)
  more = {"settings": choices, "runner": run, "notice": notices.append}
  manifest = make(corpus, tmp_path, tiny_tokenizer, **more)
  record_bytes = sum(file.num_bytes for file in manifest.files)
  assert estimates[0].record_bytes == pytest.approx(record_bytes, rel=0.15)
  assert estimates[0].seconds > 0


@pytest.mark.parametrize(
  ("free_bytes", "has_scratch_disk", "fits"),
  [(2.5e9, False, True), (1.5e9, False, False), (1.5e9, True, True), (0.5e9, True, False)],
)
def test_records_without_room_are_refused_before_the_work(
  create, tmp_path, monkeypatch, free_bytes, has_scratch_disk, fits
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
  monkeypatch.setattr(create_module, "estimate", lambda work: create_module.Estimate(10**9, 60.0))
  received = rf"{free_bytes / 1e9:.1f} GB .*--dupe_factor=2.*--work_dir"
  with contextlib.nullcontext() if fits else pytest.raises(UserError, match=received):
    create("out", work_dir=str(scratch))
  assert (tmp_path / "out" / "manifest.json").exists() == fits
  # So that the same directory can be used with fewer passes.
  assert (tmp_path / "out").exists() == fits


def test_a_corpus_has_a_file_for_each_192_mb_of_records():
  decided = RecordSettings(dupe_factor=40, eval_fraction=0.1).with_num_shards(100_000_000)
  assert [decided.num_shards_of(split) for split in ("train", "eval")] == [24, 3]
