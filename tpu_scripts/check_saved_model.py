"""Checks that an exported model loads and answers without this project's code.

Loads the export in a process without this project. Prints one line for each check: layout, ops, golden outputs,
batches, unusual text. Ends with status 1 if a check fails.

Example:
  python tpu_scripts/check_saved_model.py --saved_model E/1 --python=other/bin/python
"""

from albert_tf.cli import commands
from albert_tf.cli.startup import load_tensorflow
from albert_tf.settings import Settings, setting


class Command(Settings):
  """The exports to check."""

  saved_model: str = setting(
    help="An exported model: a version directory, or a folder of versions (the highest is taken)."
  )
  python: tuple[str, ...] = setting(
    (),
    "Python interpreters with other versions of TensorFlow, separated by commas; each must run the export too.",
  )


commands.define_flags(Command)


def main() -> int:
  command = commands.from_flags(Command)
  load_tensorflow()
  from albert_tf.serving.check import check_saved_model

  results = check_saved_model(command.saved_model, pythons=command.python)
  for result in results:
    print(f"{'PASS' if result.passed else 'FAIL'}  {result.name:<28}  {result.detail}")
  return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
  commands.run(main)
