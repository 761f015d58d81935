"""The five tasks of tables 2 to 8: their files, what a finished one belongs to, and the average of their scores."""

from collections.abc import Iterator, Mapping, Sequence
import hashlib
import json
import os
import statistics
from typing import Any, NamedTuple

from albert_tf import files
from albert_tf.errors import UserError

RESULTS_FILE = "results.json"
_WEIGHTS = (".index", ".safetensors", ".bin")  # An index has a checksum of every tensor.
_CHUNK_BYTES = 1 << 20


class Task(NamedTuple):
  """One column of the tables.

  Attributes:
    command: the script; recipe: its flag file below `recipes/`.
    files: name of a flag → file (or folder) in the task's folder, whose name is the task's in any case.
    metrics: of results.json; the score is their mean.
    factor: makes it percent.
  """

  command: str
  recipe: str
  files: Mapping[str, tuple[str, ...]]
  metrics: tuple[str, ...] = ("accuracy",)
  factor: float = 100.0


_SQUAD_METRICS = ("f1", "exact")
TASKS = {
  "squad1": Task(
    "run_squad.py",
    "squad1.flags",
    {"train_file": ("train-v1.1.json",), "predict_file": ("dev-v1.1.json",)},
    _SQUAD_METRICS,
    1.0,
  ),
  "squad2": Task(
    "run_squad.py",
    "squad2.flags",
    {"train_file": ("train-v2.0.json",), "predict_file": ("dev-v2.0.json",)},
    _SQUAD_METRICS,
    1.0,
  ),
  "mnli": Task("run_glue.py", "glue/mnli.flags", {"data_dir": ("train.tsv", "dev_matched.tsv")}),
  "sst-2": Task("run_glue.py", "glue/sst-2.flags", {"data_dir": ("train.tsv", "dev.tsv")}),
  "race": Task("run_race.py", "race.flags", {"data_dir": ("train", "dev")}),
}


# ------------------------------------------------------------------ what is there


def choose_folders(names: Sequence[str], data_dir: str) -> tuple[dict[str, str], dict[str, str]]:
  """Task → its folder, of those to be run; task → why not, of the others."""
  unknown = [name for name in names if name not in TASKS]
  if unknown or not names:
    raise UserError(f"--tasks are of {', '.join(TASKS)}. Received: {', '.join(unknown) or 'none'}.")
  found = {name: find_folder(data_dir, name) for name in TASKS if name in names}
  folders = {name: folder for name, folder in found.items() if folder is not None}
  if not folders:
    raise UserError(
      f"--data_dir holds a folder a task: {', '.join(names)}. Received: {data_dir} with none of them. "
      "docs/finetuning.md says which files they have."
    )
  return folders, {name: f"no folder {name} in {data_dir}" for name in found if name not in folders}


def find_folder(data_dir: str, name: str) -> str | None:
  """The task's folder, such as `mnli` or `MNLI`; None where there is none."""
  found = [each for each in files.listdir(data_dir) if each.lower() == name]
  return os.path.join(data_dir, found[0]) if found else None


def data_files(task: Task, folder: str) -> list[str]:
  """The files that the task reads.

  Raises:
    UserError: one is not there.
  """
  needed = [os.path.join(folder, name) for names in task.files.values() for name in names]
  missing = [os.path.basename(path) for path in needed if not files.exists(path)]
  if missing:
    raise UserError(
      f"A task's folder holds all of its files. Received: {folder} without {', '.join(missing)}. Complete it, or leave "
      "the task out with --tasks."
    )
  return [path for each in needed for path in ([os.path.join(each, n) for n in files.tree(each)] or [each])]


# ------------------------------------------------------------------ what a result belongs to


def digest(paths: Sequence[str], root: str) -> str:
  """SHA-256 of files' names and contents."""
  total = hashlib.sha256()
  for path in paths:
    total.update(f"{path.removeprefix(root)}\0{files.size(path)}\0".encode())
    with files.open_binary(path) as stream:
      while chunk := stream.read(_CHUNK_BYTES):
        total.update(chunk)
  return total.hexdigest()


def weights_digest(init_checkpoint: str) -> str:
  """Of what tells the weights apart: a run that trains on gets others, an export beside them changes nothing."""
  if files.isdir(init_checkpoint):
    names = [
      name
      for name in files.tree(init_checkpoint)
      if name.endswith(_WEIGHTS) or os.path.basename(name) == "checkpoint"
    ]
    paths = [os.path.join(init_checkpoint, name) for name in names if not name.startswith("saved_model/")]
  else:
    paths = [path for path in (init_checkpoint, f"{init_checkpoint}.index") if files.exists(path)]
  if not paths:
    raise UserError(
      f"The tasks start from pretrained weights. Received: --init_checkpoint={init_checkpoint}, which holds none. Name "
      "a run directory, a checkpoint or a Hugging Face folder."
    )
  return digest(paths, init_checkpoint)


def data_digest(task: Task, folder: str) -> str:
  """Of everything that the task reads."""
  return digest(data_files(task, folder), folder)


# ------------------------------------------------------------------ scores


def metrics_of(task: Task, directory: str) -> dict[str, float]:
  """The task's metrics in percent: of one seed, or the median of several."""
  with files.open_binary(os.path.join(directory, RESULTS_FILE)) as stream:
    results = json.load(stream)
  of = results.get("median", results)
  return {name: task.factor * of[name] for name in task.metrics}


def summary(records: Mapping[str, Mapping[str, Any]], left_out: Mapping[str, str]) -> dict[str, Any]:
  """What tasks.json holds.

  The average is the paper's: SQuAD counts with the mean of F1 and exact match, and the five scores count alike. So
  ALBERT-base in table 2: (89.3 + 82.3) / 2, (80.0 + 77.1) / 2, 81.6, 90.3, 64.0 → 80.1.
  """
  records = {name: records[name] for name in TASKS if name in records}  # In the tables' order.
  scores = {name: statistics.fmean(record["metrics"].values()) for name, record in records.items()}
  return {
    "scores": scores,
    "average": statistics.fmean(scores.values()) if scores else None,
    "average_of": list(scores),
    "left_out": dict(left_out),
    "tasks": records,
  }


def lines(results: Mapping[str, Any]) -> Iterator[str]:
  """The scores as printed."""
  for name, record in results["tasks"].items():
    parts = " / ".join(f"{value:.1f}" for value in record["metrics"].values())
    yield f"{name}: {parts}" + (
      f"  (mean {results['scores'][name]:.1f})" if len(record["metrics"]) > 1 else ""
    )
  for name, reason in results["left_out"].items():
    yield f"{name}: left out, {reason}"
  count = len(results["average_of"])
  if count:
    yield f"average of {count if count < len(TASKS) else 'the five'} tasks: {results['average']:.1f}"
