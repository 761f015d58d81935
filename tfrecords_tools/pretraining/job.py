"""The job of making records, and the state of its directories.

Equal plans give equal bytes, so a directory is continued with an equal plan and refused with
another one. Nobody reads a terabyte to start or to continue: name, size and time of change stand
for an input file. Its folder may be another.
"""

from collections.abc import Sequence
import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import unicodedata

from albert_tf import files, json_files
from albert_tf.errors import UserError
from albert_tf.records import Manifest, RecordFile
from albert_tf.records.manifest import MANIFEST_NAME
from albert_tf.records.shard_index import INDEX_FOLDER, index_path
from albert_tf.settings import differences
from albert_tf.tokenization import Tokenizer
from tfrecords_tools.corpus import CorpusOptions, expected_text_bytes
from tfrecords_tools.pretraining.settings import Json, RecordSettings

STAGE_DIR_NAME = "_unfinished"
PLAN_NAME = "plan.json"
CODE_VERSION = 5  # Raise it when the same settings begin to give other bytes.
# Their versions decide the bytes: tokens, sentences, and the readers of formats other than text.
_PACKAGES = ("mwparserfromhell", "mwxml", "pyarrow", "sentencepiece", "sentencex")
_AT_ONCE = 16  # Files looked at together: a bucket takes its time to answer for each.
# Bytes of text in a block: enough to be worth a task, few enough to divide a small corpus among
# workers. Between the two, as many as give this number of blocks.
SMALLEST_BLOCK = 1 << 20
_LARGEST_BLOCK = 4 << 20
_NUM_BLOCKS = 4096


@dataclasses.dataclass(frozen=True)
class Job:
  """Input, settings and directories of one creation of records.

  Args:
    paths: input files, in the order that numbers them.
    text_sizes: about how much text each gives, in bytes.
    options, tokenizer, settings: how they are read, and what is made.
    output_dir: where the final files go.
    work_dir: directory of unfinished work.
    block_bytes: text of a block.
    plan: everything the bytes depend on, as JSON holds it: `settings`, `input` and `versions`.
  """

  paths: Sequence[str]
  text_sizes: Sequence[int]
  options: CorpusOptions
  tokenizer: Tokenizer
  settings: RecordSettings
  output_dir: str
  work_dir: str
  block_bytes: int
  plan: Json

  @property
  def stage_dir(self) -> str:
    """Where final files wait, on the file system of `output_dir`."""
    return os.path.join(self.output_dir, STAGE_DIR_NAME)

  @property
  def work_dirs(self) -> list[str]:
    """The directories of unfinished work; often both are the same."""
    return sorted({self.stage_dir, self.work_dir})

  @functools.cached_property
  def plan_sha256(self) -> str:
    """Final files carry it, so that none of another plan is ever taken."""
    return _sha256(self.plan)

  def file_sha256(self, file_index: int) -> str:
    """The same for a file of text: a change of another input file does not matter to it."""
    plan = dict(self.plan, input=self.plan["input"][file_index], block_bytes=self.block_bytes)
    return _sha256(plan)

  def check_input(self, file_index: int) -> None:
    """Raises `UserError` if an input file is another than when the job was made."""
    planned = self.plan["input"][file_index]
    (present,) = _look_at([self.paths[file_index]])
    if planned != present:
      unfinished = " and ".join(self.work_dirs)
      raise UserError(
        "Input files must not change while they are read. Received: "
        f"{self.paths[file_index]}, of {present['num_bytes']:,} bytes now and "
        f"{planned['num_bytes']:,} at the start. Restore it and give the same command again; for "
        f"other text remove {unfinished} first."
      )

  def finished_before(self) -> Manifest | None:
    """The manifest of an earlier, finished run with the same settings and input.

    Raises:
      UserError: the directory was made with another plan, or a file of it is gone.
    """
    manifest = Manifest.find(self.output_dir)
    if manifest is None:
      return None
    made_with = {"settings": manifest.settings, "input": manifest.input["files"]}
    _check_same(self.output_dir, made_with, _identity(self.plan))
    for file in manifest.files:
      path = os.path.join(self.output_dir, file.name)
      if not files.exists(path) or files.size(path) != file.num_bytes:
        raise UserError(
          f"Finished records must be complete. Received: {path}, which is missing or has another "
          f"size than {MANIFEST_NAME} says. Remove the directory and run again."
        )
    return manifest

  def prepare_work(self) -> None:
    """Makes the directories of unfinished work with the plan in them, or checks the plan there.

    Raises:
      UserError: unfinished work of another plan, records of unknown origin, a directory that is not
        writable.
    """
    files.makedirs(self.output_dir)
    continues = False
    plan_paths = [os.path.join(directory, PLAN_NAME) for directory in self.work_dirs]
    for directory, plan_path in zip(self.work_dirs, plan_paths, strict=True):
      files.makedirs(directory)
      begun_with = json_files.find(plan_path)
      if begun_with:
        continues = True
        begun_with = dict(begun_with, input=input_of(begun_with))
        _check_same(directory, begun_with, dict(self.plan, input=input_of(self.plan)))

    for name in files.listdir(self.output_dir):
      if name.startswith(("train-", "eval-")) and not continues:
        raise UserError(
          f"Records must not be mixed with others. Received: {self.output_dir}, which holds {name} "
          f"and no {MANIFEST_NAME}. Choose an empty directory."
        )
    for plan_path in plan_paths:
      json_files.write(plan_path, self.plan)

  def move_into_place(self, record_files: Sequence[RecordFile]) -> None:
    """Moves all final files into place together, so that a cut-short run shows none of them."""
    files.makedirs(os.path.join(self.output_dir, INDEX_FOLDER))
    for record_file in record_files:
      staged = os.path.join(self.stage_dir, record_file.name)
      final = os.path.join(self.output_dir, record_file.name)
      # The index goes first: one without its shard is harmless, a shard without its index is walked
      # once more.
      for source, target in ((index_path(staged), index_path(final)), (staged, final)):
        if files.exists(source):  # Else an earlier run has moved it.
          files.rename(source, target)

  def remove_work(self) -> None:
    """Removes the directories of unfinished work, except those of another plan.

    A kill may cut it short. What is left then has the plan or is empty, so the next start removes
    that, too.
    """
    for name in files.listdir(self.output_dir):
      if files.is_temporary(name):
        files.remove(os.path.join(self.output_dir, name))
    for directory in self.work_dirs:
      names = files.listdir(directory)
      if names and not self._has_this_plan(directory):
        continue
      # A file may be gone: in a bucket, or where another process does the same.
      with contextlib.suppress(FileNotFoundError):
        # The plan last: by it the next start knows what is left.
        for name in sorted(names, key=lambda name: name == PLAN_NAME):
          files.remove(os.path.join(directory, name))
        files.remove(directory)

  def _has_this_plan(self, directory: str) -> bool:
    """Whether a directory of unfinished work is of the same settings and input."""
    plan = json_files.find(os.path.join(directory, PLAN_NAME))
    return bool(plan) and _identity(plan) == _identity(self.plan)


