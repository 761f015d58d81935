"""The content of results.json for one or several seeds, and its lines on the screen."""

from collections.abc import Iterator, Mapping
import math
import statistics
from typing import Any

from albert_tf.finetuning.engine import exit_table
from albert_tf.finetuning.tasks.base import FineTuningTask


def head(task: FineTuningTask, source: str) -> dict[str, Any]:
  """The first entries of results.json; `source` names the weights that training started from."""
  return {
    "task": task.spec.name,
    "kind": task.spec.kind,
    "init_checkpoint": source,
    "best_metric": task.best_metric,
  }


def summarize(
  results_of_seed: Mapping[int, Mapping[str, Any]], *, best_metric: str
) -> dict[str, Any]:
  """The results of several seeds: those of the best one, and median and spread of all."""
  best_seed = max(
    results_of_seed, key=lambda seed: results_of_seed[seed].get(best_metric, -math.inf)
  )
  best = results_of_seed[best_seed]
  summary: dict[str, Any] = {key: value for key, value in best.items() if isinstance(value, str)}
  summary |= {"best_seed": best_seed, "best_run": f"seed_{best_seed}"}
  medians = {}
  spreads = {}
  scores_of_seeds = [scores(results) for results in results_of_seed.values()]
  for name in scores_of_seeds[0]:
    values = [of_seed[name] for of_seed in scores_of_seeds if name in of_seed]
    # A score may be undefined, such as a correlation of equal numbers.
    if len(values) < len(scores_of_seeds):
      continue
    summary[name] = best[name]
    medians[name] = statistics.median(values)
    spreads[name] = {
      "min": min(values),
      "max": max(values),
      "standard_deviation": statistics.stdev(values),
    }
  if "early_exit" in best:
    summary["early_exit"] = best["early_exit"]
  seeds = {str(seed): results for seed, results in results_of_seed.items()}
  return summary | {"median": medians, "spread": spreads, "seeds": seeds}


def format_metric(name: str, value: float) -> str:
  """A metric as text; counts have no decimals."""
  if name.endswith("total"):
    return f"{value:.0f}"
  return f"{value:.4f}"


def scores(results: Mapping[str, Any]) -> dict[str, float]:
  """The entries of results that are metrics."""
  return {
    name: value
    for name, value in results.items()
    if isinstance(value, float) and math.isfinite(value) and not name.endswith("_seconds")
  }


def lines(results: Mapping[str, Any]) -> Iterator[str]:
  """Yields the lines that a command prints: metrics, or medians and spreads over the seeds."""
  spreads = results.get("spread", {})
  for name, value in scores(results.get("median", results)).items():
    line = f"{name}: {format_metric(name, value)}"
    if name in spreads:
      lowest = format_metric(name, spreads[name]["min"])
      highest = format_metric(name, spreads[name]["max"])
      line += f"  (median; {lowest} to {highest})"
    yield line
  if "early_exit" in results:
    yield from exit_table.lines(results)
  if "best_seed" in results:
    yield f"best seed: {results['best_seed']}, in {results['best_run']}/"
