"""Exports a trained model as a SavedModel for TensorFlow Serving: <output_dir>/<version>/.

Example:
  python tpu_scripts/export_saved_model.py --model fill_mask --init_checkpoint RUN --output_dir E --version 1
"""

import os

from absl import logging

from albert_tf.cli import commands
from albert_tf.serving.settings import ExportSettings, ExportSource
from albert_tf.settings import setting


class Command(ExportSource):
  """The model and the directory to write."""

  output_dir: str = setting(
    help="Directory for the versions of the model, as TensorFlow Serving reads it."
  )
  version: int = setting(1, "Number of the version; servers take the highest.", minimum=1)
  spm_model_file: str = setting(
    "",
    "SentencePiece model or WordPiece vocabulary (.txt). Default: the one in the checkpoint's folder.",
  )


commands.define_flags(Command, ExportSettings)


def main() -> None:
  command = commands.from_flags(Command)
  settings = commands.from_flags(ExportSettings)
  # After the flags are read: TensorFlow takes seconds to import.
  commands.load_tensorflow()
  # Hide TensorFlow's messages of saving.
  logging.set_verbosity(logging.ERROR)
  from albert_tf.keras_api.tasks import open_model
  from albert_tf.serving.export import export_model

  # In Python: AlbertClassifier.from_pretrained("RUN").export("E/1").
  model = open_model(command.model, command.init_checkpoint, vocabulary_file=command.spm_model_file)
  path = os.path.join(command.output_dir, str(command.version))
  export_model(model, path, settings)
  print(f"Exported {command.model} to {path}")
  serve = commands.as_typed("tpu_scripts/serve_locally.py")
  print(f"Try it on this machine, with a page:\n  {serve} --saved_model {command.output_dir}")


if __name__ == "__main__":
  commands.run(main)
