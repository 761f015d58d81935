"""The values of flags that `--help` names: choices, bounds, 0 where it has a meaning, true and false."""

from collections.abc import Iterator
import re
from typing import Any

from albert_tf.settings import fields_of

_ZERO = re.compile(r"\b0: ")  # With a meaning of its own: "0: none."
_LISTED = re.compile(r"One of: ([\w, ]+)\.")


def documented_values(*classes: type) -> Iterator[tuple[str, Any]]:
  """Each flag of `Settings` classes with each of its values; none of a flag that takes any text."""
  for cls in classes:
    for field in fields_of(cls):
      if not field.flag:
        continue
      values: list[Any] = list(field.choices or ())
      listed = _LISTED.search(field.metadata["help"])
      if listed:
        values += listed[1].split(", ")
      if field.type is bool:
        values += [True, False]
      bounds = (field.metadata["minimum"], field.metadata["maximum"])
      values += [bound for bound in bounds if bound is not None]
      if _ZERO.search(field.metadata["help"]):
        values.append(0)
      yield from ((field.flag, value) for value in dict.fromkeys(values))
