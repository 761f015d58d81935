"""How far the planning formula is from Google's TPU compiler, and the constants that bring it nearest.

Reads figures that compile_for_tpu.py has kept (`--cache_dir`), or a file this script wrote before, and prints one JSON
line. The claim: memory and cycles within 6% of the compiler's figures.

Example:
  python tpu_scripts/compile_for_tpu.py --sweep --per_core_batch_size=8 --cache_dir=figures
  python benchmarks/tpu_estimate.py --cache_dir=figures --write_figures=tests/goldens/tpu_figures.json
  python benchmarks/tpu_estimate.py --figures=tests/goldens/tpu_figures.json --fit
"""

from collections.abc import Callable, Sequence
import json
import pathlib
import statistics
import sys
from typing import Any

from absl import app, flags
import numpy as np
from scipy import optimize

from albert_tf import files
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError, exit_on_user_error
from albert_tf.planning.chips import CHIPS
from albert_tf.planning.estimate import StepShape, estimate_step, step_features

_CACHE_DIR = flags.DEFINE_string("cache_dir", "", "Figures that compile_for_tpu.py has kept.")
_FIGURES = flags.DEFINE_string("figures", "", "Instead: a file from --write_figures.")
_WRITE_FIGURES = flags.DEFINE_string("write_figures", "", "Where to keep the figures in one file.")
_FIT = flags.DEFINE_bool(
  "fit", False, "Print the constants that fit best, for albert_tf/planning/estimate.py."
)


def _read() -> list[dict[str, Any]]:
  if _FIGURES.value:
    return json.loads(pathlib.Path(_FIGURES.value).read_text(encoding="utf-8"))
  paths = sorted(pathlib.Path(_CACHE_DIR.value).expanduser().glob("*.json")) if _CACHE_DIR.value else []
  records = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
  records = [record for record in records if not record["figures"]["refused"]]
  if not records:
    raise UserError(
      f"Figures of the compiler are needed. Received: --cache_dir={_CACHE_DIR.value!r}, --figures={_FIGURES.value!r}, "
      "which have none. Run compile_for_tpu.py with --cache_dir first."
    )
  newest = max(paths, key=lambda path: path.stat().st_mtime)
  source = json.loads(newest.read_text(encoding="utf-8"))["source"]
  kept = [record for record in records if record["source"] == source]
  return sorted(
    ({key: record[key] for key in ("config", "shape", "chip", "figures")} for record in kept),
    key=lambda record: json.dumps(record, sort_keys=True),
  )


def _parts(record: dict[str, Any]) -> tuple[AlbertConfig, StepShape, str]:
  return AlbertConfig.from_dict(record["config"]), StepShape(**record["shape"]), record["chip"]


def _worst(values: Sequence[float]) -> float:
  return max(values, key=abs)


def errors(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
  """Relative errors of the formula, by what and by chip."""
  found: dict[str, dict[str, list[float]]] = {"memory": {}, "cycles": {}}
  for record in records:
    config, shape, chip = _parts(record)
    estimate, figures = estimate_step(config, shape, CHIPS[chip]), record["figures"]
    found["memory"].setdefault(chip, []).append(estimate.required_bytes / figures["required_bytes"] - 1)
    found["cycles"].setdefault(chip, []).append(estimate.cycles / figures["cycles"] - 1)
  return {
    what: {
      chip: {
        "mean_abs": round(statistics.mean(map(abs, values)), 4),
        "worst": round(_worst(values), 4),
        "programs": len(values),
      }
      for chip, values in sorted(by_chip.items())
    }
    for what, by_chip in found.items()
  }


def _fit_by(
  records: Sequence[dict[str, Any]],
  row: Callable[[AlbertConfig, StepShape, str], list[float]],
  target: Callable[[dict[str, Any]], float],
) -> list[float]:
  """Constants, none negative, with the least squares of the relative error."""
  relative = [np.array(row(*_parts(record))) / target(record) for record in records]
  solution, _ = optimize.nnls(np.array(relative), np.ones(len(records)))
  return [float(value) for value in solution]


def fit(records: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
  """The constants of `estimate.py`, in its order."""

  def cycle_row(config: AlbertConfig, shape: StepShape, chip: str) -> list[float]:
    size = step_features(config, shape)
    again = 4 / 3 if shape.remat else 1.0
    matrix = again * size.flops * CHIPS[chip].clock_hz / CHIPS[chip].peak_flops
    return [matrix, again * size.scores / 1e3, again * size.rows / 1e3, size.logits / 1e3, size.weights / 1e3]

  def kept_row(config: AlbertConfig, shape: StepShape, chip: str) -> list[float]:
    size = step_features(config, shape)
    return [2.0 * size.scores, 2.0 * size.rows, 2.0 * size.logits, 2.0 * size.weights]

  def remat_row(config: AlbertConfig, shape: StepShape, chip: str) -> list[float]:
    size, blocks = step_features(config, shape), config.num_hidden_layers * config.inner_group_num
    scores, rows, logits, _ = found[f"{chip} kept"]
    layer = (scores * size.scores + rows * size.rows) / blocks
    return [2.0 * size.layer_inputs, 2.0 * layer, 2.0 * logits * size.logits, 2.0 * size.weights]

  def temporary(record: dict[str, Any]) -> float:
    return record["figures"]["temporary_bytes"]

  found: dict[str, list[float]] = {}
  for chip in CHIPS:
    own = [record for record in records if record["chip"] == chip]
    plain = [record for record in own if not record["shape"]["remat"]]
    if len(own) >= 5 and len(plain) >= 4:  # As many programs as constants.
      found[f"{chip} cycles"] = _fit_by(own, cycle_row, lambda record: record["figures"]["cycles"])
      found[f"{chip} kept"] = _fit_by(plain, kept_row, temporary)
  remat = [record for record in records if record["shape"]["remat"] and f"{record['chip']} kept" in found]
  if len(remat) >= 4:
    found["kept with remat"] = _fit_by(remat, remat_row, temporary)
  return {name: [float(f"{value:.4g}") for value in values] for name, values in found.items()}


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise UserError(f"Only flags are understood. Received: {' '.join(argv[1:])}. See --help.")
  records = _read()
  if _WRITE_FIGURES.value:
    with files.atomic_writer(_WRITE_FIGURES.value, "w") as stream:
      stream.write("[\n" + ",\n".join(json.dumps(record) for record in records) + "\n]\n")
  if _FIT.value:
    for name, values in fit(records).items():
      print(f"{name}: {values}", file=sys.stderr)
  print(json.dumps({"benchmark": "tpu_estimate", "programs": len(records), **errors(records)}))


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
