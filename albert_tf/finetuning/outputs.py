"""results.json and the model card: what a run of one or several seeds came to."""

from collections.abc import Mapping, Sequence
import os
import statistics
from typing import Any

from albert_tf import files
from albert_tf.finetuning import run_directory
from albert_tf.finetuning.settings import FineTuneSettings
from albert_tf.finetuning.task import FineTuningTask

CARD_FILE = "README.md"
_EXPORT_MODELS = {"regression": "classifier", "classification": "classifier"}


def summarize(
  task: FineTuningTask,
  source: str,
  runs: Sequence[tuple[int, Mapping[str, Any], Mapping[str, float]]],
  *,
  evaluated: bool,
  best_seed: int | None = None,
) -> dict[str, Any]:
  """What results.json holds: the metrics of the model in the directory, and of every seed.

  Args:
    task: of the run.
    source: where the weights came from.
    runs: seed, its results, its metrics.
    evaluated: whether there are metrics.
    best_seed: chosen before; None: the one with the best metric.
  """
  head = {"task": task.spec.name, "kind": task.spec.kind, "init_checkpoint": source}
  if len(runs) == 1:
    return {**head, "best_metric": task.best_metric, **runs[0][1]}
  results: dict[str, Any] = {**head, "best_metric": task.best_metric}
  if evaluated:
    chosen = [run for run in runs if run[0] == best_seed]
    best = max(chosen or runs, key=lambda run: run[2][task.best_metric])
    metrics = [run[2] for run in runs]
    results |= {
      **best[2],
      "best_seed": best[0],
      "median": {key: statistics.median(m[key] for m in metrics) for key in best[2]},
      "spread": {
        key: {
          "min": min(m[key] for m in metrics),
          "max": max(m[key] for m in metrics),
          "standard_deviation": statistics.stdev(m[key] for m in metrics),
        }
        for key in best[2]
      },
    }
  return {**results, "seeds": {str(seed): dict(values) for seed, values, _ in runs}}


def without_test_scores(results: Mapping[str, Any]) -> dict[str, Any]:
  """Earlier results less the scores of test data, which may be other data now."""
  return {
    key: without_test_scores(value) if key in ("median", "spread", "ensemble") else value
    for key, value in results.items()
    if not key.startswith("test")
  }


def write_seed(
  directory: str,
  task: FineTuningTask,
  settings: FineTuneSettings,
  results: Mapping[str, Any],
  *,
  source: str,
  keep_card: bool,
) -> None:
  """results.json and model card of one seed."""
  head = {"task": task.spec.name, "kind": task.spec.kind, "init_checkpoint": source}
  whole = {**head, "best_metric": task.best_metric, **results}
  write_results(directory, task, settings, whole, source=source, keep_card=keep_card)


def write_results(
  directory: str,
  task: FineTuningTask,
  settings: FineTuneSettings,
  results: Mapping[str, Any],
  *,
  source: str,
  keep_card: bool,
) -> None:
  """results.json last: a directory that has it is finished. The card is the training's: `keep_card` leaves it."""
  path = os.path.join(directory, CARD_FILE)
  if not (keep_card and files.exists(path)):
    with files.atomic_writer(path, "w") as stream:
      stream.write(model_card(task, settings, results, source=source))
  run_directory.write_json(os.path.join(directory, run_directory.RESULTS_FILE), results)


def model_card(
  task: FineTuningTask, settings: FineTuneSettings, results: Mapping[str, Any], *, source: str
) -> str:
  """The card in Markdown: what the model does, how good it is, how it was made, how it is used."""
  spec = task.spec
  lines = [f"# ALBERT fine-tuned for {spec.name}", ""]
  labels = f", labels {', '.join(spec.label_names)}" if spec.label_names else ""
  lines += [
    (
      f"{spec.kind.replace('_', ' ').capitalize()} of {'pairs of texts' if spec.pair else 'texts'}{labels}; up to "
      f"{spec.max_seq_length} pieces."
    ),
    "",
    "## Results on the evaluation data",
    "",
    *_metric_table(results),
    "## How it was made",
    "",
    f"- Weights to start from: `{source}`",
    *[f"- {name}: `{value}`" for name, value in sorted(task.data.items())],
    *_recipe(settings, results),
    "",
    (
      f"`{run_directory.FLAGS_FILE}` repeats the run (`--flagfile`); `{run_directory.RUN_FILE}` has every setting and "
      "version."
    ),
    "",
    "## How it is used",
    "",
    "```",
    (
      f"python tpu_scripts/export_saved_model.py --model {_EXPORT_MODELS.get(spec.kind, spec.kind)} "
      "--init_checkpoint . --output_dir saved_model --version 2"
    ),
    "```",
    "",
    (
      "`saved_model/1`, where there is one, is that model for TensorFlow Serving: it takes texts and has the tokenizer "
      "inside."
    ),
    "",
    "## Limits",
    "",
    (
      "The scores hold for data like the evaluation data; the best checkpoint was chosen on it, so they are slightly "
      "optimistic. Longer inputs are cut. Biases of the pretraining text and of the labels are the model's as well."
    ),
    "",
  ]
  return "\n".join(lines)


def _metric_table(results: Mapping[str, Any]) -> list[str]:
  seeds = results.get("seeds", {})
  if "median" in results:
    header = ["| metric | this model | median | lowest | highest |", "|---|---|---|---|---|"]
    rows = [
      f"| {key} | {results[key]:.4f} | {median:.4f} | {spread['min']:.4f} | {spread['max']:.4f} |"
      for key, median in results["median"].items()
      for spread in [results["spread"][key]]
    ]
    if "ensemble" in results:
      rows += [f"| {key}, ensemble | {value:.4f} | | | |" for key, value in results["ensemble"].items()]
    return [
      f"{len(seeds)} seeds; this model is seed {results['best_seed']}, the best of them.",
      "",
      *header,
      *rows,
      "",
    ]
  rows = [
    f"| {key} | {value:.4f} |"
    for key, value in results.items()
    if isinstance(value, float) and not key.endswith("_seconds")
  ]
  return ["| metric | value |", "|---|---|", *rows, ""] if rows else ["Not evaluated.", ""]


def _recipe(settings: FineTuneSettings, results: Mapping[str, Any]) -> list[str]:
  seeds = results.get("seeds") or {"": results}
  lines = [
    f"- {run['train_steps']:,} updates over {run['train_examples']:,} examples; best at update {run['best_step']:,}"
    + (f" (seed {seed})" if seed else "")
    for seed, run in seeds.items()
    if "train_steps" in run
  ]
  dropout = "the configuration's" if settings.dropout is None else settings.dropout
  return [
    *lines,
    (
      f"- {settings.optimizer}, learning rate {settings.learning_rate:g}, batch {settings.train_batch_size}, "
      f"layer decay {settings.layer_decay:g}, encoder dropout {dropout}, classifier dropout "
      f"{settings.classifier_dropout:g}, {settings.mixed_precision}"
    ),
  ]
