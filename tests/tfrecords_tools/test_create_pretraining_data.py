"""The command and the job: equal bytes everywhere, held-out documents, restarts, and users' mistakes."""

import dataclasses
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from support import tiny_corpus
from support.made_records import contents, make

from albert_tf.errors import UserError
from albert_tf.records import Manifest, masked_crc32c, read_records
from albert_tf.records.parse import decode_example
from tfrecords_tools.inspection import view_instance
from tfrecords_tools.pretraining.local import LocalRunner
from tfrecords_tools.pretraining.settings import RecordSettings

_COMMAND = pathlib.Path(__file__).parents[2] / "tfrecords_tools" / "create_pretraining_data.py"
_CHOICES = RecordSettings(
  max_seq_length=64, max_predictions_per_seq=8, dupe_factor=2, num_shards=2, eval_fraction=0.1
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  """Two files of 60 documents."""
  directory = tmp_path_factory.mktemp("corpus")
  rng = np.random.default_rng(11)
  paths = []
  for name in ("a.txt", "b.txt"):
    path = directory / name
    path.write_text(tiny_corpus.as_text(tiny_corpus.documents(rng, 60)), encoding="utf-8")
    paths.append(str(path))
  return paths


def _make(corpus, output_dir, tokenizer, *, choices=_CHOICES, block_bytes=4000, num_workers=1, **more):
  runner = LocalRunner(num_workers=num_workers)
  return make(corpus, output_dir, tokenizer, settings=choices, block_bytes=block_bytes, runner=runner, **more)


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
    timeout=120,
    **kwargs,
  )


def _flags(corpus, model, directory, **more):
  values = {
    "input": ",".join(corpus),
    "input_format": "lines",
    "spm_model_file": model,
    "output_dir": directory,
    "max_seq_length": 64,
    "max_predictions_per_seq": 8,
    "dupe_factor": 2,
    "num_shards": 2,
    "eval_fraction": 0.1,
    **more,
  }
  return [f"--{name}={value}" for name, value in values.items()]


def test_bytes_do_not_depend_on_workers_blocks_or_machine(corpus, tiny_tokenizer, tmp_path):
  _make(corpus, tmp_path / "one", tiny_tokenizer)
  expected = contents(tmp_path / "one")
  assert sorted(expected) == [
    "eval-00000-of-00001.tfrecord",
    "index/offsets-eval-00000-of-00001.tfrecord.npy",
    "index/offsets-train-00000-of-00002.tfrecord.npy",
    "index/offsets-train-00001-of-00002.tfrecord.npy",
    "manifest.json",
    "spm.model",
    "tokenizer.json",
    "train-00000-of-00002.tfrecord",
    "train-00001-of-00002.tfrecord",
  ]
  _make(corpus, tmp_path / "blocks", tiny_tokenizer, block_bytes=1 << 20)
  assert contents(tmp_path / "blocks") == expected
  _make(corpus, tmp_path / "two", tiny_tokenizer, num_workers=2)
  assert contents(tmp_path / "two") == expected


@pytest.mark.parametrize(("kind", "label_1"), [("nsp", 0.5), ("ordered", 0.0)])
def test_every_kind_of_pair_has_the_same_bytes_from_any_number_of_workers(
  corpus, tiny_tokenizer, tmp_path, kind, label_1
):
  choices = dataclasses.replace(_CHOICES, sentence_pair=kind)
  for workers in (1, 2):
    manifest = _make(corpus, tmp_path / str(workers), tiny_tokenizer, choices=choices, num_workers=workers)
  assert contents(tmp_path / "1") == contents(tmp_path / "2")
  train = manifest.statistics["train"]
  spread = 0.5 / np.sqrt(train["instances"])
  assert abs(train["label_1_share"] - label_1) < 5 * spread * (label_1 > 0) + 1e-9


def test_manifest_tells_the_truth(corpus, tiny_tokenizer, tmp_path):
  made = _make(corpus, tmp_path, tiny_tokenizer)
  manifest = Manifest.load(str(tmp_path))
  assert manifest == made
  manifest.check(vocab_size=tiny_tokenizer.vocab_size, vocab_sha256=tiny_tokenizer.model_sha256)
  labels = {"train": [], "eval": []}
  for file in manifest.files:
    path = tmp_path / file.name
    records = list(read_records(str(path)))
    assert (len(records), path.stat().st_size) == (file.num_records, file.num_bytes)
    raw = (masked_crc32c(path.read_bytes()) - 0xA282EAD8) & 0xFFFFFFFF
    assert f"{((raw >> 17) | (raw << 15)) & 0xFFFFFFFF:08x}" == file.crc32c
    labels[file.split] += [view_instance(decode_example(record)).labels for record in records]
  train, held_out = (np.concatenate(labels[split]) for split in ("train", "eval"))
  assert manifest.num_records("train") == manifest.statistics["train"]["instances"] == len(labels["train"])
  piece = int(np.bincount(train).argmax())
  baseline = manifest.baseline
  assert (baseline.piece_id, baseline.piece) == (piece, tiny_tokenizer.id_to_piece(piece))
  assert baseline.train_share == pytest.approx((train == piece).mean(), abs=1e-6)
  assert baseline.eval_share == pytest.approx((held_out == piece).mean(), abs=1e-6)


