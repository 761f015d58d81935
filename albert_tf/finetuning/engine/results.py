"""What results.json holds of one or several seeds, its lines on the screen, and the model card."""

from collections.abc import Iterator, Mapping
import math
import statistics
from typing import Any

from albert_tf.finetuning.tasks.base import FineTuningTask


def head(task: FineTuningTask, source: str) -> dict[str, Any]:
  """What results.json begins with; `source` names the weights that training started from."""
  return {
    "task": task.spec.name,
    "kind": task.spec.kind,
    "init_checkpoint": source,
    "best_metric": task.best_metric,
  }


def summarize(runs: Mapping[int, Mapping[str, Any]], *, best_metric: str) -> dict[str, Any]:
  """What results.json holds of several seeds: the best one's metrics and directory, and median and spread of all.

  Args:
    runs: seed → its results.
    best_metric: decides which run is the best; higher is better.
  """
  best_seed = max(runs, key=lambda seed: runs[seed].get(best_metric, -math.inf))
  best = runs[best_seed]
  common = [
    name for name in scores(best) if all(isinstance(of_seed.get(name), float) for of_seed in runs.values())
  ]
  found = {name: [of_seed[name] for of_seed in runs.values()] for name in common}
  summary: dict[str, Any] = {key: value for key, value in best.items() if isinstance(value, str)}
  summary |= {
    "best_seed": best_seed,
    "best_run": f"seed_{best_seed}",
    **{name: best[name] for name in common},
  }
  summary["median"] = {name: statistics.median(values) for name, values in found.items()}
  summary["spread"] = {
    name: {"min": min(values), "max": max(values), "standard_deviation": statistics.stdev(values)}
    for name, values in found.items()
  }
  return summary | {"seeds": {str(seed): of_seed for seed, of_seed in runs.items()}}


def shown(name: str, value: float) -> str:
  """A metric for people: counts are whole."""
  return f"{value:.0f}" if name.endswith("total") else f"{value:.4f}"


def scores(results: Mapping[str, Any]) -> dict[str, float]:
  """The metrics among results."""
  return {
    name: value
    for name, value in results.items()
    if isinstance(value, float) and math.isfinite(value) and not name.endswith("_seconds")
  }


def lines(results: Mapping[str, Any]) -> Iterator[str]:
  """What a command prints: the metrics, with median and spread where there are several seeds."""
  reached = results.get("median", results)
  for name, value in scores(reached).items():
    spread = results["spread"][name] if "spread" in results else None
    between = f"  (median; {shown(name, spread['min'])} to {shown(name, spread['max'])})" if spread else ""
    yield f"{name}: {shown(name, value)}{between}"
  if "best_seed" in results:
    yield f"best seed: {results['best_seed']}, in {results['best_run']}/"
  accuracy, majority = reached.get("accuracy"), reached.get("majority_accuracy")
  if accuracy is not None and majority is not None and accuracy <= majority:
    yield (
      "This is not better than always giving the most frequent answer. Small models want more: try a --learning_rate "
      "five to twenty times as high, or more --num_train_epochs."
    )


_CARD = """\
# ALBERT fine-tuned for {name}

{kind}{labels}; up to {max_seq_length} tokens. Trained from `{source}`.

| metric on the evaluation data | value |
|---|---|
{metrics}

`run.json` has every setting and version; `flags.txt`, where there is one, repeats the run (`--flagfile`).

```
albert-export-saved-model --model {export_kind} --init_checkpoint {weights} --output_dir saved_model --version 2
```

`saved_model/1`, where there is one, is that model for TensorFlow Serving: it takes texts and has the tokenizer inside.

The scores hold for data like the evaluation data; where the best checkpoint was chosen on it, they are slightly
optimistic. Biases of the pretraining text and of the labels are the model's as well.
"""


def model_card(task: FineTuningTask, results: Mapping[str, Any], *, own_weights: bool) -> str:
  """The card in Markdown; `own_weights`: whether the directory has the weights, or only answers of another run's."""
  spec, source = task.spec, results["init_checkpoint"]
  return _CARD.format(
    name=spec.name,
    kind=spec.kind.replace("_", " ").capitalize(),
    labels=f", labels {', '.join(spec.label_names)}" if spec.label_names else "",
    max_seq_length=spec.max_seq_length,
    source=source,
    metrics="\n".join(f"| {name} | {shown(name, value)} |" for name, value in scores(results).items()),
    export_kind=spec.export_kind,
    weights="." if own_weights else source,
  )
