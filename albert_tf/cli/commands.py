"""Shared code of all commands: flags made from settings, flag files, errors, TensorFlow's start.

Only `tpu_scripts/` and `tfrecords_tools/` import it; library code never reads flags.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
import importlib
import logging
import os
import pathlib
import sys
import traceback
import typing
from typing import Any, TypeVar

from absl import app, flags

from albert_tf import files, settings, tpu_host
from albert_tf.errors import (
  EXIT_STOPPED,
  EXIT_UNREAD,
  EXIT_USER_ERROR,
  StoppedError,
  UserError,
)
from albert_tf.progress import native_stderr_kept_back
from albert_tf.runs.interruption import silence_lost_output

flags.disclaim_key_flags()  # A flag that is defined here belongs to the command: --help shows it.

FLAGS = flags.FLAGS
_PACKAGE = pathlib.Path(__file__).resolve().parent.parent
# Recipes lie beside the package in a checkout, and inside it in an installation.
_RECIPE_FOLDERS = (str(_PACKAGE.parent), str(_PACKAGE))
_FLAG_FILE = ("--flagfile", "-flagfile")
_HELP = {"--help", "-help", "-h", "--helpshort"}  # absl itself answers --helpfull.
_Settings = TypeVar("_Settings")
_DEFINE: dict[type, Callable[..., Any]] = {
  bool: flags.DEFINE_bool,
  int: flags.DEFINE_integer,
  float: flags.DEFINE_float,
  str: flags.DEFINE_string,
}
# Keras 3 imports these where they are installed, for wrappers and pictures that no command uses: a
# third of the time.
_LEFT_OUT = ("matplotlib", "sklearn")
# Whether this is a command that pip has installed, such as "albert-run-glue".
is_installed = False


# ------------------------------------------------------------------ the start and the end


def run(main: Callable[..., int | None], *, takes_arguments: bool = False) -> None:
  """Parses flags, calls `main()`, with `takes_arguments` `main(other arguments)`, and exits.

  The exit status is main's. For a `UserError` it prints the message and exits with 2. For others it
  prints the last line, with `--debug` all. If standard output is a pipe that nobody reads any more,
  it exits with 141 and says nothing.
  """
  if "debug" not in FLAGS:
    flags.DEFINE_bool("debug", False, "Show the traceback of an error.")
  # With a machine's first picture it tells that it lists the fonts.
  logging.getLogger("matplotlib").setLevel(logging.WARNING)

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
    except BrokenPipeError:
      raise  # No error of the command: see below.
    except Exception as error:
      message = str(error)
      status = EXIT_USER_ERROR
      if not isinstance(error, UserError):
        status = 1
        # TensorFlow's messages have many lines, and the last one says most.
        last_line = message.strip().rpartition("\n")[2]
        message = f"{type(error).__name__}: {last_line} (--debug shows where)"
      if FLAGS.debug:
        traceback.print_exc()
      else:
        print(f"error: {message}", file=sys.stderr)
      return status

  try:
    try:
      app.run(run_main, flags_parser=_parse)
    finally:
      sys.stdout.flush()
  except BrokenPipeError:
    # Nobody reads standard output any more, as in `… | head`. What is left in its buffer would fail
    # again when Python ends.
    silence_lost_output()
    sys.exit(EXIT_UNREAD)


def _parse(argv: Sequence[str]) -> list[str]:
  program = argv[0]
  arguments = argv[1:]
  if not _HELP.isdisjoint(arguments):
    _print_help(program)
    sys.exit(0)
  return app.parse_flags_with_usage([program] + expand_flag_files(arguments))


def _print_help(program: str) -> None:
  """Prints the command's description and flags, under the name that the person typed."""
  description = sys.modules["__main__"].__doc__ or ""
  typed = as_typed(program)
  for folder in ("tpu_scripts", "tfrecords_tools"):
    description = description.replace(f"python {folder}/{os.path.basename(program)}", typed)
  print(f"{description.strip()}\n\nusage: {typed} [flags]\n")
  print(FLAGS.main_module_help())


def as_typed(script: str) -> str:
  """The command line of a script, such as `python tpu_scripts/run_glue.py`.

  After an installation it is `albert-run-glue`.
  """
  if not is_installed:
    return f"python {script}"
  name = os.path.basename(script).removesuffix(".py").replace("_", "-")
  return f"albert-{name}"


# ------------------------------------------------------------------ TensorFlow


