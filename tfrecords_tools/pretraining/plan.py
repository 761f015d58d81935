"""Which records a directory holds or is about to hold: equal plans give equal bytes, others are refused.

Nobody reads a terabyte to start or to continue: before the work, name, size and time of change stand for an input file,
and its CRC32C is summed up where its text is read anyway. The folder of the input may be another.
"""

from collections.abc import Mapping, Sequence
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
from typing import Any
import unicodedata

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.records import Manifest
from albert_tf.records.manifest import MANIFEST_NAME
from albert_tf.tokenization import Tokenizer
from tfrecords_tools.corpus import CorpusOptions
from tfrecords_tools.pretraining.settings import RecordSettings

PLAN_NAME = "plan.json"
CODE_VERSION = 1  # Raise it when the same settings begin to give other bytes.
# Whose versions decide the bytes: the pieces, the sentences, and what the formats beside text are read with.
_PACKAGES = ("mwparserfromhell", "mwxml", "pyarrow", "sentencepiece", "sentencex")
_AT_ONCE = 16  # Files looked at together: a bucket takes its time to answer for each.


def describe_input(paths: Sequence[str]) -> list[dict[str, Any]]:
  """Name, size and time of change of each file, without reading it."""
  with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
    found = list(pool.map(files.size_and_time, paths))
  return [
    {"name": os.path.basename(path), "num_bytes": num_bytes, "modified": modified}
    for path, (num_bytes, modified) in zip(paths, found, strict=True)
  ]


def make_plan(
  described: Sequence[Mapping[str, Any]],
  tokenizer: Tokenizer,
  settings: RecordSettings,
  options: CorpusOptions,
) -> dict[str, Any]:
  """Everything the bytes depend on, as JSON holds it: `settings`, `input` as far as it is known, and `versions`."""
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
    "input": {"files": list(described)},
    "versions": versions,
  }
  loaded: dict[str, Any] = json.loads(json.dumps(plan))
  return loaded


def plan_sha256(plan: Mapping[str, Any]) -> str:
  """One number for a plan, for the files of unfinished work."""
  return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()


def input_as_read(
  described: Sequence[Mapping[str, Any]], checksums: Mapping[int, tuple[int, str]]
) -> dict[str, Any]:
  """The input as the manifest shows it: with the content that was read.

  Args:
    described: of `describe_input`.
    checksums: of each file, by its number: the bytes that were read, and their CRC32C.

  Raises:
    UserError: a file is not as large as when the work began.
  """
  read = []
  for index, file in enumerate(described):
    size, crc = checksums[index]
    if size != file["num_bytes"]:
      raise UserError(
        f"The input must not change while records are made of it. Received: {file['name']}, "
        f"{file['num_bytes']:,} bytes when the work began and {size:,} when it was read. "
        "Remove the unfinished work and give the same command again."
      )
    read.append({"name": file["name"], "num_bytes": size, "crc32c": crc})
  return {"files": read, "sha256": hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()}


def finished_before(output_dir: str, plan: Mapping[str, Any]) -> Manifest | None:
  """The manifest of an earlier, finished run with the same settings and input; by which versions does not matter then.

  Raises:
    UserError: the directory was made with another plan, or a file of it is gone.
  """
  manifest = Manifest.find(output_dir)
  if manifest is None:
    return None
  _check_same(
    output_dir,
    {"settings": manifest.settings, "input": _names_and_sizes(manifest.input)},
    {"settings": plan["settings"], "input": _names_and_sizes(plan["input"])},
  )
  for file in manifest.files:
    path = os.path.join(output_dir, file.name)
    if not files.exists(path) or files.size(path) != file.num_bytes:
      raise UserError(
        f"Finished records must be complete. Received: {path}, which is missing or has another size than "
        f"{MANIFEST_NAME} says. Remove the directory and run again."
      )
  return manifest


def _names_and_sizes(described: Mapping[str, Any]) -> list[list[Any]]:
  return [[file["name"], file["num_bytes"]] for file in described["files"]]


def remove_work(work_dirs: Sequence[str], plan: Mapping[str, Any]) -> None:
  """Removes those of the directories that hold unfinished work with these settings."""
  for directory in work_dirs:
    path = os.path.join(directory, PLAN_NAME)
    if files.exists(path) and json.loads(files.read_bytes(path))["settings"] == plan["settings"]:
      files.remove(directory)


def prepare_work(output_dir: str, work_dirs: Sequence[str], plan: Mapping[str, Any]) -> None:
  """Makes the directories and writes the plan into those of unfinished work, or checks the one that is there.

  Raises:
    UserError: unfinished work of another plan, records of unknown origin, a directory that is not writable.
  """
  for directory in (output_dir, *work_dirs):
    files.makedirs(directory)
  written = [os.path.join(directory, PLAN_NAME) for directory in work_dirs]
  for path in filter(files.exists, written):
    _check_same(os.path.dirname(path), json.loads(files.read_bytes(path)), plan)
  foreign = [name for name in files.listdir(output_dir) if name.startswith(("train-", "eval-"))]
  if foreign and not any(map(files.exists, written)):
    raise UserError(
      f"Records must not be mixed with others. Received: {output_dir}, which holds {foreign[0]} and no "
      f"{MANIFEST_NAME}. Choose an empty directory."
    )
  for path in written:
    files.write_json(path, plan)


def _check_same(directory: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
  differing = _differences(theirs, ours)
  if differing:
    raise UserError(
      "An output directory holds the records of one input, made with one set of settings and versions. Received: "
      f"{directory}, made with others ({'; '.join(differing)}). Choose another directory, remove this one, or use its "
      "settings and versions."
    )


def _differences(theirs: Any, ours: Any, name: str = "") -> list[str]:
  """What differs between two plans, by the dotted names of the values."""
  if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
    return [
      each
      for key in sorted({*theirs, *ours})
      for each in _differences(theirs.get(key), ours.get(key), f"{name}.{key}" if name else key)
    ]
  if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
    return [each for a, b in zip(theirs, ours, strict=True) for each in _differences(a, b, name)]
  if theirs == ours:
    return []
  there, now = (f"{json.dumps(value):.100}" for value in (theirs, ours))
  return [f"{name}: there {there}, now {now}"]
