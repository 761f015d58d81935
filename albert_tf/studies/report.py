"""What a study has found so far: a row an arm, as table.md, table.json and a picture."""

from collections.abc import Mapping, Sequence
import datetime
import json
import os
import statistics
from typing import Any

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.planning.chips import CHIPS
from albert_tf.planning.estimate import StepShape, estimate_step
from albert_tf.studies import results
from albert_tf.studies.plan import Plan
from albert_tf.studies.results import Row, heading
from albert_tf.studies.study import Study, flag_values, model_of

STUDY_FILE = "study.json"


def write_report(plan: Plan) -> str:
  """Writes table and picture of what is finished so far; returns the table as Markdown."""
  scale = {"laptop": "a laptop", "paper": "the paper"}[plan.scale]
  about = f"{plan.study.paper.capitalize()} of the ALBERT paper, at the scale of {scale}"
  values = {**flag_values(plan.data_flags), **flag_values(plan.train_flags)}
  names = ("max_seq_length", "hidden_size", "num_hidden_layers", "train_batch_size", "num_train_steps")
  shared = [f"{name.replace('_', ' ')} {values[name]}" for name in names if name in values]
  shared += ["masked LM alone"] if values.get("sentence_loss") == "off" else []
  text = (
    plan.input or f"{flag_values(plan.text_flags).get('max_megabytes', '0')} MB of installed documentation"
  )
  seeds = f"{len(plan.seeds)} seeds, mean ± standard deviation" if len(plan.seeds) > 1 else "one seed"
  lines = [
    plan.study.question,
    "",
    f"{about}; {datetime.date.today():%d %B %Y}.",
    f"Text: {text}; {', '.join(shared)}; {seeds}. Held-out documents are the same for all arms.",
  ]
  return _write(plan.study, plan.output_dir, _rows(plan), lines, plan.identity())


def write_curves(study: Study, run_dirs: Sequence[str], output_dir: str) -> str:
  """The same of any runs, wherever they come from.

  Raises:
    UserError: a directory holds no reports, or the output directory another study.
  """
  if not run_dirs:
    raise UserError("Learning curves are those of runs. Received: no --runs. Name them: --runs=RUN1,RUN2.")
  if files.exists(os.path.join(output_dir, STUDY_FILE)):
    raise UserError(
      f"Learning curves have a directory of their own. Received: {output_dir}, which holds another study, whose table "
      "they would replace. Choose another --output_dir."
    )
  rows = []
  for run_dir in run_dirs:
    reports = results.read_reports(run_dir)
    if not reports:
      raise UserError(f"A run directory holds reports. Received: {run_dir}, which does not.")
    values = {key: [value] for key, value in results.read_run(run_dir).items()}
    rows.append(Row(name=run_dir, title=run_dir, values=values, reports=(reports,)))
  lines = [f"{len(run_dirs)} runs; {datetime.date.today():%d %B %Y}."]
  return _write(study, output_dir, rows, lines, {"study": study.name, "runs": list(run_dirs)})


def _rows(plan: Plan) -> list[Row]:
  """What the finished commands have left; an arm of which nothing is finished has a row with the paper's figures."""
  rows = []
  speeds = _tpu_speeds(plan)
  for arm in plan.arms:
    values: dict[str, list[float]] = {"tpu_speed": [speeds[arm.name]]} if arm.name in speeds else {}
    reports: list[Sequence[Mapping[str, Any]]] = []
    layers: list[Mapping[str, Sequence[float]]] = []
    for seed in plan.seeds:
      reports += filter(None, [results.read_reports(plan.run_dir(arm, seed))])
      probes, of_layers = results.read_probes(plan.probe_dir(arm, seed))
      layers += filter(None, [of_layers])
      scores = results.read_tasks(plan.tasks_dir(arm, seed))
      for key, value in {**results.read_run(plan.run_dir(arm, seed)), **probes, **scores}.items():
        values.setdefault(key, []).append(value)
    rows.append(
      Row(
        name=arm.name,
        title=arm.titles[plan.scale],
        values=values,
        paper=arm.paper,
        reports=tuple(reports),
        layers=tuple(layers),
      )
    )
  return rows


