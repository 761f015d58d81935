"""The commands under their installed names: `albert-run-glue` runs run_glue.py as Python would.

`setup.py` names this file for each of them.
"""

import os
import pathlib
import runpy
import sys

from albert_tf.cli import commands

_HERE = pathlib.Path(__file__).resolve().parent


def main() -> None:
  """Runs the script named like the program."""
  program = os.path.basename(sys.argv[0]).removesuffix(".exe").removesuffix(".py")
  script = program.removeprefix("albert-").replace("-", "_") + ".py"
  folder = _HERE
  if not (folder / script).is_file():
    folder = _HERE.parent / "tfrecords_tools"
  # As Python does for a script; some import modules of their folder.
  sys.path.insert(0, str(folder))
  # --help and hints then write "albert-run-glue", as the person did.
  commands.is_installed = True
  runpy.run_path(str(folder / script), run_name="__main__")
