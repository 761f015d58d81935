"""The content of results.json for one or several seeds, and its lines on the screen."""

from collections.abc import Iterator, Mapping
import math
import statistics
from typing import Any

from albert_tf.finetuning.tasks.base import FineTuningTask


def head(task: FineTuningTask, source: str) -> dict[str, Any]:
  """The first entries of results.json; `source` names the weights that training started from."""
  names = {"task": task.spec.name, "kind": task.spec.kind}
  return {**names, "init_checkpoint": source, "best_metric": task.best_metric}


def summarize(runs: Mapping[int, Mapping[str, Any]], *, best_metric: str) -> dict[str, Any]:
  """Summarises seed → results: metrics and directory of the best run, median and spread of all."""
  best_seed = max(runs, key=lambda seed: runs[seed].get(best_metric, -math.inf))
  best = runs[best_seed]
  of_all = [scores(of_seed) for of_seed in runs.values()]
  found = {
    name: [each[name] for each in of_all]
    for name in of_all[0]
    if all(name in each for each in of_all)
  }
  return {
    **{key: value for key, value in best.items() if isinstance(value, str)},
    "best_seed": best_seed,
    "best_run": f"seed_{best_seed}",
    **{name: best[name] for name in found},
    "median": {name: statistics.median(values) for name, values in found.items()},
    "spread": {
      name: {"min": min(values), "max": max(values), "standard_deviation": statistics.stdev(values)}
      for name, values in found.items()
    },
    "seeds": {str(seed): of_seed for seed, of_seed in runs.items()},
  }


def shown(name: str, value: float) -> str:
  """A metric as text; counts have no decimals."""
  return f"{value:.0f}" if name.endswith("total") else f"{value:.4f}"


def scores(results: Mapping[str, Any]) -> dict[str, float]:
  """The entries of results that are metrics."""
  return {
    name: value
    for name, value in results.items()
    if isinstance(value, float) and math.isfinite(value) and not name.endswith("_seconds")
  }


def lines(results: Mapping[str, Any]) -> Iterator[str]:
  """Yields the lines that a command prints: the metrics, with median and spread where there are several seeds."""
  for name, value in scores(results.get("median", results)).items():
    spread = results["spread"][name] if "spread" in results else None
    between = (
      f"  (median; {shown(name, spread['min'])} to {shown(name, spread['max'])})" if spread else ""
    )
    yield f"{name}: {shown(name, value)}{between}"
  if "best_seed" in results:
    yield f"best seed: {results['best_seed']}, in {results['best_run']}/"
