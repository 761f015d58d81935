"""Runs one command several times in one process, so that TensorFlow is loaded once; and reads its flags."""

from collections.abc import Sequence
import contextlib
import importlib
import io
import json
import os
import pathlib
import subprocess
import sys
import traceback
from typing import Any, NamedTuple

_ROOT = pathlib.Path(__file__).parents[3]
SCRIPT_FOLDERS = [str(_ROOT / "tpu_scripts"), str(_ROOT / "tfrecords_tools")]


class Run(NamedTuple):
  """Exit status (or the message about a flag, or a traceback), standard output, standard error."""

  status: int | str
  stdout: str
  stderr: str


def run_script(script: str, runs: Sequence[Sequence[str]], *, seconds: float = 240) -> list[Run]:
  """Runs `tpu_scripts/<script>.py` with each list of flags in turn."""
  return [Run(*values) for values in _ask("run", script, runs, seconds)]


def read_flags(script: str, lists: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
  """What each list of arguments, flag files among them, sets: name → value; of lists with commas."""
  return _ask("read", script, lists, 240)


def _ask(what: str, script: str, lists: Sequence[Sequence[str]], seconds: float) -> Any:
  path = os.pathsep.join([str(_ROOT), str(_ROOT / "tests")])
  done = subprocess.run(
    [
      sys.executable,
      "-m",
      "support.commands.script_runs",
      what,
      script,
      json.dumps([list(each) for each in lists]),
    ],
    cwd=_ROOT if what == "read" else None,
    env={**os.environ, "PYTHONPATH": path},
    capture_output=True,
    text=True,
    timeout=seconds,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


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
  read = {name: flag.value for name, flag in ((name, flags.FLAGS[name]) for name in flags.FLAGS)}
  _forget_flags()
  joined = (
    (name, ",".join(value) if isinstance(value, list) else value) for name, value in read.items()
  )
  return {name: value for name, value in joined if isinstance(value, (int, float, str, type(None)))}


def _main(what: str, script: str, lists: str) -> None:
  sys.path[:0] = SCRIPT_FOLDERS
  module = importlib.import_module(script)
  answers = [
    run_once(module, words) if what == "run" else _values(script, words)
    for words in json.loads(lists)
  ]
  print(json.dumps(answers))


if __name__ == "__main__":
  _main(*sys.argv[1:])
