"""What a study has found so far: a row an arm, each figure with its mean and spread over the seeds."""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import statistics
from typing import Any

from albert_tf import files
from albert_tf.studies.measurements import examples_per_second, read_probes, read_rows, read_run, read_tasks
from albert_tf.studies.plan import Plan
from albert_tf.studies.stage import PRETRAINING, PROBE, TASKS, TPU_STEP, Stage
from albert_tf.studies.study import Arm


@dataclasses.dataclass(frozen=True)
class Figure:
  """One measured number, of each seed.

  Attributes:
    values: one a seed.
  """

  values: tuple[float, ...]

  @property
  def mean(self) -> float:
    return statistics.fmean(self.values)

  @property
  def spread(self) -> float | None:
    """Standard deviation over the seeds; None for a single one."""
    return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """An arm, or one run of `--runs`.

  Attributes:
    name, title: of the arm.
    seeds: that are trained.
    figures: metric → figure.
    paper: heading → the paper's figure.
    reports: a run's reports, for each seed, for curves.
    layers: what the layers do (`l2`, `degrees`: a value a layer), for each seed.
  """

  name: str
  title: str
  seeds: tuple[int, ...] = ()
  figures: Mapping[str, Figure] = dataclasses.field(default_factory=dict)
  paper: Mapping[str, float | str] = dataclasses.field(default_factory=dict)
  reports: tuple[Sequence[Mapping[str, Any]], ...] = ()
  layers: tuple[Mapping[str, Sequence[float]], ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Results:
  """Rows, and what is to be said beside them."""

  rows: tuple[Row, ...]
  notes: tuple[str, ...] = ()


def collect(plan: Plan, done: Sequence[Stage]) -> Results:
  """Reads what the finished stages have left; arms of which nothing is finished have a row with the paper's figures."""
  names = {stage.name for stage in done}
  notes: dict[str, None] = {}
  rows = []
  for arm in plan.arms:
    seeds = tuple(seed for seed in plan.seeds if f"{PRETRAINING}/{arm.name}/seed-{seed}" in names)
    values, layers = [], []
    for seed in seeds:
      probes, of_layers = read_probes(plan.seed_dir(PROBE, arm, seed))
      scores, left_out = read_tasks(plan.seed_dir(TASKS, arm, seed)) if plan.data_dir else ({}, {})
      notes.update({f"Left out: {task}, {reason}": None for task, reason in left_out.items()})
      values.append({**read_run(plan.run_dir(arm, seed)), **probes, **scores})
      layers += [of_layers] if of_layers else []
    figures = {**_gather(values), **_speed(plan, arm, done)}
    rows.append(
      Row(
        name=arm.name,
        title=arm.titles[plan.scale],
        seeds=seeds,
        figures=figures,
        paper=arm.paper,
        reports=tuple(read_rows(plan.run_dir(arm, seed)) for seed in seeds),
        layers=tuple(layers),
      )
    )
  if plan.study.fine_tuned and not plan.data_dir:
    notes["Left out: scores of tasks, as --data_dir names no folder of them"] = None
  if any(stage.kind == TASKS for stage in plan.stages()) and not any(
    "score@average" in row.figures for row in rows
  ):
    notes["Scores of tasks are not there yet"] = None
  return Results(rows=tuple(rows), notes=(*notes, *_tpu_notes(plan, done)))


def of_runs(run_dirs: Sequence[str]) -> Results:
  """A row for each run directory, by its own name."""
  names = _shortest_names(run_dirs)
  return Results(
    rows=tuple(
      Row(name=name, title=name, seeds=(0,), figures=_gather([read_run(path)]), reports=(read_rows(path),))
      for name, path in zip(names, run_dirs, strict=True)
    )
  )


def _shortest_names(paths: Sequence[str]) -> list[str]:
  """The last parts of each path by which it differs from the others."""
  parts = [files.abspath(path).rstrip("/").split("/") for path in paths]
  for count in range(1, max(map(len, parts), default=0) + 1):
    names = ["/".join(each[-count:]) for each in parts]
    if len(set(names)) == len(names):
      return names
  return list(paths)


def _gather(values: Sequence[Mapping[str, float]]) -> dict[str, Figure]:
  """Metric → figure over the seeds that have it."""
  keys = dict.fromkeys(key for of_seed in values for key in of_seed)
  return {key: Figure(tuple(of_seed[key] for of_seed in values if key in of_seed)) for key in keys}


def _speed(plan: Plan, arm: Arm, done: Sequence[Stage]) -> dict[str, Figure]:
  """Speed beside that of the study's reference arm: measured turn by turn, and of a TPU's step."""
  speed = plan.study.speed
  if speed is None or not speed.relative_to:
    return {}
  reference = next((other for other in plan.arms if other.name == speed.relative_to), None)
  if reference is None:
    return {}
  pairs = [
    tuple(examples_per_second(plan.speed_dir(each, turn)) for each in (arm, reference))
    for turn in range(speed.rounds)
  ]
  ratios = tuple(mine / other for mine, other in pairs if mine and other)
  found = {"speedup": Figure(ratios)} if ratios else {}
  cycles = [_tpu_time(plan, each, done) for each in (arm, reference)]
  if cycles[0] and cycles[1]:
    found["tpu_speedup"] = Figure((cycles[1]["cycles"] / cycles[0]["cycles"],))
  return found


def _tpu_time(plan: Plan, arm: Arm, done: Sequence[Stage]) -> Mapping[str, Any] | None:
  stage = next((each for each in done if each.kind == TPU_STEP and each.name == f"tpu/{arm.name}"), None)
  return None if stage is None else json.loads(files.read_bytes(stage.produces))["time"]


def _tpu_notes(plan: Plan, done: Sequence[Stage]) -> list[str]:
  times = [_tpu_time(plan, arm, done) for arm in plan.arms] if plan.study.speed else []
  sources = sorted({time["source"] for time in times if time})
  return [f"Speed on a TPU v3 core, 8 examples of length 512: {', '.join(sources)}"] if sources else []
