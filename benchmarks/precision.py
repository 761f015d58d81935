"""Accuracy of fine-tuned classifiers in float32, bfloat16 and int8.

Each run is exported in each precision, and its SavedModels answer the rows of a table that training did not see.
The ranges of int8 are of texts of another table. Prints one JSON line: for each run the accuracy in each precision,
the share of labels that are float32's, and the largest difference of a probability. `--texts` is a list, to compare
how many texts the ranges need.

Example:
  python benchmarks/precision.py --runs=runs/seed_1,runs/seed_2 --train_file=tasks/section/train.csv \
    --eval_file=tasks/section/eval.csv
"""

from collections.abc import Mapping, Sequence
import csv
import tempfile
from typing import Any

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


def _figures_of_run(run: str) -> dict[str, Any]:
  from albert_tf import AlbertClassifier

  model = AlbertClassifier.from_pretrained(run)
  for_ranges, _ = _read(_TRAIN_FILE.value)
  texts, labels = _read(_EVAL_FILE.value)
  expected = _probabilities(model, "float32", [], texts)
  names = np.array(model.task.label_names)
  figures: dict[str, Any] = {
    "layers": model.config.num_hidden_layers,
    "rows": len(texts),
    "float32": {"accuracy": _accuracy(expected, names, labels)},
  }
  for precision in _LOW_PRECISIONS:
    for count in map(int, _TEXTS.value):
      # Evenly over the table, which may be sorted by its labels.
      chosen = for_ranges[:: max(1, len(for_ranges) // count)][:count]
      found = _probabilities(model, precision, chosen, texts)
      figures[f"{precision}, {count} texts"] = {
        "accuracy": _accuracy(found, names, labels),
        "agreement": round(float(np.mean(found.argmax(-1) == expected.argmax(-1))), 4),
        "largest_difference": round(float(np.abs(found - expected).max()), 4),
      }
  return figures


def _read(path: str) -> tuple[list[str], list[str]]:
  """Texts and labels of a table."""
  with open(path, newline="", encoding="utf-8") as stream:
    rows = list(csv.DictReader(stream))
  return [row["text"] for row in rows], [row["label"] for row in rows]


def _accuracy(probabilities: np.ndarray, names: np.ndarray, labels: Sequence[str]) -> float:
  return round(float(np.mean(names[probabilities.argmax(-1)] == np.array(labels))), 4)


def _probabilities(
  model: Any, precision: Precision, for_ranges: Sequence[str], texts: Sequence[str]
) -> np.ndarray:
  """The answers of the SavedModel in a precision."""
  from albert_tf.keras_api.calibration import calibration_of
  from albert_tf.serving.export import export_model
  from albert_tf.serving.loaded_model import LoadedModel
  from albert_tf.serving.settings import ExportSettings

  with tempfile.TemporaryDirectory() as folder:
    calibration = calibration_of(model, list(for_ranges)) if for_ranges else None
    settings = ExportSettings(precision=precision, min_agreement=-1)
    export_model(model, f"{folder}/1", settings, calibration)
    loaded = LoadedModel(f"{folder}/1")
    answers = []
    for begin in range(0, len(texts), _BATCH_SIZE):
      batch = np.array(texts[begin : begin + _BATCH_SIZE], object)
      answers.append(loaded.run("serving_default", {"text": batch})["probabilities"])
  return np.concatenate(answers)


if __name__ == "__main__":
  measuring.run(_measure)