def load_tensorflow(tpu: str = "", *, reads_extents: bool = False) -> None:
  """Imports TensorFlow quietly; call it in `main`, before any library import that needs it.

  With TF_CPP_MIN_LOG_LEVEL=0, set by the user, everything is shown.

  Args:
    tpu: the command's --tpu; raises `UserError` if it is this machine's TPU and cannot be used.
    reads_extents: whether parts of large files are read. Requests to a bucket are then for these
      bytes, and not for 64 MiB (on TPUs 512 MiB). Settings of the user take precedence.
  """
  if reads_extents:
    # Reading ahead helps small reads only, and the cache would round a read to whole blocks.
    os.environ.setdefault("GCS_READAHEAD_BUFFER_SIZE_BYTES", str(16 << 10))
    os.environ.setdefault("GCS_READ_CACHE_MAX_SIZE_MB", "0")
  if os.uname().machine == "x86_64":
    # TensorFlow's default on processors with AVX-512 VNNI. On one without, the demo's model trains
    # twice as fast.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
  tpu_host.prepare_import(tpu)
  if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") == "0":
    importlib.import_module("keras")
    return

  with native_stderr_kept_back():
    left_out = [package for package in _LEFT_OUT if package not in sys.modules]
    # An import of a module that is None fails.
    sys.modules.update(dict.fromkeys(left_out))  # type: ignore[arg-type]
    import tensorflow as tf

    # TensorFlow may load it lazily.
    importlib.import_module("keras")
    for package in left_out:
      del sys.modules[package]
    tf.get_logger().setLevel("ERROR")
    # The CUDA library speaks when it first looks for devices.
    tf.config.list_physical_devices()


# ------------------------------------------------------------------ flags and settings


def define_flags(*classes: type, without: Collection[str] = (), **defaults: Any) -> None:
  """Defines a flag for each field of `Settings` classes that was made by `setting`.

  Args:
    *classes: the classes.
    without: names of fields that this command has no use for; they keep their defaults.
    **defaults: this command's, by the fields' names.
  """
  for field in _fields_with_flags(*classes):
    # Two classes of a command may share a flag.
    if field.flag in FLAGS or field.name in without:
      continue
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
    elif field.metadata["repeated"]:
      flags.DEFINE_multi_string(field.flag, default, description)
    else:
      if default is not None:
        default = [str(item) for item in default]
      flags.DEFINE_list(field.flag, default, description)
    for alias in field.metadata["aliases"]:
      flags.DEFINE_alias(alias, field.flag)


def _fields_with_flags(*classes: type) -> list[settings.Field]:
  return [field for cls in classes for field in settings.fields_of(cls) if field.flag]


def from_flags(cls: type[_Settings], trained: Any = None, **values: Any) -> _Settings:
  """Makes the settings `cls` from the `values`, and from flags for other fields.

  A flag without a value, of a field that needs one, stands for the value of this name in `trained`,
  or else for the field's default:

      # --max_query_length is not given: 64 for a new run, 20 of a run that was trained with 20.
  """
  for field in settings.fields_of(cls):
    if field.name in values or field.flag not in FLAGS:
      continue
    value = _flag_value(field)
    if value is None and not field.optional:
      value = getattr(trained, field.name, None)
      if value is None and not field.is_needed:
        value = field.default
    values[field.name] = value
  return cls(**values)


def _flag_value(field: settings.Field) -> Any:
  value = FLAGS[field.flag].value
  # Such as an unset variable of the shell, --work_dir=$SCRATCH, which must not choose the default.
  if value == "" and (field.optional or field.is_needed):
    advice = f"Give a value to --{field.flag}"
    if field.optional:
      advice += ", or leave it out for the default"
    raise UserError(f"--{field.flag} must not be empty. Received: ''. {advice}.")
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


def changed_flags() -> dict[str, Any]:
  """Name → value of the flags that are not at their defaults."""
  return {name: FLAGS[name].value for name in FLAGS if FLAGS[name].value != FLAGS[name].default}


def flag_names(*classes: type) -> set[str]:
  """The flags of `Settings` classes."""
  return {field.flag for field in _fields_with_flags(*classes)}


def given_arguments(cls: type) -> list[str]:
  """The flags of a `Settings` class that were given, as arguments for another command."""
  defined = [FLAGS[field.flag] for field in _fields_with_flags(cls)]
  return [flag.serialize() for flag in defined if flag.present]


# ------------------------------------------------------------------ flag files


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
