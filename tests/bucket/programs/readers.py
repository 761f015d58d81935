"""Every reader of a user's files finds the same in a bucket; arguments: --local=DIRECTORY --remote=DIRECTORY."""

from collections.abc import Callable
import os
import sys
from typing import Any

from albert_tf.configs import AlbertConfig
from albert_tf.finetuning import data
from albert_tf.finetuning.tasks import choices, conll, glue
from albert_tf.finetuning.tasks.squad.read import read_squad
from albert_tf.records import read_records
from albert_tf.records.manifest import Manifest
from albert_tf.tokenization import AlbertTokenizer
from tfrecords_tools.corpus import CorpusOptions, CorpusStats, iter_documents


def _documents(path: str) -> list[list[str]]:
  return list(iter_documents(path, CorpusOptions(), stats=CorpusStats()))


READERS: dict[str, Callable[[str], Any]] = {
  **{f"table.{suffix}": lambda path: data.read_table(path) for suffix in ("tsv", "csv", "jsonl", "parquet")},
  "words.conll": lambda path: conll.read_tagged(path, conll.Columns()),
  "squad.json": lambda path: read_squad(path, version="1.1", require_answers=True).questions,
  "RACE": lambda path: choices.read_race(os.path.dirname(path), "train", levels=["high"]),
  "glue": lambda path: glue.read_splits(glue.TASKS["mrpc"], path),
  "corpus/0.txt": _documents,
  "corpus/0.txt.gz": _documents,
  "text.parquet": _documents,
  "spm.model": lambda path: AlbertTokenizer.from_pretrained(path).pieces,
  "albert_config.json": lambda path: AlbertConfig.from_json_file(path),
  "records/manifest.json": lambda path: Manifest.load(os.path.dirname(path)),
  "records/train-00000-of-00001.tfrecord": lambda path: list(read_records(path)),
}


def main(local: str, remote: str) -> None:
  for name, read in READERS.items():
    here, there = (read(os.path.join(place, name)) for place in (local, remote))
    assert here, f"{name} is empty"
    assert _plain(here) == _plain(there), f"{name}: {here} on the disk, {there} in the bucket"
  print(len(READERS))


def _plain(value: Any) -> str:
  """Without the places, which texts and sentences keep for messages."""
  return repr(value).replace(sys.argv[2].removeprefix("--remote="), sys.argv[1].removeprefix("--local="))


if __name__ == "__main__":
  main(sys.argv[1].removeprefix("--local="), sys.argv[2].removeprefix("--remote="))
