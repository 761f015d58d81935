"""The directory of a fine-tuned run: its identity and files.

    run.json            identity, paths, settings and versions
    task.json, albert_config.json, spm.model …, flags.txt
    checkpoints/best    the best weights; checkpoints/training: the state of a training that was killed
    metrics.jsonl
    results.json        metrics; written last, when the run is finished
    predictions_….tsv, saved_model/1

With several seeds each run is in `seed_N/`; results.json has median and spread, and names the best run.
"""

from collections.abc import Mapping
import dataclasses
import json
import os
from typing import Any

from albert_tf import files, json_files
from albert_tf.checkpoints.bundle import latest_bundle
from albert_tf.configs.task import RESULTS_FILE, TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.initialize import Start
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.finetuning.tasks.base import FeatureSet, FineTuningTask, fingerprint
from albert_tf.runs import run_directory as run_files
from albert_tf.runs.run_directory import RUN_FILE

METRICS_FILE = "metrics.jsonl"
BEST, STATE = os.path.join("checkpoints", "best"), os.path.join("checkpoints", "training")


def identity(
  task: FineTuningTask, settings: FineTuneSettings, start: Start, splits: Mapping[str, FeatureSet]
) -> dict[str, Any]:
  """The identity of a training: the task, every setting, and the content of weights and examples."""
  spec = dataclasses.asdict(task.spec)
  del spec["null_score_diff_threshold"], spec["thresholds"]  # Found in evaluation.
  content = {
    "init_checkpoint": fingerprint(sorted(start.checkpoint.variables.items()))
    if start.checkpoint
    else "random",
    "train examples": splits["train"].fingerprint(),
    "eval examples": splits["eval"].fingerprint(),
  }
  named = {f"content of {name}": value for name, value in content.items()}
  return json.loads(
    json.dumps({**spec, **settings.training_values(), **task.training_options, **named})
  )


def check(
  directory: str, task: FineTuningTask, settings: FineTuneSettings, start: Start, *, output_dir: str
) -> None:
  """Checks that the directory is new, empty or of this task, and that the weights fit the task; writes nothing.

  `output_dir` is this directory, or the one with the directories of all seeds.

  Raises:
    UserError: a check fails.
  """
  beside = ("seed_", RESULTS_FILE, "saved_model") if len(settings.seeds) > 1 else ()
  run_files.check(directory, beside=beside)
  check_task(directory, task.spec)
  if settings.do_train or start.checkpoint is None:
    return
  check_task(start.checkpoint.directory, task.spec)
  if best_weights(directory) and not files.is_within(start.source, output_dir):
    run = json_files.read(os.path.join(directory, RUN_FILE), sources=dict)
    if start.source != run["sources"].get("init_checkpoint"):
      raise UserError(
        f"A run is evaluated with its own weights. Received: {directory}, which has its own, and {start.source}. Leave "
        "--init_checkpoint out, or choose another --output_dir."
      )


def check_task(directory: str, now: TaskSpec) -> None:
  """Raises `UserError` if the directory is of a run of another task.

  A model of GLUE or RACE may be used for a table of one's own ("custom"), and the reverse.
  """
  before = TaskSpec.find(directory)
  if before is None:
    return
  for field in ("kind", "name", "label_names", "squad_version"):
    old, new = getattr(before, field), getattr(now, field)
    unnamed = old == tuple(f"LABEL_{i}" for i in range(before.num_labels))  # By transformers.
    if old != new and not (field == "name" and "custom" in (old, new)) and not unnamed:
      raise UserError(
        f"A fine-tuned run is for one task. Received: {directory} of the {before.kind} task {before.name!r}, for "
        f"{now.name!r} ({field} {old!r} → {new!r}). Name a directory of this task, or a new one and train."
      )


def best_weights(directory: str) -> str | None:
  """The bundle of the best weights; None if there are none."""
  return latest_bundle(os.path.join(directory, BEST))


def remove(path: str) -> None:
  """Removes a file or folder if it is there."""
  if files.exists(path):
    files.remove(path)
