"""The commands under their installed names: `albert-run-glue` runs tpu_scripts/run_glue.py as Python would."""

import os
import pathlib
import runpy
import sys

from albert_tf.cli import commands

_HERE = pathlib.Path(__file__).resolve().parent
_FOLDERS = (_HERE, _HERE.parent / "tfrecords_tools")


def main() -> None:
  """Runs the script named like the program."""
  program = os.path.basename(sys.argv[0]).removesuffix(".exe").removesuffix(".py")
  script = program.removeprefix("albert-").replace("-", "_") + ".py"
  folder = next(folder for folder in _FOLDERS if (folder / script).is_file())
  sys.path.insert(
    0, str(folder)
  )  # As Python does for a script; some import modules of their folder.
  commands.is_installed = True
  runpy.run_path(str(folder / script), run_name="__main__")
