"""What records depend on: plans that differ are refused, notes of another plan are never taken, sizes decide files."""

import dataclasses
import importlib.metadata
import json
import pathlib
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
from support import tiny_corpus

from albert_tf.errors import UserError
from albert_tf.tokenization import AlbertTokenizer
from tfrecords_tools.corpus import CorpusOptions, mean_document_bytes
from tfrecords_tools.pretraining.job import create_records
from tfrecords_tools.pretraining.local.runner import LocalRunner
from tfrecords_tools.pretraining.settings import RecordSettings
from tfrecords_tools.pretraining.sizing import decide_num_shards, expected_size
from tfrecords_tools.pretraining.sources import Source
from tfrecords_tools.pretraining.summary import format_summary

_SETTINGS = RecordSettings(
  max_seq_length=64, max_predictions_per_seq=8, dupe_factor=2, num_shards=3, eval_fraction=0.1
)


class _StopError(Exception):
  """Ends a job where it stands."""


def _stop_at_write(stage, done, total):
  if (stage, done) == ("write", 2):
    raise _StopError


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  path = tmp_path_factory.mktemp("corpus") / "text.txt"
  path.write_text(tiny_corpus.as_text(tiny_corpus.documents(np.random.default_rng(3), 60)), encoding="utf-8")
  return [str(path)]


def _make(
  corpus, output_dir, tokenizer, *, settings=_SETTINGS, input_format="lines", on_bad_text="error", **more
):
  options = CorpusOptions(input_format=input_format, on_bad_text=on_bad_text)
  return create_records(
    corpus,
    str(output_dir),
    tokenizer=tokenizer,
    settings=settings,
    options=options,
    runner=LocalRunner(),
    **more,
  )


def _contents(directory):
  return {path.name: path.read_bytes() for path in pathlib.Path(directory).iterdir() if path.is_file()}


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_notes_of_another_plan_are_never_taken(corpus, tiny_tokenizer, tmp_path, scheme):
  """Even where nothing but the notes tells whose the finished blocks and files are."""
  output = f"{scheme}{tmp_path}/out"
  with pytest.raises(_StopError):
    _make(corpus, output, tiny_tokenizer, progress=_stop_at_write, work_dir=str(tmp_path / "work"))
  assert len(list((tmp_path / "out" / "_unfinished").glob("*.tfrecord"))) == 2
  for directory in (tmp_path / "out" / "_unfinished", tmp_path / "work" / "_unfinished"):
    (directory / "plan.json").unlink()
  other = dataclasses.replace(_SETTINGS, random_seed=1)
  _make(corpus, output, tiny_tokenizer, settings=other, work_dir=str(tmp_path / "work"))
  _make(corpus, tmp_path / "whole", tiny_tokenizer, settings=other)
  assert _contents(tmp_path / "out") == _contents(tmp_path / "whole")


def test_an_upgrade_is_refused_in_the_middle_of_a_job_and_not_at_its_end(
  corpus, tiny_tokenizer, tmp_path, monkeypatch
):
  """Of the packages and of Python's Unicode tables alike, both versions are named."""
  with pytest.raises(_StopError):
    _make(corpus, tmp_path / "out", tiny_tokenizer, progress=_stop_at_write)
  installed = importlib.metadata.version
  before, unicode_before = installed("sentencex"), unicodedata.unidata_version
  with monkeypatch.context() as upgraded:
    upgraded.setattr(
      importlib.metadata, "version", lambda name: "99.0" if name == "sentencex" else installed(name)
    )
    with pytest.raises(UserError, match=rf'versions\.sentencex: there "{before}", now "99\.0"'):
      _make(corpus, tmp_path / "out", tiny_tokenizer)
  with monkeypatch.context() as upgraded:
    upgraded.setattr(unicodedata, "unidata_version", "99.0.0")
    with pytest.raises(UserError, match=rf'versions\.unicode: there "{unicode_before}", now "99\.0\.0"'):
      _make(corpus, tmp_path / "out", tiny_tokenizer)
  made = _make(corpus, tmp_path / "out", tiny_tokenizer)
  assert {"unicode", "sentencex", "sentencepiece", "mwparserfromhell", "pyarrow"} <= set(made.versions)
  monkeypatch.setattr(unicodedata, "unidata_version", "99.0.0")
  assert (
    _make(corpus, tmp_path / "out", tiny_tokenizer) == made
  )  # Finished: nothing is made by another version.


@pytest.mark.parametrize("action", ["skip", "replace"])
def test_a_run_that_stopped_at_bad_text_goes_on_when_told_what_to_do_with_it(
  corpus, tiny_tokenizer, tmp_path, action
):
  bad = tmp_path / "z.txt"
  bad.write_bytes(b"kato.\n\nmi \xff ren.\nsol.\n")
  both = [*corpus, str(bad)]
  with pytest.raises(UserError, match=r"z\.txt, line 3, byte offset 10 of its text.*--on_bad_text=replace"):
    _make(both, tmp_path / "out", tiny_tokenizer)
  runs = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "_unfinished").glob("block-*.run")}
  assert runs

  def untouched(stage, done, total):
    assert {path: path.stat().st_mtime_ns for path in runs} == runs

  _make(both, tmp_path / "out", tiny_tokenizer, on_bad_text=action, progress=untouched)
  _make(both, tmp_path / "whole", tiny_tokenizer, on_bad_text=action)
  assert _contents(tmp_path / "out") == _contents(tmp_path / "whole")
  with pytest.raises(UserError, match=rf'on_bad_text: there "{action}", now "error"'):
    _make(both, tmp_path / "out", tiny_tokenizer)


