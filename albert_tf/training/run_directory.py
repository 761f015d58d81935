"""The directory of a run, of pretraining or of fine-tuning: its identity, configuration, flags, tokenizer."""

from collections.abc import Mapping, Sequence
import json
import os
import platform
from typing import Any

import tensorflow as tf

from albert_tf import __version__, compat, files
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.lock import is_lock
from albert_tf.settings import differences
from albert_tf.tokenization import Tokenizer

RUN_FILE, CONFIG_FILE, FLAGS_FILE = "run.json", "albert_config.json", "flags.txt"


def check(directory: str, identity: Mapping[str, Any] | None = None, *, beside: Sequence[str] = ()) -> None:
  """Checks that a directory is new, empty or of this run; writes nothing.

  Args:
    directory: of the run.
    identity: what must not change when the run is continued; None: anything may.
    beside: beginnings of the names that may be in a directory without run.json.

  Raises:
    UserError: it holds another run or other files.
  """
  path = os.path.join(directory, RUN_FILE)
  if files.exists(path):
    before = files.read_json(path, identity=dict)["identity"]
    changed = [] if identity is None else differences(before, json.loads(json.dumps(identity)))
    if changed:
      raise UserError(
        f"An output directory holds one run. Received: {directory}, made with other settings or data: "
        f"{'; '.join(changed)}. Choose a new --output_dir (with --init_checkpoint to start from these weights), or "
        f"repeat it with --flagfile={directory}/{FLAGS_FILE}."
      )
    return
  names = [name for name in files.listdir(directory) if not (is_lock(name) or files.is_unfinished(name))]
  names = [name for name in names if not name.startswith(tuple(beside))]
  if names:
    raise UserError(
      f"A run needs a new or empty output directory, or its own. Received: {directory}, which holds "
      f"{', '.join(names[:4])}{', …' if len(names) > 4 else ''} and no {RUN_FILE}. Choose another --output_dir."
    )


def write(
  directory: str, record: Mapping[str, Any], *, config: AlbertConfig, tokenizer: Tokenizer | None, flags: str
) -> None:
  """Writes run.json, which holds the `record` and the versions, the configuration, the tokenizer and flags.txt."""
  files.makedirs(directory)
  versions = {"albert_tf": __version__, "python": platform.python_version()}
  versions |= {"tensorflow": tf.__version__, "keras": compat.keras.__version__}
  # Written first, so that a run killed here can be continued.
  files.write_json(os.path.join(directory, RUN_FILE), {**record, "versions": versions})
  for name in filter(files.is_unfinished, files.listdir(directory)):
    files.remove(os.path.join(directory, name))
  files.write_text(os.path.join(directory, CONFIG_FILE), config.to_json_string())
  if flags:
    files.write_text(os.path.join(directory, FLAGS_FILE), flags)
  if tokenizer is not None:
    tokenizer.save_pretrained(directory)
