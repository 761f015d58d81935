"""Results of a study so far: a table with a row for each arm, and a picture."""

from collections.abc import Mapping, Sequence
import dataclasses
import datetime
import os
import shlex
import statistics

from albert_tf import files, json_files
from albert_tf.configs import AlbertConfig
from albert_tf.pretraining.curves import save_png
from albert_tf.pretraining.watch import not_learned
from albert_tf.progress import markdown_table
from albert_tf.runs.metrics_log import Report, read_metrics
from albert_tf.studies.catalogue import Study
from albert_tf.studies.plan import TASKS, StudyPlan

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
_LAYER_TITLES = {
  "l2": "L2 distance of a layer's input and output",
  "degrees": "angle between them, degrees",
}
_X_LABELS = {"step": "update", "hours": "hours of updates"}
_SPLIT_TITLES = {"eval": "held-out", "train": "training"}


@dataclasses.dataclass(kw_only=True)
class Row:
  """The results of an arm."""

  title: str
  paper: Mapping[str, float | str]  # Heading → the paper's number.
  in_picture: bool
  # Metric → a number for each seed.
  values: dict[str, list[float]] = dataclasses.field(default_factory=dict)
  # For each trained seed: its reports; and `l2`, `degrees` of each layer.
  reports: list[Sequence[Report]] = dataclasses.field(default_factory=list)
  layers: list[Mapping[str, Sequence[float]]] = dataclasses.field(default_factory=list)


def write_report(plan: StudyPlan) -> str:
  """Writes table and picture of finished runs; returns the table as Markdown.

  An arm without a finished run has a row with the paper's numbers.
  """
  study = plan.definition
  rows: list[Row] = []
  warnings: list[str] = []
  for arm in plan.chosen_arms():
    row = Row(title=arm.title_at(plan.scale), paper=arm.paper, in_picture=arm.in_picture)
    for seed in plan.all_seeds():
      # What this seed measured: in training, on the probes, on the tasks.
      run_dir = plan.seed_dir("runs", arm.name, seed)
      reports = read_metrics(os.path.join(run_dir, "metrics.jsonl"))
      probes, layers = _read_probes(plan.seed_dir("probes", arm.name, seed))
      metrics = _read_run(run_dir, reports) | probes
      metrics |= read_tasks(plan.seed_dir("tasks", arm.name, seed))
      for name, value in metrics.items():
        row.values.setdefault(name, []).append(value)
      if reports:
        row.reports.append(reports)
      if layers:
        row.layers.append(layers)

      # A model that has learned nothing says nothing about its arm.
      evaluation = _last_evaluation(reports)
      if evaluation:
        settings = json_files.read(os.path.join(run_dir, "run.json"))["settings"]
        for warning in not_learned(evaluation, settings):
          warnings.append(f"- {row.title}, seed {seed}: {warning}")
    rows.append(row)

  # Question, settings, picture, table, warnings.
  lines = [f"# {study.title}", "", study.question, "", _settings(plan), ""]
  if any(row.reports for row in rows):
    _draw(study, rows, plan.path(f"{study.name}.png"))
    lines += [f"![{study.title}]({study.name}.png)", ""]
  lines += [_table(study, rows), ""]
  if warnings:
    lines += ["Not learned, so no result about it:", ""] + warnings + [""]
  text = "\n".join(lines)
  files.write_text(plan.path("table.md"), text)
  return text


def _last_evaluation(reports: Sequence[Report]) -> Report:
  """The last held-out evaluation; empty if there is none."""
  for report in reversed(reports):
    if report["split"] == "eval":
      return report
  return {}


