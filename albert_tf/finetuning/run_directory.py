"""The directory of a fine-tuned run: whose it is, and the files that make it self-contained."""

from collections.abc import Iterator, Mapping
import dataclasses
import json
import os
import platform
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf import __version__, compat, files
from albert_tf.checkpoints.bundle import latest_bundle, read_bundle
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.initialize import Start
from albert_tf.finetuning.resumption import BEST
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.finetuning.task import FineTuningTask
from albert_tf.finetuning.task_spec import TASK_FILE, TaskSpec

RUN_FILE, RESULTS_FILE, CONFIG_FILE, FLAGS_FILE = (
  "run.json",
  "results.json",
  "albert_config.json",
  "flags.txt",
)

# What does not change the weights, so that a finished run can be predicted with, or get another seed.
_NOT_IDENTITY = (
  "do_train",
  "do_eval",
  "do_predict",
  "seeds",
  "ensemble",
  "eval_batch_size",
  "distribution",
  "jit_compile",
  "verbose",
)


def identity(task: FineTuningTask, settings: FineTuneSettings, start: Start) -> dict[str, Any]:
  """What makes two runs the same: task, data, the weights to start from, and every setting of training."""
  spec = dataclasses.asdict(task.spec)
  spec.pop("null_score_diff_threshold")  # Found in evaluation.
  training = {key: value for key, value in settings.to_dict().items() if key not in _NOT_IDENTITY}
  training["several_seeds"] = len(settings.seeds) > 1
  record = {"task": spec, "data": dict(task.data), "init_checkpoint": start.source, "settings": training}
  return json.loads(json.dumps(record))


def seed_directory(output_dir: str, settings: FineTuneSettings, seed: int) -> str:
  """`seed_<n>/` where there are several, else the run directory itself."""
  return os.path.join(output_dir, f"seed_{seed}") if len(settings.seeds) > 1 else output_dir


def check(output_dir: str, task: FineTuningTask, settings: FineTuneSettings, start: Start) -> None:
  """Makes sure that the directory is new, empty, or of this run; writes nothing.

  Raises:
    UserError: it holds another task, other settings or other files.
  """
  if not files.exists(output_dir):
    return
  if not files.isdir(output_dir):
    raise UserError(
      f"output_dir is a directory. Received: {output_dir}, a file. Choose another --output_dir."
    )
  found = [name for name in files.listdir(output_dir) if not files.is_unfinished(name)]
  if not found:
    return
  path = os.path.join(output_dir, RUN_FILE)
  if not files.exists(path):
    raise UserError(
      f"A run needs a new or empty output directory, or its own. Received: {output_dir}, which holds "
      f"{', '.join(found[:4])}{', …' if len(found) > 4 else ''} and no {RUN_FILE}. Choose another --output_dir."
    )
  before = read_json(path).get("identity", {})
  if files.exists(os.path.join(output_dir, TASK_FILE)):
    _check_task(TaskSpec.load(output_dir), task.spec, output_dir)
  if not settings.do_train:
    _check_weights(before, start, output_dir)
    return
  now = identity(task, settings, start)
  changes = list(_differences(before, now))
  if changes:
    raise UserError(
      f"An output directory holds one run. Received: {output_dir}, made with other settings: "
      f"{'; '.join(changes[:6])}. Choose a new --output_dir, or repeat it with --flagfile={output_dir}/{FLAGS_FILE}."
    )


def _check_weights(before: Mapping[str, Any], start: Start, output_dir: str) -> None:
  """Without training the directory's own weights are used: others must not be what the command names."""
  best = latest_bundle(os.path.join(output_dir, BEST))
  if best is None or start.checkpoint is None or start.source in (best, before.get("init_checkpoint")):
    return
  own, named = read_bundle(best), start.checkpoint.variables
  shared = own.keys() & named.keys()
  if not shared or any(not np.array_equal(own[name], named[name]) for name in shared):
    raise UserError(
      f"A run is evaluated with its own weights. Received: {output_dir}, which has its own, and {start.source}. Leave "
      "--init_checkpoint out, or choose another --output_dir."
    )


def check_content(output_dir: str, content: Mapping[str, str]) -> None:
  """Makes sure that the examples are those that the run was trained and evaluated on.

  Args:
    output_dir: the run directory.
    content: split → `FeatureSet.fingerprint`.

  Raises:
    UserError: a file was edited since.
  """
  path = os.path.join(output_dir, RUN_FILE)
  before = read_json(path).get("content", {}) if files.exists(path) else {}
  changed = [split for split, value in content.items() if before.get(split, value) != value]
  if changed:
    raise UserError(
      f"An output directory holds one run, on data that stays as it is. Received: other {' and '.join(changed)} "
      f"examples than those of {output_dir}, from the same paths. Choose a new --output_dir, or restore the data."
    )


