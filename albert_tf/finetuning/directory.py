"""The run directory of a fine-tuning: what it may hold before, and the record of the run.

`run.py` writes weights, answers and results there, and `ensemble.py` combines the directories of
several runs.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import hashlib
import os
from typing import Any, NamedTuple

import numpy as np

from albert_tf import files, json_files
from albert_tf.checkpoints.bundle import latest_bundle
from albert_tf.checkpoints.checkpoint import Checkpoint
from albert_tf.configs.task import RESULTS_FILE, TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning import results
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.finetuning.tasks.base import FineTuningTask
from albert_tf.keras_api.examples import Examples
from albert_tf.runs import run_directory


class SeedDirectory(NamedTuple):
  """The run directory of one seed; where there are several, each has a folder of its own.

  Attributes:
    output_dir: the directory of all seeds.
    seed: of weights, order and dropout.
    seeds: all that are asked for.
  """

  output_dir: str
  seed: int
  seeds: tuple[int, ...]

  @property
  def path(self) -> str:
    if len(self.seeds) == 1:
      return self.output_dir
    return os.path.join(self.output_dir, f"seed_{self.seed}")

  @property
  def best_weights(self) -> str | None:
    """The bundle of the best weights; None if there are none."""
    return latest_bundle(os.path.join(self.path, run_directory.BEST))

  def earlier_results(self, *, trains: bool) -> dict[str, Any]:
    """The results that an earlier command wrote; empty if a training is to begin or to go on."""
    if trains and self.best_weights is None:
      return {}
    return json_files.find(os.path.join(self.path, RESULTS_FILE), data=dict)

  def trained_task(self, start: Checkpoint) -> TaskSpec | None:
    """The task that the run's own weights, or else those of the start, were trained for."""
    task = TaskSpec.find(self.path)
    if task is None:
      task = TaskSpec.find(start.directory)
    return task

  # ------------------------------------------------------------------ checks

  def check(self, spec: TaskSpec, start: Checkpoint, *, trains: bool) -> None:
    """Checks that the directory is new, empty or of this task, and that the weights fit the task.

    Raises:
      UserError: a check fails. Nothing is written.
    """
    self._check_layout()
    # Of several seeds: their folders, and the results of all.
    if self.path != self.output_dir:
      beside = ("seed_", RESULTS_FILE, "saved_model")
      run_directory.check(self.output_dir, beside=beside)
      check_task(self.output_dir, spec)
    run_directory.check(self.path)
    check_task(self.path, spec)
    if not trains:
      check_task(start.directory, spec)
      self._check_weights(start)

  def _check_weights(self, start: Checkpoint) -> None:
    """Raises `UserError` if answers without training would be of other weights than the directory's."""
    # The weights of another seed would be called those of this one.
    if self.best_weights is None and self.path != self.output_dir:
      raise UserError(
        "Without --do_train each of several seeds has weights. Received: "
        f"{self.path} without {run_directory.BEST}. Train first, or name --seeds that were "
        "trained; with weights of another run name one seed."
      )
    path = os.path.join(self.path, run_directory.RUN_FILE)
    if not files.exists(path) or files.is_within(start.path, self.output_dir):
      return
    # The record names the weights that it was trained from; they may be named again, and its own are
    # used. A directory of answers alone records those that gave the answers.
    recorded = json_files.read(path, sources=dict)["sources"].get("init_checkpoint")
    if start.path != recorded:
      weights = f"those of {recorded}" if self.best_weights is None else "its own weights"
      raise UserError(
        f"A run directory has the answers of one set of weights. Received: {self.path}, with "
        f"answers of {weights}, and {start.path}. Leave --init_checkpoint out, or choose another "
        "--output_dir."
      )

  def _check_layout(self) -> None:
    """Raises `UserError` if the directory holds one seed's files and several are asked for, or the reverse.

    Else files of one seed would lie beside the results of another.
    """
    seeds = ",".join(map(str, self.seeds))
    if self.path == self.output_dir:
      names = files.listdir(self.output_dir)
      found = [name.removeprefix("seed_") for name in names if name.startswith("seed_")]
      if found:
        raise UserError(
          "A run of several seeds is used with several. Received: --seeds="
          f"{seeds} for {self.output_dir}, which has seed_{', seed_'.join(found)}. Name its seeds, "
          f"--seeds={','.join(found)}, or choose another --output_dir."
        )
    elif files.exists(os.path.join(self.output_dir, run_directory.RUN_FILE)):
      path = os.path.join(self.output_dir, run_directory.RUN_FILE)
      identity = json_files.read(path, identity=dict)["identity"]
      if "seed" not in identity:
        # Of pretraining, or of an ensemble.
        run_directory.check(self.output_dir, {"seeds": list(self.seeds)})
      seed = identity["seed"]
      folder = os.path.join(self.output_dir, f"seed_{seed}")
      raise UserError(
        "A directory holds the files of one seed, or a folder for each of several. Received: "
        f"--seeds={seeds} for {self.output_dir}, of seed {seed} alone. To add seeds, move all that "
        f"it holds into {folder}; else choose another --output_dir."
      )

  def check_content(
    self, identity: Mapping[str, Any], data: Mapping[str, Mapping[str, Any]], *, trains: bool
  ) -> None:
    """Raises `UserError` if the directory is of another training, or has answers to other data."""
    if trains:
      run_directory.check(self.path, {**identity, "seed": self.seed})
    results.check_data(self.path, self.earlier_results(trains=trains), data)

  # ------------------------------------------------------------------ the record

  def write_record(self, model: Any, job: Any, identity: Mapping[str, Any]) -> None:
    """Writes run.json, flags.txt, the task, the configuration and the tokenizer.

    Args:
      model: a `TaskModel`.
      job: the `run.FineTuning`.
      identity: see `training_identity`.
    """
    record = {
      "identity": {**identity, "seed": self.seed},
      "sources": {"init_checkpoint": job.start.path},
      "settings": dataclasses.replace(job.settings, seeds=(self.seed,)).to_dict(),
    }
    run_directory.write(
      self.path,
      record,
      config=model.config,
      tokenizer=job.task.tokenizer,
      flags=job.flags_text,
    )
    model.task.save(self.path)


