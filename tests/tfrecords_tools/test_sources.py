"""Named sources with weights: what an entry of --input means, what a weight does, what is kept apart."""

import dataclasses
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from support import made_records, tiny_corpus
from support.made_records import contents

from albert_tf.errors import UserError
from albert_tf.records import Manifest, read_records
from tfrecords_tools.corpus import CorpusOptions
from tfrecords_tools.pretraining.local.runner import LocalRunner
from tfrecords_tools.pretraining.settings import RecordSettings
from tfrecords_tools.pretraining.sources import Source, expand_sources

_SETTINGS = RecordSettings(
  max_seq_length=32, max_predictions_per_seq=4, dupe_factor=2, num_shards=2, eval_fraction=0.1
)
_LINES = CorpusOptions(input_format="lines")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  """A file of 80 documents, one of 40, one of 3."""
  directory = tmp_path_factory.mktemp("corpus")
  rng = np.random.default_rng(5)
  for name, count in (("a.txt", 80), ("b.txt", 40), ("few.txt", 3)):
    text = tiny_corpus.as_text(tiny_corpus.documents(rng, count))
    (directory / name).write_text(text, encoding="utf-8")
  return directory


def _make(entries, output_dir, tokenizer, *, settings=_SETTINGS, **more):
  paths, sources = expand_sources(entries)
  return made_records.make(paths, output_dir, tokenizer, settings=settings, sources=sources, **more)


def _records(directory, pattern):
  return sorted(
    itertools.chain.from_iterable(map(read_records, map(str, pathlib.Path(directory).glob(pattern))))
  )


