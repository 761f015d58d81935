"""The exception for a mistake of the user, and how a command reports it.

A leaf: every package may import it, and it imports nothing of ours.
"""

from collections.abc import Callable, Sequence
import functools
import importlib
import sys
from typing import Any

EXIT_USER_ERROR = 2


class UserError(ValueError):
  """Something the user can mend: states the rule, what was received, what to do.

  Commands print the message alone, without a traceback, and exit with status 2.
  Library callers may treat it as the `ValueError` it is.
  """


def optional_package(name: str, *, extra: str, purpose: str) -> Any:
  """The module `name`, which only an extra of the installation brings.

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


def exit_on_user_error(main: Callable[[Sequence[str]], int | None]) -> Callable[[Sequence[str]], int | None]:
  """Wraps a command's `main(argv)`: a `UserError` becomes one message and status 2."""

  @functools.wraps(main)
  def wrapped(argv: Sequence[str]) -> int | None:
    try:
      return main(argv)
    except UserError as error:
      print(f"error: {error}", file=sys.stderr)
      return EXIT_USER_ERROR
    except KeyboardInterrupt:
      print("error: interrupted.", file=sys.stderr)
      return 130

  return wrapped
