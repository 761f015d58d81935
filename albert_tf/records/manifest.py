"""`manifest.json`, which describes a directory of records."""

from collections.abc import Collection, Mapping, Sequence
import dataclasses
import os
from typing import Any, Literal

from albert_tf import files as file_lib
from albert_tf.errors import UserError
from albert_tf.records.features import PretrainingSpec
from albert_tf.settings import Settings, setting

MANIFEST_NAME = "manifest.json"
# Fields that the training and held-out records of a model must share.
MODEL_FIELDS = ("vocab_size", "vocab_sha256", "max_seq_length", "max_predictions_per_seq", "sentence_pair")
# Kind of pair → name of its sentence task in reports; other kinds have no labels.
TASK_OF_PAIR = {"sop": "sentence_order", "nsp": "next_sentence"}


class RecordFile(Settings, kw_only=False):
  """One file: its name in the directory, its split (train or eval), and its size and number of records."""

  name: str
  split: str
  num_records: int = setting(help="Number of records.", minimum=0, maximum=2**63 - 1)
  num_bytes: int = setting(help="Size of the file.", minimum=0, maximum=2**63 - 1)
  crc32c: str = setting(help="CRC-32C of the file.")


class Baseline(Settings, kw_only=False):
  """The most frequent masked token of train, and the accuracy of always predicting it, on train and eval records."""

  piece_id: int
  piece: str
  train_share: float
  eval_share: float | None


class Manifest(Settings, kw_only=False):
  """Description of records: files, settings, vocabulary and statistics. It has no times or names of machines."""

  vocab_size: int
  vocab_sha256: str
  max_seq_length: int
  max_predictions_per_seq: int
  sentence_pair: str
  random_seed: int = setting(help="Seed of all random choices.", maximum=2**63 - 1)
  files: tuple[RecordFile, ...] = setting(help="All files.")
  baseline: Baseline | None = None
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  input: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  statistics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
  format_version: Literal[1] = 1

  def __post_init__(self) -> None:
    super().__post_init__()
    if not self.spec or not isinstance(self.settings.get("tokenizer", {}), Mapping):
      raise UserError(
        f"The tokenizer in settings must be an object. Received: {self.settings['tokenizer']!r:.60}."
      )

  @property
  def spec(self) -> PretrainingSpec:
    return PretrainingSpec(self.max_seq_length, self.max_predictions_per_seq)

  @property
  def sentence_task(self) -> str:
    """Name of the sentence task in reports; empty if there are no labels."""
    return TASK_OF_PAIR.get(self.sentence_pair, "")

  @property
  def whole_word(self) -> str:
    """The setting `whole_word`."""
    return str(self.settings.get("whole_word", "original"))

  def files_of(self, split: str) -> tuple[RecordFile, ...]:
    return tuple(file for file in self.files if file.split == split)

  def num_records(self, split: str) -> int:
    return sum(file.num_records for file in self.files_of(split))

  def save(self, directory: str) -> None:
    """Writes `directory`/manifest.json atomically."""
    file_lib.write_json(os.path.join(directory, MANIFEST_NAME), self.to_dict())

  @classmethod
  def find(cls, directory: str) -> "Manifest | None":
    """Reads the manifest of `directory`, None if there is none; raises `UserError` if it is of another program."""
    path = os.path.join(directory, MANIFEST_NAME)
    return cls.from_dict(file_lib.read_json(path), source=path) if file_lib.exists(path) else None

  def check(self, *, source: str = "the records", **wanted: Any) -> None:
    """Raises `UserError` if a given value of `MODEL_FIELDS` contradicts the records; None: not checked."""
    wrong = [
      f"{name}: records {getattr(self, name)}, asked {value}"
      for name, value in wanted.items()
      if value is not None and value != getattr(self, name)
    ]
    if wrong:
      raise UserError(
        f"The model and {source} must agree. Received: {'; '.join(wrong)}. "
        "Train with the records' values, or make records with the model's vocabulary and lengths."
      )


