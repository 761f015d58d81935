"""Results of a study so far: a table with a row for each arm, and a picture."""

from collections.abc import Mapping, Sequence
import dataclasses
import datetime
import io
import os
import shlex
import statistics
from typing import Any

from albert_tf import files
from albert_tf.configs import AlbertConfig
from albert_tf.pretraining.watch import not_learned
from albert_tf.runs.metrics_log import read_metrics
from albert_tf.studies.catalogue import Study
from albert_tf.studies.plan import TASKS, Plan

_HEADINGS = {
  "examples_per_second": "examples/s",
  "masked_lm_loss": "masked-LM loss",
  "masked_lm_accuracy": "masked LM",
  "sentence_accuracy": "sentence task",
  "next_sentence_accuracy": "NSP",
  "sentence_order_accuracy": "SOP",
  "layer_l2": "L2 of a layer",
  "layer_degrees": "angle of a layer",
  "steps": "updates",
  "score@average": "average of tasks",
}
_LAYERS = {"l2": "L2 distance of a layer's input and output", "degrees": "angle between them, degrees"}


@dataclasses.dataclass(kw_only=True)
class Row:
  """The results of an arm."""

  title: str
  paper: Mapping[str, float | str]  # Heading → the paper's number.
  values: dict[str, list[float]] = dataclasses.field(default_factory=dict)  # Metric → a number for each seed.
  # For each trained seed: its reports; and `l2`, `degrees` of each layer.
  reports: list[Sequence[Mapping[str, Any]]] = dataclasses.field(default_factory=list)
  layers: list[Mapping[str, Sequence[float]]] = dataclasses.field(default_factory=list)


