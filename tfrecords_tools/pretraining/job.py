"""The plan of the records, and the state of a directory: equal plans give equal bytes, others are refused.

Nobody reads a terabyte to start or to continue: name, size and time of change stand for an input file. Its folder may
be another.
"""

from collections.abc import Iterable, Mapping, Sequence
import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
from typing import Any
import unicodedata

import google_crc32c

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.records import Manifest, RecordFile, ShardIndexer
from albert_tf.records.manifest import MANIFEST_NAME
from albert_tf.settings import differences
from albert_tf.tokenization import Tokenizer
from tfrecords_tools.corpus import CorpusOptions, expected_text_bytes
from tfrecords_tools.pretraining.settings import RecordSettings

STAGE_DIR_NAME = "_unfinished"
PLAN_NAME = "plan.json"
CODE_VERSION = 4  # Raise it when the same settings begin to give other bytes.
# Their versions decide the bytes: tokens, sentences, and the readers of formats other than text.
_PACKAGES = ("mwparserfromhell", "mwxml", "pyarrow", "sentencepiece", "sentencex")
_AT_ONCE = 16  # Files looked at together: a bucket takes its time to answer for each.
# Bytes of text in a block: enough to be worth a task, few enough to divide a small corpus among workers.
SMALLEST_BLOCK, _LARGEST_BLOCK, _MOST_BLOCKS = 1 << 20, 4 << 20, 4096


@dataclasses.dataclass(frozen=True)
class Job:
  """Input, settings and directories of one creation of records.

  Args:
    paths: input files, in the order that numbers them.
    sizes: bytes of each.
    options, tokenizer, settings: how they are read, and what is made.
    output_dir: where the final files go.
    work_dir: directory of unfinished work.
    block_bytes: text of a block.
    plan: everything the bytes depend on, as JSON holds it: `settings`, `input` and `versions`.
  """

  paths: Sequence[str]
  sizes: Sequence[int]
  options: CorpusOptions
  tokenizer: Tokenizer
  settings: RecordSettings
  output_dir: str
  work_dir: str
  block_bytes: int
  plan: Mapping[str, Any]

  @property
  def stage_dir(self) -> str:
    """Where final files wait, on the file system of `output_dir`."""
    return os.path.join(self.output_dir, STAGE_DIR_NAME)

  @property
  def text_sizes(self) -> list[int]:
    """About how much text each input file gives, in bytes."""
    return list(map(expected_text_bytes, self.paths, self.sizes))

  @functools.cached_property
  def plan_sha256(self) -> str:
    """Final files carry it, so that none of another plan is ever taken."""
    return _sha256(self.plan)

  def block_sha256(self, file_index: int) -> str:
    """The same for the blocks of a file: when another input file was changed does not matter to them."""
    return _sha256({**self.plan, "input": self.plan["input"][file_index], "block_bytes": self.block_bytes})


def _sha256(plan: Mapping[str, Any]) -> str:
  return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()


