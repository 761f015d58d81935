"""Shared code of all commands: flags made from settings, flag files, and printing of errors.

Only `tpu_scripts/` and `tfrecords_tools/` import it; library code never reads flags.
"""

from collections.abc import Callable, Iterable, Sequence
import os
import pathlib
import sys
import traceback
import typing
from typing import Any, TypeVar

from absl import app, flags

from albert_tf import files, settings
from albert_tf.errors import EXIT_STOPPED, EXIT_USER_ERROR, StoppedError, UserError

flags.disclaim_key_flags()  # A flag that is defined here belongs to the command: --help shows it.

FLAGS = flags.FLAGS
_PACKAGE = pathlib.Path(__file__).resolve().parent.parent
# Recipes lie beside the package in a checkout, and inside it in an installation.
_RECIPE_FOLDERS = (str(_PACKAGE.parent), str(_PACKAGE))
_FLAG_FILE = ("--flagfile", "-flagfile")
_HELP = {"--help", "-help", "-h", "--helpfull", "--helpshort"}
_Settings = TypeVar("_Settings")
_DEFINE: dict[type, Callable[..., Any]] = {
  bool: flags.DEFINE_bool,
  int: flags.DEFINE_integer,
  float: flags.DEFINE_float,
  str: flags.DEFINE_string,
}
# Whether this is a command that pip has installed, such as "albert-run-glue".
is_installed = False


def run(main: Callable[..., int | None], *, takes_arguments: bool = False) -> None:
  """Parses flags, calls `main()`, with `takes_arguments` `main(other arguments)`, and exits.

  The exit status is main's. For a `UserError` it prints the message and exits with 2. For others it
  prints the last line, with `--debug` all.
  """
  if "debug" not in FLAGS:
    flags.DEFINE_bool("debug", False, "Show the traceback of an error.")

  def run_main(argv: Sequence[str]) -> int | None:
    arguments = argv[1:]
    try:
      if takes_arguments:
        return main(arguments)
      if arguments:
        raise UserError(
          f"All arguments are flags. Received: {' '.join(arguments)}. "
          "Write --name=value, in quotes."
        )
      return main()
    except StoppedError as stop:
      print(stop, file=sys.stderr)
      return EXIT_STOPPED
    except KeyboardInterrupt:
      print("error: interrupted.", file=sys.stderr)
      return 130  # As a shell reports SIGINT.
    except Exception as error:
      if FLAGS.debug:
        traceback.print_exc()
      else:
        print(f"error: {_message(error)}", file=sys.stderr)
      if isinstance(error, UserError):
        return EXIT_USER_ERROR
      return 1

  app.run(run_main, flags_parser=_parse)


def _message(error: Exception) -> str:
  if isinstance(error, UserError):
    return str(error)
  # TensorFlow's messages have many lines, and the last one says most.
  last_line = str(error).strip().rpartition("\n")[2]
  return f"{type(error).__name__}: {last_line} (--debug shows where)"


def _parse(argv: Sequence[str]) -> list[str]:
  program = argv[0]
  arguments = argv[1:]
  if not _HELP.isdisjoint(arguments):
    _print_help(program, everything="--helpfull" in arguments)
    sys.exit(0)
  return app.parse_flags_with_usage([program] + expand_flag_files(arguments))


def _print_help(program: str, *, everything: bool) -> None:
  """Prints the command's description and flags, under the name that the person typed."""
  description = sys.modules["__main__"].__doc__ or ""
  typed = as_typed(program)
  for folder in ("tpu_scripts", "tfrecords_tools"):
    description = description.replace(f"python {folder}/{os.path.basename(program)}", typed)
  print(f"{description.strip()}\n\nusage: {typed} [flags]\n")
  if everything:
    print(FLAGS.get_help())
  else:
    print(FLAGS.main_module_help())


def as_typed(script: str) -> str:
  """The command line of a script, such as `python tpu_scripts/run_glue.py`.

  After an installation it is `albert-run-glue`.
  """
  if not is_installed:
    return f"python {script}"
  name = os.path.basename(script).removesuffix(".py").replace("_", "-")
  return f"albert-{name}"


def define_flags(cls: type, **defaults: Any) -> None:
  """Defines a flag for each field of a `Settings` class that was made by `setting`.

  `defaults` are this command's.
  """
  for field in settings.fields_of(cls):
    if not field.flag or field.flag in FLAGS:
      continue  # Two classes of a command may share a flag.
    default = defaults.get(field.name, field.default)
    if not isinstance(default, (int, float, str, tuple)):
      default = None
    description = field.metadata["help"]
    if field.bounds:
      description += f" ({field.bounds})"

    if field.type is str and field.choices:
      flags.DEFINE_enum(field.flag, default, field.choices, description)
    elif field.type in _DEFINE:
      _DEFINE[field.type](field.flag, default, description)
    else:
      if default is not None:
        default = [str(item) for item in default]
      flags.DEFINE_list(field.flag, default, description)
    for alias in field.metadata["aliases"]:
      flags.DEFINE_alias(alias, field.flag)


def from_flags(cls: type[_Settings], **values: Any) -> _Settings:
  """Makes the settings `cls` from the `values`, and from flags for other fields."""
  for field in settings.fields_of(cls):
    if field.name not in values and field.flag and field.flag in FLAGS:
      values[field.name] = _flag_value(field)
  return cls(**values)


def _flag_value(field: settings.Field) -> Any:
  value = FLAGS[field.flag].value
  if not isinstance(value, list):
    return value
  # absl's lists are of strings; the field is a tuple of one type.
  item_type = typing.get_args(field.type)[0]
  try:
    return tuple(item_type(item) for item in value)
  except ValueError as error:
    raise UserError(
      f"--{field.flag} takes numbers with commas. Received: {','.join(value)}."
    ) from error


def refuse_flags(mode: str, names: Iterable[str]) -> None:
  """Raises `UserError` if a flag of another mode is not at its default.

  `mode` is such as "--task_name=mrpc".
  """
  changed = []
  for name in names:
    flag = FLAGS[name]
    if flag.value != flag.default:
      changed.append(f"--{flag.name}={flag.value}")
  if changed:
    raise UserError(
      f"{mode} does not use every flag. Received: {', '.join(changed)} with it. "
      "Leave out one or the other."
    )


def flag_names(*classes: type) -> list[str]:
  """The flags of `Settings` classes."""
  return [field.flag for cls in classes for field in settings.fields_of(cls) if field.flag]


def expand_flag_files(arguments: Iterable[str], *, folder: str = "") -> list[str]:
  """The arguments, with the content of each flag file in its place.

  A `--flagfile` in a flag file is searched in its `folder`, in the working directory, and among the
  recipes of this installation. absl reports a missing one.
  """
  expanded: list[str] = []
  words = iter(arguments)
  for word in words:
    if word in _FLAG_FILE:
      # The name is the next argument: --flagfile recipe.flags.
      word = f"{word}={next(words, '')}"
    option, _, name = word.partition("=")
    path = None
    if option in _FLAG_FILE:
      path = _find_flag_file(name, folder)
    if path is None:
      expanded.append(word)
    else:
      lines = [line.strip() for line in files.read_bytes(path).decode().splitlines()]
      lines = [line for line in lines if line and not line.startswith(("#", "//"))]
      expanded += expand_flag_files(lines, folder=os.path.dirname(path))
  return expanded


def _find_flag_file(name: str, folder: str) -> str | None:
  for parent in (folder, "") + _RECIPE_FOLDERS:
    path = os.path.join(parent, os.path.expanduser(name))
    if os.path.isfile(path):
      return path
  return None
