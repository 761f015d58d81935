"""The directory of a run, of pretraining or of fine-tuning.

    run.json            identity, paths, settings and versions
    albert_config.json, spm.model …, flags.txt
    metrics.jsonl
    checkpoints/        of pretraining; of fine-tuning best/, and training/ while it is not finished

A fine-tuned run has more files: task.json, predictions_….tsv, saved_model/1, and results.json, which
is written last. With several seeds each run is in `seed_N/`; results.json has median and spread, and
names the best run.
"""

from collections.abc import Mapping, Sequence
import json
import os
import platform
from typing import Any

import keras
import tensorflow as tf

from albert_tf import __version__, files, json_files
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.lock import is_lock
from albert_tf.settings import differences
from albert_tf.tokenization import Tokenizer

RUN_FILE = "run.json"
CONFIG_FILE = "albert_config.json"
FLAGS_FILE = "flags.txt"
METRICS_FILE = "metrics.jsonl"
# Of fine-tuning: the best weights, and the state of a training that was stopped.
BEST = os.path.join("checkpoints", "best")
STATE = os.path.join("checkpoints", "training")


def check(
  directory: str, identity: Mapping[str, Any] | None = None, *, beside: Sequence[str] = ()
) -> None:
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
    if identity is not None:
      _check_identity(directory, _recorded_identity(path), identity)
    return

  # Without run.json only the traces of an earlier start may be there.
  foreign_names = []
  for name in files.listdir(directory):
    is_of_a_start = is_lock(name) or files.is_temporary(name)
    if not is_of_a_start and not name.startswith(tuple(beside)):
      foreign_names.append(name)
  if foreign_names:
    shown = ", ".join(foreign_names[:4])
    if len(foreign_names) > 4:
      shown += ", …"
    raise UserError(
      f"A run needs a new or empty output directory, or its own. Received: {directory}, which "
      f"holds {shown} and no {RUN_FILE}. Choose another --output_dir."
    )


def _recorded_identity(path: str) -> dict[str, Any]:
  try:
    return json_files.read(path, identity=dict)["identity"]
  except UserError as error:
    raise UserError(
      f"{error} Or give the same command another --output_dir: it writes the same {RUN_FILE} at its "
      "start. Stop it, and copy that one here."
    ) from error


def _check_identity(
  directory: str, recorded: Mapping[str, Any], identity: Mapping[str, Any]
) -> None:
  as_json = json.loads(json.dumps(identity))  # Tuples become lists, as they were recorded.
  changed = differences(recorded, as_json)
  if changed:
    raise UserError(
      f"An output directory holds one run. Received: {directory}, made with other settings or "
      f"data: {'; '.join(changed)}. Choose a new --output_dir (with --init_checkpoint to start "
      f"from these weights), or repeat it with --flagfile={directory}/{FLAGS_FILE}."
    )


def write(
  directory: str,
  record: Mapping[str, Any],
  *,
  config: AlbertConfig,
  tokenizer: Tokenizer | None,
  flags: str,
) -> None:
  """Writes run.json (the `record` and the versions), configuration, tokenizer and flags.txt."""
  files.makedirs(directory)
  versions = {
    "albert_tf": __version__,
    "python": platform.python_version(),
    "tensorflow": tf.__version__,
    "keras": keras.__version__,
  }
  # Written first, so that a run killed here can be continued.
  json_files.write(os.path.join(directory, RUN_FILE), {**record, "versions": versions})
  for name in files.listdir(directory):
    if files.is_temporary(name):  # Of a killed process.
      files.remove(os.path.join(directory, name))
  files.write_text(os.path.join(directory, CONFIG_FILE), config.to_json_string())
  if flags:
    files.write_text(os.path.join(directory, FLAGS_FILE), flags)
  if tokenizer is not None:
    tokenizer.save_pretrained(directory)
