"""What results.json holds of one or several seeds, its lines on the screen, and the model card."""

from collections.abc import Iterator, Mapping
import math
import statistics
from typing import Any

from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.finetuning.tasks.base import FineTuningTask


def head(task: FineTuningTask, source: str) -> dict[str, Any]:
  """What results.json begins with; `source` names the weights that training started from."""
  return {
    "task": task.spec.name,
    "kind": task.spec.kind,
    "init_checkpoint": source,
    "best_metric": task.best_metric,
  }


def summarize(
  runs: Mapping[int, Mapping[str, Any]], head: Mapping[str, Any], *, best_seed: int
) -> dict[str, Any]:
  """What results.json holds of several seeds: the best one's metrics, and median and spread of all.

  Args:
    runs: seed → its results.
    head: of `head`; what it names is said once.
    best_seed: whose model is that of the directory.
  """
  best = runs[best_seed]
  found = {
    key: [of_seed[key] for of_seed in runs.values()]
    for key, value in best.items()
    if isinstance(value, float)
    and key != "train_seconds"
    and all(key in of_seed for of_seed in runs.values())
  }
  summary = {**{key: best[key] for key in head if key in best}, "best_seed": best_seed}
  if found:
    summary |= {key: best[key] for key in found}
    summary["median"] = {key: statistics.median(values) for key, values in found.items()}
    summary["spread"] = {
      key: {"min": min(values), "max": max(values), "standard_deviation": statistics.stdev(values)}
      for key, values in found.items()
    }
  seeds = {str(seed): {k: v for k, v in run.items() if k not in head} for seed, run in runs.items()}
  return {**summary, "seeds": seeds}


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
    yield f"best seed: {results['best_seed']}, whose model is that of the directory"
  accuracy, majority = reached.get("accuracy"), reached.get("majority_accuracy")
  if accuracy is not None and majority is not None and accuracy <= majority:
    yield (
      "This is not better than always giving the most frequent answer. Small models want more: try a --learning_rate "
      "five to twenty times as high, or more --num_train_epochs."
    )


_CARD = """\
# ALBERT fine-tuned for {name}

{kind}{labels}; up to {max_seq_length} tokens.

## Results on the evaluation data

{metrics}

## How it was made

{made}

`run.json` has every setting and version; `flags.txt`, where there is one, repeats the run (`--flagfile`).

## How it is used

```
albert-export-saved-model --model {signature} --init_checkpoint {weights} --output_dir saved_model --version 2
```

`saved_model/1`, where there is one, is that model for TensorFlow Serving: it takes texts and has the tokenizer inside.

## Limits

The scores hold for data like the evaluation data; where the best checkpoint was chosen on it, they are slightly
optimistic. Biases of the pretraining text and of the labels are the model's as well.
"""


def model_card(
  task: FineTuningTask, settings: FineTuneSettings, results: Mapping[str, Any], *, own_weights: bool
) -> str:
  """The card in Markdown: what the model does, how good it is, how it was made, how it is used.

  Args:
    task, settings: of the run.
    results: what results.json holds.
    own_weights: whether the directory has the weights, or only answers of another run's.
  """
  spec, source = task.spec, results["init_checkpoint"]
  made = {"weights": f"`{source}`", **{name: f"`{value}`" for name, value in sorted(task.data.items())}}
  if "train_steps" in results:
    made["updates"] = f"{results['train_steps']:,}; best at {results['best_step']:,}"
    made["examples"] = f"{results['train_examples']:,}"
    made |= settings.training_values()
  rows = [f"| {name} | {shown(name, value)} |" for name, value in scores(results).items()]
  return _CARD.format(
    name=spec.name,
    kind=spec.kind.replace("_", " ").capitalize(),
    labels=f", labels {', '.join(spec.label_names)}" if spec.label_names else "",
    max_seq_length=spec.max_seq_length,
    metrics="\n".join(["| metric | value |", "|---|---|", *rows]) if rows else "Not evaluated.",
    made="\n".join(f"- {name}: {value}" for name, value in made.items()),
    signature=spec.export_kind,
    weights="." if own_weights else source,
  )
