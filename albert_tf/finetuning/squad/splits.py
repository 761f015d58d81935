"""Which training questions are held out, to choose the checkpoint and 2.0's threshold on what is not reported."""

import numpy as np

from albert_tf.errors import UserError
from albert_tf.finetuning.squad.reading import SquadData


def hold_out(data: SquadData, *, fraction: float, seed: int) -> tuple[SquadData, SquadData]:
  """Training data and held-out data: whole articles, so that no paragraph is in both.

  Of a file with one article whole paragraphs are held out.

  Args:
    data: all training questions.
    fraction: of the questions, about; at least one article is held out and one stays.
    seed: decides which.

  Raises:
    UserError: there is but one paragraph, or the fraction is not between 0 and 1.
  """
  if not 0.0 < fraction < 1.0:
    raise UserError(f"held_out_fraction must be above 0 and below 1. Received: {fraction}.")
  groups = np.array([data.paragraphs[question.paragraph].article for question in data.questions])
  if len(np.unique(groups)) < 2:
    groups = np.array([question.paragraph for question in data.questions])
  names, sizes = np.unique(groups, return_counts=True)
  if len(names) < 2:
    raise UserError(
      "Holding out training questions needs at least two paragraphs with questions. Received: one. Use "
      "--threshold_split=predict or --threshold_split=none."
    )
  order = np.random.default_rng(seed).permutation(len(names))
  reached = np.cumsum(sizes[order])
  # The number of groups whose share is nearest to the fraction.
  count = 1 + int(np.argmin(np.abs(reached[:-1] - fraction * len(groups))))
  held = np.isin(groups, names[order[:count]])
  return data.subset(np.flatnonzero(~held)), data.subset(np.flatnonzero(held))
