"""The run directory: identity of the run, configuration, flags, tokenizer."""

import dataclasses
import json
import os
import platform
from typing import Any

import tensorflow as tf

from albert_tf import __version__, compat, files
from albert_tf.errors import UserError
from albert_tf.lock import is_lock
from albert_tf.tokenization import load_tokenizer
from albert_tf.training.settings import PretrainingSettings

RUN_FILE, CONFIG_FILE, FLAGS_FILE = "run.json", "albert_config.json", "flags.txt"


@dataclasses.dataclass(frozen=True)
class RunDirectory:
  """Paths of a run directory, and the identity of its run."""

  path: str

  @property
  def checkpoints(self) -> str:
    return os.path.join(self.path, "checkpoints")

  def check(self, settings: PretrainingSettings, record_content: str) -> None:
    """Raises `UserError` if the directory holds another run or other files; writes nothing."""
    found = [name for name in files.listdir(self.path) if not (is_lock(name) or files.is_unfinished(name))]
    before, identity = self._identity(), json.loads(json.dumps(settings.identity(record_content)))
    if found and before is None:
      raise UserError(
        f"A new run needs an empty or new output directory. Received: {self.path}, which holds {', '.join(found[:4])}"
        f"{', …' if len(found) > 4 else ''} and no {RUN_FILE} of pretraining. Choose another --output_dir."
      )
    if before is not None and before != identity:
      changed = sorted(key for key in before.keys() | identity.keys() if before.get(key) != identity.get(key))
      raise UserError(
        f"An output directory holds one run. Received: {self.path}, made with another {', '.join(changed)}: "
        + "; ".join(difference(key, before.get(key), identity.get(key)) for key in changed)
        + ". Choose a new --output_dir (with --init_checkpoint to start from these weights)."
      )

  def write(self, settings: PretrainingSettings, record_content: str, *, flags_text: str = "") -> None:
    """Writes run.json, flags.txt, albert_config.json and the tokenizer."""
    files.makedirs(self.path)
    record = {
      "identity": settings.identity(record_content),
      "settings": settings.to_dict(),
      "versions": {
        "albert_tf": __version__,
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": compat.keras.__version__,
      },
    }
    # Written first, so that a run killed here can be continued.
    files.write_json(os.path.join(self.path, RUN_FILE), record)
    for name in filter(files.is_unfinished, files.listdir(self.path)):
      files.remove(os.path.join(self.path, name))
    files.write_text(os.path.join(self.path, CONFIG_FILE), settings.model.to_json_string())
    if flags_text:
      files.write_text(os.path.join(self.path, FLAGS_FILE), flags_text)
    if settings.tokenizer_path:
      load_tokenizer(settings.tokenizer_path).save_pretrained(self.path)

  def _identity(self) -> dict[str, Any] | None:
    path = os.path.join(self.path, RUN_FILE)
    return files.read_json(path, identity=dict | None).get("identity") if files.exists(path) else None


def difference(name: str, before: Any, now: Any) -> str:
  """The changed fields, as "name before → now"."""
  if isinstance(before, dict) and isinstance(now, dict):
    names = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    return ", ".join(difference(key, before.get(key), now.get(key)) for key in names)
  return f"{name} {before} → {now}"
