"""Which records a directory holds or is about to hold: equal plans give equal bytes, others are refused."""

from collections.abc import Sequence
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
from tfrecords_tools.pretraining.input_files import input_differences, input_names_and_sizes
from tfrecords_tools.pretraining.settings import RecordSettings

PLAN_NAME = "plan.json"
CODE_VERSION = 1  # Raise it when the same settings begin to give other bytes.
_VERSIONS_OF_PAIRS = {
  "nsp": 2
}  # Where that holds of one kind of pair alone. 2: B is never of the same document.
# Whose versions decide the bytes: the pieces, the sentences, and what the formats beside text are read with.
_PACKAGES = ("mwparserfromhell", "mwxml", "pyarrow", "sentencepiece", "sentencex")
_ON_BAD_TEXT = "settings.corpus.on_bad_text"


def make_plan(
  described: Sequence[dict[str, Any]],
  tokenizer: Tokenizer,
  settings: RecordSettings,
  options: CorpusOptions,
) -> dict[str, Any]:
  """Everything the bytes depend on: `settings`, `input` as far as it is known, and `versions`."""
  return {
    "settings": {
      **dataclasses.asdict(settings),
      "corpus": dataclasses.asdict(options),
      "tokenizer": {**dataclasses.asdict(tokenizer.config), "sha256": tokenizer.model_sha256},
      "code_version": _VERSIONS_OF_PAIRS.get(settings.sentence_pair, CODE_VERSION),
    },
    "input": {"files": list(described)},
    "versions": package_versions(),
  }


def plan_sha256(plan: dict[str, Any]) -> str:
  """One number for a plan, for the notes of what has been made by it.

  It is the same whatever is done with bad text: a run that stopped at some goes on when told what to do with it.
  """
  settings = plan["settings"]
  corpus = {name: value for name, value in settings["corpus"].items() if name != "on_bad_text"}
  known = {**plan["input"], "files": input_names_and_sizes(plan["input"]["files"])}
  decides = {**plan, "settings": {**settings, "corpus": corpus}, "input": known}
  return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def package_versions() -> dict[str, str]:
  """What decides the bytes beside this project: its packages, where installed, and Python's Unicode tables."""
  versions = {"unicode": unicodedata.unidata_version}
  for package in _PACKAGES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[package] = importlib.metadata.version(package)
  return versions


def _completed(manifest: Manifest, settings: dict[str, Any]) -> dict[str, Any]:
  """The settings of a manifest with what older ones leave unsaid, as far as `settings` say it."""
  said = {"dedup": "none", **manifest.settings, "whole_word": manifest.whole_word}
  said.pop("whole_word_mask", None)
  unsaid = {"keep_accents": False} if "keep_accents" in settings["tokenizer"] else {}
  return {**said, "tokenizer": {**unsaid, **said.get("tokenizer", {})}}


def finished_before(output_dir: str, plan: dict[str, Any]) -> Manifest | None:
  """The manifest of an earlier, finished run with the same settings and input; by which versions does not matter then.

  Raises:
    UserError: the directory was made with another plan, or a file of it is gone.
  """
  if not files.exists(os.path.join(output_dir, MANIFEST_NAME)):
    return None
  manifest = Manifest.load(output_dir)
  known = {
    name: value for name, value in manifest.input.items() if name != "sha256"
  }  # That is of the content.
  made = {"settings": _completed(manifest, plan["settings"]), "input": known}
  differing = _differing(made, {name: plan[name] for name in made})
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


def remove_work(work_dirs: Sequence[str], plan: dict[str, Any]) -> None:
  """Removes those of the directories whose note is of this plan."""
  settings = json.loads(json.dumps(plan["settings"]))
  for directory in work_dirs:
    path = os.path.join(directory, PLAN_NAME)
    if files.exists(path) and json.loads(files.read_bytes(path))["settings"] == settings:
      files.remove(directory)


def prepare_work(output_dir: str, work_dirs: Sequence[str], plan: dict[str, Any]) -> None:
  """Makes the directories and notes the plan in those of unfinished work, or checks what an earlier run noted.

  Raises:
    UserError: unfinished work of another plan, records of unknown origin, a directory that is not writable.
  """
  for directory in (output_dir, *work_dirs):
    files.makedirs(directory)
  noted = [os.path.join(directory, PLAN_NAME) for directory in work_dirs]
  for path in filter(files.exists, noted):
    differing = _differing(json.loads(files.read_bytes(path)), plan)
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


def _differing(theirs: dict[str, Any], ours: dict[str, Any]) -> list[str]:
  """What would give other bytes than those that are there."""
  found = _differences(theirs, ours)
  # While bad text is an error there is none in what is finished, which is then the same whatever is done with it.
  return [each for each in found if not each.startswith(f'{_ON_BAD_TEXT}: there "error"')]


def _differences(theirs: Any, ours: Any, prefix: str = "") -> list[str]:
  if prefix == "input.files":
    return input_differences(theirs, ours)
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
    "An output directory holds the records of one input, made with one set of settings and versions. Received: "
    f"{directory}, made with others ({'; '.join(differing)}). Choose another directory, remove this one, or use its "
    "settings and versions."
  )
