"""Damaged JSON files of every kind give one message with the file's name."""

import json
import math
import pathlib
import shutil
import types

import pytest
from support.goldens import SPM_MODEL

from albert_tf import files, json_files
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import TaskSpec, best_run
from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.squad.read import read_squad
from albert_tf.lock import DirectoryLock
from albert_tf.records import Manifest, RecordFile
from albert_tf.runs import run_directory
from albert_tf.runs.metrics_log import read_metrics
from albert_tf.tokenization.config import TokenizerConfig, WordPieceConfig, find_tokenizer
from tfrecords_tools.pretraining.stages import read_description

CONFIG = AlbertConfig.from_name("tiny").to_dict()
TASK = TaskSpec(kind="question_answering", name="squad", squad_version="2.0").to_dict()
TAGS = TaskSpec(kind="token_classification", name="ner", label_names=("O", "B-X")).to_dict()
FILE = RecordFile("train-0", "train", 7, 1, "00").to_dict()
MANIFEST = Manifest(37, "ab", 10, 3, "sop", 1, ()).to_dict() | {"files": [FILE]}
METRICS = {"step": 3, "split": "train", "loss": 1.5}

# File → what it holds, who reads it, given its path, and what one field may not hold.
FILES = {
  "albert_config.json": (CONFIG, AlbertConfig.from_json_file, {"hidden_size": "256"}),
  "config.json": (
    {**CONFIG, "model_type": "albert", "foreign": [1]}, AlbertConfig.from_json_file, {"hidden_act": ["gelu"]}
  ),
  "task.json": (TASK, lambda path: TaskSpec.load(path[:-10]), {"label_names": "ab"}),
  "a/task.json": (TASK, lambda path: TaskSpec.load(path[:-10]), {"doc_stride": 0}),
  "b/task.json": (TASK, lambda path: TaskSpec.load(path[:-10]), {"format_version": 2}),
  "c/task.json": (TAGS, lambda path: TaskSpec.load(path[:-10]), {"label_names": ["O", "B-X", "O"]}),
  "d/task.json": (TAGS, lambda path: TaskSpec.load(path[:-10]), {"label_names": ["O", " "]}),
  "manifest.json": (MANIFEST, lambda path: Manifest.find(path[:-14]), {"files": [{**FILE, "num_bytes": "1"}]}),
  "a/manifest.json": (MANIFEST, lambda path: Manifest.find(path[:-14]), {"baseline": 3}),
  "spm/tokenizer.json": (TokenizerConfig().to_dict(), find_tokenizer, {"do_lower_case": "false"}),
  "txt/tokenizer.json": (WordPieceConfig().to_dict(), find_tokenizer, {"keep_accents": 0}),
  "spm/tokenizer_config.json": ({"foreign": [1]}, find_tokenizer, {"do_lower_case": "false"}),
  "txt/tokenizer_config.json": ({"foreign": [1]}, find_tokenizer, {"strip_accents": "false"}),
  "metrics.jsonl": (METRICS, read_metrics, {"step": "3"}),
  "run.json": ({"identity": {}}, lambda path: run_directory.check(path[:-9], {}), {"identity": 3}),
  "results.json": ({"best_run": "seed_1"}, lambda path: best_run(path[:-13]), {"best_run": 1}),
  "x.json": (
    {"plan": "p", "file": FILE},
    lambda path: read_description(
      types.SimpleNamespace(stage_dir=path[:-7], plan_sha256="p"), "x"
    ),
    {"file": 1},
  ),
  "squad.json": (
    {"data": [{"paragraphs": [{"context": "a", "qas": [{"id": 1, "question": "b", "answers": []}]}]}]},
    lambda path: read_squad(path, version="2.0"),
    {"data": 3},
  ),
}  # fmt: skip
DAMAGES = {
  "empty": lambda text: b"",
  "cut": lambda text: text[: len(text) // 2],
  "not UTF-8": lambda text: text[:-1] + b', "\xff": 1}',
  "list": lambda text: b"[%s]" % text,
  "null": lambda text: b"null",
  "deep": lambda text: b'{"a": %s1%s}' % (b"[" * 100_000, b"]" * 100_000),
  "deep enough to be parsed": lambda text: text[:-1] + b', "a": %s1%s}' % (b"[" * 500, b"]" * 500),
}


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file(name: str, tmp_path: pathlib.Path) -> None:
  values, read, wrong = FILES[name]
  path = tmp_path / "folder" / name
  path.parent.mkdir(parents=True)
  if "token" in name:
    vocabulary = {"spm/tokenizer_config.json": "spiece.model", "spm/tokenizer.json": "spm.model"}
    shutil.copy(SPM_MODEL, path.with_name(vocabulary.get(name, "vocab.txt")))
  text = json.dumps(values).encode()
  path.write_bytes(text)
  given = str(path.parent if read is find_tokenizer else path)
  read(given)
  damages = {**DAMAGES, "wrong type": lambda text: json.dumps({**values, **wrong}).encode()}
  for damage in damages.keys() - ({"empty"} if name == "metrics.jsonl" else set()):
    path.write_bytes(damages[damage](text))
    with pytest.raises(UserError) as caught:
      read(given)
    assert str(path) in str(caught.value), damage
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
  "text", [b"", b'{"id": "a"}', b'{"id": "a", "host": "b", "pid": 1, "expires": "c"}']
)
def test_a_damaged_lock_holds_nobody(text: bytes, tmp_path: pathlib.Path) -> None:
  (tmp_path / "lock.json").write_bytes(text)
  DirectoryLock(f"file://{tmp_path}").refuse_others()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_not_written(tmp_path: pathlib.Path, value: float) -> None:
  path = tmp_path / "results.json"
  with pytest.raises(UserError) as caught:
    json_files.write(str(path), {"history": {"3": {"loss": value}}})
  assert str(path) in str(caught.value)
  assert list(tmp_path.iterdir()) == []


def test_paths_are_compared_by_component() -> None:
  assert files.is_within("runs/mrpc/checkpoints/best", "runs/mrpc")
  assert files.is_within("runs/mrpc/", "runs/./mrpc")
  assert files.is_within("gs://bucket/run/seed_1", "gs://bucket/run/")
  for path in ("runs/mrpc_b", "runs", "gs://bucket/run"):
    assert not files.is_within(path, "runs/mrpc")
  assert not files.is_within("gs://bucket/run_b", "gs://bucket/run")
