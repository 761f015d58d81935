"""Shared code of all commands: flags made from settings, flag files, and printing of errors.

Only `tpu_scripts/` and `tfrecords_tools/` import it; library code never reads flags.
"""

from collections.abc import Callable, Iterable, Sequence
import os
import pathlib
import sys
import traceback
from typing import Any, TypeVar

from absl import app, flags

from albert_tf import files, settings
from albert_tf.errors import EXIT_STOPPED, EXIT_USER_ERROR, StoppedError, UserError

flags.disclaim_key_flags()  # A flag that is defined here belongs to the command, and its --help shows it.

FLAGS = flags.FLAGS
_PACKAGE = pathlib.Path(__file__).resolve().parent.parent
_RECIPE_FOLDERS = (_PACKAGE.parent, _PACKAGE)  # Of a checkout, of an installation.
_Settings = TypeVar("_Settings")
_DEFINE: dict[type, Callable[..., Any]] = {
  bool: flags.DEFINE_bool,
  int: flags.DEFINE_integer,
  float: flags.DEFINE_float,
  str: flags.DEFINE_string,
}
is_installed = False  # Whether this is a command that pip has installed, such as "albert-run-glue".


def define_flags(cls: type, **defaults: Any) -> None:
  """Defines a flag for each field of the `Settings` class that was made by `setting`; `defaults` are this command's."""
  for field in settings.fields_of(cls):
    if not field.flag or field.flag in FLAGS:
      continue
    default = defaults.get(field.name, field.default)
    if not isinstance(default, (int, float, str, tuple)):
      default = None
    words = field.metadata["help"] + (f" ({field.bounds})" if field.bounds else "")
    if field.type is str and field.choices:
      flags.DEFINE_enum(field.flag, default, field.choices, words)
    elif field.type in _DEFINE:
      _DEFINE[field.type](field.flag, default, words)
    else:
      flags.DEFINE_list(field.flag, default and [str(value) for value in default], words)
    for alias in field.metadata["aliases"]:
      flags.DEFINE_alias(alias, field.flag)


def from_flags(cls: type[_Settings], **given: Any) -> _Settings:
  """Makes the settings `cls` from the given fields, and from flags for other fields."""
  fields = [field for field in settings.fields_of(cls) if field.flag and field.flag in FLAGS]
  return cls(**{field.name: _value(field) for field in fields if field.name not in given}, **given)


def _value(field: settings.Field) -> Any:
  value = FLAGS[field.flag].value
  if not isinstance(value, list):
    return value
  kind = next((kind for kind in (int, float) if kind in getattr(field.type, "__args__", ())), str)
  try:
    return tuple(kind(item) for item in value)
  except ValueError as error:
    raise UserError(f"--{field.flag} takes numbers with commas. Received: {','.join(value)}.") from error


def refuse_flags(mode: str, names: Iterable[str]) -> None:
  """Raises `UserError` if a flag of another mode is not at its default; `mode` is such as "--task_name=mrpc"."""
  changed = [FLAGS[name] for name in names if FLAGS[name].value != FLAGS[name].default]
  if changed:
    words = ", ".join(f"--{flag.name}={flag.value}" for flag in changed)
    raise UserError(f"{mode} does not use every flag. Received: {words} with it. Leave out one or the other.")


def flag_names(*classes: type) -> list[str]:
  """The flags of `Settings` classes."""
  return [field.flag for cls in classes for field in settings.fields_of(cls) if field.flag]


def run(main: Callable[..., int | None], *, takes_arguments: bool = False) -> None:
  """Parses flags, calls `main()`, with `takes_arguments` `main(other arguments)`, and exits with its status.

  For a `UserError` it prints the message and exits with 2. For others it prints the last line, with `--debug` all.
  """
  if "debug" not in FLAGS:
    flags.DEFINE_bool("debug", False, "Show the traceback of an error.")

  def wrapped(argv: Sequence[str]) -> int | None:
    try:
      if takes_arguments:
        return main(argv[1:])
      if len(argv) > 1:
        raise UserError(
          f"All arguments are flags. Received: {' '.join(argv[1:])}. Write --name=value, in quotes."
        )
      return main()
    except StoppedError as stop:
      print(stop, file=sys.stderr)
      return EXIT_STOPPED
    except KeyboardInterrupt:
      print("error: interrupted.", file=sys.stderr)
      return 130
    except Exception as error:
      if FLAGS.debug:
        traceback.print_exc()
      elif isinstance(error, UserError):
        print(f"error: {error}", file=sys.stderr)
      else:
        lines = str(error).strip().splitlines() or [""]
        print(f"error: {type(error).__name__}: {lines[-1]} (--debug shows where)", file=sys.stderr)
      return EXIT_USER_ERROR if isinstance(error, UserError) else 1

  app.run(wrapped, flags_parser=_parse)


def _parse(argv: Sequence[str]) -> list[str]:
  if {"--help", "-help", "-h", "--helpfull", "--helpshort"} & set(argv[1:]):
    _print_help(argv[0], everything="--helpfull" in argv)
    sys.exit(0)
  return app.parse_flags_with_usage([argv[0], *expand_flag_files(argv[1:])])


def as_typed(script: str) -> str:
  """The command line of a script: `python tpu_scripts/run_glue.py`, or `albert-run-glue` after an installation."""
  name = os.path.basename(script).removesuffix(".py").replace("_", "-")
  return f"albert-{name}" if is_installed else f"python {script}"


def _print_help(program: str, *, everything: bool) -> None:
  """Prints the command's description and flags, under the name that the person typed."""
  script = sys.modules["__main__"].__doc__ or ""
  typed = as_typed(program)
  for folder in ("tpu_scripts", "tfrecords_tools"):
    script = script.replace(f"python {folder}/{os.path.basename(program)}", typed)
  print(f"{script.strip()}\n\nusage: {typed} [flags]\n")
  print(FLAGS.get_help() if everything else FLAGS.main_module_help())


def expand_flag_files(arguments: Iterable[str], *, folder: str = "") -> list[str]:
  """The arguments, with the content of each flag file in its place.

  A `--flagfile` in a flag file is searched in its `folder`, in the working directory, and among the recipes of this
  installation. absl reports a missing one.
  """
  expanded: list[str] = []
  words = iter(arguments)
  for word in words:
    if word in ("--flagfile", "-flagfile"):
      word = f"--flagfile={next(words, '')}"
    name, _, value = word.partition("=")
    path = _find(value, folder) if name in ("--flagfile", "-flagfile") else None
    if path is not None:
      lines = [line.strip() for line in files.read_bytes(path).decode().splitlines()]
      kept = [line for line in lines if line and not line.startswith(("#", "//"))]
      expanded += expand_flag_files(kept, folder=os.path.dirname(path))
    else:
      expanded.append(word)
  return expanded


def _find(name: str, folder: str) -> str | None:
  places = (folder, "", *map(str, _RECIPE_FOLDERS)) if name else ()
  found = [os.path.join(place, os.path.expanduser(name)) for place in places]
  return next(filter(os.path.isfile, found), None)