def training_identity(
  task: FineTuningTask,
  settings: FineTuneSettings,
  start: Checkpoint,
  examples: Mapping[str, Examples],
) -> dict[str, Any]:
  """What must not change while a training is continued: task, settings, weights and examples."""
  spec = dataclasses.asdict(task.spec)
  # These are results of an evaluation.
  del spec["null_score_diff_threshold"], spec["thresholds"], spec["exit_threshold"]
  content = {
    "content of init_checkpoint": _fingerprint(sorted(start.variables.items())),
    "content of train examples": examples["train"].fingerprint(),
    "content of eval examples": examples["eval"].fingerprint(),
  }
  return spec | settings.training_values() | dict(task.training_options) | content


def _fingerprint(arrays: Iterable[tuple[str, np.ndarray]]) -> str:
  """A hash of named arrays: their values, types, shapes and order."""
  digest = hashlib.sha256()
  for name, value in arrays:
    array = np.ascontiguousarray(value)
    digest.update(f"{name} {array.dtype.str}{array.shape}".encode())
    digest.update(array.tobytes())
  return digest.hexdigest()


def splits_to_run(task: FineTuningTask, *, evaluates: bool, predicts: bool) -> list[str]:
  """The splits to evaluate ("eval", "eval_…"), then those to predict ("test", "test_…").

  Without test data the former are predicted.
  """
  tests: list[str] = []
  if predicts:
    tests = [name for name in task.splits if name.startswith("test")]
  if tests and not evaluates:
    return tests
  return ["eval"] + [name for name in task.splits if name.startswith("eval_")] + tests


def check_task(directory: str, spec: TaskSpec) -> None:
  """Raises `UserError` if the directory is of a run of another task."""
  before = TaskSpec.find(directory)
  if before is None:
    return
  # Names that transformers gives where a user gave none.
  unnamed = tuple(f"LABEL_{i}" for i in range(before.num_labels))
  for field in differing_fields(before, spec):
    old = getattr(before, field)
    new = getattr(spec, field)
    if old != unnamed:
      raise UserError(
        f"A fine-tuned run is for one task. Received: {directory} of the {before.kind} task "
        f"{before.name!r}, for {spec.name!r} ({field} {old!r} → {new!r}). Name a directory of this "
        "task, or a new one and train."
      )


def differing_fields(before: TaskSpec, spec: TaskSpec) -> list[str]:
  """The fields by which two tasks are not the same one; none if a head of one answers the other.

  A model of GLUE or RACE may be used for a table of one's own ("custom"), and the reverse.
  """
  fields = [
    field
    for field in ("kind", "name", "label_names", "squad_version")
    if getattr(before, field) != getattr(spec, field)
  ]
  if "name" in fields and "custom" in (before.name, spec.name):
    fields.remove("name")
  return fields