def test_held_out_documents_are_never_in_train(corpus, tiny_tokenizer, tmp_path):
  manifest = _make(corpus, tmp_path, tiny_tokenizer)
  documents = []
  for path in corpus:
    for text in pathlib.Path(path).read_text(encoding="utf-8").split("\n\n"):
      ids = itertools.chain.from_iterable(tiny_tokenizer.encode_batch(text.splitlines()))
      documents.append(f",{','.join(map(str, ids))},")
  found = {"train": set(), "eval": set()}
  for file in manifest.files:
    for record in read_records(str(tmp_path / file.name)):
      view = view_instance(decode_example(record))
      parts = np.split(view.restored, np.flatnonzero(view.restored == tiny_tokenizer.sep_id) + 1)[:2]
      a, b = parts[0][1:-1], parts[1][:-1]
      if len(a) < 8 or len(b) < 8:
        continue  # So short that it may occur by chance.
      a, b = (f",{','.join(map(str, part))}," for part in (a, b))
      places = [number for number, document in enumerate(documents) if a in document and b in document]
      assert len(places) == 1
      found[file.split].add(places[0])
      document = documents[places[0]]
      if view.order_label:
        assert document.index(b) < document.rindex(a)
      else:
        assert document.index(a) < document.rindex(b)
  assert found["eval"]
  assert not found["eval"] & found["train"]
  assert manifest.statistics["eval"]["documents"] + manifest.statistics["train"]["documents"] == 120


def test_a_small_corpus_still_has_a_held_out_document(tiny_tokenizer, tmp_path):
  path = tmp_path / "small.txt"
  path.write_text(tiny_corpus.as_text(tiny_corpus.documents(np.random.default_rng(1), 3)), encoding="utf-8")
  choices = dataclasses.replace(_CHOICES, eval_fraction=1e-9)
  manifest = _make([str(path)], tmp_path / "out", tiny_tokenizer, choices=choices, block_bytes=100)
  assert [manifest.statistics[split]["documents"] for split in ("train", "eval")] == [2, 1]


@pytest.mark.parametrize("stop_at", [("read", 3), ("write", 2)])
def test_an_interrupted_run_shows_nothing_and_continues(corpus, tiny_tokenizer, tmp_path, stop_at):
  class StopError(Exception):
    pass

  calls = {"read": 0, "write": 0}

  def stop(stage, done, total):
    calls[stage] += 1
    if (stage, calls[stage]) == stop_at:
      raise StopError

  with pytest.raises(StopError):
    _make(corpus, tmp_path / "cut", tiny_tokenizer, progress=stop)
  assert [path.name for path in (tmp_path / "cut").iterdir()] == ["_unfinished"]
  runs = {path: path.stat().st_mtime_ns for path in (tmp_path / "cut" / "_unfinished").glob("block*.run")}
  assert runs

  def untouched(stage, done, total):
    assert all(path.stat().st_mtime_ns == before for path, before in runs.items() if path.exists())

  _make(corpus, tmp_path / "cut", tiny_tokenizer, progress=untouched)
  _make(corpus, tmp_path / "whole", tiny_tokenizer)
  assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_a_killed_command_continues(tiny_model, tmp_path):
  text = tmp_path / "text.txt"
  documents = tiny_corpus.documents(np.random.default_rng(2), 3000)
  text.write_text(tiny_corpus.as_text(documents) * 6, encoding="utf-8")
  flags = {"dupe_factor": 1, "num_workers": 2}
  whole = _run(_flags([str(text)], tiny_model, tmp_path / "whole", **flags))
  assert whole.returncode == 0, whole.stderr
  arguments = _command(_flags([str(text)], tiny_model, tmp_path / "cut", **flags), always_workers=True)
  finished = 0
  for _ in range(3):
    process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    before = finished
    while process.poll() is None and finished < before + 1:  # One more block, then the end comes.
      time.sleep(0.05)
      finished = len(list((tmp_path / "cut").glob("_unfinished/block*.json")))
    workers = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.send_signal(signal.SIGKILL)
    if process.wait() == 0:
      break
    assert not psutil.wait_procs(workers, timeout=10)[1]  # No worker is left behind.
    assert not (tmp_path / "cut" / "manifest.json").exists()
    assert not list((tmp_path / "cut").glob("train-*"))
  again = _run(_flags([str(text)], tiny_model, tmp_path / "cut", **flags), always_workers=True)
  assert again.returncode == 0, again.stderr
  assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_finished_output_is_kept_and_other_settings_are_refused(corpus, tiny_tokenizer, tmp_path):
  first = _make(corpus, tmp_path / "out", tiny_tokenizer)
  times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
  assert _make(corpus, tmp_path / "out", tiny_tokenizer) == first
  assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == times
  with pytest.raises(UserError, match=r"settings\.dupe_factor: there 2, now 3"):
    _make(corpus, tmp_path / "out", tiny_tokenizer, choices=dataclasses.replace(_CHOICES, dupe_factor=3))
  with pytest.raises(UserError, match=r"input: there"):
    _make(corpus[:1], tmp_path / "out", tiny_tokenizer)
  (tmp_path / "out" / "train-00000-of-00002.tfrecord").unlink()
  with pytest.raises(UserError, match=r"train-00000-of-00002\.tfrecord, which is missing"):
    _make(corpus, tmp_path / "out", tiny_tokenizer)
  (tmp_path / "out" / "manifest.json").unlink()
  with pytest.raises(UserError, match="must not be mixed with others"):
    _make(corpus, tmp_path / "out", tiny_tokenizer)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_unfinished_files_of_other_settings_are_refused_whatever_the_work_dir(
  corpus, tiny_tokenizer, tmp_path, scheme
):
  """Finished files wait beside the output, so a second run with a work_dir of its own would take them."""

  class StopError(Exception):
    pass

  def stop(stage, done, total):
    if (stage, done) == ("write", 2):
      raise StopError

  output = f"{scheme}{tmp_path / 'out'}"
  with pytest.raises(StopError):
    _make(corpus, output, tiny_tokenizer, progress=stop, work_dir=str(tmp_path / "one"))
  other = dataclasses.replace(_CHOICES, random_seed=1)
  with pytest.raises(UserError, match=r"settings\.random_seed: there 12345, now 1"):
    _make(corpus, output, tiny_tokenizer, choices=other, work_dir=str(tmp_path / "two"))
  _make(corpus, output, tiny_tokenizer, work_dir=str(tmp_path / "three"))  # The same plan continues.
  _make(corpus, tmp_path / "whole", tiny_tokenizer)
  assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("", "The input must hold text"),
    ("\n\n \n", "The input must hold text"),
    (
      "Only one document.\nIt has two sentences.\n",
      "The input must hold text for train and eval|The input must hold text",
    ),
  ],
)
def test_nothing_to_make_is_an_error(tiny_tokenizer, tmp_path, text, message):
  path = tmp_path / "text.txt"
  path.write_text(text)
  with pytest.raises(UserError, match=message):
    _make([str(path)], tmp_path / "out", tiny_tokenizer)
  assert not (tmp_path / "out" / "manifest.json").exists()


