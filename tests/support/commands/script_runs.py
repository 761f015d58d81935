"""Runs commands of this repository to their end, without loading TensorFlow for each; and reads their flags."""

import atexit
from collections.abc import Sequence
import contextlib
import functools
import importlib
import io
import json
import os
import pathlib
import subprocess
import sys
import traceback
from typing import Any, NamedTuple

from support.commands.forked_commands import ForkedCommands

_ROOT = pathlib.Path(__file__).parents[3]
_ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), str(_ROOT / "tests")])}
SCRIPT_FOLDERS = [str(_ROOT / "tpu_scripts"), str(_ROOT / "tfrecords_tools")]


class Run(NamedTuple):
  """Exit status (of `run_once` also the message about a flag, or a traceback), and what was printed."""

  status: int | str
  stdout: str
  stderr: str


@functools.cache
def _commands() -> ForkedCommands:
  """One process with TensorFlow loaded for all commands of this test run."""
  commands = ForkedCommands(_ENVIRONMENT)
  atexit.register(commands.__exit__, None, None, None)
  return commands.__enter__()


def run_command(path: str, *arguments: Any, **environment: str) -> subprocess.CompletedProcess[str]:
  """Runs a program such as `tpu_scripts/demo.py` from the repository's folder.

  With variables of an environment, which may change an import, it is a new process; else a fork of one that has
  imported TensorFlow.
  """
  if environment:
    return subprocess.run(
      [sys.executable, path, *map(str, arguments)],
      cwd=_ROOT,
      env={**os.environ, **environment},
      capture_output=True,
      text=True,
      timeout=280,
    )
  done = _commands().run_words(path, arguments)
  return subprocess.CompletedProcess([path, *arguments], done.status or 0, done.stdout, done.stderr)


def run_script(script: str, runs: Sequence[Sequence[str]]) -> list[Run]:
  """Runs `tpu_scripts/<script>.py` with each list of flags in turn."""
  path = f"tpu_scripts/{script}.py"
  ended = [_commands().run_words(path, words) for words in runs]
  return [Run(command.status or 0, command.stdout, command.stderr) for command in ended]


def read_flags(script: str, lists: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
  """What each list of arguments, flag files among them, sets: name → value; of lists with commas."""
  done = subprocess.run(
    [sys.executable, "-m", "support.commands.script_runs", script, json.dumps(lists)],
    cwd=_ROOT,
    env=_ENVIRONMENT,
    capture_output=True,
    text=True,
    timeout=240,
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


def flag_values(words: Sequence[str]) -> dict[str, str]:
  """The flags `--name=value` of a command; the last one counts."""
  return dict(word.lstrip("-").partition("=")[::2] for word in words)


def run_once(module: Any, words: Sequence[str]) -> Run:
  """Runs a command's `main` with these flags in this process, and forgets them."""
  from albert_tf.cli import commands

  out, err = io.StringIO(), io.StringIO()
  status: int | str = 0
  before, sys.argv = sys.argv, [module.__name__, *words]
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    try:
      commands.run(module.main)
    except SystemExit as end:
      status = end.code or 0
    except Exception:
      status = traceback.format_exc()
    finally:
      sys.argv = before
  _forget_flags()
  return Run(status, out.getvalue(), err.getvalue())


def _forget_flags() -> None:
  from absl import flags

  flags.FLAGS.unparse_flags()
  for name in flags.FLAGS:
    flags.FLAGS[name].unparse()


def _values(script: str, words: Sequence[str]) -> dict[str, Any]:
  from absl import flags

  from albert_tf.cli.commands import expand_flag_files

  flags.FLAGS([script, *expand_flag_files(words)])
  read = {name: flags.FLAGS[name].value for name in flags.FLAGS}
  _forget_flags()
  read |= {name: ",".join(value) for name, value in read.items() if isinstance(value, list)}
  return {
    name: value for name, value in read.items() if isinstance(value, (int, float, str, type(None)))
  }


if __name__ == "__main__":
  sys.path[:0] = SCRIPT_FOLDERS
  importlib.import_module(sys.argv[1])
  print(json.dumps([_values(sys.argv[1], words) for words in json.loads(sys.argv[2])]))
