"""The directory of a fine-tuned run: whose it is, and the files that make it self-contained.

    run.json            task, data, start, settings and versions: what makes the directory this run's
    task.json, albert_config.json, spm.model …, flags.txt
    checkpoints/best    the best weights; checkpoints/training: the state of a training that was killed
    metrics.jsonl, tensorboard/
    results.json        metrics; written last: a directory that has it is finished
    predictions_….tsv, README.md (the model card), saved_model/1

With several seeds each run is in `seed_N/`, and the directory itself is a copy of the best one, whose results.json has
the median and the spread of all.
"""

from collections.abc import Iterator, Mapping
import dataclasses
import json
import os
import platform
from typing import Any

from absl import logging
import numpy as np
import tensorflow as tf

from albert_tf import __version__, compat, files
from albert_tf.checkpoints.bundle import latest_bundle, read_bundle
from albert_tf.configs import AlbertConfig
from albert_tf.configs.task import TASK_FILE, TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.initialize import Start
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.finetuning.tasks.base import FineTuningTask
from albert_tf.tokenization import Tokenizer

RUN_FILE, RESULTS_FILE, CONFIG_FILE = "run.json", "results.json", "albert_config.json"
FLAGS_FILE, METRICS_FILE, CARD_FILE = "flags.txt", "metrics.jsonl", "README.md"
BEST, STATE = os.path.join("checkpoints", "best"), os.path.join("checkpoints", "training")


def identity(task: FineTuningTask, settings: FineTuneSettings, start: Start) -> dict[str, Any]:
  """What makes two runs the same: task, data, the weights to start from, and every setting of training."""
  spec = dataclasses.asdict(task.spec)
  spec.pop("null_score_diff_threshold")  # Found in evaluation.
  spec.pop("columns")  # What they hold is compared: `check_content`.
  training = settings.training_values()
  training["seed"] = settings.seeds[0] if len(settings.seeds) == 1 else "several"
  record = {"task": spec, "data": dict(task.data), "init_checkpoint": start.source, "settings": training}
  return json.loads(json.dumps(record))


# ------------------------------------------------------------------ what is refused


def check(output_dir: str, task: FineTuningTask, settings: FineTuneSettings, start: Start) -> None:
  """Makes sure that the weights fit the task, and that the directory is new, empty or of this run; writes nothing.

  Raises:
    UserError: one holds another task, or the directory other settings or other files.
  """
  _check_directory(output_dir, task, settings, start)
  folder = start.checkpoint.directory if start.checkpoint else ""
  if not settings.do_train and folder and files.exists(os.path.join(folder, TASK_FILE)):
    _check_same_task(TaskSpec.load(folder), task.spec, folder)


def _check_directory(output_dir: str, task: FineTuningTask, settings: FineTuneSettings, start: Start) -> None:
  path = os.path.join(output_dir, RUN_FILE)
  if not files.exists(path):
    others = [name for name in files.listdir(output_dir) if not files.is_unfinished(name)]
    if others:
      raise UserError(
        f"A run needs a new or empty output directory, or its own. Received: {output_dir}, which holds "
        f"{', '.join(others[:4])}{', …' if len(others) > 4 else ''} and no {RUN_FILE}. Choose another --output_dir."
      )
    return
  before = read_json(path)["identity"]
  if files.exists(os.path.join(output_dir, TASK_FILE)):
    found = task_difference(TaskSpec.load(output_dir), task.spec)
    if found:
      raise UserError(
        f"An output directory holds one task. Received: {output_dir} of {found}. Choose another --output_dir."
      )
  if not settings.do_train:
    _check_weights(output_dir, before, start)
    return
  changes = list(_differences(before, identity(task, settings, start)))
  if changes:
    raise UserError(
      f"An output directory holds one run. Received: {output_dir}, made with other settings: "
      f"{'; '.join(changes[:6])}. Choose a new --output_dir, or repeat it with --flagfile={output_dir}/{FLAGS_FILE}."
    )


