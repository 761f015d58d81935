"""The run directory: whose it is, and the files that make it self-contained."""

from collections.abc import Mapping
import dataclasses
import json
import os
from typing import Any

from albert_tf import __version__, files
from albert_tf.errors import UserError
from albert_tf.pipelines.record_index import DataIdentity
from albert_tf.tokenization import load_tokenizer
from albert_tf.training.run_lock import LOCK_FILE
from albert_tf.training.settings import PretrainingSettings

RUN_FILE, CONFIG_FILE, FLAGS_FILE = "run.json", "albert_config.json", "flags.txt"


@dataclasses.dataclass(frozen=True)
class RunDirectory:
  """Paths inside a run directory, and whose it is."""

  path: str

  @property
  def checkpoints(self) -> str:
    return os.path.join(self.path, "checkpoints")

  def _write(self, name: str, text: str) -> None:
    with files.atomic_writer(os.path.join(self.path, name), "w") as stream:
      stream.write(text)

  def check_place(self) -> None:
    """Refuses a directory with other files than a run's, or without write permission; needs no look at the records."""
    self._refuse_write_protection()
    if self._read_identity() is None:
      self._refuse_foreign_files()

  def check(self, settings: PretrainingSettings, data: DataIdentity) -> None:
    """Refuses a directory that holds another run; writes nothing."""
    before, identity = self._read_identity(), json.loads(json.dumps(settings.identity(data)))
    if before is not None and before != identity:
      changed = sorted(key for key in before.keys() | identity.keys() if before.get(key) != identity.get(key))
      raise UserError(
        f"An output directory holds one run. Received: {self.path}, made with another {', '.join(changed)}: "
        + "; ".join(_difference(before.get(key), identity.get(key), key) for key in changed)
        + ". Choose a new --output_dir (with --init_checkpoint to start from these weights)."
      )

  def write(
    self,
    settings: PretrainingSettings,
    data: DataIdentity,
    *,
    versions: Mapping[str, str],
    flags_text: str = "",
  ) -> None:
    """Writes run.json, flags.txt, albert_config.json and the tokenizer; `UserError` where that cannot be done.

    Args:
      versions: of the software, for the record.
      flags_text: the command's resolved flags, if a command made the settings.
    """
    files.makedirs(self.path)
    record = {
      "identity": settings.identity(data),
      "settings": settings.to_dict(),
      "versions": {"albert_tf": __version__, **versions},
    }
    try:
      # First, so that a directory with any other file of ours has it: one killed here can be continued.
      self._write(RUN_FILE, json.dumps(record, indent=2) + "\n")
      for name in filter(files.is_unfinished, files.listdir(self.path)):
        files.remove(os.path.join(self.path, name))
      self._write(CONFIG_FILE, settings.model.to_json_string())
      if flags_text:
        self._write(FLAGS_FILE, flags_text)
      if settings.tokenizer_path:
        load_tokenizer(settings.tokenizer_path).save_pretrained(self.path)
    except files.StoreError:
      raise
    except OSError as error:
      raise UserError(
        f"The output directory must be writable. Received: {self.path} ({error.strerror or error}). "
        "Choose another --output_dir or change its permissions."
      ) from error

  def _read_identity(self) -> dict[str, Any] | None:
    path = os.path.join(self.path, RUN_FILE)
    if not files.exists(path):
      return None
    try:
      return json.loads(files.read_bytes(path))["identity"]
    except (ValueError, KeyError, TypeError) as error:
      raise UserError(
        f"{RUN_FILE} must be one that run_pretrain.py wrote. Received: {path} ({error}). Choose a new --output_dir."
      ) from error

  def _refuse_write_protection(self) -> None:
    if files.is_remote(self.path):
      return
    existing = self.path or "."
    while not files.exists(existing):
      existing = os.path.dirname(existing) or "."
    if not (files.isdir(existing) and os.access(existing, os.W_OK | os.X_OK)):
      raise UserError(
        f"The output directory must be writable. Received: {self.path}, where {existing} allows no writing. "
        "Choose another --output_dir or change its permissions."
      )

  def _refuse_foreign_files(self) -> None:
    found = [name for name in files.listdir(self.path) if name != LOCK_FILE and not files.is_unfinished(name)]
    if found:
      raise UserError(
        f"A new run needs an empty or new output directory. Received: {self.path}, which holds {', '.join(found[:4])}"
        f"{', …' if len(found) > 4 else ''} and no {RUN_FILE}. Choose another --output_dir."
      )


def _difference(before: Any, now: Any, key: str) -> str:
  if isinstance(before, dict) and isinstance(now, dict):
    changed = [name for name in before.keys() | now.keys() if before.get(name) != now.get(name)]
    return ", ".join(f"{name} {before.get(name)} → {now.get(name)}" for name in sorted(changed))
  return f"{key} {before} → {now}"
