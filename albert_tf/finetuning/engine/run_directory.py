"""The directory of a fine-tuned run: what makes it this run's, and the files that make it self-contained.

    run.json            identity, paths, settings and versions
    task.json, albert_config.json, spm.model …, flags.txt
    checkpoints/best    the best weights; checkpoints/training: the state of a training that was killed
    metrics.jsonl, tensorboard/
    results.json        metrics; written last: a directory that has it is finished
    predictions_….tsv, README.md (the model card), saved_model/1

With several seeds each run is in `seed_N/`, and results.json has median and spread, and names the best run.
"""

from collections.abc import Iterator, Mapping
import dataclasses
import hashlib
import json
import os
import platform
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf

from albert_tf import __version__, compat, files
from albert_tf.checkpoints.bundle import latest_bundle
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import RESULTS_FILE, TASK_FILE, TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.initialize import Start
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.finetuning.tasks.base import FeatureSet, FineTuningTask
from albert_tf.tokenization import Tokenizer

RUN_FILE, CONFIG_FILE = "run.json", "albert_config.json"
FLAGS_FILE, METRICS_FILE, CARD_FILE = "flags.txt", "metrics.jsonl", "README.md"
BEST, STATE = os.path.join("checkpoints", "best"), os.path.join("checkpoints", "training")


def identity(
  task: FineTuningTask,
  settings: FineTuneSettings,
  start: Start,
  *,
  train: FeatureSet,
  evaluation: FeatureSet,
) -> dict[str, Any]:
  """What makes two trainings the same: the task, every setting, and the content of weights and examples."""
  spec = dataclasses.asdict(task.spec)
  spec.pop("null_score_diff_threshold")  # Found in evaluation.
  record = {
    "task": spec,
    "settings": settings.training_values(),
    "content of": {
      "init_checkpoint": _fingerprint(start.checkpoint.variables) if start.checkpoint else "random",
      "train examples": train.fingerprint(),
      "eval examples": evaluation.fingerprint(),
    },
  }
  return json.loads(json.dumps(record))


def _fingerprint(variables: Mapping[str, np.ndarray]) -> str:
  digest = hashlib.sha256()
  for name in sorted(variables):
    digest.update(f"{name}{variables[name].shape}".encode())
    digest.update(np.ascontiguousarray(variables[name]).tobytes())
  return digest.hexdigest()


# ------------------------------------------------------------------ what is refused


def check(output_dir: str, task: FineTuningTask, settings: FineTuneSettings, start: Start) -> None:
  """Makes sure that the directory is new, empty or of this task, and that the weights fit the task; writes nothing.

  Raises:
    UserError: it is not so.
  """
  path = os.path.join(output_dir, RUN_FILE)
  names = [name for name in files.listdir(output_dir) if not files.is_unfinished(name)]
  others = [name for name in names if not (name.startswith("seed_") or name in (RESULTS_FILE, "saved_model"))]
  if (others or (names and len(settings.seeds) == 1)) and RUN_FILE not in names:
    raise UserError(
      f"A run needs a new or empty output directory, or its own. Received: {output_dir}, which holds "
      f"{', '.join(names[:4])}{', …' if len(names) > 4 else ''} and no {RUN_FILE}. Choose another --output_dir."
    )
  if files.exists(os.path.join(output_dir, TASK_FILE)):
    found = task_difference(TaskSpec.load(output_dir), task.spec)
    if found:
      raise UserError(
        f"An output directory holds one task. Received: {output_dir} of {found}. Choose another --output_dir."
      )
  if settings.do_train:
    return
  best = best_weights(output_dir)
  if (
    best
    and start.checkpoint
    and start.source not in (output_dir, best, files.read_json(path)["sources"]["init_checkpoint"])
  ):
    raise UserError(
      f"A run is evaluated with its own weights. Received: {output_dir}, which has its own, and {start.source}. Leave "
      "--init_checkpoint out, or choose another --output_dir."
    )
  folder = start.checkpoint.directory if start.checkpoint else ""
  if folder and files.exists(os.path.join(folder, TASK_FILE)):
    _check_same_task(TaskSpec.load(folder), task.spec, folder)