@pytest.mark.parametrize(
  ("entry", "meaning"),
  [
    ("a.txt", [("a.txt", "", 1.0)]),
    ("./x=1/?.txt", [("./x=1/c.txt", "", 1.0)]),  # A path with "=" is no source.
    ("y/x=1/c.txt", [("y/x=1/c.txt", "", 1.0)]),
    ("wiki=?.txt:2", [("a.txt", "wiki", 2.0), ("b.txt", "wiki", 2.0)]),
    ("wiki=x=1/c.txt:0.25", [("x=1/c.txt", "wiki", 0.25)]),
    ("wiki=d:1:3", [("d:1", "wiki", 3.0)]),  # The last colon is the weight's.
    ("web-2_x=file://{}/a.txt:1e-3", [("file://{}/a.txt", "web-2_x", 0.001)]),  # As gs://bucket/a.txt:1e-3.
  ],
)
def test_an_entry_has_one_meaning(entry, meaning, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for name in ("a.txt", "b.txt", "x=1/c.txt", "y/x=1/c.txt", "d:1"):
    pathlib.Path(name).parent.mkdir(exist_ok=True, parents=True)
    pathlib.Path(name).touch()
  paths, sources = expand_sources([entry.format(tmp_path)])
  found = [(path, source.name, source.weight) for path, source in zip(paths, sources, strict=True)]
  assert found == [(path.format(tmp_path), name, weight) for path, name, weight in meaning]


@pytest.mark.parametrize(
  ("entries", "message"),
  [
    (["wiki=a.txt"], "A source is NAME=PATTERN:WEIGHT"),
    (["wiki=gs://bucket/a.txt"], "Write :1 behind it"),
    (["wiki=a.txt:0"], "a number above 0"),
    (["wiki=a.txt:-1"], "a number above 0"),
    (["wiki=a.txt:nan"], "a number above 0"),
    (["wiki=:2"], "A source is NAME=PATTERN:WEIGHT"),
    (["x=1/c.txt"], r"\./x=1/c\.txt if this is the path of files"),
    (["e=f:1"], "which is a source of weight 1 and a pattern that matches files"),
    (["unnamed=a.txt:1"], "Choose another name"),
    (["wiki=a.txt:1", "wiki=b.txt:2"], "A source has one weight"),
    (["wiki=a.txt:1", "web=*.txt:1"], "A file belongs to one source"),
    (["wiki=a.txt:1", "*.txt"], "the patterns of wiki and unnamed"),
    (["wiki=none*:1"], r"'none\*', which matches none"),
    ([], "At least one input file is needed"),
  ],
)
def test_what_could_mean_two_things_is_refused(entries, message, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for name in ("a.txt", "b.txt", "x=1/c.txt", "e=f:1"):
    pathlib.Path(name).parent.mkdir(exist_ok=True)
    pathlib.Path(name).touch()
  with pytest.raises(UserError, match=message):
    expand_sources(entries)


def test_passes_are_exact():
  assert [Source("", weight).passes(10) for weight in (1.0, 0.7, 1.1)] == [(10, 0.0), (7, 0.0), (11, 0.0)]
  assert Source("", 0.3).passes(1) == (0, 0.3)
  assert Source("", 2.25).passes(3) == (6, 0.75)


def test_names_of_weight_1_change_no_training_record(corpus, tiny_tokenizer, tmp_path):
  _make([f"{corpus}/[ab].txt"], tmp_path / "plain", tiny_tokenizer)
  _make([f"a={corpus}/a.txt:1", f"b={corpus}/b.txt:1"], tmp_path / "named", tiny_tokenizer)
  plain, named = contents(tmp_path / "plain"), contents(tmp_path / "named")
  assert {name for name in plain if name.endswith("tfrecord")} == {
    "train-00000-of-00002.tfrecord",
    "train-00001-of-00002.tfrecord",
    "eval-00000-of-00001.tfrecord",
  }
  assert all(named[name] == plain[name] for name in plain if name.startswith("train-"))
  assert _records(tmp_path / "named", "eval-*") == _records(tmp_path / "plain", "eval-*")
  assert {name: pathlib.PurePath(name).name for name in named if name.startswith("eval-")} == {
    name: name for name in ("eval-a-00000-of-00001.tfrecord", "eval-b-00000-of-00001.tfrecord")
  }
  assert json.loads(plain["manifest.json"])["statistics"]["sources"] == {}


def test_weights_scale_the_passes_of_train_and_leave_eval(corpus, tiny_tokenizer, tmp_path):
  entries = [f"a={corpus}/a.txt:2", f"b={corpus}/b.txt:0.25"]
  even = _make([f"a={corpus}/a.txt:1", f"b={corpus}/b.txt:1"], tmp_path / "even", tiny_tokenizer)
  manifest = _make(entries, tmp_path / "one", tiny_tokenizer)
  expected = contents(tmp_path / "one")
  _make(entries, tmp_path / "two", tiny_tokenizer, runner=LocalRunner(num_workers=2))
  assert contents(tmp_path / "two") == expected
  before, after = even.statistics["sources"], manifest.statistics["sources"]
  assert after["a"]["weight"] == 2.0
  assert after["a"]["train"]["tokens"] == before["a"]["train"]["tokens"]  # Of the text.
  # 4 passes for 2: other cuts, so about twice as many. Half a pass for 2: every second document, once.
  assert after["a"]["train"]["instances"] / before["a"]["train"]["instances"] == pytest.approx(2, rel=0.1)
  assert after["b"]["train"]["instances"] / before["b"]["train"]["instances"] == pytest.approx(0.25, rel=0.5)
  assert sum(each["train_share"] for each in after.values()) == pytest.approx(1, abs=1e-5)
  assert set(_records(tmp_path / "one", "train-*")) & set(_records(tmp_path / "even", "train-*"))
  files = [file for file in manifest.files if file.split == "eval"]
  assert [(file.name, file.source) for file in files] == [
    ("eval-a-00000-of-00001.tfrecord", "a"),
    ("eval-b-00000-of-00001.tfrecord", "b"),
  ]
  for file in files:  # Models of any weights are measured on the same records.
    assert expected[file.name] == (tmp_path / "even" / file.name).read_bytes()
    assert file.num_records == after[file.source]["eval"]["instances"] > 0
  assert sum(each["train"]["instances"] for each in after.values()) == manifest.num_records("train")


def test_a_source_of_a_few_documents_still_has_one_held_out(corpus, tiny_tokenizer, tmp_path):
  settings = dataclasses.replace(_SETTINGS, eval_fraction=0.01)
  manifest = _make(
    [f"{corpus}/a.txt", f"few={corpus}/few.txt:3"], tmp_path, tiny_tokenizer, settings=settings
  )
  sources = manifest.statistics["sources"]
  assert list(sources) == ["few", "unnamed"]
  assert [sources["few"][split]["documents"] for split in ("train", "eval")] == [2, 1]
  assert sources["unnamed"]["weight"] == 1.0
  held_out = [(file.source, file.num_records > 0) for file in manifest.files_of("eval")]
  assert held_out == [("few", True), ("unnamed", True)]


def test_another_mapping_is_refused(corpus, tiny_tokenizer, tmp_path):
  _make([f"a={corpus}/a.txt:1", f"b={corpus}/b.txt:1"], tmp_path, tiny_tokenizer)
  with pytest.raises(UserError, match=r"input\.sources\.b\.weight: there 1\.0, now 2\.0"):
    _make([f"a={corpus}/a.txt:1", f"b={corpus}/b.txt:2"], tmp_path, tiny_tokenizer)
  with pytest.raises(UserError, match=r"input\.sources\.a\.files: there \[0\], now \[1\]"):
    _make([f"b={corpus}/a.txt:1", f"a={corpus}/b.txt:1"], tmp_path, tiny_tokenizer)
  with pytest.raises(UserError, match=r"input\.sources"):
    _make([f"{corpus}/[ab].txt"], tmp_path, tiny_tokenizer)
  assert Manifest.load(str(tmp_path)).input["sources"]["b"] == {"weight": 1.0, "files": [1]}


def test_bytes_are_equal_on_beam(corpus, tiny_tokenizer, tmp_path):
  pytest.importorskip("apache_beam")
  from tfrecords_tools.pretraining.beam.runner import BeamRunner

  entries = [f"few={corpus}/few.txt:1.5", f"b={corpus}/b.txt:0.5"]
  _make(entries, tmp_path / "local", tiny_tokenizer)
  _make(entries, tmp_path / "beam", tiny_tokenizer, runner=BeamRunner())
  assert contents(tmp_path / "beam") == contents(tmp_path / "local")
  assert os.path.exists(tmp_path / "beam" / "eval-few-00000-of-00001.tfrecord")


def test_the_command_tells_of_each_source_and_repeats_itself(corpus, tiny_model, tmp_path):
  command = [sys.executable, "-m", "tfrecords_tools.create_pretraining_data"]
  flags = {
    "input": f"a={corpus}/a.txt:2,{corpus}/b.txt",
    "input_format": "lines",
    "spm_model_file": tiny_model,
    "output_dir": tmp_path,
    "max_seq_length": 32,
    "max_predictions_per_seq": 4,
    "dupe_factor": 1,
    "eval_fraction": 0.1,
    "dedup": "exact",
  }
  arguments = [f"--{name}={value}" for name, value in flags.items()]
  first = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
  assert first.returncode == 0, first.stderr
  assert "left out 0 documents that are copies of earlier ones" in first.stdout
  assert re.search(
    r"^source a, weight 2: \d\d\.\d% of the tokens of train; \d\d documents, .*; eval \d+ documents, \d+ instances$",
    first.stdout,
    re.MULTILINE,
  )
  assert "source unnamed, weight 1: " in first.stdout
  again = [*command, f"--flagfile={tmp_path}/flags.txt", f"--output_dir={tmp_path}"]
  repeated = subprocess.run(again, capture_output=True, text=True, check=False)
  assert repeated.returncode == 0, repeated.stderr
  assert "nothing to do" in repeated.stderr
