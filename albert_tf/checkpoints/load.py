"""Loads weights of any known checkpoint into a model, and reports every variable.

`from_pretrained`, fine-tuning and warm starts load with it; conversion matches with it.
"""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
import re
from typing import Any

import numpy as np

from albert_tf.checkpoints.checkpoint import Checkpoint, check_shape, read_checkpoint
from albert_tf.configs import HEADS
from albert_tf.errors import UserError
from albert_tf.modeling import named_variables
from albert_tf.modeling.name_map import ALL_HEADS, head_names

_FINETUNED_NAMES = [name for head in ALL_HEADS if head not in HEADS for name in head_names(head)]
# For `allow_unused` and `allow_missing` when a pretrained model becomes a fine-tuned one.
PRETRAINING_HEADS = r"^cls/(predictions|seq_relationship)/"
FINETUNED_HEADS = f"^({'|'.join(_FINETUNED_NAMES)})$"
ANY_HEAD = f"{PRETRAINING_HEADS}|{FINETUNED_HEADS}"
# Names listed in a message before "and N more".
_MOST_NAMES = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatchReport:
  """The outcome for every variable, under the original's name or else its own.

  `dropped` are variables that are never loaded (optimizer slots, tied copies, …), with the reason.
  """

  matched: Sequence[str]
  missing: Sequence[str]
  unused: Sequence[str]
  dropped: Sequence[tuple[str, str]] = ()
  heads: Sequence[str] = ()

  def lines(self) -> list[str]:
    """One line for each variable, and for each reason why some were left out; then a summary."""
    # The surprises first.
    lines = [f"{name}  missing" for name in self.missing]
    lines += [f"{name}  unused" for name in self.unused]
    lines += [f"{name}  matched" for name in self.matched]
    reasons = collections.Counter(reason for _, reason in self.dropped)
    lines += [f"{count} left out: {reason}" for reason, count in reasons.items()]
    lines.append(
      f"{len(self.matched)} variables matched, {len(self.missing)} missing, "
      f"{len(self.unused)} unused, {len(self.dropped)} left out; "
      f"heads: {', '.join(self.heads) or 'none'}"
    )
    return lines


def load_weights(
  model: Any,
  checkpoint: str | Checkpoint | Mapping[str, np.ndarray],
  *,
  allow_missing: str = "",
  allow_unused: str = "",
  source: str = "",
) -> MatchReport:
  """Assigns a checkpoint's weights to a model's variables by the original's names.

  Args:
    model: a model of this project, or a mapping of original name → variable.
    checkpoint: a path (see `read_checkpoint`), a `Checkpoint`, or original name → array.
    allow_missing: regular expression of variables of the model that may keep their values; empty:
      none.
    allow_unused: regular expression of variables of the checkpoint that may remain unused; empty:
      none.
    source: name of a mapping in messages.

  Returns:
    The outcome for every variable.

  Raises:
    UserError: a name or a shape does not fit; then no variable has been changed.

  Example:
    >>> load_weights(encoder, "albert_base_v2/", allow_unused=PRETRAINING_HEADS)
  """
  if isinstance(checkpoint, str):
    checkpoint = read_checkpoint(checkpoint)
  if isinstance(checkpoint, Checkpoint):
    source = checkpoint.path
    checkpoint = checkpoint.variables
  variables = model
  if not isinstance(model, Mapping):
    variables = named_variables(model)
  # All are compared before the first is assigned.
  report = match(
    checkpoint,
    {name: tuple(variable.shape) for name, variable in variables.items()},
    allow_missing=allow_missing,
    allow_unused=allow_unused,
    source=source,
  )
  for name in report.matched:
    variables[name].assign(checkpoint[name])
  return report


def match(
  tensors: Mapping[str, np.ndarray],
  expected: Mapping[str, Sequence[int | None]],
  *,
  allow_missing: str = "",
  allow_unused: str = "",
  source: str,
) -> MatchReport:
  """Compares the variables of a checkpoint and of a model; see `load_weights`.

  Args:
    expected: original name → shape, with None for a size that the checkpoint decides.

  Raises:
    UserError: a shape differs, or a name is missing or unused and not allowed to be.
  """
  # In the model's order, except what only the checkpoint has.
  matched = [name for name in expected if name in tensors]
  missing = [name for name in expected if name not in tensors]
  unused = [name for name in tensors if name not in expected]
  # A wrong shape is told first: it explains most missing names.
  for name in matched:
    check_shape(name, tensors[name].shape, expected[name], source)
  _refuse_unless_allowed(
    missing,
    allow_missing,
    rule=f"Every variable the model needs must be in the checkpoint. Received: {source}, missing",
    argument="allow_missing",
  )
  _refuse_unless_allowed(
    unused,
    allow_unused,
    rule=f"Every variable of the checkpoint must be one the model uses. Received: {source}, unused",
    argument="allow_unused",
  )
  return MatchReport(matched=matched, missing=missing, unused=unused)


def _refuse_unless_allowed(names: Sequence[str], allowed: str, *, rule: str, argument: str) -> None:
  """Raises `UserError` if there are names that the regular expression `allowed` does not find."""
  refused = [name for name in names if not (allowed and re.search(allowed, name))]
  if not refused:
    return
  listed = ", ".join(refused[:_MOST_NAMES])
  if len(refused) > _MOST_NAMES:
    listed += f", and {len(refused) - _MOST_NAMES} more"
  raise UserError(
    f"{rule}: {listed}. Give the configuration that it was made with and, to continue a run, its "
    "optimizer. If it is meant, convert_checkpoint.py takes --allow_unmatched=REGEX, and "
    f"load_weights {argument}=REGEX."
  )