def find_manifests(record_files: Sequence[str]) -> dict[str, Manifest]:
  """Directory of `record_files` → its manifest; {} if no directory has one.

  Raises:
    UserError: manifests contradict each other, only some directories have one, a file is not listed in the manifest
      beside it, or a listed file of a used split is missing.
  """
  names: dict[str, set[str]] = {}
  for path in record_files:
    names.setdefault(os.path.dirname(path), set()).add(os.path.basename(path))
  found = {directory: Manifest.find(directory) for directory in names}
  manifests = {directory: manifest for directory, manifest in found.items() if manifest is not None}
  if manifests and len(manifests) < len(found):
    without = next(directory for directory, manifest in found.items() if manifest is None)
    raise UserError(
      f"All directories of records must have a manifest, or none. Received: {next(iter(manifests))}, which has "
      f"a {MANIFEST_NAME}, and {without}, which has none. Copy it there from where the records were made, or leave "
      "those files out."
    )
  check_agreement(manifests, MODEL_FIELDS)
  for directory, manifest in manifests.items():
    listed = {file.name for file in manifest.files}
    unlisted = sorted(names[directory] - listed)
    if unlisted:
      raise UserError(
        f"Record files beside a {MANIFEST_NAME} must be those that it lists. Received: "
        f"{os.path.join(directory, unlisted[0])}, which is not listed. Name listed files only, such as "
        f"{min(listed, default='none')}, or move the other file out of the directory."
      )
    # A listed file that is not read may have been left out on purpose; one that is not there has been lost.
    splits = {file.split for file in manifest.files if file.name in names[directory]}
    lost = [name for name in missing_files(directory, manifest, splits) if name not in names[directory]]
    if lost:
      raise UserError(
        f"All files that a {MANIFEST_NAME} lists must be in its directory. Received: {directory or '.'}, "
        f"where {len(lost)} are missing, such as {lost[0]}. Copy them too; to go on with a part "
        f"of the records on purpose, remove the others from the list `files` in its {MANIFEST_NAME}."
      )
  return manifests


def check_files(found: Mapping[str, tuple[int, int]]) -> None:
  """Raises `UserError` for files, path → (records, bytes), that differ from their manifest."""
  for directory in {os.path.dirname(path) for path in found}:
    manifest = Manifest.find(directory)
    for file in manifest.files if manifest else ():
      path, listed = os.path.join(directory, file.name), (file.num_records, file.num_bytes)
      if found.get(path, listed) != listed:
        records, size = found[path]
        raise UserError(
          f"A record file must be the one that its {MANIFEST_NAME} describes. Received: {path} with {records:,} "
          f"records in {size:,} bytes, described with {file.num_records:,} in {file.num_bytes:,}. Copy it again "
          "from where the records were made, or make them again."
        )


def check_agreement(manifests: Mapping[str, Manifest], fields: Collection[str]) -> None:
  """Raises `UserError` for manifests that differ from the first in `fields` or in the normalisation of the text."""
  first = next(iter(manifests), "")
  values = {}
  for directory, manifest in manifests.items():
    tokenizer = {
      **manifest.settings.get("tokenizer", {}),
      "sha256": None,
    }  # Of the vocabulary, which is a field.
    values[directory] = {**{name: getattr(manifest, name) for name in fields}, **tokenizer}
  wrong = [
    f"{name} {value!r} in {directory}, {values[first][name]!r} in {first}"
    for directory, each in values.items()
    for name, value in each.items()
    if value != values[first].get(name, value)
  ]
  if wrong:
    raise UserError(
      f"Records of one run must have equal settings. Received: {'; '.join(wrong)}. Name directories that agree, or "
      "make the others again."
    )


def missing_files(
  directory: str, manifest: Manifest, splits: Collection[str] = ("train", "eval")
) -> list[str]:
  """Files of these splits that the manifest lists and its directory lacks; lists the directory once."""
  there = set(file_lib.listdir(directory or "."))
  return [file.name for file in manifest.files if file.split in splits and file.name not in there]