def test_every_flag_has_the_default_of_its_setting():
  """In a process of its own: a process has room for the flags of one command."""
  code = (
    "import dataclasses\n"
    "from tfrecords_tools.create_pretraining_data import RecordSettings, flags\n"
    "for field in dataclasses.fields(RecordSettings):\n"
    "  assert flags.FLAGS[field.name].default == field.default, field.name\n"
  )
  subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_records_of_an_older_version_are_finished_too(corpus, tiny_tokenizer, tmp_path):
  """Before there were sources, copies that are left out, kept accents and a choice of where words begin."""
  output = tmp_path / "out"
  manifest = _make(corpus, output, tiny_tokenizer)
  old = json.loads((output / "manifest.json").read_text())
  for name in ("dedup", "whole_word"):
    del old["settings"][name]
  del old["settings"]["tokenizer"]["keep_accents"], old["statistics"]["sources"]
  for file in old["files"]:
    del file["source"]
  old["settings"]["whole_word_mask"] = True
  (output / "manifest.json").write_text(json.dumps(old))
  told = []
  again = _make(corpus, output, tiny_tokenizer, notice=told.append)
  assert told == [f"nothing to do: {output} is finished"]
  assert again.files == manifest.files
  assert format_summary(again).startswith("read ")
  with pytest.raises(UserError, match=r"settings\.whole_word: there \"original\", now \"none\""):
    _make(corpus, output, tiny_tokenizer, settings=dataclasses.replace(_SETTINGS, whole_word="none"))


@pytest.mark.parametrize("layout", ["example", "compact"])
def test_a_corpus_has_as_many_files_as_its_size_asks_for(layout):
  settings = RecordSettings(record_layout=layout, eval_fraction=0.01)
  assert decide_num_shards(settings, [10**6], [Source()]).num_shards == 1
  for text_bytes in (10**9, 16 * 10**9, 160 * 10**9):
    decided = decide_num_shards(settings, [text_bytes], [Source()])
    total = expected_size(text_bytes, settings).record_bytes
    assert 128e6 < 0.99 * total / decided.num_shards < 256e6
    assert 128e6 < 0.01 * total / decided.num_eval_shards < 256e6 or decided.num_eval_shards == 1
  named = dataclasses.replace(settings, num_shards=7, num_eval_shards=3)
  assert decide_num_shards(named, [10**9], [Source()]) == named


def test_a_weight_changes_the_files_of_train_alone():
  """Held-out documents have the same passes whatever the weight, and each source files of its own."""
  settings = RecordSettings(eval_fraction=0.1, dupe_factor=1)
  one = decide_num_shards(settings, [16 * 10**9], [Source()])
  tenth = decide_num_shards(settings, [16 * 10**9], [Source("web", 0.1)])
  halves = decide_num_shards(settings, [8 * 10**9] * 2, [Source("a", 1.0), Source("b", 1.0)])
  assert tenth.num_shards == pytest.approx(one.num_shards / 10, abs=1)
  assert tenth.num_eval_shards == one.num_eval_shards == pytest.approx(2 * halves.num_eval_shards, abs=1)


# "lines" takes each paragraph of the novel for a document, mostly of one sentence: ten times as many instances.
@pytest.mark.parametrize(("input_format", "error"), [("paragraphs", 0.15), ("lines", 0.5)])
@pytest.mark.parametrize("layout", ["example", "compact"])
def test_the_expected_size_is_that_of_real_text(shared_dir, tmp_path, layout, input_format, error):
  text = shared_dir / "data/corpora/novels/Doyle_Hound_1902.txt"
  tokenizer = AlbertTokenizer(spm_model_file=str(shared_dir / "data/vocab/30k-clean.model"))
  document_bytes = mean_document_bytes([str(text)], CorpusOptions(input_format=input_format))
  for length, predictions in ((512, 20), (512, 77), (128, 20)):
    settings = RecordSettings(
      max_seq_length=length,
      max_predictions_per_seq=predictions,
      dupe_factor=1,
      record_layout=layout,
      eval_fraction=0,
    )
    output = tmp_path / f"{length}-{predictions}"
    made = _make([str(text)], output, tokenizer, settings=settings, input_format=input_format)
    num_bytes = sum(file.num_bytes for file in made.files)
    expected = expected_size(text.stat().st_size, settings, document_bytes=document_bytes)
    assert expected.record_bytes == pytest.approx(num_bytes, rel=error)


def test_the_number_of_files_is_decided_before_the_plan(corpus, tiny_tokenizer, tmp_path, monkeypatch):
  """The manifest tells the number, not that it was left open."""
  monkeypatch.setattr("tfrecords_tools.pretraining.sizing._SHARD_BYTES", 20_000)
  open_settings = dataclasses.replace(_SETTINGS, num_shards=0)
  made = _make(corpus, tmp_path / "open", tiny_tokenizer, settings=open_settings)
  count = len(made.files_of("train"))
  assert count > 2
  assert made.settings["num_shards"] == count
  named = dataclasses.replace(_SETTINGS, num_shards=count)
  assert _make(corpus, tmp_path / "named", tiny_tokenizer, settings=named) == made
