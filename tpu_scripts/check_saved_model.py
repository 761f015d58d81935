"""Checks that an exported model loads and answers without this project's code.

Loads the export in a process without this project. Prints one line for each check: layout, ops,
golden outputs, batches, unusual text. Ends with status 1 if a check fails.

Example:
  python tpu_scripts/check_saved_model.py --saved_model E/1 --python=other/bin/python
"""

from albert_tf.cli import commands
from albert_tf.settings import Settings, setting


class Command(Settings):
  """The exports to check."""

  saved_model: str = setting(
    help="An exported model: a version directory, or a folder of versions (the highest is taken)."
  )
  python: tuple[str, ...] = setting(
    (),
    "Python interpreters with other versions of TensorFlow, separated by commas; each must run "
    "the export too.",
  )


commands.define_flags(Command)


def main() -> int:
  command = commands.from_flags(Command)
  commands.load_tensorflow()
  from albert_tf.serving.check import check_saved_model

  # All results are shown: the first failure may not be the one that explains the others.
  status = 0
  for result in check_saved_model(command.saved_model, pythons=command.python):
    mark = "PASS"
    if not result.passed:
      mark = "FAIL"
      status = 1
    print(f"{mark}  {result.name:<28}  {result.detail}")
  return status


if __name__ == "__main__":
  commands.run(main)
