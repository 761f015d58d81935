"""Answers each row of tables with an exported SavedModel, in the order of the rows.

A killed run continues with the same command. A GPU is used if TensorFlow sees one.

Example:
  python tpu_scripts/predict.py --saved_model RUN/saved_model --input 'reviews/*.csv' --text_columns review \\
    --output answers.jsonl
"""

import sys

from albert_tf import files
from albert_tf.cli import commands
from albert_tf.settings import Settings, setting


class Command(Settings):
  """The model, the tables and the answers."""

  saved_model: str = setting(help="A SavedModel, or a folder of versions (the highest is taken).")
  input: tuple[str, ...] = setting(
    help="Tables with the ending .csv, .tsv, .jsonl or .parquet: files or patterns, with commas. "
    "Others, such as .csv.gz, are refused."
  )
  output: str = setting(
    help="A new file of answers, with the ending .jsonl, .parquet or, for one output of numbers, .npy. "
    "One that exists is refused."
  )
  text_columns: tuple[str, ...] = setting(
    (),
    "Columns of the model's inputs, such as review, or question,context. "
    "Choices have a column each, or one of lists. Default: the inputs' names.",
  )
  signature: str = setting(
    "serving_default", "What the model computes, such as early_exit, depth_4 or words."
  )
  outputs: tuple[str, ...] = setting(
    (), "Outputs to write, such as label,probabilities. Default: all that are not of single tokens."
  )


commands.define_flags(Command)


def main() -> None:
  command = commands.from_flags(Command)
  paths = files.expand_globs(command.input)
  commands.load_tensorflow()
  from albert_tf.serving.loaded_model import open_version
  from albert_tf.serving.table_answers import TableModel, answer_tables

  model = TableModel(
    open_version(command.saved_model),
    command.signature,
    text_columns=command.text_columns,
    outputs=command.outputs,
  )
  answered = answer_tables(model, paths, command.output)

  if answered.rows_before:
    print(f"Continued after {answered.rows_before:,} rows of an earlier run")
  rate = (answered.rows - answered.rows_before) / answered.seconds
  print(
    f"Answered {answered.rows:,} rows in {command.output}: {answered.seconds:.0f} s, {rate:,.0f} a second"
  )
  if answered.damaged:
    print(
      f"warning: {answered.damaged:,} of the rows are damaged and have no answer:", file=sys.stderr
    )
    for example in answered.examples:
      print(f"  {example}", file=sys.stderr)


if __name__ == "__main__":
  commands.run(main)
