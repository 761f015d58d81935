"""What a study has found so far: a table with a row an arm, and a picture."""

from collections.abc import Mapping, Sequence
import dataclasses
import datetime
import io
import os
import statistics
from typing import Any

from albert_tf import files
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.planning.chips import CHIPS
from albert_tf.planning.estimate import StepShape, estimate_step
from albert_tf.studies import results
from albert_tf.studies.plan import Plan
from albert_tf.studies.study import Study, flag_values

_HEADINGS = {
  "examples_per_second": "examples/s",
  "tpu_speed": "speed, TPU v3",
  "masked_lm_loss": "masked-LM loss",
  "masked_lm_accuracy": "masked LM",
  "sentence_accuracy": "sentence task",
  "next_sentence_accuracy": "NSP",
  "sentence_order_accuracy": "SOP",
  "layer_l2": "L2 of a layer",
  "layer_degrees": "angle of a layer",
  "steps": "updates",
}
_Curve = tuple[
  Sequence[int], Sequence[Sequence[float]]
]  # Steps or layers, and of each seed the values there.


@dataclasses.dataclass(kw_only=True)
class Row:
  """An arm, or one run of `--runs`.

  Attributes:
    title: of the arm.
    paper: heading → the paper's figure.
    values: metric → one number a seed.
    reports: a run's reports, for each trained seed.
    layers: what the layers do (`l2`, `degrees`: a value a layer), for each seed.
  """

  title: str
  paper: Mapping[str, float | str] = dataclasses.field(default_factory=dict)
  values: dict[str, list[float]] = dataclasses.field(default_factory=dict)
  reports: list[Sequence[Mapping[str, Any]]] = dataclasses.field(default_factory=list)
  layers: list[Mapping[str, Sequence[float]]] = dataclasses.field(default_factory=list)

  def add(self, figures: Mapping[str, float]) -> None:
    """Adds the figures of a seed."""
    for key, value in figures.items():
      self.values.setdefault(key, []).append(value)


def write_report(plan: Plan) -> str:
  """Writes table and picture of what is finished so far; returns the table as Markdown.

  An arm of which nothing is finished has a row with the paper's figures.
  """
  values = {**flag_values(plan.data_flags), **flag_values(plan.train_flags)}
  names = ("max_seq_length", "hidden_size", "num_hidden_layers", "train_batch_size", "num_train_steps")
  shared = [f"{name.replace('_', ' ')} {values[name]}" for name in names if name in values]
  shared += ["masked LM alone"] if values.get("sentence_loss") == "off" else []
  text = (
    plan.input or f"{flag_values(plan.text_flags).get('max_megabytes', '0')} MB of installed documentation"
  )
  seeds = f"{len(plan.seeds)} seeds, mean ± standard deviation" if len(plan.seeds) > 1 else "one seed"
  scale = {"laptop": "a laptop", "paper": "the paper"}[plan.scale]
  lines = [
    plan.study.question,
    "",
    f"{plan.study.paper.capitalize()} of the ALBERT paper, at the scale of {scale}; {datetime.date.today():%d %B %Y}.",
    f"Text: {text}; {', '.join(shared)}; {seeds}. Held-out documents are the same for all arms.",
  ]
  rows = []
  speeds = _tpu_speeds(plan.study) if "tpu_speed" in plan.study.columns else {}
  for arm in plan.arms:
    row = Row(title=arm.titles[plan.scale], paper=arm.paper)
    row.add({"tpu_speed": speeds[arm.name]} if speeds else {})
    for seed in plan.seeds:
      run_dir = plan.seed_dir("runs", arm, seed)
      probes, layers = results.read_probes(plan.seed_dir("probes", arm, seed))
      tasks = results.read_tasks(plan.seed_dir("tasks", arm, seed))
      row.add({**results.read_run(run_dir), **probes, **tasks})
      row.reports += filter(None, [results.read_reports(run_dir)])
      row.layers += filter(None, [layers])
    rows.append(row)
  return _write(plan.study, plan.output_dir, rows, lines)


def write_curves(study: Study, run_dirs: Sequence[str], output_dir: str) -> str:
  """The same of any runs, wherever they come from.

  Raises:
    UserError: a directory holds no reports.
  """
  rows = []
  for run_dir in run_dirs:
    row = Row(title=run_dir, reports=[results.read_reports(run_dir)])
    if not row.reports[0]:
      raise UserError(f"A run directory holds reports. Received: {run_dir}, which does not.")
    row.add(results.read_run(run_dir))
    rows.append(row)
  return _write(study, output_dir, rows, [f"{len(run_dirs)} runs; {datetime.date.today():%d %B %Y}."])


