"""Runs commands of this repository to their end, without loading TensorFlow for each; and reads their flags."""

import atexit
from collections.abc import Iterable, Sequence
import contextlib
import functools
import importlib
import inspect
import io
import json
import os
import subprocess
import sys
import traceback
from typing import Any, NamedTuple

from support.commands.forked_commands import ROOT, ForkedCommands

SCRIPT_FOLDERS = [str(ROOT / "tpu_scripts"), str(ROOT / "tfrecords_tools")]


class Run(NamedTuple):
  """Exit status (of `run_once` also the message about a flag, or a traceback), and what was printed."""

  status: int | str
  stdout: str
  stderr: str


@functools.cache
def _commands(emulated_gpus: int) -> ForkedCommands:
  """One process with TensorFlow loaded for all commands of this test run."""
  commands = ForkedCommands(emulated_gpus=emulated_gpus)
  atexit.register(commands.__exit__)
  return commands


def run_command(path: str, *arguments: Any, **environment: str) -> subprocess.CompletedProcess[str]:
  """Runs a program such as `tpu_scripts/demo.py` from the repository's folder.

  With variables of an environment, which may change an import, it is a new process; else a fork of one that has
  imported TensorFlow.
  """
  if environment:
    return _new_process(path, *map(str, arguments), **environment)
  done = _commands(1).run(path, *arguments)
  return subprocess.CompletedProcess([path, *arguments], done.status or 0, done.stdout, done.stderr)


def _new_process(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
  return subprocess.run(
    [sys.executable, *words],
    cwd=ROOT,
    env={**os.environ, **environment},
    capture_output=True,
    text=True,
    timeout=280,
  )


def run_script(script: str, runs: Iterable[Sequence[str]], *, emulated_gpus: int = 1) -> list[Run]:
  """Runs `tpu_scripts/<script>.py` with each list of flags in turn."""
  commands = _commands(emulated_gpus)
  ended = [commands.run(f"tpu_scripts/{script}.py", *words) for words in runs]
  return [Run(command.status or 0, command.stdout, command.stderr) for command in ended]


def read_flags(script: str, lists: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
  """What each list of arguments, flag files among them, sets: name → value; of lists with commas."""
  return _told_by_new_process("flags", script, lists)


def run_in_turn(script: str, lists: Sequence[Sequence[str]]) -> list[Run]:
  """Runs a command with each list of arguments, all in one new process: quicker than a process for each."""
  return [Run(*run) for run in _told_by_new_process("runs", script, lists)]


def _told_by_new_process(what: str, script: str, lists: Sequence[Sequence[str]]) -> Any:
  paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
  done = _new_process("-m", __name__, what, script, json.dumps(lists), PYTHONPATH=paths)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


def flag_values(words: Sequence[str]) -> dict[str, str]:
  """The flags `--name=value` of a command; the last one counts."""
  return dict(word.lstrip("-").partition("=")[::2] for word in words)


def run_once(module: Any, words: Sequence[str]) -> Run:
  """Runs a command's `main` with these arguments in this process, and forgets its flags."""
  from albert_tf.cli import commands

  out, err = io.StringIO(), io.StringIO()
  status: int | str = 0
  before, sys.argv = sys.argv, [module.__name__, *words]
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    try:
      takes_arguments = bool(inspect.signature(module.main).parameters)
      commands.run(module.main, takes_arguments=takes_arguments)
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
  read = flags.FLAGS.flag_values_dict()
  _forget_flags()
  read |= {name: ",".join(value) for name, value in read.items() if isinstance(value, list)}
  return {
    name: value for name, value in read.items() if isinstance(value, (int, float, str, type(None)))
  }


if __name__ == "__main__":
  sys.path[:0] = SCRIPT_FOLDERS
  what, script, lists = sys.argv[1:]
  module = importlib.import_module(script)
  if what == "runs":
    print(json.dumps([run_once(module, words) for words in json.loads(lists)]))
  else:
    print(json.dumps([_values(script, words) for words in json.loads(lists)]))
