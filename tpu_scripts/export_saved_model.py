"""Exports a trained model as a SavedModel for TensorFlow Serving: <output_dir>/<version>/.

Example:
  python tpu_scripts/export_saved_model.py --model fill_mask --init_checkpoint RUN --output_dir E --version 1
"""

import os
from typing import Any

from absl import logging

from albert_tf.cli import commands
from albert_tf.serving.settings import ExportSettings, ExportSource
from albert_tf.settings import Settings, setting


class Command(ExportSource):
  """The model and the directory to write."""

  output_dir: str = setting(
    help="Directory for the versions of the model, as TensorFlow Serving reads it."
  )
  version: int = setting(
    1,
    "Number of the version; servers take the highest. One that exists is refused, not replaced; "
    "older ones stay until you remove their folders.",
    minimum=1,
  )
  spm_model_file: str = setting(
    "",
    "SentencePiece model or WordPiece vocabulary (.txt). Default: the one in the checkpoint's folder.",
  )


class CalibrationTexts(Settings):
  """Texts to measure an export in 8 or 16 bits with."""

  calibration_file: str = setting(
    "",
    "int8, bfloat16: a table (.tsv, .csv, .jsonl, .parquet) with some hundred of the texts that it will answer; "
    "labels are not read. Of a long table 1,000 rows count, evenly chosen; a fifth of them is compared.",
  )
  text_columns: tuple[str, ...] = setting(
    (),
    "Columns of the texts in --calibration_file. Default: the inputs' names, such as text,text_pair.",
  )


commands.define_flags(Command, ExportSettings, CalibrationTexts)


def main() -> None:
  command = commands.from_flags(Command)
  settings = commands.from_flags(ExportSettings)
  texts = commands.from_flags(CalibrationTexts)
  # After the flags are read: TensorFlow takes seconds to import.
  commands.load_tensorflow()
  # Hide TensorFlow's messages of saving.
  logging.set_verbosity(logging.ERROR)
  from albert_tf import files
  from albert_tf.keras_api.calibration import calibration_of
  from albert_tf.keras_api.tasks import open_model
  from albert_tf.serving.export import WARMUP, export_model

  # In Python: AlbertClassifier.from_pretrained("RUN").export("E/1").
  model = open_model(command.model, command.init_checkpoint, vocabulary_file=command.spm_model_file)
  path = os.path.join(command.output_dir, str(command.version))
  calibration = None
  if texts.calibration_file:
    calibration = calibration_of(model, _read_texts(model, texts))
  agreement = export_model(model, path, settings, calibration)
  print(f"Exported {command.model} to {path}")
  if agreement is not None:
    print(f"With float32: {agreement}")
  if not files.exists(os.path.join(path, WARMUP)):
    print(
      "It has no warm-up requests, so a server's first answers are slower: "
      "`pip install tensorflow-serving-api` before an export writes them."
    )
  serve = commands.as_typed("tpu_scripts/serve_locally.py")
  print(f"Try it on this machine, with a page:\n  {serve} --saved_model {command.output_dir}")


def _read_texts(model: Any, texts: CalibrationTexts) -> dict[str, list[Any]]:
  """The inputs of a model by name, from the columns of a table."""
  from albert_tf.finetuning.data import read_table
  from albert_tf.keras_api.preprocessor import INPUT_NAMES
  from albert_tf.tables import cell_text

  table = read_table(texts.calibration_file)
  names = INPUT_NAMES[model.needed_preprocessor().kind]
  columns = texts.text_columns or [name for name in names if name in table.names] or names[:1]
  table.check_columns(columns, "--text_columns")
  inputs = {}
  for name, column in zip(names, columns, strict=False):
    cells = [row.cells.get(column) for row in table.rows]
    # Choices and words are lists.
    inputs[name] = [cell if isinstance(cell, list) else cell_text(cell) for cell in cells]
  return inputs


if __name__ == "__main__":
  commands.run(main)
