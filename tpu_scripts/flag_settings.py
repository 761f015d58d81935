"""From a command line to the library's settings: flag files first, then flags by the names of the settings' fields."""

from collections.abc import Iterable, Sequence
import dataclasses
import os
from typing import Any, TypeVar

from absl import app, flags

from albert_tf import files

Settings = TypeVar("Settings")


def parse_flags(argv: Sequence[str]) -> list[str]:
  """What `absl.app` does by itself, but that recipes find what they share from any working directory."""
  return app.parse_flags_with_usage([argv[0], *expand_flag_files(argv[1:])])


def expand_flag_files(
  arguments: Iterable[str], *, folder: str = "", above: tuple[str, ...] = ()
) -> list[str]:
  """The arguments, with the content of each flag file in its place.

  Args:
    arguments: of a command line, or the lines of a flag file.
    folder: where that flag file lies. A `--flagfile` in it is looked for there, then in the working directory, as
      absl does; what is in neither stays, for absl's own message.
    above: the flag files around it.
  """
  expanded: list[str] = []
  words = iter(arguments)
  for word in words:
    if word in ("--flagfile", "-flagfile"):
      word = f"--flagfile={next(words, '')}"
    name, _, value = word.partition("=")
    path = _find(value, folder) if name in ("--flagfile", "-flagfile") else None
    if path is not None and path not in above:
      lines = [line.strip() for line in files.read_bytes(path).decode().splitlines()]
      kept = [line for line in lines if line and not line.startswith(("#", "//"))]
      expanded += expand_flag_files(kept, folder=os.path.dirname(path), above=(*above, path))
    else:
      expanded.append(word)
  return expanded


def _find(name: str, folder: str) -> str | None:
  """Where a flag file lies: beside the one that names it, or in the working directory."""
  paths = (os.path.join(folder, os.path.expanduser(name)), os.path.expanduser(name))
  return next((os.path.abspath(path) for path in paths if os.path.isfile(path)), None)


def from_flags(cls: type[Settings], **given: Any) -> Settings:
  """The settings `cls`, a dataclass: what is given, and every other field that has a flag of its name as the flag says.

  Example:
    >>> schedule = from_flags(ScheduleConfig, num_train_steps=9)  # --learning_rate, --num_warmup_steps, …
  """
  names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
  flagged = {name: flags.FLAGS[name].value for name in names - given.keys() if name in flags.FLAGS}
  return cls(**flagged, **given)
