"""The content of results.json for one or several seeds, and its lines on the screen."""

from collections.abc import Iterator, Mapping
import math
import statistics
from typing import Any

from albert_tf.errors import UserError
from albert_tf.finetuning import exit_table
from albert_tf.finetuning.tasks.base import FineTuningTask
from albert_tf.keras_api.examples import Examples

# The version of the exported SavedModel; absent where its weights are not those of the results.
EXPORTED_VERSION = "saved_model_version"


def head(task: FineTuningTask, source: str) -> dict[str, Any]:
  """The first entries of results.json; `source` names the weights that training started from."""
  return {
    "task": task.spec.name,
    "kind": task.spec.kind,
    "init_checkpoint": source,
    "best_metric": task.best_metric,
  }


# ------------------------------------------------------------------ the data


def describe_data(
  task: FineTuningTask, examples: Mapping[str, Examples], **of_model: Any
) -> dict[str, dict[str, Any]]:
  """Split → what its metrics and predictions are of: the file, the examples, and `of_model`."""
  data = {}
  for split, of_split in examples.items():
    entry: dict[str, Any] = {}
    if task.sources.get(split):
      entry["file"] = task.sources[split]
    # The fingerprint is that of "content of eval examples" in run.json.
    entry |= {"examples": len(of_split), "fingerprint": of_split.fingerprint()}
    data[split] = entry | of_model
  return data


def check_data(
  directory: str, results: Mapping[str, Any], data: Mapping[str, Mapping[str, Any]]
) -> None:
  """Raises `UserError` if the `results` in a directory are of other evaluation data than `data`.

  Evaluation data chose the weights, so their metrics stay. Test data may be replaced.
  """
  for split, entry in data.items():
    before = results.get("data", {}).get(split)
    if before is None or not split.startswith("eval"):
      continue
    # The same file may have another name now.
    if {**before, "file": ""} != {**entry, "file": ""}:
      raise UserError(
        "The metrics in a run directory are of one set of evaluation data, read in one way. "
        f"Received: {_entry_text(entry)}, for {directory} with metrics of {_entry_text(before)}. "
        "Choose a new --output_dir with --init_checkpoint, or name the file as test data, which "
        "are scored too."
      )


def _entry_text(entry: Mapping[str, Any]) -> str:
  """An entry of `describe_data` in messages, such as "dev.csv (13 rows, 12 layers, 0a1b2c)"."""
  layers = entry.get("num_hidden_layers", "any number of")
  fingerprint = entry["fingerprint"][:6]
  return f"{entry.get('file', 'data')} ({entry['examples']} rows, {layers} layers, {fingerprint})"


def without_tests(results: Mapping[str, Any]) -> dict[str, Any]:
  """The results without those of test data."""
  kept = {name: value for name, value in results.items() if not name.startswith("test")}
  data = results["data"].items()
  kept["data"] = {split: entry for split, entry in data if not split.startswith("test")}
  return kept


# ------------------------------------------------------------------ several seeds


def summarize(
  results_of_seed: Mapping[int, Mapping[str, Any]],
  *,
  best_metric: str,
  before: Mapping[str, Any],
) -> dict[str, Any]:
  """The results of several seeds: those of the best one, and median and spread of all.

  Metrics of test data are left out where the seeds have answered different ones.

  Args:
    results_of_seed: seed → its results.
    best_metric: the metric of the best seed.
    before: the summary of an earlier command, perhaps of other seeds; empty if there is none.
  """
  seeds = {str(seed): results for seed, results in results_of_seed.items()}
  first_data = next(iter(results_of_seed.values()))["data"]
  if any(results["data"] != first_data for results in results_of_seed.values()):
    results_of_seed = {seed: without_tests(results) for seed, results in results_of_seed.items()}
  best_seed = max(
    results_of_seed, key=lambda seed: results_of_seed[seed].get(best_metric, -math.inf)
  )
  best = results_of_seed[best_seed]
  summary: dict[str, Any] = {key: value for key, value in best.items() if isinstance(value, str)}
  summary |= {"best_seed": best_seed, "best_run": f"seed_{best_seed}", "data": best["data"]}
  if EXPORTED_VERSION in before and before.get("best_seed") == best_seed:
    summary[EXPORTED_VERSION] = before[EXPORTED_VERSION]
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
  return summary | {"median": medians, "spread": spreads, "seeds": seeds}


# ------------------------------------------------------------------ metrics as text


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