def check_identity(output_dir: str, of_run: Mapping[str, Any]) -> None:
  """Raises a `UserError` where the directory is of a training with another `identity`."""
  path = os.path.join(output_dir, RUN_FILE)
  before = files.read_json(path)["identity"] if files.exists(path) else of_run
  changes = list(_differences(before, of_run))
  if changes:
    raise UserError(
      f"An output directory holds one run. Received: {output_dir}, made with other settings or data: "
      f"{'; '.join(changes[:6])}. Choose a new --output_dir, or repeat it with --flagfile={output_dir}/{FLAGS_FILE}."
    )


def task_difference(before: TaskSpec, now: TaskSpec, *, named: bool = True) -> str:
  """The first thing in which two tasks differ, in words; empty where they are one."""
  for field in ("kind", *(["name"] if named else []), "label_names", "squad_version"):
    old, new = getattr(before, field), getattr(now, field)
    if old != new:
      return f"the {before.kind} task {before.name!r}, for {now.name!r} ({field} {old!r} → {new!r})"
  return ""


def _check_same_task(before: TaskSpec, now: TaskSpec, checkpoint: str) -> None:
  # A table of one's own may hold what a model of GLUE or RACE has learned, and the other way round.
  own = "custom" in (before.name, now.name)
  found = task_difference(before, now, named=not own)
  if found:
    raise UserError(
      f"Without --do_train the weights must be of a model fine-tuned for this task. Received: {checkpoint} of {found}. "
      "Name a run of this task as --init_checkpoint, or train."
    )
  if own and before.name != now.name:
    logging.warning(
      "%s of the task %r answers for %r, with the same labels", checkpoint, before.name, now.name
    )


def _differences(before: Any, now: Any, name: str = "") -> Iterator[str]:
  if isinstance(before, dict) and isinstance(now, dict):
    for key in sorted(before.keys() | now.keys()):
      inner = f"{name} {key}" if name == "content of" else key
      yield from _differences(before.get(key), now.get(key), inner)
  elif before != now:
    yield f"{name} {str(before)[:20]} → {str(now)[:20]}"


# ------------------------------------------------------------------ what is written and read


def write_run_files(
  directory: str,
  task: FineTuningTask,
  settings: FineTuneSettings,
  start: Start,
  *,
  config: AlbertConfig,
  of_run: Mapping[str, Any],
  flags_text: str,
) -> None:
  """Writes run.json, and what the weights need to be a model: the task, the configuration and the tokenizer."""
  files.makedirs(directory)
  versions = {
    "albert_tf": __version__,
    "tensorflow": tf.__version__,
    "keras": compat.keras.__version__,
    "python": platform.python_version(),
  }
  record = {
    "identity": dict(of_run),
    "sources": {"init_checkpoint": start.source},
    "settings": settings.to_dict(),
    "versions": versions,
  }
  files.write_json(os.path.join(directory, RUN_FILE), record)
  task.spec.save(directory)
  files.write_text(os.path.join(directory, CONFIG_FILE), config.to_json_string())
  tokenizer: Tokenizer = start.tokenizer
  tokenizer.save_pretrained(directory)
  if flags_text:
    files.write_text(os.path.join(directory, FLAGS_FILE), flags_text)


def best_weights(directory: str) -> str | None:
  """The bundle of the best weights; None where there are none."""
  return latest_bundle(os.path.join(directory, BEST))


def has_state(directory: str) -> bool:
  """Whether a killed training can continue."""
  return latest_bundle(os.path.join(directory, STATE)) is not None


def remove(directory: str, *names: str) -> None:
  """Removes those of the files and folders that are there."""
  for path in (os.path.join(directory, name) for name in names):
    if files.exists(path):
      files.remove(path)


def read_results(directory: str) -> dict[str, Any]:
  """What results.json holds of an earlier command; empty without."""
  path = os.path.join(directory, RESULTS_FILE)
  return files.read_json(path) if files.exists(path) else {}
