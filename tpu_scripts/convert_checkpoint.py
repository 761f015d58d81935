"""Converts a checkpoint: the original release, TensorFlow Hub, Hugging Face and this project, in and out.

  python tpu_scripts/convert_checkpoint.py --input albert_base_v2/ --output my_albert/

Weights are copied bit for bit, heads and optimizer state included. Every weight is listed. A missing or unused
weight is an error unless a flag allows it.
"""

from albert_tf import commands
from albert_tf.configs.conversion import ConvertOptions
from albert_tf.settings import Settings, setting


class Command(Settings):
  """The checkpoint and the directory to write."""

  input: str = setting(
    "", "Run or release directory, SavedModel, Hugging Face directory, weights file or checkpoint prefix."
  )
  output: str = setting("", "Directory to write; must not exist or be empty.")


commands.define_flags(Command)
commands.define_flags(ConvertOptions)


def main() -> None:
  command, options = commands.from_flags(Command), commands.from_flags(ConvertOptions)
  from albert_tf.startup import load_tensorflow

  load_tensorflow()
  from albert_tf.checkpoints import convert

  report = convert(command.input, command.output, options)
  print("\n".join(report.lines()))
  print(f"written: {command.output} ({options.output_format})")


if __name__ == "__main__":
  commands.run(main)
