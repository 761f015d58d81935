"""Runs one command several times in one process: TensorFlow is loaded once."""

from collections.abc import Sequence
import json
import pathlib
import subprocess
import sys
from typing import NamedTuple

_TPU_SCRIPTS = pathlib.Path(__file__).parents[3] / "tpu_scripts"

# Reads a list of flag lists; prints status, standard output and standard error of each run.
_DRIVER = """
import contextlib, importlib, io, json, sys, traceback
sys.path.insert(0, sys.argv[1])
from absl import flags
from albert_tf import commands
module = importlib.import_module(sys.argv[2])
results = []
for number, words in enumerate(json.loads(sys.argv[3])):
  if number:
    flags.FLAGS.unparse_flags()
    for name in flags.FLAGS:
      flags.FLAGS[name].unparse()
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    try:
      script_arguments, sys.argv = sys.argv, [sys.argv[2], *words]
      commands.run(module.main)
    except SystemExit as end:
      status = end.code or 0
    except Exception:
      status = traceback.format_exc()
    finally:
      sys.argv = script_arguments
  results.append([status, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""


class Run(NamedTuple):
  """Exit status (or the message about a flag, or a traceback), standard output, standard error."""

  status: int | str
  stdout: str
  stderr: str


def run_script(script: str, runs: Sequence[Sequence[str]], *, seconds: float = 240) -> list[Run]:
  """Runs `tpu_scripts/<script>.py` with each list of flags in turn."""
  done = subprocess.run(
    [sys.executable, "-c", _DRIVER, str(_TPU_SCRIPTS), script, json.dumps([list(words) for words in runs])],
    capture_output=True,
    text=True,
    timeout=seconds,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return [Run(*values) for values in json.loads(done.stdout.splitlines()[-1])]