def _check_weights(output_dir: str, before: Mapping[str, Any], start: Start) -> None:
  """Without training the directory's own weights are used: others must not be what the command names."""
  best = best_weights(output_dir)
  if best is None or start.checkpoint is None or start.source in (best, before["init_checkpoint"]):
    return
  own, named = read_bundle(best), start.checkpoint.variables
  shared = own.keys() & named.keys()
  if not shared or any(not np.array_equal(own[name], named[name]) for name in shared):
    raise UserError(
      f"A run is evaluated with its own weights. Received: {output_dir}, which has its own, and {start.source}. Leave "
      "--init_checkpoint out, or choose another --output_dir."
    )


def check_content(output_dir: str, content: Mapping[str, str]) -> None:
  """Raises a `UserError` where examples (split → `FeatureSet.fingerprint`) are not those that the run was made on."""
  path = os.path.join(output_dir, RUN_FILE)
  before = read_json(path)["content"] if files.exists(path) else {}
  changed = [split for split, value in content.items() if before.get(split, value) != value]
  if changed:
    raise UserError(
      f"An output directory holds one run, on data that stays as it is. Received: other {' and '.join(changed)} "
      f"examples than those of {output_dir}, from the same paths. Choose a new --output_dir, or restore the data."
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
      yield from _differences(before.get(key), now.get(key), key)
  elif before != now:
    yield f"{name} {before} → {now}"


# ------------------------------------------------------------------ what is written and read


def write_run_file(
  directory: str,
  task: FineTuningTask,
  settings: FineTuneSettings,
  start: Start,
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


def write_start(
  directory: str, spec: TaskSpec, config: AlbertConfig, tokenizer: Tokenizer, flags_text: str
) -> None:
  """What the weights need to be a model: the task, the configuration, the tokenizer; and the command's flags."""
  spec.save(directory)
  write_text(os.path.join(directory, CONFIG_FILE), config.to_json_string())
  tokenizer.save_pretrained(directory)
  if flags_text:
    write_text(os.path.join(directory, FLAGS_FILE), flags_text)


def best_weights(directory: str) -> str | None:
  """The bundle of the best weights; None where there are none."""
  return latest_bundle(os.path.join(directory, BEST))


def recorded_source(directory: str) -> str | None:
  """The weights that the directory's own were trained from; None where it has none of its own."""
  path = os.path.join(directory, RUN_FILE)
  if best_weights(directory) is None or not files.exists(path):
    return None
  return read_json(path)["identity"]["init_checkpoint"]


def has_state(directory: str) -> bool:
  """Whether a killed training can go on."""
  return latest_bundle(os.path.join(directory, STATE)) is not None


def copy_run(source: str, target: str, *, with_weights: bool) -> None:
  """Copies a seed's run to the directory of all seeds; where the weights are there already, its answers alone."""
  own = {RUN_FILE, FLAGS_FILE, RESULTS_FILE, "tensorboard", "saved_model"}
  if with_weights:
    remove(
      target, RESULTS_FILE, "checkpoints", "saved_model"
    )  # Of another seed; unfinished until it is copied.
  else:
    own |= {"checkpoints", TASK_FILE, CONFIG_FILE, CARD_FILE, METRICS_FILE}
  files.copy_tree(source, target, skip=own)


def remove(directory: str, *names: str) -> None:
  """Removes those of the files and folders that are there."""
  for path in (os.path.join(directory, name) for name in names):
    if files.exists(path):
      files.remove(path)


def read_json(path: str) -> dict[str, Any]:
  """A JSON object."""
  return dict(json.loads(files.read_bytes(path)))


def read_results(directory: str) -> dict[str, Any]:
  """What results.json holds of an earlier command; empty without."""
  path = os.path.join(directory, RESULTS_FILE)
  return read_json(path) if files.exists(path) else {}


def write_json(path: str, values: Any) -> None:
  """Writes a JSON object, atomically."""
  write_text(path, json.dumps(values, indent=2) + "\n")


def write_text(path: str, text: str) -> None:
  """Writes a file, atomically."""
  with files.atomic_writer(path, "w") as stream:
    stream.write(text)
