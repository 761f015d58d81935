"""Whether two runs of pretraining did the same, and how far apart they are."""

import pathlib

import numpy as np
from support.commands.command_runs import reports

from albert_tf.checkpoints.bundle import latest_checkpoint, read_bundle

METRICS = (
  "loss",
  "masked_lm_loss",
  "masked_lm_accuracy",
  "sentence_order_loss",
  "sentence_order_accuracy",
  "gradient_norm",
  "weight_norm",
  "update_norm",
  "learning_rate",
)


def largest_differences(run: pathlib.Path, other: pathlib.Path) -> tuple[float, float]:
  """Relative in the reported metrics; in the last checkpoint's weights, relative to each variable's largest.

  Both runs must have reported and saved at the same steps.
  """
  ours, theirs = ({(r["step"], r["split"]): r for r in reports(each)} for each in (run, other))
  assert list(ours) == list(theirs)
  differences = [
    abs(ours[when][name] - value) / max(abs(value), 1e-3)
    for when, report in theirs.items()
    for name, value in report.items()
    if name in METRICS
  ]
  first, second = (latest_checkpoint(str(each / "checkpoints")) for each in (run, other))
  assert first is not None
  assert second is not None
  assert first.removeprefix(str(run)) == second.removeprefix(str(other))
  weights, expected = read_bundle(first), read_bundle(second)
  assert weights.keys() == expected.keys()
  apart = [
    np.abs(weights[name] - value).max() / max(np.abs(value).max(), 1e-3)
    for name, value in expected.items()
    if value.dtype == np.float32
  ]
  return max(differences), float(max(apart))
