"""What a run of one or several seeds came to: results.json, its lines on the screen, and the model card."""

from collections.abc import Iterator, Mapping
import dataclasses
import functools
import math
import os
import statistics
from typing import Any

from albert_tf import files
from albert_tf.configs.task import TaskSpec
from albert_tf.finetuning.engine.record import (
  CARD_FILE,
  FLAGS_FILE,
  RESULTS_FILE,
  RUN_FILE,
  Record,
  write_json,
  write_text,
)
from albert_tf.finetuning.tasks.base import FineTuningTask
from albert_tf.models.task_model import TaskModel
from albert_tf.models.tasks import model_class


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuned:
  """What `fine_tune` leaves.

  Attributes:
    results: what `results.json` holds.
    checkpoint: the run directory of the best weights, or, where an earlier run's were used, that one's.
  """

  results: Mapping[str, Any]
  checkpoint: str

  @functools.cached_property
  def model(self) -> TaskModel:
    """The Keras model with these weights, read when it is first asked for; it takes texts."""
    return model_class(TaskSpec.load(self.checkpoint)).from_pretrained(self.checkpoint)


def head(task: FineTuningTask, source: str) -> dict[str, Any]:
  """What results.json begins with."""
  return {
    "task": task.spec.name,
    "kind": task.spec.kind,
    "init_checkpoint": source,
    "best_metric": task.best_metric,
  }


def summarize(
  runs: Mapping[int, Mapping[str, Any]],
  metrics: Mapping[int, Mapping[str, float]],
  *,
  best_metric: str,
  best_seed: int | None = None,
) -> dict[str, Any]:
  """The metrics of the model in the directory, that of one seed, and of all seeds.

  Args:
    runs: seed → its results.
    metrics: seed → its metrics; empty where nothing was evaluated.
    best_metric: chooses the seed.
    best_seed: chosen before; None: the one with the best metric.
  """
  summary: dict[str, Any] = {}
  if metrics:
    best = max(metrics, key=lambda seed: metrics[seed][best_metric])
    chosen = best if best_seed is None or best_seed not in metrics else best_seed
    columns = {key: [of_seed[key] for of_seed in metrics.values()] for key in metrics[chosen]}
    summary = {
      **metrics[chosen],
      "best_seed": chosen,
      "median": {key: statistics.median(values) for key, values in columns.items()},
      "spread": {
        key: {"min": min(values), "max": max(values), "standard_deviation": statistics.stdev(values)}
        for key, values in columns.items()
      },
    }
  return {**summary, "seeds": {str(seed): dict(values) for seed, values in runs.items()}}


def without_test_scores(results: Mapping[str, Any]) -> dict[str, Any]:
  """Earlier results less the scores of test data, which may be other data now."""
  return {
    key: without_test_scores(value) if key in ("median", "spread", "ensemble") else value
    for key, value in results.items()
    if not key.startswith("test")
  }


def write(
  directory: str, record: Record, results: Mapping[str, Any], *, source: str, keep_card: bool
) -> None:
  """results.json last: a directory that has it is finished. The card is the training's: `keep_card` leaves it."""
  path = os.path.join(directory, CARD_FILE)
  if not (keep_card and files.exists(path)):
    write_text(path, model_card(record, results, source=source))
  write_json(os.path.join(directory, RESULTS_FILE), results)


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
  median = results.get("median")
  for name, value in scores(median or results).items():
    spread = results["spread"][name] if median else None
    between = f"  (median; {shown(name, spread['min'])} to {shown(name, spread['max'])})" if spread else ""
    yield f"{name}: {shown(name, value)}{between}"
  for name, value in results.get("ensemble", {}).items():
    yield f"ensemble {name}: {shown(name, value)}"
  reached = median or results
  accuracy, majority = reached.get("accuracy"), reached.get("majority_accuracy")
  if accuracy is not None and majority is not None and accuracy <= majority:
    yield (
      "This is not better than always giving the most frequent answer. Small models want more: try a --learning_rate "
      "five to twenty times as high, or more --num_train_epochs."
    )


# ------------------------------------------------------------------ the model card

_WINDOWED = ("question_answering", "token_classification")  # Longer texts are not cut.


