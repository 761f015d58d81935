"""What answers that stop early lose and save, by the threshold of confidence; `fit` prints it.

The threshold that a run stores with its task is chosen here, on the evaluation data.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from albert_tf.finetuning.tasks.base import UNNAMED_OUTPUT, FineTuningTask
from albert_tf.modeling.early_exit import EXIT_RULES

# Points of the metric, of 100, that the stored threshold may lose.
TOLERANCE = 0.5
_NUM_THRESHOLDS = 16  # As many rows are read at one glance, and each needs the task's metrics.


class ExitRow(NamedTuple):
  """The evaluation data answered with one threshold.

  `metric` is the task's best metric, `layers` the mean over the texts.
  """

  threshold: float
  metric: float
  layers: float


def exit_table(task: FineTuningTask, outputs_of_depth: Mapping[int, np.ndarray]) -> list[ExitRow]:
  """A row for each of several thresholds; the first is 1, all layers.

  The thresholds divide the confidences of the shallower depths into equal parts.

  Args:
    task: the task, whose "eval" split was answered.
    outputs_of_depth: number of layers, ascending → the outputs `[n, …]` after these.
  """
  rule = EXIT_RULES[task.spec.kind]
  depths = list(outputs_of_depth)
  outputs = list(outputs_of_depth.values())
  confidences = []
  before: Any = None
  for of_depth in outputs[:-1]:
    confidences.append(np.asarray(rule.confidence(of_depth, before)))  # [n], or [n, N].
    before = of_depth

  quantiles = np.quantile(np.stack(confidences), np.linspace(1, 0, _NUM_THRESHOLDS))
  thresholds = dict.fromkeys([1.0] + np.round(quantiles, 6).tolist())
  rows = []
  for threshold in thresholds:
    # From the last depth to the first: the earliest that is sure has the last word.
    answers: Any = outputs[-1]
    layers = np.full(confidences[0].shape, depths[-1])
    for depth, of_depth, confidence in reversed(
      list(zip(depths[:-1], outputs[:-1], confidences, strict=True))
    ):
      is_sure = confidence > threshold
      answers = np.where(is_sure[..., np.newaxis], of_depth, answers)
      layers = np.where(is_sure, depth, layers)
    metric = task.evaluate({UNNAMED_OUTPUT: answers}, "eval")[task.best_metric]
    rows.append(ExitRow(threshold, float(metric), float(layers.mean())))
  return rows


def fastest_row(rows: Sequence[ExitRow], tolerance: float = TOLERANCE) -> ExitRow:
  """The row with the fewest layers whose metric is at most `tolerance` below that of all layers."""
  lowest = rows[0].metric - tolerance / 100
  # A metric may be undefined, such as a correlation of equal numbers: NaN is never enough.
  good_rows = [row for row in rows if row.metric >= lowest]
  return min(good_rows, key=lambda row: row.layers, default=rows[0])


def lines(results: Mapping[str, Any]) -> Iterator[str]:
  """Yields the table in results.json as lines of text."""
  metric = results["best_metric"]
  yield "answers that stop early, on the evaluation data:"
  yield f"  {'threshold':>9}  {metric:>10}  {'layers':>6}"
  for row in results["early_exit"]["rows"]:
    mark = "  stored" if row["threshold"] == results["early_exit"]["threshold"] else ""
    yield f"  {row['threshold']:9.6f}  {row['metric']:10.4f}  {row['layers']:6.2f}{mark}"
