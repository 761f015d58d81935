"""Which variables matched, are missing or are left over; nothing is skipped silently."""

from collections.abc import Mapping, Sequence
import dataclasses
import re
from typing import Any

from albert_tf.checkpoints.name_map import Entry
from albert_tf.errors import UserError

_SHOWN = 12  # Names listed in a message before "and N more".


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatchReport:
  """What became of every variable, by the original's name (or by its own where it has none).

  `dropped` are those left out knowingly (optimizer slots, tied copies, …), with the reason; `notes`
  are for the user: what was read, what the output cannot say.
  """

  matched: tuple[str, ...]
  missing: tuple[str, ...] = ()
  unused: tuple[str, ...] = ()
  dropped: tuple[tuple[str, str], ...] = ()
  heads: tuple[str, ...] = ()
  notes: tuple[str, ...] = ()
  recognised: str = ""

  def summary(self) -> str:
    """One line."""
    heads = ", ".join(self.heads) or "none"
    return (
      f"{len(self.matched)} variables matched, {len(self.missing)} missing, {len(self.unused)} unused, "
      f"{len(self.dropped)} left out; heads: {heads}"
    )

  def lines(self) -> list[str]:
    """One line a variable, missing and unused first."""
    listed = [(name, "missing") for name in self.missing] + [(name, "unused") for name in self.unused]
    listed += [(name, f"left out: {reason}") for name, reason in self.dropped]
    listed += [(name, "matched") for name in self.matched]
    return [f"{name}  {state}" for name, state in listed]


def match(
  variables: Mapping[str, Any],
  expected: Sequence[Entry],
  *,
  source: str,
  allow_missing: str = "",
  allow_unused: str = "",
) -> MatchReport:
  """Compares what a checkpoint holds with what a model needs.

  Args:
    variables: original name → something with a `shape`.
    expected: what the model needs.
    source: where the variables come from, for messages.
    allow_missing: regular expression of names that may be missing; empty allows none.
    allow_unused: the same for names that may be left over.

  Raises:
    UserError: a shape differs, or a name is missing or left over and not allowed to be.
  """
  names = {entry.name for entry in expected}
  missing = [entry.name for entry in expected if entry.name not in variables]
  unused = [name for name in variables if name not in names]
  _refuse_other_models(unused, missing, source=source)
  _check_shapes(variables, expected, source=source)
  _refuse_unless_allowed(missing, allow_missing, state="missing", source=source)
  _refuse_unless_allowed(unused, allow_unused, state="unused", source=source)
  matched = [entry.name for entry in expected if entry.name in variables]
  return MatchReport(matched=tuple(matched), missing=tuple(missing), unused=tuple(unused))


def _refuse_unless_allowed(names: Sequence[str], allowed: str, *, state: str, source: str) -> None:
  """Raises a `UserError` that lists the names no part of which `allowed` matches."""
  option = f"allow_{state}"  # Of `load_weights`, and a flag of convert_checkpoint.py.
  try:
    pattern = re.compile(allowed) if allowed else None
  except re.error as error:
    raise UserError(f"--{option} must be a regular expression. Received: {allowed!r} ({error}).") from error
  refused = [name for name in names if pattern is None or not pattern.search(name)]
  if refused:
    rule = (
      "Every variable the model needs must be in the checkpoint."
      if state == "missing"
      else "Every variable of the checkpoint must be one the model uses."
    )
    raise UserError(
      f"{rule} Received: {source}, {state}: {_shorten(refused)}. Give the configuration and the checkpoint that "
      f"belong together; if it is meant, convert_checkpoint.py takes --{option}=REGEX, as load_weights does."
    )


def _shorten(names: Sequence[str]) -> str:
  """The first names, and how many more."""
  more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
  return ", ".join(names[:_SHOWN]) + more


def _check_shapes(variables: Mapping[str, Any], expected: Sequence[Entry], *, source: str) -> None:
  for entry in expected:
    if entry.name not in variables:
      continue
    shape = tuple(variables[entry.name].shape)
    fits = len(shape) == len(entry.shape) and all(
      want in (None, have) for want, have in zip(entry.shape, shape, strict=True)
    )
    if not fits:
      raise UserError(
        f"{entry.name} must have the shape its configuration says, {list(entry.shape)}. "
        f"Received: {list(shape)} in {source}. {_shape_advice(entry.name)}"
      )


def _shape_advice(name: str) -> str:
  key = {
    "bert/embeddings/word_embeddings": "vocab_size or embedding_size",
    "cls/predictions/output_bias": "vocab_size",
    "bert/embeddings/position_embeddings": "max_position_embeddings",
  }.get(name, "the sizes")
  return f"Give the configuration this checkpoint was made with (compare {key})."


def _refuse_other_models(unused: Sequence[str], missing: Sequence[str], *, source: str) -> None:
  """Names the models that are often taken for an ALBERT of this architecture."""
  if not missing:
    return
  for pattern, kind in (
    (r"(^|/)encoder/layer_\d+/", "a BERT (one set of variables a layer, encoder/layer_0 …)"),
    (r"(^|\.)encoder\.layer\.\d+\.", "a BERT (one set of variables a layer, encoder.layer.0 …)"),
    (
      r"layer_shared|word_embeddings_2",
      "a checkpoint of brightmart/albert_zh, which maps E to H before adding positions: another function",
    ),
    (
      r"group_\d+_\d+/layer_\d+",
      "a port with separate LayerNorms in each layer, which is not the shared model",
    ),
  ):
    found = next((name for name in unused if re.search(pattern, name)), None)
    if found is not None:
      raise UserError(
        f"The checkpoint must be of an ALBERT. Received: {source}, {kind}; for example {found}. "
        "Give a checkpoint of the original release, of Hugging Face's ALBERT, or of this project."
      )