def model_card(record: Record, results: Mapping[str, Any], *, source: str) -> str:
  """The card in Markdown: what the model does, how good it is, how it was made, how it is used."""
  spec, flags = record.task.spec, bool(record.flags_text)
  trained = any("train_steps" in run for run in _runs(results).values())
  labels = f", labels {', '.join(spec.label_names)}" if spec.label_names else ""
  pairs = " of pairs of texts" if spec.pair and spec.kind in ("classification", "regression") else ""
  sections = [
    f"# ALBERT fine-tuned for {spec.name}",
    f"{spec.kind.replace('_', ' ').capitalize()}{pairs}{labels}; up to {spec.max_seq_length} tokens.",
    "## Results on the evaluation data",
    *_metric_table(results),
    "## How it was made" if trained else "## What it was made with",
    "\n".join(_recipe(record, results, source=source) if trained else _inputs(record, source)),
    (
      (f"`{FLAGS_FILE}` repeats the run (`--flagfile`, which reads local files alone); " if flags else "")
      + f"`{RUN_FILE}` has every setting and version."
    ),
    "## How it is used",
    *_usage(record, source, trained=trained),
    "## Limits",
    _limits(record, trained=trained),
  ]
  return "\n\n".join(sections) + "\n"


def _runs(results: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
  return results.get("seeds") or {"": results}


def _metric_table(results: Mapping[str, Any]) -> list[str]:
  if "median" in results:
    rows = ["| metric | this model | median | lowest | highest |", "|---|---|---|---|---|"]
    for key, median in results["median"].items():
      spread = results["spread"][key]
      values = (results[key], median, spread["min"], spread["max"])
      rows.append(f"| {key} | {' | '.join(shown(key, value) for value in values)} |")
    rows += [
      f"| {key}, ensemble | {shown(key, value)} | | | |" for key, value in results.get("ensemble", {}).items()
    ]
    best = f"{len(results['seeds'])} seeds; this model is seed {results['best_seed']}, the best of them."
    return [best, "\n".join(rows)]
  rows = [f"| {key} | {shown(key, value)} |" for key, value in scores(results).items()]
  return ["\n".join(["| metric | value |", "|---|---|", *rows])] if rows else ["Not evaluated."]


def _inputs(record: Record, source: str) -> list[str]:
  return [
    f"- Weights: `{source}`",
    *[f"- {name}: `{value}`" for name, value in sorted(record.task.data.items())],
  ]


def _recipe(record: Record, results: Mapping[str, Any], *, source: str) -> list[str]:
  settings = record.settings
  updates = [
    f"- {run['train_steps']:,} updates over {run['train_examples']:,} examples; best at update {run['best_step']:,}"
    + (f" (seed {seed})" if seed else "")
    for seed, run in _runs(results).items()
    if "train_steps" in run
  ]
  options = ("gradient_accumulation_steps", "freeze_layers", "ema_decay", "class_weights")
  changed = [(name, getattr(settings, name)) for name in options]
  default = {field.name: field.default for field in dataclasses.fields(settings)}
  dropout = "the configuration's" if settings.dropout is None else settings.dropout
  head_dropout = f"classifier dropout {settings.classifier_dropout:g}, "
  return [
    *_inputs(record, source),
    *updates,
    (
      f"- {settings.optimizer}, learning rate {settings.learning_rate:g}, batch {settings.train_batch_size}, "
      f"layer decay {settings.layer_decay:g}, encoder dropout {dropout}, "
      f"{head_dropout if record.task.spec.has_head_dropout else ''}{settings.mixed_precision}"
    ),
    *[f"- {name}: {value}" for name, value in changed if value != default[name]],
  ]


def _usage(record: Record, source: str, *, trained: bool) -> list[str]:
  weights = "." if trained else source
  command = (
    f"```\nalbert-export-saved-model --model {record.task.spec.export_kind} "
    f"--init_checkpoint {weights} --output_dir saved_model --version 2\n```"
  )
  if not trained:
    return [f"This directory holds answers of the model at `{source}`, not its weights.", command]
  command = f"In this directory, with this project installed:\n\n{command}"
  served = "`saved_model/1`, where there is one, is that model for TensorFlow Serving: it takes texts"
  return [command, f"{served} and has the tokenizer inside."]


def _limits(record: Record, *, trained: bool) -> str:
  chosen_elsewhere = record.task.best_metric.startswith("selection_")
  parts = [
    "The scores hold for data like the evaluation data"
    + (
      "; the best checkpoint was chosen on it, so they are slightly optimistic."
      if trained and not chosen_elsewhere
      else "."
    )
  ]
  if record.task.spec.kind not in _WINDOWED:
    parts.append("Longer inputs are cut.")
  parts.append("Biases of the pretraining text and of the labels are the model's as well.")
  return " ".join(parts)
