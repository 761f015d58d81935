"""`manifest.json`, which describes a directory of records."""

from collections.abc import Collection, Mapping, Sequence
import dataclasses
import os
from typing import Any, Literal

from albert_tf import files as file_lib
from albert_tf import json_files
from albert_tf.errors import UserError
from albert_tf.records.features import PretrainingSpec
from albert_tf.settings import Settings, setting

MANIFEST_NAME = "manifest.json"
# Fields that the training and held-out records of a model must share.
MODEL_FIELDS = (
  "vocab_size",
  "vocab_sha256",
  "max_seq_length",
  "max_predictions_per_seq",
  "sentence_pair",
)
# The meaning of the sentence labels; empty without labels.
SentenceTask = Literal["sentence_order", "next_sentence", ""]
# Kind of pair → name of its sentence task in reports; other kinds have no labels.
TASK_OF_PAIR: dict[str, SentenceTask] = {"sop": "sentence_order", "nsp": "next_sentence"}


class RecordFile(Settings, kw_only=False):
  """One file: its name in the directory, its split (train or eval), and what it holds."""

  name: str
  split: str
  num_records: int = setting(help="Number of records.", minimum=0, maximum=2**63 - 1)
  num_bytes: int = setting(help="Size of the file.", minimum=0, maximum=2**63 - 1)
  crc32c: str = setting(help="CRC-32C of the file.")


class Baseline(Settings, kw_only=False):
  """The most frequent masked token of train, and the accuracy of always predicting it."""

  piece_id: int
  piece: str
  train_share: float
  eval_share: float | None


class Manifest(Settings, kw_only=False):
  """Description of records: files, settings, vocabulary and statistics.

  It has no times or names of machines, so that equal records have equal manifests.
  """

  vocab_size: int
  vocab_sha256: str
  max_seq_length: int
  max_predictions_per_seq: int
  sentence_pair: str
  random_seed: int = setting(help="Seed of all random choices.", minimum=0, maximum=2**63 - 1)
  files: tuple[RecordFile, ...] = setting(help="All files.")
  baseline: Baseline | None = None
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  input: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  statistics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
  format_version: Literal[1] = 1

  def __post_init__(self) -> None:
    super().__post_init__()
    _ = self.spec  # Checks the lengths.
    if not isinstance(self.settings.get("tokenizer", {}), Mapping):
      raise UserError(
        "The tokenizer in settings must be an object. Received: "
        f"{self.settings['tokenizer']!r:.60}."
      )

  @property
  def spec(self) -> PretrainingSpec:
    return PretrainingSpec(self.max_seq_length, self.max_predictions_per_seq)

  @property
  def sentence_task(self) -> SentenceTask:
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
    json_files.write(os.path.join(directory, MANIFEST_NAME), self.to_dict())

  @classmethod
  def find(cls, directory: str) -> "Manifest | None":
    """Reads the manifest of `directory`; None if there is none.

    Raises:
      UserError: it is damaged, or of another program.
    """
    path = os.path.join(directory, MANIFEST_NAME)
    if not file_lib.exists(path):
      return None
    return cls.from_dict(json_files.read(path), source=path)

  def check(self, *, source: str = "the records", **asked: Any) -> None:
    """Raises `UserError` if a value of `MODEL_FIELDS` contradicts the records; None is no value."""
    wrong = []
    for name, value in asked.items():
      if value is not None and value != getattr(self, name):
        wrong.append(f"{name}: records {getattr(self, name)}, asked {value}")
    if wrong:
      raise UserError(
        f"The model and {source} must agree. Received: {'; '.join(wrong)}. Train with the records' "
        "values, or make records with the model's vocabulary and lengths."
      )


