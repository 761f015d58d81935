"""How far the planning formula is from Google's TPU compiler, and the constants that bring it nearest.

Cycles are those of the final schedule; figures from before it was read have memory alone.

Reads figures that compile_for_tpu.py has kept (`--cache_dir`), or a file this script wrote before, and prints one JSON
line. What counts is the error on programs that the formula was not fitted to: tests/goldens/tpu_figures_held_out.json.

Example:
  python tpu_scripts/compile_for_tpu.py --sweep --per_core_batch_size=8 --cache_dir=figures
  python benchmarks/tpu_estimate.py --cache_dir=figures --write_figures=tests/goldens/tpu_figures.json
  python benchmarks/tpu_estimate.py --figures=tests/goldens/tpu_figures.json --fit
"""

from collections.abc import Sequence
import json
import pathlib
import statistics
import sys
from typing import Any, NamedTuple

from absl import flags
import common
import numpy as np
from scipy import optimize

from albert_tf import files
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.planning import estimate
from albert_tf.planning.chips import CHIPS, Chip

_CACHE_DIR = flags.DEFINE_string("cache_dir", "", "Figures that compile_for_tpu.py has kept.")
_FIGURES = flags.DEFINE_string("figures", "", "Instead: a file from --write_figures.")
_WRITE_FIGURES = flags.DEFINE_string("write_figures", "", "Where to keep the figures in one file.")
_FIT = flags.DEFINE_bool(
  "fit", False, "Print each chip's constants that fit best, for albert_tf/planning/estimate.py."
)


class _Program(NamedTuple):
  """One compiled program and its figures."""

  config: AlbertConfig
  shape: estimate.StepShape
  chip: Chip
  figures: dict[str, Any]


def _read() -> list[dict[str, Any]]:
  if _FIGURES.value:
    return json.loads(pathlib.Path(_FIGURES.value).read_text(encoding="utf-8"))
  paths = sorted(pathlib.Path(_CACHE_DIR.value).expanduser().glob("*.json")) if _CACHE_DIR.value else []
  records = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
  if all(record["figures"]["refused"] for record in records):
    raise UserError(
      f"Figures of the compiler are needed. Received: --cache_dir={_CACHE_DIR.value!r}, --figures={_FIGURES.value!r}, "
      "which have none. Run compile_for_tpu.py with --cache_dir first."
    )
  newest = max(paths, key=lambda path: path.stat().st_mtime)
  source = records[paths.index(newest)]["source"]
  return sorted(
    (
      {key: record[key] for key in ("config", "shape", "chip", "figures")}
      for record in records
      if record["source"] == source and not record["figures"]["refused"]
    ),
    key=lambda record: json.dumps(record, sort_keys=True),
  )


def _program(record: dict[str, Any]) -> _Program:
  shape = estimate.StepShape(**record["shape"])
  return _Program(AlbertConfig.from_dict(record["config"]), shape, CHIPS[record["chip"]], record["figures"])


def errors(programs: Sequence[_Program]) -> dict[str, Any]:
  """Relative errors of the formula, by what and by chip."""
  found: dict[str, dict[str, list[float]]] = {"memory": {}, "cycles": {}}
  for config, shape, chip, figures in programs:
    step = estimate.estimate_step(config, shape, chip)
    found["memory"].setdefault(chip.name, []).append(step.required_bytes / figures["required_bytes"] - 1)
    if _scheduled(figures):
      found["cycles"].setdefault(chip.name, []).append(step.cycles / figures["cycles"] - 1)
  return {
    what: {chip: _summary(values) for chip, values in sorted(by_chip.items())}
    for what, by_chip in found.items()
  }


def _scheduled(figures: dict[str, Any]) -> bool:
  """Whether the cycles are those of the final schedule; earlier figures have the estimate before it alone."""
  return bool(figures.get("memory_cycles"))


def _summary(values: Sequence[float]) -> dict[str, float]:
  worst = max(values, key=abs)
  return {
    "mean_abs": round(statistics.mean(map(abs, values)), 4),
    "worst": round(worst, 4),
    "programs": len(values),
  }


def fit(programs: Sequence[_Program]) -> dict[str, list[float]]:
  """Each chip's `matrix`, `score` and `logits`: least squares of relative errors; `logits` of the plain programs."""
  found = {}
  for chip in CHIPS.values():
    own = [each for each in programs if each.chip == chip]
    if len(own) < 4 or not any(_scheduled(each.figures) for each in own):
      continue
    cycles, rest_of_cycles, memory, missing = [], [], [], []
    for config, shape, _, figures in own:
      size = estimate.step_features(config, shape)
      counted = {"again": 4 / 3 if shape.remat else 1.0, "parts": shape.gradient_accumulation_steps}
      matrix = estimate.matrix_cycles(size, chip, **counted)
      passes = estimate.elementwise_passes(size, **counted) / 1000
      if _scheduled(figures):
        cycles.append(np.array([matrix, passes]) / figures["cycles"])
        rest_of_cycles.append(1 - estimate.optimizer_cycles(size, chip) / figures["cycles"])
      per_logit = 2.0 * size.logits  # 16 bits.
      rest = (
        estimate.estimate_step(config, shape, chip).required_bytes
        - per_logit * estimate.CONSTANTS[chip.name].logits
      )
      if not shape.remat:
        memory.append([per_logit / figures["required_bytes"]])
        missing.append(1 - rest / figures["required_bytes"])
    matrix_and_score, _ = optimize.nnls(np.array(cycles), np.array(rest_of_cycles))
    logits, _ = optimize.nnls(np.array(memory), np.array(missing))
    found[chip.name] = [float(f"{value:.4g}") for value in (*matrix_and_score, *logits)]
  return found


def benchmark() -> dict[str, Any]:
  records = _read()
  if _WRITE_FIGURES.value:
    with files.atomic_writer(_WRITE_FIGURES.value, "w") as stream:
      stream.write("[\n" + ",\n".join(json.dumps(record) for record in records) + "\n]\n")
  programs = [_program(record) for record in records]
  if _FIT.value:
    for name, values in fit(programs).items():
      print(f"{name}: {values}", file=sys.stderr)
  return {"programs": len(programs), **errors(programs)}


if __name__ == "__main__":
  common.run(benchmark)