def _tpu_speeds(study: Study) -> dict[str, float]:
  """Steps a second beside BERT large, of the paper's models: a TPU v3 core, 8 examples of length 512, by formula."""
  cycles = {}
  for arm in study.arms_at("paper"):
    config = AlbertConfig.from_name(flag_values(arm.flags["paper"])["size"], vocab_size=30_000)
    cycles[arm.name] = estimate_step(config, StepShape(per_core_batch_size=8), CHIPS["v3"]).cycles
  return {name: cycles["bert_large"] / each for name, each in cycles.items()}


def _write(study: Study, directory: str, rows: Sequence[Row], lines: Sequence[str]) -> str:
  files.makedirs(directory)
  if any(row.reports for row in rows):
    _draw(study, rows, os.path.join(directory, f"{study.name}.png"))
    lines = [*lines, "", f"![{study.title}]({study.name}.png)"]
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
  body = ["| " + " | ".join(cells) + " |" for cells in table]
  text = "\n".join([f"# {study.title}", "", *lines, "", *body, ""])
  files.write_text(os.path.join(directory, "table.md"), text)
  return text


def _heading(metric: str) -> str:
  if metric.startswith("score@"):
    return "average of tasks" if metric == "score@average" else metric.removeprefix("score@")
  name = metric.partition("@")[0]
  if name.startswith("train_"):
    return f"{_heading(name.removeprefix('train_'))} in training"
  return _HEADINGS.get(name, name.replace("_", " "))


def _cell(key: str, values: Sequence[float]) -> str:
  """Mean ± standard deviation over the seeds; a dash where nothing was measured."""
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
  """Draws the study's curves, a panel each, as a PNG: the mean over the seeds, and their range."""
  from matplotlib.figure import Figure  # Slow to load, and needed by no other command.

  if study.layers:
    titles = {"l2": "L2 distance of a layer's input and output", "degrees": "angle between them, degrees"}
    panels = [(title, "layer", [_layer_curve(row, key) for row in rows]) for key, title in titles.items()]
  else:
    panels = [
      (_curve_title(split, key), "update", [_curve(row, split, key) for row in rows])
      for split, key in study.curves
    ]
  figure = Figure(figsize=(1.5 + 5.4 * len(panels), 4.6), dpi=100, layout="constrained")
  grid = figure.subplots(1, len(panels), squeeze=False)[0]
  for axes, (title, unit, curves) in zip(grid, panels, strict=True):
    for number, (row, (x, seeds)) in enumerate(zip(rows, curves, strict=True)):
      if x:
        points = list(zip(*seeds, strict=True))  # [points][seeds]
        style = f"C{number % 10}{'-' if number < 10 else '--'}"
        axes.plot(x, [*map(statistics.fmean, points)], style, label=row.title)
        axes.fill_between(
          x, [*map(min, points)], [*map(max, points)], color=style[:2], alpha=0.18, linewidth=0
        )
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(unit, fontsize=9)
    axes.grid(color="#e6e6e6")
  figure.suptitle(f"{study.title} ({study.paper})")
  figure.legend(*grid[-1].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)
  image = io.BytesIO()
  figure.savefig(image, format="png")
  with files.atomic_writer(path) as stream:
    stream.write(image.getvalue())


def _layer_curve(row: Row, key: str) -> _Curve:
  values = [of_seed[key] for of_seed in row.layers]
  return range(1, len(values[0]) + 1) if values else (), values


def _curve_title(split: str, key: str) -> str:
  percent = ", %" if "accuracy" in key else ""
  return f"{'held-out' if split == 'eval' else 'training'} {_heading(key)}{percent}"


def _curve(row: Row, split: str, key: str) -> _Curve:
  """The steps that all seeds have reported, and each seed's values at them."""
  scale = 100.0 if "accuracy" in key else 1.0
  curves = []
  for reports in row.reports:
    own = [report for report in reports if report["split"] == split and report.get(key) is not None]
    curves.append({report["step"]: scale * report[key] for report in own})
  steps = sorted(set.intersection(*map(set, curves))) if curves else []
  return steps, [[curve[step] for step in steps] for curve in curves]
