"""Converts checkpoints between the original release, TensorFlow Hub, Hugging Face and this project.

  python tpu_scripts/convert_checkpoint.py --input albert_base_v2/ --output my_albert/

Weights are copied bit for bit, including heads and optimizer state. The command lists every weight. A missing or
unused weight is an error unless a flag allows it.
"""

from albert_tf.checkpoints.settings import ConvertOptions
from albert_tf.cli import commands
from albert_tf.settings import Settings, setting


class Command(Settings):
  """The checkpoint and the directory to write."""

  input: str = setting(
    "",
    "A run, release or Hugging Face directory, a SavedModel, a weights file or a checkpoint prefix; "
    "unpacked, of float32, float16 or bfloat16.",
  )
  output: str = setting("", "Directory to write, new or empty.")


commands.define_flags(Command, ConvertOptions)


def main() -> None:
  command = commands.from_flags(Command)
  options = commands.from_flags(ConvertOptions)
  # After the flags are read: TensorFlow takes seconds to import.
  commands.load_tensorflow()
  from albert_tf.checkpoints.convert import convert

  report = convert(command.input, command.output, options)
  print("\n".join(report.lines()))
  print(f"written: {command.output} ({options.output_format})")


if __name__ == "__main__":
  commands.run(main)