def make_job(
  paths: Sequence[str],
  output_dir: str,
  work_dir: str,
  *,
  tokenizer: Tokenizer,
  settings: RecordSettings,
  options: CorpusOptions,
) -> Job:
  """The job of making records of `paths`, which are looked at and not read."""
  found = _input_files(paths)
  sizes = [file["num_bytes"] for file in found]
  settings = settings.with_num_shards(sum(map(expected_text_bytes, paths, sizes)))
  versions = {"unicode": unicodedata.unidata_version}
  for package in _PACKAGES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[package] = importlib.metadata.version(package)
  plan = {
    "settings": {
      **settings.to_dict(),
      "corpus": options.to_dict(),
      "tokenizer": {**dataclasses.asdict(tokenizer.config), "sha256": tokenizer.model_sha256},
      "code_version": CODE_VERSION,
    },
    "input": found,
    "versions": versions,
  }
  block_bytes = min(max(sum(sizes) // _MOST_BLOCKS, SMALLEST_BLOCK), _LARGEST_BLOCK)
  work_dir = os.path.join(work_dir, STAGE_DIR_NAME)
  as_read_back = json.loads(json.dumps(plan))
  return Job(paths, sizes, options, tokenizer, settings, output_dir, work_dir, block_bytes, as_read_back)


def _input_files(paths: Sequence[str]) -> list[dict[str, Any]]:
  with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
    found = pool.map(files.size_and_time, paths)
  names = map(os.path.basename, paths)
  return [
    {"name": name, "num_bytes": size, "modified": at} for name, (size, at) in zip(names, found, strict=True)
  ]


def check_input(job: Job, file_index: int) -> None:
  """Raises `UserError` if an input file is another than when the job was made."""
  before, (now,) = job.plan["input"][file_index], _input_files([job.paths[file_index]])
  if before != now:
    raise UserError(
      f"Input files must not change while they are read. Received: {job.paths[file_index]}, of {now['num_bytes']:,} "
      f"bytes now and {before['num_bytes']:,} at the start. Restore it and give the same command again; for other text "
      f"remove {job.stage_dir} first."
    )


def input_of(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
  """The input as the manifest names it: without times, so that copied files are the same."""
  return [{"name": file["name"], "num_bytes": file["num_bytes"]} for file in plan["input"]]


def _lasting(plan: Mapping[str, Any]) -> dict[str, Any]:
  """The identity of the plan that a directory's records, finished or not, belong to."""
  return {"settings": plan["settings"], "input": input_of(plan)}


def finished_before(job: Job) -> Manifest | None:
  """The manifest of an earlier, finished run with the same settings and input; by which versions does not matter then.

  Raises:
    UserError: the directory was made with another plan, or a file of it is gone.
  """
  manifest = Manifest.find(job.output_dir)
  if manifest is None:
    return None
  theirs = {"settings": manifest.settings, "input": manifest.input["files"]}
  _check_same(job.output_dir, theirs, _lasting(job.plan))
  for file in manifest.files:
    path = os.path.join(job.output_dir, file.name)
    if not files.exists(path) or files.size(path) != file.num_bytes:
      raise UserError(
        f"Finished records must be complete. Received: {path}, which is missing or has another size than "
        f"{MANIFEST_NAME} says. Remove the directory and run again."
      )
  return manifest


def remove_work(job: Job) -> None:
  """Removes the directories that hold unfinished work of such a plan; a kill in this function leaves an empty one."""
  for name in filter(files.is_unfinished, files.listdir(job.output_dir)):
    files.remove(os.path.join(job.output_dir, name))
  for directory in (job.stage_dir, job.work_dir):
    path, names = os.path.join(directory, PLAN_NAME), files.listdir(directory)
    if names and not (PLAN_NAME in names and _lasting(files.read_json(path)) == _lasting(job.plan)):
      continue
    with contextlib.suppress(FileNotFoundError):  # In a bucket, or where another process does the same.
      # The plan last: by it the next start knows what is left.
      for name in sorted(names, key=PLAN_NAME.__eq__):
        files.remove(os.path.join(directory, name))
      files.remove(directory)


def prepare_work(job: Job) -> None:
  """Makes the directories and writes the plan into those of unfinished work, or checks the one that is there.

  Raises:
    UserError: unfinished work of another plan, records of unknown origin, a directory that is not writable.
  """
  for directory in (job.output_dir, job.stage_dir, job.work_dir):
    files.makedirs(directory)
  written = [os.path.join(directory, PLAN_NAME) for directory in (job.stage_dir, job.work_dir)]
  for path in filter(files.exists, written):
    theirs, ours = ({**plan, "input": input_of(plan)} for plan in (files.read_json(path), job.plan))
    _check_same(os.path.dirname(path), theirs, ours)
  foreign = [name for name in files.listdir(job.output_dir) if name.startswith(("train-", "eval-"))]
  if foreign and not any(map(files.exists, written)):
    raise UserError(
      f"Records must not be mixed with others. Received: {job.output_dir}, which holds {foreign[0]} and no "
      f"{MANIFEST_NAME}. Choose an empty directory."
    )
  for path in written:
    files.write_json(path, job.plan)


def _check_same(directory: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
  differing = differences(theirs, ours)
  if differing:
    raise UserError(
      "An output directory holds the records of one input, made with one set of settings and versions. Received: "
      f"{directory}, made with others ({'; '.join(differing)}). Choose another directory, remove this one, or use its "
      "settings and versions."
    )


def write_shard(path: str, split: str, records: Iterable[bytes], *, plan: str) -> RecordFile:
  """Writes a final file, its index, and last the description by which a later run knows that it is complete.

  Args:
    path: of the file.
    split: train or eval.
    records: framed.
    plan: `plan_sha256`.
  """
  crc, indexer = 0, ShardIndexer()
  with files.atomic_writer(path) as stream:
    for record in records:
      stream.write(record)
      crc = google_crc32c.extend(crc, record)
      indexer.add(record)
  index = indexer.finish()
  index.save(path)
  written = RecordFile(os.path.basename(path), split, index.num_records, index.num_bytes, f"{crc:08x}")
  files.write_json(f"{path}.json", {"plan": plan, "file": dataclasses.asdict(written)})
  return written


def read_description(path: str, *, plan: str) -> RecordFile | None:
  """The description that `write_shard` wrote for a file; None without one of this plan."""
  if not files.exists(f"{path}.json"):
    return None
  described = files.read_json(f"{path}.json", plan=str)
  return RecordFile.from_dict(described["file"], source=f"{path}.json") if described["plan"] == plan else None
