"""Which records a directory holds or is about to hold: equal plans give equal bytes, others are refused."""

from collections.abc import Sequence
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import platform
from typing import Any

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.records import Manifest
from albert_tf.records.manifest import MANIFEST_NAME
from albert_tf.tokenization import Tokenizer
from tfrecords_tools.corpus import CorpusOptions
from tfrecords_tools.pretraining.settings import PretrainingSettings
from tfrecords_tools.pretraining.shards import size_and_crc32c

PLAN_NAME = "plan.json"
CODE_VERSION = 1  # Raise it when the same settings begin to give other bytes.


def make_plan(
  paths: Sequence[str], tokenizer: Tokenizer, settings: PretrainingSettings, options: CorpusOptions
) -> dict[str, Any]:
  """Everything the bytes depend on: `settings` and `input`, as the manifest will show them."""
  described = [_describe_file(path) for path in paths]
  return {
    "settings": {
      **dataclasses.asdict(settings),
      "corpus": dataclasses.asdict(options),
      "tokenizer": {**dataclasses.asdict(tokenizer.config), "sha256": tokenizer.model_sha256},
      "code_version": CODE_VERSION,
    },
    "input": {
      "files": described,
      "sha256": hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest(),
    },
  }


def _describe_file(path: str) -> dict[str, Any]:
  """Name, size and CRC32C: what `the same input` means. The folder may be another."""
  size, crc = size_and_crc32c(path)
  return {"name": os.path.basename(path), "num_bytes": size, "crc32c": crc}


def package_versions() -> dict[str, str]:
  """What made the records, for the manifest."""
  packages = ("numpy", "sentencepiece", "google-crc32c")
  return {
    "python": platform.python_version(),
    **{package: importlib.metadata.version(package) for package in packages},
  }


def finished_before(output_dir: str, plan: dict[str, Any]) -> Manifest | None:
  """The manifest of an earlier, finished run with the same plan.

  Raises:
    UserError: the directory was made with another plan, or a file of it is gone.
  """
  if not files.exists(os.path.join(output_dir, MANIFEST_NAME)):
    return None
  manifest = Manifest.load(output_dir)
  differing = _differences({"settings": manifest.settings, "input": manifest.input}, plan)
  if differing:
    raise _refusal(output_dir, differing)
  for file in manifest.files:
    path = os.path.join(output_dir, file.name)
    if not files.exists(path) or files.size(path) != file.num_bytes:
      raise UserError(
        f"Finished records must be whole. Received: {path}, which is missing or has another size than "
        f"{MANIFEST_NAME} says. Remove the directory and run again."
      )
  return manifest


def prepare_work(output_dir: str, work_dirs: Sequence[str], plan: dict[str, Any]) -> None:
  """Makes the directories and notes the plan in those of unfinished work, or checks what an earlier run noted.

  Raises:
    UserError: unfinished work of another plan, records of unknown origin, a directory that is not writable.
  """
  for directory in (output_dir, *work_dirs):
    files.makedirs(directory)
  noted = [os.path.join(directory, PLAN_NAME) for directory in work_dirs]
  for path in filter(files.exists, noted):
    differing = _differences(json.loads(files.read_bytes(path)), plan)
    if differing:
      raise _refusal(os.path.dirname(path), differing)
  foreign = [name for name in files.listdir(output_dir) if name.startswith(("train-", "eval-"))]
  if foreign and not any(map(files.exists, noted)):
    raise UserError(
      f"Records must not be mixed with others. Received: {output_dir}, which holds {foreign[0]} and no "
      f"{MANIFEST_NAME}. Choose an empty directory."
    )
  for path in noted:
    with files.atomic_writer(path, "w") as stream:
      stream.write(json.dumps(plan, indent=2) + "\n")


def _differences(theirs: Any, ours: Any, prefix: str = "") -> list[str]:
  if isinstance(theirs, dict) and isinstance(ours, dict):
    found = []
    for key in sorted({*theirs, *ours}):
      found += _differences(theirs.get(key), ours.get(key), f"{prefix}.{key}" if prefix else key)
    return found
  return [] if theirs == ours else [f"{prefix}: there {_short(theirs)}, now {_short(ours)}"]


def _short(value: Any) -> str:
  text = json.dumps(value)
  return text if len(text) < 100 else f"{text[:97]}..."


def _refusal(directory: str, differing: list[str]) -> UserError:
  return UserError(
    f"An output directory holds the records of one input and one set of settings. Received: {directory}, "
    f"made with others ({'; '.join(differing)}). Choose another directory, remove this one, or use its "
    "settings."
  )
