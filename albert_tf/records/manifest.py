"""What a directory of records holds: `manifest.json`."""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import os
from typing import Any

from albert_tf import files as file_lib
from albert_tf.errors import UserError
from albert_tf.records.features import PretrainingSpec

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True)
class RecordFile:
  """One file: its name in the directory, its split (train|eval), and what it must contain.

  `source` is the named part of the corpus that held-out records are of; empty where none is named, and of train.
  """

  name: str
  split: str
  num_records: int
  num_bytes: int
  crc32c: str
  source: str = ""


@dataclasses.dataclass(frozen=True)
class Baseline:
  """The piece most often masked in train: the accuracy, on train and held out, of always answering it."""

  piece_id: int
  piece: str
  train_share: float
  eval_share: float | None


@dataclasses.dataclass(frozen=True)
class Manifest:
  """Everything training must know about records, and everything that made them.

  It holds no times, host names or worker counts: equal input, settings and seed
  give an equal manifest.
  """

  vocab_size: int
  vocab_sha256: str
  max_seq_length: int
  max_predictions_per_seq: int
  sentence_pair: str
  random_seed: int
  files: tuple[RecordFile, ...]
  record_layout: str = "example"
  baseline: Baseline | None = None
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  input: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  statistics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
  format_version: int = FORMAT_VERSION

  @property
  def spec(self) -> PretrainingSpec:
    return PretrainingSpec(self.max_seq_length, self.max_predictions_per_seq)

  @property
  def whole_word(self) -> str:
    """Where words begin: the setting of that name; older records noted only whether there were any."""
    before = "original" if self.settings.get("whole_word_mask", True) else "none"
    return self.settings.get("whole_word", before)

  def files_of(self, split: str) -> tuple[RecordFile, ...]:
    return tuple(file for file in self.files if file.split == split)

  def num_records(self, split: str) -> int:
    return sum(file.num_records for file in self.files_of(split))

  def save(self, directory: str) -> None:
    """Writes `directory`/manifest.json atomically."""
    with file_lib.atomic_writer(os.path.join(directory, MANIFEST_NAME), "w") as stream:
      stream.write(json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n")

  @classmethod
  def load(cls, directory: str) -> "Manifest":
    """Reads the manifest of `directory`; `UserError` where there is none, or not one of ours."""
    path = os.path.join(directory, MANIFEST_NAME)
    if not file_lib.exists(path):
      raise UserError(
        f"A directory of finished records has a {MANIFEST_NAME}. Received: {directory}, which has none. "
        "Run create_pretraining_data.py again to finish it."
      )
    with file_lib.open_binary(path) as stream:
      raw = stream.read()
    try:
      fields = json.loads(raw)
      fields["files"] = tuple(RecordFile(**entry) for entry in fields["files"])
      if fields.get("baseline"):
        fields["baseline"] = Baseline(**fields["baseline"])
      return cls(**fields)
    except (ValueError, KeyError, TypeError) as error:
      raise UserError(
        f"{MANIFEST_NAME} must be one that create_pretraining_data.py wrote. Received: {path} ({error}). "
        "Make the records again."
      ) from error

  def check(
    self,
    *,
    vocab_size: int | None = None,
    vocab_sha256: str | None = None,
    max_seq_length: int | None = None,
    max_predictions_per_seq: int | None = None,
    source: str = "the records",
  ) -> None:
    """Refuses a model that contradicts the records, with every field that differs; `None` is not compared."""
    wanted = {
      "vocab_size": vocab_size,
      "vocab_sha256": vocab_sha256,
      "max_seq_length": max_seq_length,
      "max_predictions_per_seq": max_predictions_per_seq,
    }
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


def find_manifest(record_files: Sequence[str]) -> Manifest | None:
  """The manifest beside `record_files`, or None where the first directory has none (foreign records)."""
  directory = os.path.dirname(record_files[0])
  return Manifest.load(directory) if file_lib.exists(os.path.join(directory, MANIFEST_NAME)) else None
