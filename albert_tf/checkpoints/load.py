"""Loads weights of any known checkpoint into a model, and reports every variable."""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
import re
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints.checkpoint import Checkpoint, read_checkpoint
from albert_tf.checkpoints.name_map import HEAD_VARIABLES, Entry
from albert_tf.errors import UserError
from albert_tf.modeling import named_variables

# For `allow_unused` and `allow_missing` when a pretrained model becomes a fine-tuned one.
PRETRAINING_HEADS = r"^cls/(predictions|seq_relationship)/"
FINETUNED_HEADS = f"^(?!cls/(predictions|seq_relationship)/)({'|'.join(HEAD_VARIABLES)})$"
ANY_HEAD = f"{PRETRAINING_HEADS}|{FINETUNED_HEADS}"
_SHOWN = 12  # Names listed in a message before "and N more".


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatchReport:
  """The outcome for every variable, under the original's name or else its own.

  `dropped` are variables that are never loaded (optimizer slots, tied copies, …), with the reason.
  """

  matched: tuple[str, ...]
  missing: tuple[str, ...] = ()
  unused: tuple[str, ...] = ()
  dropped: tuple[tuple[str, str], ...] = ()
  heads: tuple[str, ...] = ()

  def lines(self) -> list[str]:
    """One line for each variable, and for each reason why some were left out; then a summary."""
    listed = [
      f"{name}  {state}"
      for state in ("missing", "unused", "matched")
      for name in getattr(self, state)
    ]
    reasons = collections.Counter(reason for _, reason in self.dropped)
    listed += [f"{count} left out: {reason}" for reason, count in reasons.items()]
    summary = (
      f"{len(self.matched)} variables matched, {len(self.missing)} missing, {len(self.unused)} unused, "
      f"{len(self.dropped)} left out; heads: {', '.join(self.heads) or 'none'}"
    )
    return [*listed, summary]


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
    allow_missing: regular expression of variables of the model that may keep their values; empty: none.
    allow_unused: regular expression of variables of the checkpoint that may remain unused; empty: none.
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
    source, checkpoint = checkpoint.path, checkpoint.variables
  variables: Mapping[str, tf.Variable] = (
    model if isinstance(model, Mapping) else named_variables(model)
  )
  expected = [Entry(name, tuple(variable.shape), "") for name, variable in variables.items()]
  report = match(
    checkpoint, expected, allow_missing=allow_missing, allow_unused=allow_unused, source=source
  )
  for name in report.matched:
    variables[name].assign(checkpoint[name])
  return report


def match(
  tensors: Mapping[str, np.ndarray],
  expected: Sequence[Entry],
  *,
  allow_missing: str = "",
  allow_unused: str = "",
  source: str,
) -> MatchReport:
  """Compares the variables of a checkpoint and of a model; see `load_weights`.

  Raises:
    UserError: a shape differs, or a name is missing or unused and not allowed to be.
  """
  names = {entry.name for entry in expected}
  matched = [entry for entry in expected if entry.name in tensors]
  for entry in matched:
    entry.check(tuple(tensors[entry.name].shape), source=source)
  missing = [entry.name for entry in expected if entry.name not in tensors]
  unused = [name for name in tensors if name not in names]
  _refuse_unless_allowed(missing, allow_missing, state="missing", source=source)
  _refuse_unless_allowed(unused, allow_unused, state="unused", source=source)
  return MatchReport(
    matched=tuple(entry.name for entry in matched), missing=tuple(missing), unused=tuple(unused)
  )


def _refuse_unless_allowed(names: Sequence[str], allowed: str, *, state: str, source: str) -> None:
  """Raises `UserError` if there are names that the regular expression `allowed` does not find."""
  refused = [name for name in names if not (allowed and re.search(allowed, name))]
  if refused:
    rule = (
      "Every variable the model needs must be in the checkpoint."
      if state == "missing"
      else "Every variable of the checkpoint must be one the model uses."
    )
    more = f", and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
    raise UserError(
      f"{rule} Received: {source}, {state}: {', '.join(refused[:_SHOWN])}{more}. Give the configuration that it was "
      f"made with and, to continue a run, its optimizer. If it is meant, convert_checkpoint.py takes "
      f"--allow_{state}=REGEX, as load_weights does."
    )