def find_manifests(record_files: Sequence[str]) -> dict[str, Manifest]:
  """Directory of `record_files` → its manifest; {} if no directory has one.

  Raises:
    UserError: manifests contradict each other, only some directories have one, a file is not listed
      in the manifest beside it, or a listed file of a used split is missing.
  """
  # Read the manifest of each directory once.
  names_of: dict[str, set[str]] = {}
  for path in record_files:
    names_of.setdefault(os.path.dirname(path), set()).add(os.path.basename(path))
  manifest_or_none = {directory: Manifest.find(directory) for directory in names_of}
  manifests = {
    name: manifest for name, manifest in manifest_or_none.items() if manifest is not None
  }
  without = [directory for directory in names_of if directory not in manifests]
  if manifests and without:
    raise UserError(
      "All directories of records must have a manifest, or none. Received: "
      f"{min(manifests)}, which has a {MANIFEST_NAME}, and {without[0]}, which has none. Copy "
      "it there from where the records were made, or leave those files out."
    )

  # Compare the manifests with each other, and the files with their manifest.
  check_agreement(manifests)
  for directory, manifest in manifests.items():
    _check_names(directory, manifest, names_of[directory])
  return manifests


def _check_names(directory: str, manifest: Manifest, names: set[str]) -> None:
  """Raises `UserError` if files of a directory are read that it does not list, or listed are lost.

  Args:
    directory: of the manifest.
    manifest: what the directory lists.
    names: of the files that are read.
  """
  # A file that was copied into the directory may be held out, or of another vocabulary.
  listed = {file.name for file in manifest.files}
  unlisted = sorted(names - listed)
  if unlisted:
    raise UserError(
      f"Record files beside a {MANIFEST_NAME} must be those that it lists. Received: "
      f"{os.path.join(directory, unlisted[0])}, which is not listed. Name listed files only, such "
      f"as {min(listed, default='none')}, or move the other file out of the directory."
    )
  # A listed file that is not read may have been left out on purpose; one that is not there has been
  # lost.
  splits = {file.split for file in manifest.files if file.name in names}
  # A report names files that were read long ago; whoever reads them now sees that they are gone.
  lost = [name for name in missing_files(directory, manifest, splits) if name not in names]
  if lost:
    raise UserError(
      f"All files that a {MANIFEST_NAME} lists must be in its directory. Received: "
      f"{directory or '.'}, where {len(lost)} are missing, such as {lost[0]}. Copy them too; to go "
      "on with a part of the records on purpose, remove the others from the list `files` in its "
      f"{MANIFEST_NAME}."
    )


def missing_files(
  directory: str, manifest: Manifest, splits: Collection[str] = ("train", "eval")
) -> list[str]:
  """Files of these splits that the manifest lists and its directory lacks."""
  present = set(file_lib.listdir(directory or "."))  # One listing: a bucket takes its time.
  return [file.name for file in manifest.files if file.split in splits and file.name not in present]


def check_files(sizes: Mapping[str, tuple[int, int]]) -> None:
  """Raises `UserError` for files, path → (records, bytes), that differ from their manifest."""
  # Files without a manifest beside them, as the original's, cannot be compared.
  for directory in {os.path.dirname(path) for path in sizes}:
    manifest = Manifest.find(directory)
    if manifest is None:
      continue
    for file in manifest.files:
      path = os.path.join(directory, file.name)
      if path not in sizes or sizes[path] == (file.num_records, file.num_bytes):
        continue
      num_records, num_bytes = sizes[path]
      raise UserError(
        f"A record file must be the one that its {MANIFEST_NAME} describes. Received: {path} with "
        f"{num_records:,} records in {num_bytes:,} bytes, described with {file.num_records:,} in "
        f"{file.num_bytes:,}. Copy it again from where the records were made, or make them again."
      )


def check_agreement(manifests: Mapping[str, Manifest]) -> None:
  """Raises `UserError` for manifests that differ in `MODEL_FIELDS` or in the text's normalisation.

  They are compared with the first one.
  """
  wrong = []
  first_directory = ""
  first_values: dict[str, Any] = {}
  for directory, manifest in manifests.items():
    values = {name: getattr(manifest, name) for name in MODEL_FIELDS}
    values.update(manifest.settings.get("tokenizer", {}))
    values.pop("sha256", None)  # Of the vocabulary, which is a field.
    if not first_values:
      first_directory = directory
      first_values = values
    for name, value in values.items():
      first_value = first_values.get(name, value)
      if value != first_value:
        wrong.append(f"{name} {value!r} in {directory}, {first_value!r} in {first_directory}")
  if wrong:
    raise UserError(
      f"Records of one run must have equal settings. Received: {'; '.join(wrong)}. Name "
      "directories that agree, or make the others again."
    )
