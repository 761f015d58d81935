"""JSON files: one object each, read with checked types and written atomically.

A leaf, without TensorFlow: settings, runs, tasks and the data tools keep their state with it.
"""

from collections.abc import Mapping
import json
from typing import Any

from albert_tf import files
from albert_tf.errors import UserError

# Python's own recursion ends near 1,000, in code that would not name the file.
_MOST_LEVELS = 64


def read(path: str, **types: Any) -> dict[str, Any]:
  """`parse` of a file, which must exist."""
  try:
    return parse(files.read_bytes(path), path, **types)
  except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
    raise UserError(f"The file must exist. Received: {path}. Check the path.") from error


def find(path: str, **types: Any) -> dict[str, Any]:
  """`read` of a file; empty where there is none."""
  if not files.exists(path):
    return {}
  return read(path, **types)


def parse(text: bytes | str, source: str, **types: Any) -> dict[str, Any]:
  """The JSON object in a text, which is UTF-8.

  Args:
    text: of one object.
    source: names it in messages.
    **types: see `check_fields`.

  Raises:
    UserError: it is something else, or is nested too deeply.
  """
  try:
    # Editors of Windows write a byte order mark before the text, which "utf-8-sig" skips.
    if isinstance(text, bytes):
      text = text.decode("utf-8-sig")
    values = json.loads(text)
    if not isinstance(values, dict):
      raise ValueError(type(values).__name__)
    if _has_level(values, _MOST_LEVELS):
      raise ValueError(f"more than {_MOST_LEVELS} levels")
  except (ValueError, RecursionError) as error:
    raise UserError(
      f"{source} must hold one JSON object, in UTF-8. Received: {error}. "
      "It may have been cut off: correct it, or copy it again from where it was made."
    ) from error
  check_fields(values, source, **types)
  return values


def _has_level(values: dict[str, Any], level: int) -> bool:
  """Whether there is a value at this level: in {"a": [3]} the list is at level 1, 3 at level 2."""
  # Level by level: recursion would end at the depth that is to be found.
  nodes: list[Any] = [values]
  for _ in range(level):
    children: list[Any] = []
    for node in nodes:
      if isinstance(node, dict):
        children.extend(node.values())
      elif isinstance(node, list):
        children.extend(node)
    nodes = children
  return bool(nodes)


def check_fields(values: Mapping[str, Any], source: str, **types: Any) -> None:
  """Raises `UserError` if a field has another type.

  Example:
    >>> check_fields(values, "run.json", identity=dict, best_run=str | None)  # None: may be absent.
  """
  for name, kind in types.items():
    if not isinstance(values.get(name), kind):
      type_name = getattr(kind, "__name__", kind)
      raise UserError(
        f"{source} must hold {name}, of type {type_name}. Received: {values.get(name)!r:.60}."
      )


def write(path: str, values: Any) -> None:
  """Writes a JSON object; raises `UserError` for NaN and infinity, which JSON does not have."""
  try:
    text = json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False)
  except ValueError as error:
    raise UserError(
      f"Results are finite numbers. Received: NaN or infinity for {path} ({error}). The weights or "
      "the data that gave them are damaged: check those first."
    ) from error
  files.write_text(path, text + "\n")
