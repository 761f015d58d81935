"""Exports a trained model as one file for LiteRT (TensorFlow Lite), whose inputs are token ids.

Prints the file's size, and the largest difference of its outputs from those of the Python model.

Example:
  python tpu_scripts/export_lite.py --model classifier --init_checkpoint RUN --weights int8 --output mrpc.tflite
"""

from albert_tf import files
from albert_tf.cli import commands
from albert_tf.serving.settings import ExportSource, LiteSettings
from albert_tf.settings import setting


class Command(ExportSource):
  """The model and the file to write."""

  output: str = setting(
    help="File to write, which must not exist. It is written if the outputs for eight rows of random ids have "
    "a cosine of 0.9 or more with the model's."
  )


commands.define_flags(Command, LiteSettings)


def main() -> None:
  command = commands.from_flags(Command)
  settings = commands.from_flags(LiteSettings)
  # After the flags are read: TensorFlow takes seconds to import.
  commands.load_tensorflow()
  from albert_tf.keras_api.tasks import open_model
  from albert_tf.serving.lite import export_lite

  # The file takes ids, so the model needs no tokenizer.
  model = open_model(command.model, command.init_checkpoint, preprocessor=None)
  parity = export_lite(model, command.output, settings)
  print(f"Exported {command.model} to {command.output}: {files.size(command.output):,} bytes")
  for output, parity_of_output in parity.items():
    print(
      f"  {output}: largest difference {parity_of_output.max_difference:.2g}, "
      f"cosine >= {parity_of_output.cosine:.6f}"
    )


if __name__ == "__main__":
  commands.run(main)
