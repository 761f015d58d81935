"""Exceptions that end a command without an error in its code: mistakes of users, and signals.

A leaf: every package may import it, and it imports nothing of ours.
"""

from collections.abc import Collection, Iterable
import contextlib
import importlib
import operator
from typing import Any

# Exit statuses of commands; 141 and 143 are what a shell reports for SIGPIPE and SIGTERM.
EXIT_USER_ERROR = 2
EXIT_UNREAD = 141
EXIT_STOPPED = 143


class UserError(ValueError):
  """A mistake that the user can correct. The message has the rule, the received value, and what to do.

  Commands print the message alone, without a traceback, and exit with status 2.
  Library callers may treat it as the `ValueError` it is.
  """


def whole_number(value: Any, name: str, *, minimum: int, maximum: int) -> int:
  """An integer of Python or NumPy as `int`; raises `UserError` for others, or out of bounds."""
  # `operator.index` takes no floats, not even 3.0.
  with contextlib.suppress(TypeError):
    number = operator.index(value)
    if minimum <= number <= maximum:
      return number
  raise UserError(
    f"{name} must be a whole number from {minimum:,} to {maximum:,}. Received: {value!r:.60}. "
    "Give such a number."
  )


def check_names(taker: str, arguments: Iterable[str], names: Collection[str]) -> None:
  """Raises `UserError` for an argument that is not one of the names; `taker` is for the message."""
  for name in arguments:
    if name not in names:
      raise UserError(
        f"{taker} takes {', '.join(sorted(names))}. Received: {name}. Correct the name."
      )


class StoppedError(Exception):
  """SIGTERM or Control-C has ended the work, and it is saved; commands print the message and exit with 143."""


def optional_package(name: str, *, extra: str, purpose: str) -> Any:
  """Imports the module `name`, which only an extra of the installation has.

  Raises:
    UserError: it is not installed.
  """
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise UserError(
      f"{purpose} the package {name.split('.')[0]}, which is not installed. Received: {error}. "
      f'Install it: pip install "albert-tf[{extra}]".'
    ) from error
