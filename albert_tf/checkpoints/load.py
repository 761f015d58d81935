"""Weights of any known checkpoint into a model, every variable accounted for."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from albert_tf.checkpoints.checkpoint import Checkpoint, read_checkpoint
from albert_tf.checkpoints.name_map import Entry
from albert_tf.checkpoints.report import MatchReport, match
from albert_tf.modeling import named_variables

# For `allow_unused` and `allow_missing` when a pretrained model becomes a fine-tuned one.
PRETRAINING_HEADS = r"^cls/(predictions|seq_relationship)/"
FINETUNED_HEADS = r"^(output_(weights|bias)$|cls/squad/|(start_logits|end_logits|answer_class)/)"
ANY_HEAD = f"{PRETRAINING_HEADS}|{FINETUNED_HEADS}"


def load_weights(
  model: Any, checkpoint: str | Checkpoint, *, allow_missing: str = "", allow_unused: str = ""
) -> MatchReport:
  """Assigns a checkpoint's weights to a model's variables by the original's names.

  Args:
    model: a model of this project, or a mapping of original name → variable.
    checkpoint: a path (see `read_checkpoint`) or what it returned.
    allow_missing: regular expression of variables of the model that may keep their values; empty: none.
    allow_unused: regular expression of variables of the checkpoint that may be left over; empty: none.

  Returns:
    What became of every variable.

  Raises:
    UserError: a name or a shape does not fit; then no variable has been changed.

  Example:
    >>> load_weights(encoder, "albert_base_v2/", allow_unused=PRETRAINING_HEADS)
  """
  if isinstance(checkpoint, str):
    checkpoint = read_checkpoint(checkpoint)
  variables: Mapping[str, tf.Variable] = model if isinstance(model, Mapping) else named_variables(model)
  expected = [Entry(name, tuple(variable.shape), "") for name, variable in variables.items()]
  report = match(
    checkpoint.variables,
    expected,
    source=checkpoint.path,
    allow_missing=allow_missing,
    allow_unused=allow_unused,
  )
  for name in report.matched:
    variables[name].assign(checkpoint.variables[name])
  return report