def _read_run(run_dir: str, reports: Sequence[Report]) -> dict[str, float]:
  """Metrics of a run: of its last held-out evaluation, and of training.

  Those with `train_` are means over the last tenth of the training reports.
  """
  train = [report for report in reports if report["split"] == "train"]
  if not train:
    return {}

  # Size, length and speed, as the last report of training has them.
  config = AlbertConfig.from_json_file(os.path.join(run_dir, "albert_config.json"))
  last_report = train[-1]
  # The first report includes the compilation.
  rates = [report["examples_per_second"] for report in train]
  # A median leaves out the minutes in which a shared machine had other work.
  rate = statistics.median(rates[1:] or rates)
  settings = json_files.read(os.path.join(run_dir, "run.json"))["settings"]
  num_examples = last_report["step"] * settings["step"]["global_batch_size"]
  metrics = {
    "parameters": config.param_count(),
    "steps": last_report["step"],
    "examples_per_second": rate,
    # Compilation, evaluations and checkpoints are not in it: an arm does not decide how often they
    # happen.
    "hours": num_examples / rate / 3600,
  }

  # What was learned. A run has one sentence task, whose name depends on its records.
  evaluation = _last_evaluation(reports)
  for name in ("next_sentence_accuracy", "sentence_order_accuracy"):
    if name in evaluation:
      metrics["sentence_accuracy"] = evaluation[name]
  last_tenth = train[-max(1, len(train) // 10) :]
  for name in ("masked_lm_loss", "masked_lm_accuracy"):
    metrics[name] = evaluation.get(name)
    values = [report[name] for report in last_tenth if report.get(name) is not None]
    if values:
      metrics[f"train_{name}"] = statistics.fmean(values)
  # A number that was not finite is null in the reports.
  return {name: value for name, value in metrics.items() if value is not None}


def _read_probes(probe_dir: str) -> tuple[dict[str, float], dict[str, list[float]]]:
  """Metrics of eval.json as `metric@set`; and `l2` and `degrees` of each layer, if it has them."""
  metrics: dict[str, float] = {}
  layers: dict[str, list[float]] = {}
  path = os.path.join(probe_dir, "eval.json")
  for set_name, results in json_files.find(path, sets=dict).get("sets", {}).items():
    layers = results.get("layer_similarity", layers)
    for name, value in results.items():
      if isinstance(value, (int, float)):
        metrics[f"{name}@{set_name}"] = value
  for name, values in layers.items():
    metrics[f"layer_{name}"] = statistics.fmean(values)
  return metrics, layers


def read_tasks(tasks_dir: str) -> dict[str, float]:
  """Scores in percent of one seed, or the median of several; and the average if all five exist.

  The score of SQuAD is the mean of F1 and exact match; the average is of five scores. ALBERT-base
  in table 2: (89.3 + 82.3) / 2, (80.0 + 77.1) / 2, 81.6, 90.3, 64.0 → 80.1.
  """
  scores = {}
  for name, task in TASKS.items():
    path = os.path.join(tasks_dir, name, "results.json")
    results = json_files.find(path)
    if results:
      # A fine-tuning with several seeds wrote the median of each metric.
      metrics = results.get("median", results)
      score = statistics.fmean(metrics[metric] for metric in task.metrics)
      scores[f"score@{name}"] = task.factor * score
  if len(scores) == len(TASKS):
    scores["score@average"] = statistics.fmean(scores.values())
  return scores


def _settings(plan: StudyPlan) -> str:
  """Scale, text and settings in two sentences."""
  flags = shlex.join(shlex.split(f"{plan.text_flags} {plan.data_flags} {plan.train_flags}"))
  seeds = "one seed"
  if len(plan.all_seeds()) > 1:
    seeds = f"{len(plan.all_seeds())} seeds, mean ± standard deviation"
  source = "No table of the ALBERT paper"
  if plan.definition.paper:
    source = f"{plan.definition.paper.capitalize()} of the ALBERT paper"
  return (
    f"{source}, scale: {plan.scale}; "
    f"{datetime.date.today():%d %B %Y}.\n"
    f"Text: {plan.input or 'installed documentation'}; `{flags}`; {seeds}. "
    "Held-out documents are the same for all arms."
  )


def _table(study: Study, rows: Sequence[Row]) -> str:
  """A Markdown table: what was measured, then the paper's numbers."""
  measured = {name for row in rows for name in row.values}
  # The study's columns with the speed after the first, then the tasks' scores.
  columns = list(study.columns)
  columns.insert(1, "examples_per_second")
  columns += sorted(name for name in measured if name.startswith("score@"))
  columns = [name for name in columns if name in measured]
  paper_columns = list(dict.fromkeys(name for row in rows for name in row.paper))

  header = [""]
  header += [_heading(name) for name in columns]
  header += [f"paper: {name}" for name in paper_columns]
  lines = [header]
  for row in rows:
    cells = [row.title]
    cells += [_cell(name, row.values.get(name, ())) for name in columns]
    cells += [str(row.paper.get(name, "–")) for name in paper_columns]
    lines.append(cells)
  return markdown_table(*lines)


def _heading(metric: str) -> str:
  """A metric in words, such as "NSP" for next_sentence_accuracy@nsp, and "mnli" for score@mnli."""
  if metric.startswith("train_"):
    return f"{_heading(metric.removeprefix('train_'))} in training"
  name = metric
  if not metric.startswith("score@"):
    name = metric.partition("@")[0]
  return _HEADINGS.get(name, name.removeprefix("score@"))


def _cell(metric: str, values: Sequence[float]) -> str:
  """Mean ± standard deviation over the seeds; a dash without values."""
  if not values:
    return "–"
  mean = statistics.fmean(values)
  if metric in ("parameters", "steps"):
    return f"{mean:,.0f}"

  # As many digits as the paper prints.
  scale = 1.0
  unit = ""
  digits = 2
  if "accuracy" in metric:
    scale = 100.0
    unit = " %"
    digits = 1
  elif metric.startswith("score@"):
    digits = 1
  elif "loss" in metric:
    digits = 3
  elif metric == "examples_per_second" and mean >= 10:
    digits = 0
  spread = ""
  if len(values) > 1:
    spread = f" ± {scale * statistics.stdev(values):,.{digits}f}"
  return f"{scale * mean:,.{digits}f}{spread}{unit}"


def _draw(study: Study, rows: Sequence[Row], path: str) -> None:
  """Draws a panel for each curve of the study as a PNG, with a line for each arm and seed."""
  from matplotlib.figure import Figure  # Slow to load, and needed by no other command.

  panels = list(study.curves)
  x_label = _X_LABELS[study.curves_over]
  if study.layers:
    panels = [("layers", name) for name in _LAYER_TITLES]
    x_label = "layer"
  figure = Figure(figsize=(1.5 + 5.4 * len(panels), 4.6), dpi=100, layout="constrained")
  grid = figure.subplots(1, len(panels), squeeze=False)[0]
  for axes, (split, metric) in zip(grid, panels, strict=True):
    for number, row in enumerate(row for row in rows if row.in_picture):
      # Matplotlib has ten colours, "C0" to "C9"; further arms are dashed.
      style = f"C{number % 10}-"
      if number >= 10:
        style += "-"
      for seed, (x, y) in enumerate(_curves(row, split, metric, study.curves_over)):
        # A label that begins with "_" is not in the legend: an arm has one entry.
        axes.plot(x, y, style, label="_" * seed + row.title, linewidth=1)
    axes.set_title(_panel_title(split, metric), fontsize=10, loc="left")
    axes.set_xlabel(x_label, fontsize=9)
    axes.grid(color="#e6e6e6")
  title = study.title
  if study.paper:
    title += f" ({study.paper})"
  figure.suptitle(title)
  handles, labels = grid[-1].get_legend_handles_labels()
  figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)
  save_png(figure, path)


def _panel_title(split: str, metric: str) -> str:
  if split == "layers":
    return _LAYER_TITLES[metric]
  title = f"{_SPLIT_TITLES[split]} {_heading(metric)}"
  if "accuracy" in metric:
    title += ", %"
  return title


def _curves(
  row: Row, split: str, metric: str, over: str
) -> list[tuple[Sequence[float], Sequence[float]]]:
  """x and y for each seed: a metric over the updates, the hours, or the layers."""
  if split == "layers":
    # Layers are counted from 1.
    return [(range(1, 1 + len(layers[metric])), layers[metric]) for layers in row.layers]
  scale = 1.0
  if "accuracy" in metric:
    scale = 100.0
  curves: list[tuple[Sequence[float], Sequence[float]]] = []
  for number, reports in enumerate(row.reports):
    x_per_step = 1.0
    if over == "hours":
      x_per_step = row.values["hours"][number] / row.values["steps"][number]
    points = [r for r in reports if r["split"] == split and r.get(metric) is not None]
    x = [x_per_step * report["step"] for report in points]
    curves.append((x, [scale * report[metric] for report in points]))
  return curves