def test_command_works_without_tensorflow_in_any_worker(corpus, tiny_model, tmp_path):
  poison = tmp_path / "poison" / "tensorflow"
  poison.mkdir(parents=True)
  (poison / "__init__.py").write_text("raise AssertionError('a data worker imported TensorFlow')\n")
  path = os.pathsep.join(filter(None, [str(tmp_path / "poison"), os.environ.get("PYTHONPATH")]))
  result = _run(
    _flags(corpus, tiny_model, tmp_path / "out", num_workers=2),
    always_workers=True,
    env={**os.environ, "PYTHONPATH": path},
  )
  assert result.returncode == 0, result.stderr
  assert "masked 0." in result.stdout
  assert "120 documents" in result.stdout
  assert Manifest.load(str(tmp_path / "out")).num_records("train") > 100
  finished = _run(_flags(corpus, tiny_model, tmp_path / "out"))
  assert finished.stderr == f"nothing to do: {tmp_path / 'out'} is finished\n"


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"input": "/nonexistent/*.txt"}, "must match at least one file"),
    ({"output_dir": "/dev/null/out"}, "must be writable"),
    ({"max_predictions_per_seq": 999}, "max_predictions_per_seq must be between"),
    ({"masked_lm_prob": 1.5}, "masked_lm_prob must be at least 0 and at most 1"),
    ({"ngram_distribution": "zipf"}, "ngram_distribution must be one of"),
    ({"spm_model_file": "/nonexistent.model"}, "must be a readable file"),
    ({"spm_model_file": "/dev/null"}, "Received: /dev/null, which is another file or cut off"),
    ({"output_dir": "gs://bucket/records"}, "must be on a local disk"),
  ],
)
def test_mistakes_are_one_message(corpus, tiny_model, tmp_path, change, message):
  result = _run(_flags(corpus, tiny_model, tmp_path / "out", **change))
  assert result.returncode == 2
  assert result.stderr.startswith("error: ")
  assert message in result.stderr
  assert "Traceback" not in result.stderr
  assert not (tmp_path / "out").exists()


def test_other_file_systems_give_the_same_records(corpus, tiny_model, tmp_path):
  """file:// goes through tf.io.gfile, as gs:// does."""
  _run(_flags(corpus, tiny_model, tmp_path / "local"))
  urls = [f"file://{path}" for path in corpus]
  result = _run(_flags(urls, tiny_model, f"file://{tmp_path}/remote", work_dir=tmp_path / "work"))
  assert result.returncode == 0, result.stderr
  assert contents(tmp_path / "remote") == contents(tmp_path / "local")
  assert not list((tmp_path / "work").iterdir())