def _sha256(plan: Json) -> str:
  return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()


def make_job(
  paths: Sequence[str],
  output_dir: str,
  *,
  tokenizer: Tokenizer,
  settings: RecordSettings,
  options: CorpusOptions,
  work_dir: str | None = None,
) -> Job:
  """The job of making records, whose input is looked at and not read.

  Args:
    paths: input files, in the order that numbers them.
    output_dir: for train-*, eval-*, manifest.json and the tokenizer.
    tokenizer, settings, options: what decides the bytes.
    work_dir: where a folder for unfinished work is made, and removed at the end; default
      `output_dir`.
  """
  input_files = _look_at(paths)
  sizes = [file["num_bytes"] for file in input_files]
  text_sizes = list(map(expected_text_bytes, paths, sizes))
  settings = settings.with_num_shards(sum(text_sizes))

  # Everything the bytes depend on.
  versions = {"unicode": unicodedata.unidata_version}
  for package in _PACKAGES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[package] = importlib.metadata.version(package)
  plan_settings = settings.to_dict() | {
    "corpus": options.to_dict(),
    "tokenizer": dataclasses.asdict(tokenizer.config) | {"sha256": tokenizer.model_sha256},
    "code_version": CODE_VERSION,
  }
  plan = {"settings": plan_settings, "input": input_files, "versions": versions}

  return Job(
    paths=paths,
    text_sizes=text_sizes,
    options=options,
    tokenizer=tokenizer,
    settings=settings,
    output_dir=output_dir,
    work_dir=os.path.join(work_dir or output_dir, STAGE_DIR_NAME),
    block_bytes=min(max(sum(sizes) // _NUM_BLOCKS, SMALLEST_BLOCK), _LARGEST_BLOCK),
    # As it will be read back, with lists for tuples, so that plans can be compared.
    plan=json.loads(json.dumps(plan)),
  )


def _look_at(paths: Sequence[str]) -> list[Json]:
  """What a plan says of input files."""
  with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
    sizes_and_times = pool.map(files.size_and_time, paths)
  return [
    {"name": os.path.basename(path), "num_bytes": size, "modified": time}
    for path, (size, time) in zip(paths, sizes_and_times, strict=True)
  ]


def input_of(plan: Json) -> list[Json]:
  """The input as the manifest names it: without times, so that copied files are the same."""
  return [{"name": file["name"], "num_bytes": file["num_bytes"]} for file in plan["input"]]


def _identity(plan: Json) -> Json:
  """What of a plan the finished records of a directory belong to.

  Versions do not matter: nothing more is made by another version.
  """
  return {"settings": plan["settings"], "input": input_of(plan)}


def _check_same(directory: str, made_with: Json, asked: Json) -> None:
  differing = differences(made_with, asked)
  if differing:
    raise UserError(
      "An output directory holds the records of one input, made with one set of settings and "
      f"versions. Received: {directory}, made with others ({'; '.join(differing)}). Choose "
      "another directory, remove this one, or use its settings and versions."
    )
