"""Accuracy of fine-tuned classifiers in float32, bfloat16 and int8.

Each run is exported in each precision, and its SavedModels answer the rows of a table that training did not see.
The ranges of int8 are of texts of another table. Prints one JSON line: for each run the accuracy in each precision,
the share of labels that are float32's, and the largest difference of a probability. `--texts` is a list, to compare
how many texts the ranges need. Of runs with several depths it has the figures of each depth, and of answers that stop
early, at the threshold that fine-tuning stored: accuracy, mean layers, and how much faster the whole table is answered.

Example:
  python benchmarks/precision.py --runs=runs/seed_1,runs/seed_2 --train_file=tasks/section/train.csv \
    --eval_file=tasks/section/eval.csv
"""

from collections.abc import Mapping, Sequence
import csv
import tempfile
import time
from typing import Any, NamedTuple

from absl import flags
import measuring
import numpy as np

from albert_tf.serving.settings import Precision

_RUNS = flags.DEFINE_list("runs", None, "Fine-tuned classifiers.", required=True)
_TRAIN_FILE = flags.DEFINE_string(
  "train_file", None, "Table of texts for the ranges.", required=True
)
_EVAL_FILE = flags.DEFINE_string("eval_file", None, "Table of texts and labels.", required=True)
_TEXTS = flags.DEFINE_list("texts", ["500"], "Numbers of texts for the ranges.")

_BATCH_SIZE = 64
_LOW_PRECISIONS: tuple[Precision, ...] = ("bfloat16", "int8")


def _measure() -> Mapping[str, Any]:
  return {"runs": {run: _figures_of_run(run) for run in _RUNS.value}}


class _Early(NamedTuple):
  """Answers that stop early, to n texts."""

  predictions: np.ndarray  # [n]
  layers: np.ndarray  # [n]
  seconds: float  # Of the whole table.


class _Found(NamedTuple):
  """The answers of a SavedModel to n texts of C classes."""

  probabilities: np.ndarray  # [n, C]
  seconds: float
  of_depths: Mapping[int, np.ndarray]  # The probabilities of other depths; empty without several.
  early: _Early | None  # None without several depths.


def _figures_of_run(run: str) -> dict[str, Any]:
  from albert_tf import AlbertClassifier

  model = AlbertClassifier.from_pretrained(run)
  for_ranges, _ = _read(_TRAIN_FILE.value)
  texts, names = _read(_EVAL_FILE.value)
  labels = np.array([model.task.label_names.index(name) for name in names])
  full = _answers(model, "float32", [], texts)
  figures: dict[str, Any] = {
    "layers": model.config.num_hidden_layers,
    "rows": len(texts),
    "float32": _figures_of(full, full, labels),
  }
  for precision in _LOW_PRECISIONS:
    for count in map(int, _TEXTS.value):
      # Evenly over the table, which may be sorted by its labels.
      chosen = for_ranges[:: max(1, len(for_ranges) // count)][:count]
      found = _answers(model, precision, chosen, texts)
      figures[f"{precision}, {count} texts"] = _figures_of(found, full, labels)
  return figures


def _figures_of(found: _Found, full: _Found, labels: np.ndarray) -> dict[str, float]:
  """Figures of a precision beside those of float32."""
  predictions = found.probabilities.argmax(-1)
  expected = full.probabilities.argmax(-1)
  figures = {
    "accuracy": np.mean(predictions == labels),
    "agreement": np.mean(predictions == expected),
    "largest_difference": np.abs(found.probabilities - full.probabilities).max(),
    "faster": full.seconds / found.seconds,
  }
  for depth, probabilities in found.of_depths.items():
    at_depth = probabilities.argmax(-1)
    figures |= {
      f"accuracy of {depth} layers": np.mean(at_depth == labels),
      f"agreement of {depth} layers": np.mean(at_depth == full.of_depths[depth].argmax(-1)),
    }
  if found.early is not None:
    figures |= {
      "early_accuracy": np.mean(found.early.predictions == labels),
      "early_mean_layers": np.mean(found.early.layers),
      "early_faster": full.seconds / found.early.seconds,
    }
  return {name: round(float(figure), 4) for name, figure in figures.items()}


def _read(path: str) -> tuple[list[str], list[str]]:
  """Texts and labels of a table."""
  with open(path, newline="", encoding="utf-8") as stream:
    rows = list(csv.DictReader(stream))
  return [row["text"] for row in rows], [row["label"] for row in rows]


def _answers(
  model: Any, precision: Precision, for_ranges: Sequence[str], texts: Sequence[str]
) -> _Found:
  """The answers of the SavedModel in a precision."""
  from albert_tf.keras_api.calibration import calibration_of
  from albert_tf.serving.export import export_model
  from albert_tf.serving.loaded_model import LoadedModel
  from albert_tf.serving.settings import ExportSettings

  depths = model.task.exit_depths
  with tempfile.TemporaryDirectory() as folder:
    calibration = calibration_of(model, list(for_ranges)) if for_ranges else None
    settings = ExportSettings(precision=precision, min_agreement=-1, depths=depths)
    export_model(model, f"{folder}/1", settings, calibration)
    loaded = LoadedModel(f"{folder}/1")
  answers, seconds = _table(loaded, "serving_default", texts)
  of_depths = {
    depth: _table(loaded, f"depth_{depth}", texts)[0]["probabilities"] for depth in depths
  }
  early = None
  if model.task.exit_threshold is not None:
    stopped, early_seconds = _table(loaded, "early_exit", texts)
    early = _Early(stopped["predictions"], stopped["layers"], early_seconds)
  return _Found(answers["probabilities"], seconds, of_depths, early)


def _table(
  loaded: Any, signature: str, texts: Sequence[str]
) -> tuple[dict[str, np.ndarray], float]:
  """A signature's answers to all texts, and the seconds that they take."""

  def answer() -> dict[str, np.ndarray]:
    batches = []
    for begin in range(0, len(texts), _BATCH_SIZE):
      batch = np.array(texts[begin : begin + _BATCH_SIZE], object)
      batches.append(loaded.run(signature, {"text": batch}))
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}

  answer()  # Makes the kernels.
  start = time.perf_counter()
  answers = answer()
  return answers, time.perf_counter() - start


if __name__ == "__main__":
  measuring.run(_measure)