def _tpu_speeds(plan: Plan) -> dict[str, float]:
  """Steps a second of the paper's models beside one of them: a TPU v3 core, 8 examples of length 512, by formula."""
  if not plan.study.speed_beside:
    return {}
  cycles = {}
  for arm in plan.study.arms_at("paper"):
    config = model_of(arm.flags["paper"], vocab_size=30_000)
    cycles[arm.name] = estimate_step(config, StepShape(per_core_batch_size=8), CHIPS["v3"]).cycles
  return {name: cycles[plan.study.speed_beside] / each for name, each in cycles.items()}


def _write(study: Study, directory: str, rows: Sequence[Row], lines: Sequence[str], about: object) -> str:
  from albert_tf.studies.plots import draw_study  # Loads Matplotlib.

  files.makedirs(directory)
  picture = f"{study.name}.png"
  if any(row.reports for row in rows):
    draw_study(study, rows, os.path.join(directory, picture))
    lines = [*lines, "", f"![{study.title}]({picture})"]
  found = {key for row in rows for key in row.values}
  first, *rest = study.columns
  wanted = [first, "examples_per_second", *rest, *sorted(key for key in found if key.startswith("score@"))]
  columns = [key for key in dict.fromkeys(wanted) if key in found]
  text = _markdown(study.title, columns, rows, lines)
  record = {"about": about, "rows": [_as_dict(row) for row in rows]}
  for name, content in {"table.md": text, "table.json": json.dumps(record, indent=2) + "\n"}.items():
    with files.atomic_writer(os.path.join(directory, name), "w") as stream:
      stream.write(content)
  return text


def _as_dict(row: Row) -> dict[str, Any]:
  """Every metric of every seed, not only the columns of the table."""
  figures = {
    key: {"mean": statistics.fmean(values), "standard_deviation": _spread(values), "values": list(values)}
    for key, values in row.values.items()
  }
  return {
    "arm": row.name,
    "title": row.title,
    "figures": figures,
    "layers": list(row.layers),
    "paper": dict(row.paper),
  }


def _spread(values: Sequence[float]) -> float | None:
  """Standard deviation over the seeds; None for a single one."""
  return statistics.stdev(values) if len(values) > 1 else None


def _markdown(title: str, columns: Sequence[str], rows: Sequence[Row], lines: Sequence[str]) -> str:
  """The table with what must be known to read it."""
  papers = list(dict.fromkeys(key for row in rows for key in row.paper))
  header = ["", *map(heading, columns), *(f"paper: {key}" for key in papers)]
  table = [header, ["---"] * len(header)]
  for row in rows:
    measured = [_cell(key, row.values.get(key, ())) for key in columns]
    table.append([row.title, *measured, *(str(row.paper.get(key, "–")) for key in papers)])
  body = ["| " + " | ".join(cells) + " |" for cells in table]
  return "\n".join([f"# {title}", "", *lines, "", *body, ""])


def _cell(key: str, values: Sequence[float]) -> str:
  """Mean ± standard deviation over the seeds; a dash where nothing was measured."""
  if not values:
    return "–"
  mean, spread = statistics.fmean(values), _spread(values)
  if key in ("parameters", "steps"):
    return f"{mean:,.0f}"
  scale, unit = (100.0, " %") if "accuracy" in key else (1.0, "")
  digits = 1 if unit or key.startswith("score@") else 3 if "loss" in key else 2
  if key == "examples_per_second" and mean >= 10:
    digits = 0
  about = "" if spread is None else f" ± {scale * spread:,.{digits}f}"
  return f"{scale * mean:,.{digits}f}{about}{unit}"