def _read_run(run_dir: str, reports: Sequence[Mapping[str, Any]]) -> dict[str, float]:
  """Metrics of a run: from its last held-out evaluation and, with `train_`, its last tenth of training reports."""
  train = [row for row in reports if row["split"] == "train"]
  if not train:
    return {}
  last: Mapping[str, Any] = next((row for row in reversed(reports) if row["split"] == "eval"), {})
  rates = [row["examples_per_second"] for row in train]
  hours = (
    sum(v for key, v in train[-1].items() if key.startswith("seconds_") and key != "seconds_lost") / 3600
  )
  found: dict[str, float | None] = {
    "parameters": AlbertConfig.from_json_file(os.path.join(run_dir, "albert_config.json")).param_count(),
    "steps": train[-1]["step"],
    "examples_per_second": statistics.median(rates[1:] or rates),  # The first includes the compilation.
    "hours": hours,
    "sentence_accuracy": last.get("sentence_order_accuracy", last.get("next_sentence_accuracy")),
  }
  for key in ("masked_lm_loss", "masked_lm_accuracy"):
    found[key] = last.get(key)
    values = [row[key] for row in train[-max(1, len(train) // 10) :] if row.get(key) is not None]
    found[f"train_{key}"] = statistics.fmean(values) if values else None
  return {key: value for key, value in found.items() if value is not None}


def _read_probes(probe_dir: str) -> tuple[dict[str, float], dict[str, list[float]]]:
  """Metrics of eval.json as `metric@set`; and `l2` and `degrees` of each layer, if it has them."""
  path = os.path.join(probe_dir, "eval.json")
  found: dict[str, float] = {}
  layers: dict[str, list[float]] = {}
  for name, of_set in files.read_json(path, sets=dict)["sets"].items() if files.exists(path) else ():
    layers = of_set.pop("layer_similarity", layers)
    found |= {f"{key}@{name}": value for key, value in of_set.items() if isinstance(value, (int, float))}
  return found | {f"layer_{key}": statistics.fmean(values) for key, values in layers.items()}, layers


def read_tasks(tasks_dir: str) -> dict[str, float]:
  """Scores in percent of one seed, or the median of several; and the paper's average if all five exist.

  The score of SQuAD is the mean of F1 and exact match; the average is of five scores. ALBERT-base in table 2:
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


def write_report(plan: Plan) -> str:
  """Writes table and picture of finished runs; returns the table as Markdown.

  An arm without a finished run has a row with the paper's numbers.
  """
  study, seeds = plan.definition, plan.all_seeds()
  rows, warnings = [], []
  for arm in plan.chosen_arms():
    row = Row(title=arm.title_at(plan.scale), paper=arm.paper)
    for seed in seeds:
      run_dir = plan.seed_dir("runs", arm.name, seed)
      reports = read_metrics(os.path.join(run_dir, "metrics.jsonl")) if files.isdir(run_dir) else []
      probes, layers = _read_probes(plan.seed_dir("probes", arm.name, seed))
      tasks = read_tasks(plan.seed_dir("tasks", arm.name, seed))
      for key, value in {**_read_run(run_dir, reports), **probes, **tasks}.items():
        row.values.setdefault(key, []).append(value)
      row.reports += filter(None, [reports])
      row.layers += filter(None, [layers])
      for last in [report for report in reports if report["split"] == "eval"][-1:]:
        settings = files.read_json(os.path.join(run_dir, "run.json"))["settings"]
        warnings += [f"- {row.title}, seed {seed}: {words}" for words in not_learned(last, settings)]
    rows.append(row)
  lines = [f"# {study.title}", "", study.question, "", _settings(plan), ""]
  if any(row.reports for row in rows):
    _draw(study, rows, plan.path(f"{study.name}.png"))
    lines += [f"![{study.title}]({study.name}.png)", ""]
  lines += [*_table(study, rows), ""]
  lines += ["Not learned, so no result about it:", "", *warnings, ""] if warnings else []
  text = "\n".join(lines)
  files.write_text(plan.path("table.md"), text)
  return text


def _settings(plan: Plan) -> str:
  """Scale, text and settings in two sentences."""
  seeds = len(plan.all_seeds())
  flags = shlex.join(shlex.split(f"{plan.text_flags} {plan.data_flags} {plan.train_flags}"))
  return (
    f"{plan.definition.paper.capitalize()} of the ALBERT paper, scale: {plan.scale}; "
    f"{datetime.date.today():%d %B %Y}.\n"
    f"Text: {plan.input or 'installed documentation'}; `{flags}`; "
    f"{f'{seeds} seeds, mean ± standard deviation' if seeds > 1 else 'one seed'}. "
    "Held-out documents are the same for all arms."
  )


def _table(study: Study, rows: Sequence[Row]) -> list[str]:
  """The lines of a Markdown table."""
  found = {key for row in rows for key in row.values}
  first, *rest = study.columns
  wanted = [first, "examples_per_second", *rest, *sorted(key for key in found if key.startswith("score@"))]
  columns = [key for key in dict.fromkeys(wanted) if key in found]
  papers = list(dict.fromkeys(key for row in rows for key in row.paper))
  header = ["", *map(_heading, columns), *(f"paper: {key}" for key in papers)]
  table = [header, ["---"] * len(header)]
  for row in rows:
    measured = [_cell(key, row.values.get(key, ())) for key in columns]
    table.append([row.title, *measured, *(str(row.paper.get(key, "–")) for key in papers)])
  return ["| " + " | ".join(cells) + " |" for cells in table]


def _heading(metric: str) -> str:
  if metric.startswith("train_"):
    return f"{_heading(metric.removeprefix('train_'))} in training"
  name = metric if metric.startswith("score@") else metric.partition("@")[0]
  return _HEADINGS.get(name, name.removeprefix("score@"))


def _cell(key: str, values: Sequence[float]) -> str:
  """Mean ± standard deviation over the seeds; a dash without values."""
  if not values:
    return "–"
  mean = statistics.fmean(values)
  if key in ("parameters", "steps"):
    return f"{mean:,.0f}"
  scale, unit = (100.0, " %") if "accuracy" in key else (1.0, "")
  digits = 1 if unit or key.startswith("score@") else 3 if "loss" in key else 2
  if key == "examples_per_second" and mean >= 10:
    digits = 0
  spread = f" ± {scale * statistics.stdev(values):,.{digits}f}" if len(values) > 1 else ""
  return f"{scale * mean:,.{digits}f}{spread}{unit}"


def _draw(study: Study, rows: Sequence[Row], path: str) -> None:
  """Draws a panel for each curve of the study as a PNG, with a line for each arm and seed."""
  from matplotlib.figure import Figure  # Slow to load, and needed by no other command.

  panels = [*study.curves] if not study.layers else [("layers", key) for key in _LAYERS]
  figure = Figure(figsize=(1.5 + 5.4 * len(panels), 4.6), dpi=100, layout="constrained")
  grid = figure.subplots(1, len(panels), squeeze=False)[0]
  for axes, (split, key) in zip(grid, panels, strict=True):
    for number, row in enumerate(rows):
      style = f"C{number % 10}{'-' if number < 10 else '--'}"
      for seed, (x, y) in enumerate(_curves(row, split, key)):
        axes.plot(x, y, style, label="_" * seed + row.title, linewidth=1)  # "_": not in the legend.
    percent = ", %" if "accuracy" in key else ""
    place = {"eval": "held-out ", "train": "training "}.get(split, "")
    axes.set_title(f"{place}{_LAYERS.get(key, _heading(key))}{percent}", fontsize=10, loc="left")
    axes.set_xlabel("layer" if study.layers else "update", fontsize=9)
    axes.grid(color="#e6e6e6")
  figure.suptitle(f"{study.title} ({study.paper})")
  figure.legend(*grid[-1].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)
  image = io.BytesIO()
  figure.savefig(image, format="png")
  with files.atomic_writer(path) as stream:
    stream.write(image.getvalue())


def _curves(row: Row, split: str, key: str) -> Sequence[tuple[Sequence[int], Sequence[float]]]:
  """x and y of each seed: a metric over the updates, or over the layers."""
  if split == "layers":
    return [(range(1, 1 + len(of_seed[key])), of_seed[key]) for of_seed in row.layers]
  scale, found = 100.0 if "accuracy" in key else 1.0, []
  for reports in row.reports:
    own = [report for report in reports if report["split"] == split and report.get(key) is not None]
    found.append(([each["step"] for each in own], [scale * each[key] for each in own]))
  return found
