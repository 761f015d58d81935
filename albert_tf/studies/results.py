"""What finished commands have left, read back: metrics, hours, probes, scores of tasks."""

from collections.abc import Mapping
import os
import statistics
from typing import Any, NamedTuple

from albert_tf import files
from albert_tf.configs import AlbertConfig
from albert_tf.training.metrics_log import read_metrics

# Metrics of the last reports that a table may show; those of training get the prefix `train_`.
_REPORTED = ("masked_lm_loss", "masked_lm_accuracy")


class Task(NamedTuple):
  """One of the five tasks whose average the paper's tables show.

  Attributes:
    script, recipe: of its command.
    data: name of a flag → file in the task's folder; "" for the folder.
    metrics: of results.json; the score is their mean.
    factor: makes it percent.
  """

  script: str
  recipe: str
  data: Mapping[str, str] = {"data_dir": ""}
  metrics: tuple[str, ...] = ("accuracy",)
  factor: float = 100.0


def _squad(recipe: str, version: str) -> Task:
  data = {"train_file": f"train-v{version}.json", "predict_file": f"dev-v{version}.json"}
  return Task("run_squad.py", recipe, data, ("f1", "exact"), 1.0)


TASKS = {
  "squad1": _squad("squad1", "1.1"),
  "squad2": _squad("squad2", "2.0"),
  "mnli": Task("run_glue.py", "glue/mnli"),
  "sst-2": Task("run_glue.py", "glue/sst-2"),
  "race": Task("run_race.py", "race"),
}


def read_reports(run_dir: str) -> list[dict[str, Any]]:
  """The reports of a run, in order; none where there is no run."""
  path = os.path.join(run_dir, "metrics.jsonl")
  return read_metrics(path) if files.isdir(run_dir) else []


def examples_per_second(run_dir: str) -> float | None:
  """The median of a run's reports, without the first, which has the compilation; None where there is no report."""
  rates = [row["examples_per_second"] for row in read_reports(run_dir) if row.get("examples_per_second")]
  return statistics.median(rates[1:] or rates) if rates else None


def training_hours(run_dir: str) -> tuple[float, float] | None:
  """Hours of a run over all its lives: of its updates, and of everything, which `--max_train_hours` bounds."""
  rows = [row for row in read_reports(run_dir) if row["split"] == "train" and "seconds_step" in row]
  if not rows:
    return None
  last = rows[-1]
  every = sum(v for key, v in last.items() if key.startswith("seconds_") and key != "seconds_down")
  return (last["seconds_step"] + last["seconds_input"]) / 3600, every / 3600


def read_run(run_dir: str) -> dict[str, float]:
  """The figures of one trained run: of its last held-out evaluation and, with `train_`, its last tenth of reports."""
  rows = read_reports(run_dir)
  train = [row for row in rows if row["split"] == "train"]
  last: dict[str, Any] = next((row for row in reversed(rows) if row["split"] == "eval"), {})
  found: dict[str, float | None] = {}
  config_file = os.path.join(run_dir, "albert_config.json")
  if files.exists(config_file):
    found["parameters"] = AlbertConfig.from_json_file(config_file).param_count()
  for key in _REPORTED:
    found[key] = last.get(key)
    values = [row[key] for row in train[-max(1, len(train) // 10) :] if row.get(key) is not None]
    found[f"train_{key}"] = statistics.fmean(values) if values else None
  found["sentence_accuracy"] = last.get("sentence_order_accuracy", last.get("next_sentence_accuracy"))
  found["steps"] = train[-1]["step"] if train else None
  found["examples_per_second"] = examples_per_second(run_dir)
  hours = training_hours(run_dir)
  found["hours"] = hours and hours[1]
  return {key: value for key, value in found.items() if value is not None}


def read_probes(probe_dir: str) -> tuple[dict[str, float], dict[str, list[float]]]:
  """Figures of eval.json as `metric@set`; and, where it has them, two values for each layer."""
  path = os.path.join(probe_dir, "eval.json")
  if not files.exists(path):
    return {}, {}
  found: dict[str, float] = {}
  layers: dict[str, list[float]] = {}
  for name, of_set in files.read_json(path)["sets"].items():
    layers = of_set.pop("layer_similarity", layers)
    found |= {f"{key}@{name}": value for key, value in of_set.items() if isinstance(value, (int, float))}
  return found | {f"layer_{key}": statistics.fmean(values) for key, values in layers.items()}, layers


def read_tasks(tasks_dir: str) -> dict[str, float]:
  """Scores in percent of one seed, or the median of several; and the paper's average where all five are there.

  SQuAD counts with the mean of F1 and exact match, and the five scores count alike. So ALBERT-base in table 2:
  (89.3 + 82.3) / 2, (80.0 + 77.1) / 2, 81.6, 90.3, 64.0 → 80.1.
  """
  found = {}
  for name, task in TASKS.items():
    path = os.path.join(tasks_dir, name, "results.json")
    if files.exists(path):
      record = files.read_json(path)
      metrics = record.get("median", record)
      found[f"score@{name}"] = task.factor * statistics.fmean(metrics[metric] for metric in task.metrics)
  return {**found, "score@average": statistics.fmean(found.values())} if len(found) == len(TASKS) else found
