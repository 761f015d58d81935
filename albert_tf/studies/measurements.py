"""What finished commands have left, read back: metrics, speed, hours, probes, scores of tasks."""

from collections.abc import Mapping
import json
import os
import statistics
from typing import Any, NamedTuple

from albert_tf import files
from albert_tf.configs import AlbertConfig
from albert_tf.studies.stage import EVAL_FILE, METRICS_FILE, TASKS_FILE

_HEADS = ("sentence_order", "next_sentence")
# Metrics of the last reports that a table may show; those of training get the prefix `train_`.
_REPORTED = ("masked_lm_loss", "masked_lm_accuracy")


def read_rows(run_dir: str) -> list[dict[str, Any]]:
  """The reports of a run, in order; none where there is no run."""
  path = os.path.join(run_dir, METRICS_FILE)
  if not files.exists(path):
    return []
  *lines, _ = files.read_bytes(path).split(b"\n")  # A run that goes on may be writing the last one.
  return [json.loads(line) for line in lines]


def examples_per_second(run_dir: str) -> float | None:
  """The median of a run's reports, without the first, which has the compilation; None where there is no report."""
  rates = [row["examples_per_second"] for row in read_rows(run_dir) if row["split"] == "train"]
  rates = [rate for rate in rates if rate]
  return statistics.median(rates[1:] or rates) if rates else None


class Hours(NamedTuple):
  """How long a run took, over all its lives.

  Attributes:
    updates: of the updates, the waiting for their batches included.
    processes: of everything: also start, compilation, evaluation. What `--max_train_hours` bounds.
  """

  updates: float
  processes: float


def training_hours(run_dir: str) -> Hours | None:
  """Of a run's last report; None where there is none."""
  rows = [row for row in read_rows(run_dir) if row["split"] == "train" and "seconds_step" in row]
  if not rows:
    return None
  seconds = {
    key: value for key, value in rows[-1].items() if key.startswith("seconds_") and key != "seconds_down"
  }
  return Hours((seconds["seconds_step"] + seconds["seconds_input"]) / 3600, sum(seconds.values()) / 3600)


def read_run(run_dir: str) -> dict[str, float]:
  """The figures of one trained run: of its last held-out evaluation and, with `train_`, its last tenth of reports."""
  rows = read_rows(run_dir)
  train = [row for row in rows if row["split"] == "train"]
  held_out = [row for row in rows if row["split"] == "eval"]
  found: dict[str, float] = {}
  config_file = os.path.join(run_dir, "albert_config.json")
  if files.exists(config_file):
    found["parameters"] = AlbertConfig.from_json_file(config_file).param_count()
  if held_out:
    last = held_out[-1]
    found |= {key: last[key] for key in _REPORTED if last.get(key) is not None}
    sentence = [last[f"{head}_accuracy"] for head in _HEADS if f"{head}_accuracy" in last]
    found |= {"sentence_accuracy": sentence[0]} if sentence else {}
  if train:
    tail = train[-max(1, len(train) // 10) :]
    for key in _REPORTED:
      values = [row[key] for row in tail if row.get(key) is not None]
      if values:
        found[f"train_{key}"] = statistics.fmean(values)
    found["steps"] = train[-1]["step"]
  hours = training_hours(run_dir)
  optional = {"examples_per_second": examples_per_second(run_dir), "hours": hours and hours.processes}
  return found | {key: value for key, value in optional.items() if value is not None}


def read_probes(probe_dir: str) -> tuple[dict[str, float], dict[str, list[float]]]:
  """Figures of eval.json as `metric@set`; and, where it has them, two values for each layer of the first set."""
  path = os.path.join(probe_dir, EVAL_FILE)
  if not files.exists(path):
    return {}, {}
  sets: Mapping[str, Mapping[str, Any]] = json.loads(files.read_bytes(path))["sets"]
  found = {
    f"{key}@{name}": float(value)
    for name, of_set in sets.items()
    for key, value in of_set.items()
    if isinstance(value, (int, float))
  }
  layers: dict[str, list[float]] = next(
    (dict(of_set["layer_similarity"]) for of_set in sets.values() if "layer_similarity" in of_set), {}
  )
  found |= {f"layer_{key}": statistics.fmean(values) for key, values in layers.items()}
  return found, layers


def read_tasks(tasks_dir: str) -> tuple[dict[str, float], dict[str, str]]:
  """Scores in percent by task, their average, and the tasks that were left out with the reason."""
  path = os.path.join(tasks_dir, TASKS_FILE)
  if not files.exists(path):
    return {}, {}
  record = json.loads(files.read_bytes(path))
  found = {f"score@{task}": float(score) for task, score in record["scores"].items()}
  if record["average"] is not None:
    found["score@average"] = float(record["average"])
  return found, dict(record["left_out"])
