"""Damaged JSON files of every kind that a command reads."""

from collections.abc import Callable
import json
import pathlib
from typing import Any

from hypothesis import strategies as st
import pytest
from support.fuzzing import SEED, damaged_json, fuzz, result_or_refusal
from support.goldens import SPM_MODEL

from albert_tf.configs import AlbertConfig
from albert_tf.configs.albert_config import count_parameters
from albert_tf.configs.task import TaskSpec, best_run
from albert_tf.finetuning.tasks.choices import read_race
from albert_tf.finetuning.tasks.squad.read import read_squad
from albert_tf.records.manifest import Baseline, Manifest, RecordFile
from albert_tf.tokenization import TokenizerConfig, load_tokenizer

TASKS = [
  TaskSpec(kind="classification", name="t", label_names=("no", "yes"), pair=True),
  TaskSpec(kind="question_answering", name="squad", squad_version="2.0"),
]
MANIFEST = Manifest(
  vocab_size=37,
  vocab_sha256="ab",
  max_seq_length=10,
  max_predictions_per_seq=3,
  sentence_pair="sop",
  random_seed=1,
  files=(RecordFile("train-0.tfrecord", "train", 70, 7000, "00000000"),),
  baseline=Baseline(5, "x", 0.1, None),
  settings={"tokenizer": {"do_lower_case": True}},
)
SQUAD = {
  "version": "2.0",
  "data": [{"title": "t", "paragraphs": [{"context": "the sky is blue", "qas": [
    {"id": "1", "question": "what?", "answers": [{"text": "sky", "answer_start": 4}], "is_impossible": False},
    {"id": "2", "question": "who?", "answers": [], "is_impossible": True},
  ]}]}],
}  # fmt: skip
RACE = {"id": "high1.txt", "article": "a b", "questions": ["q"], "options": [["a", "b"]], "answers": ["A"]}
HUGGING_FACE = {"do_lower_case": True, "keep_accents": False, "model_max_length": 512, "tokenizer_class": "X"}


def config_of(path: str) -> Any:
  config = AlbertConfig.from_json_file(path)
  return count_parameters(config), AlbertConfig.from_dict(json.loads(config.to_json_string()))


def manifest_of(path: str) -> Any:
  manifest = Manifest.load(path)
  manifest.check(vocab_size=37)
  return manifest.spec, manifest.sentence_task, manifest.whole_word, manifest.num_records("train")


def encode(path: pathlib.Path) -> list[int]:
  return load_tokenizer(str(path.parent)).encode("A 12, é")


def task_of(path: str) -> Any:
  task = TaskSpec.load(path)
  return task.model, task.export_kind, task.num_labels, task.settled({})


# File → its content, and what reads it: given the file, or its folder where that is what people name.
FILES: dict[str, tuple[str, Callable[[pathlib.Path], Any]]] = {
  "albert_config.json": (AlbertConfig.from_name("tiny").to_json_string(), lambda path: config_of(str(path))),
  "config.json": (
    json.dumps({**AlbertConfig.from_name("tiny").to_dict(), "model_type": "albert", "architectures": ["A"]}),
    lambda path: config_of(str(path)),
  ),
  "manifest.json": (json.dumps(MANIFEST, default=vars), lambda path: manifest_of(str(path.parent))),
  "task.json": (json.dumps(TASKS[0].to_dict()), lambda path: task_of(str(path.parent))),
  "squad/task.json": (json.dumps(TASKS[1].to_dict()), lambda path: task_of(str(path.parent))),
  "results.json": ('{"best_run": "seed_1", "metrics": {"accuracy": 0.5}}', lambda path: best_run(str(path.parent))),
  "squad.json": (json.dumps(SQUAD), lambda path: read_squad(str(path), version="2.0")),
  "train/high/all.txt": (
    json.dumps(RACE), lambda path: read_race(str(path.parents[2]), "train", levels=["high"])
  ),
  "ours/tokenizer.json": (json.dumps(TokenizerConfig().to_dict()), lambda path: encode(path)),
  "theirs/tokenizer_config.json": (json.dumps(HUGGING_FACE), lambda path: encode(path)),
}  # fmt: skip


@pytest.mark.xfail(not SEED, reason="until every file is named", strict=False)
@pytest.mark.parametrize("name", FILES)
@fuzz(data=st.data(), cost=2)
def test_a_file(name: str, tmp_path: pathlib.Path, data: st.DataObject) -> None:
  good, read = FILES[name]
  path = tmp_path / name
  path.parent.mkdir(parents=True, exist_ok=True)
  if "token" in name:
    model = path.parent / ("spm.model" if "ours" in name else "spiece.model")
    if not model.exists():
      model.write_bytes(pathlib.Path(SPM_MODEL).read_bytes())
  path.write_text(good)
  assert read(path) is not None
  path.write_bytes(data.draw(damaged_json(good)))
  result_or_refusal(path, read, path)
