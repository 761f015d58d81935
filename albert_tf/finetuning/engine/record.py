"""The directory of a fine-tuned run: whose it is, and the files that make it self-contained."""

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

RUN_FILE, RESULTS_FILE, CONFIG_FILE, FLAGS_FILE, METRICS_FILE, CARD_FILE = (
  "run.json",
  "results.json",
  "albert_config.json",
  "flags.txt",
  "metrics.jsonl",
  "README.md",
)
BEST, STATE = os.path.join("checkpoints", "best"), os.path.join("checkpoints", "training")

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
  # As the number of replicas: other roundings and other dropout, the same update.
  "gradient_accumulation_steps",
  "remat",
  "report_steps",
)
# Settings of training that earlier versions did not have and so did not record.
_ADDED_SINCE = ("freeze_layers", "ema_decay", "class_weights")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
  """What a command is: its task, its settings, what it starts from, and its flags as text ("" without)."""

  task: FineTuningTask
  settings: FineTuneSettings
  start: Start
  flags_text: str = ""

  def identity(self) -> dict[str, Any]:
    """What makes two runs the same: task, data, the weights to start from, and every setting of training."""
    spec = dataclasses.asdict(self.task.spec)
    spec.pop("null_score_diff_threshold")  # Found in evaluation.
    spec.pop("columns")  # What they hold is compared: `check_content`.
    training = {key: value for key, value in self.settings.to_dict().items() if key not in _NOT_IDENTITY}
    for name in _ADDED_SINCE:
      if training[name] in (None, ""):
        del training[name]
    training["several_seeds"] = len(self.settings.seeds) > 1
    data = dict(self.task.data)
    record = {"task": spec, "data": data, "init_checkpoint": self.start.source, "settings": training}
    return json.loads(json.dumps(record))

  def check(self, output_dir: str) -> None:
    """Makes sure that the weights fit the task, and that the directory is new, empty or of this run; writes nothing.

    Raises:
      UserError: one holds another task, or the directory other settings or other files.
    """
    self._check_directory(output_dir)
    folder = self.start.checkpoint.directory if self.start.checkpoint else ""
    if not self.settings.do_train and folder and files.exists(os.path.join(folder, TASK_FILE)):
      _check_same_task(TaskSpec.load(folder), self.task.spec, folder)

  def _check_directory(self, output_dir: str) -> None:
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
      _check_same_run(TaskSpec.load(output_dir), self.task.spec, output_dir)
    if not self.settings.do_train:
      self._check_weights(before, output_dir)
      return
    changes = list(_differences(before, self.identity()))
    if changes:
      flag_file = f"{'a local copy of ' if files.is_remote(output_dir) else ''}{output_dir}/{FLAGS_FILE}"
      raise UserError(
        f"An output directory holds one run. Received: {output_dir}, made with other settings: "
        f"{'; '.join(changes[:6])}. Choose a new --output_dir, or repeat it with {flag_file} as --flagfile."
      )

  def _check_weights(self, before: Mapping[str, Any], output_dir: str) -> None:
    """Without training the directory's own weights are used: others must not be what the command names."""
    best, checkpoint = latest_bundle(os.path.join(output_dir, BEST)), self.start.checkpoint
    if best is None or checkpoint is None or self.start.source in (best, before.get("init_checkpoint")):
      return
    own, named = read_bundle(best), checkpoint.variables
    shared = own.keys() & named.keys()
    if not shared or any(not np.array_equal(own[name], named[name]) for name in shared):
      raise UserError(
        f"A run is evaluated with its own weights. Received: {output_dir}, which has its own, and "
        f"{self.start.source}. Leave --init_checkpoint out, or choose another --output_dir."
      )

  def mark(self, directory: str, content: Mapping[str, str]) -> None:
    """Writes run.json: what makes the directory this run's; `content` is of `check_content`."""
    files.makedirs(directory)
    versions = {
      "albert_tf": __version__,
      "tensorflow": tf.__version__,
      "keras": compat.keras.__version__,
      "python": platform.python_version(),
    }
    record = {
      "identity": self.identity(),
      "content": dict(content),
      "settings": self.settings.to_dict(),
      "versions": versions,
    }
    write_json(os.path.join(directory, RUN_FILE), record)

  def write(self, directory: str, config: AlbertConfig, content: Mapping[str, str]) -> None:
    """run.json first, then task.json, albert_config.json, the tokenizer and flags.txt."""
    self.mark(directory, content)
    self.task.spec.save(directory)
    write_text(os.path.join(directory, CONFIG_FILE), config.to_json_string())
    self.start.tokenizer.save_pretrained(directory)
    if self.flags_text:
      write_text(os.path.join(directory, FLAGS_FILE), self.flags_text)


def check_content(output_dir: str, content: Mapping[str, str]) -> None:
  """Raises a `UserError` where examples (split → `FeatureSet.fingerprint`) are not those that the run was made on."""
  path = os.path.join(output_dir, RUN_FILE)
  before = read_json(path).get("content", {}) if files.exists(path) else {}
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


def _check_same_run(before: TaskSpec, now: TaskSpec, output_dir: str) -> None:
  found = task_difference(before, now)
  if found:
    raise UserError(
      f"An output directory holds one task. Received: {output_dir} of {found}. Choose another --output_dir."
    )


def _differences(before: Any, now: Any, name: str = "") -> Iterator[str]:
  if isinstance(before, dict) and isinstance(now, dict):
    for key in sorted(before.keys() | now.keys()):
      yield from _differences(before.get(key), now.get(key), key)
  elif before != now:
    yield f"{name} {before} → {now}"


def copy_run(source: str, target: str, *, keep_weights: bool, keep_export: bool) -> None:
  """Copies a seed's run to the top: everything but what the top writes itself.

  `keep_weights` and `keep_export` say that the weights and the SavedModel there are of this seed already.
  """
  own = {RUN_FILE, RESULTS_FILE, FLAGS_FILE, CARD_FILE, "tensorboard", "saved_model"}
  left = [name for name, keep in (("checkpoints", keep_weights), ("saved_model", keep_export)) if not keep]
  remove(target, *left)  # Of another seed, under other names.
  files.copy_tree(
    source, target, skip=own | ({"checkpoints", TASK_FILE, CONFIG_FILE} if keep_weights else set())
  )


def best_weights(directory: str) -> str | None:
  """The bundle of a seed's best weights; None where there are none."""
  return latest_bundle(os.path.join(directory, BEST))


def recorded_source(output_dir: str) -> str | None:
  """The weights that the directory's own were trained from; None where it has none of its own."""
  path = os.path.join(output_dir, RUN_FILE)
  if best_weights(output_dir) is None or not files.exists(path):
    return None
  return read_json(path).get("identity", {}).get("init_checkpoint")


def remove(directory: str, *names: str) -> None:
  """Removes those of the files and folders that are there."""
  for path in (os.path.join(directory, name) for name in names):
    if files.exists(path):
      files.remove(path)


def read_json(path: str) -> dict[str, Any]:
  """A JSON object; a `UserError` where the file holds something else."""
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
  write_text(path, json.dumps(values, indent=2) + "\n")


def write_text(path: str, text: str) -> None:
  """Writes a file, atomically."""
  with files.atomic_writer(path, "w") as stream:
    stream.write(text)