def _check_task(before: TaskSpec, now: TaskSpec, output_dir: str) -> None:
  for name in ("kind", "name", "label_names", "squad_version"):
    old, new = getattr(before, name), getattr(now, name)
    if old != new:
      raise UserError(
        f"An output directory holds one task. Received: {output_dir} of the {before.kind} task {before.name!r}, "
        f"for {now.name!r} ({name} {old!r} → {new!r}). Choose another --output_dir."
      )


def _differences(before: Any, now: Any, name: str = "") -> Iterator[str]:
  if isinstance(before, dict) and isinstance(now, dict):
    for key in sorted(before.keys() | now.keys()):
      yield from _differences(before.get(key), now.get(key), key)
  elif before != now:
    yield f"{name} {before} → {now}"


def write(
  directory: str,
  task: FineTuningTask,
  settings: FineTuneSettings,
  start: Start,
  *,
  config: AlbertConfig,
  flags_text: str,
  content: Mapping[str, str],
) -> None:
  """run.json first, then task.json, albert_config.json, the tokenizer and flags.txt."""
  write_record(directory, task, settings, start, content=content)
  task.spec.save(directory)
  _write(os.path.join(directory, CONFIG_FILE), config.to_json_string())
  start.tokenizer.save_pretrained(directory)
  if flags_text:
    _write(os.path.join(directory, FLAGS_FILE), flags_text)


def write_record(
  directory: str,
  task: FineTuningTask,
  settings: FineTuneSettings,
  start: Start,
  *,
  content: Mapping[str, str],
) -> None:
  """run.json: what makes the directory this run's; `content` is of `check_content`."""
  files.makedirs(directory)
  versions = {
    "albert_tf": __version__,
    "tensorflow": tf.__version__,
    "keras": compat.keras.__version__,
    "python": platform.python_version(),
  }
  record = {
    "identity": identity(task, settings, start),
    "content": dict(content),
    "settings": settings.to_dict(),
    "versions": versions,
  }
  write_json(os.path.join(directory, RUN_FILE), record)


def copy_run(source: str, target: str, *, keep_weights: bool, keep_export: bool) -> None:
  """Copies a seed's run to the top: everything but what the top writes itself.

  Args:
    source: the seed's directory.
    target: the run directory.
    keep_weights: whether the weights there are this seed's, and what belongs to them.
    keep_export: whether `saved_model` there is of this seed.
  """
  own = {RUN_FILE, RESULTS_FILE, FLAGS_FILE, "README.md", "tensorboard", "saved_model"}
  left = [name for name, keep in (("checkpoints", keep_weights), ("saved_model", keep_export)) if not keep]
  for path in (os.path.join(target, name) for name in left):
    if files.exists(path):
      files.remove(path)  # Of another seed, under other names.
  files.copy_tree(
    source, target, skip=own | ({"checkpoints", TASK_FILE, CONFIG_FILE} if keep_weights else set())
  )


def recorded_source(output_dir: str) -> str | None:
  """The weights that the directory's own were trained from; None where it has none of its own."""
  path = os.path.join(output_dir, RUN_FILE)
  if latest_bundle(os.path.join(output_dir, BEST)) is None or not files.exists(path):
    return None
  return read_json(path).get("identity", {}).get("init_checkpoint")


def remove_unfinished(directory: str) -> None:
  """Removes the weights of a training that was killed; another one is about to begin."""
  for name in ("checkpoints", RESULTS_FILE):
    path = os.path.join(directory, name)
    if files.exists(path):
      files.remove(path)


def read_json(path: str) -> dict[str, Any]:
  """A JSON object.

  Raises:
    UserError: it is not one.
  """
  try:
    with files.open_binary(path) as stream:
      return dict(json.load(stream))
  except (ValueError, TypeError) as error:
    raise UserError(
      f"{os.path.basename(path)} must be a JSON object. Received: {path} ({error}). Choose a new --output_dir."
    ) from error


def read_results(directory: str) -> dict[str, Any]:
  """What results.json holds of an earlier command; empty without."""
  path = os.path.join(directory, RESULTS_FILE)
  return read_json(path) if files.exists(path) else {}


def write_json(path: str, values: Any) -> None:
  """Writes a JSON object, atomically."""
  _write(path, json.dumps(values, indent=2) + "\n")


def _write(path: str, text: str) -> None:
  with files.atomic_writer(path, "w") as stream:
    stream.write(text)
