r"""Shows pretraining records as text, measures them, and checks them.

  python tfrecords_tools/inspect_records.py records/train-00000-of-00004.tfrecord
  python tfrecords_tools/inspect_records.py --validate 'records/*.tfrecord'

The vocabulary is the spm.model or vocab.txt in the records' folder, or --spm_model_file. Records of
google-research/albert are read too. With --validate, exit status 1 means that an error was found.
"""

from collections.abc import Sequence
import json
import os
from typing import Any

from albert_tf import files
from albert_tf.cli import commands
from albert_tf.cli.startup import load_tensorflow
from albert_tf.settings import Settings, setting
from albert_tf.tokenization import load_tokenizer


class Command(Settings):
  """What to show and check."""

  validate: bool = setting(False, "Check every record and file, and exit with status 1 if one is wrong.")
  show: int = setting(3, "Number of instances to print.", minimum=0)
  spm_model_file: str | None = setting(None, "Vocabulary. Default: the one in the records' folder.")
  json: bool = setting(False, "Print only the statistics, as one line of JSON.")


commands.define_flags(Command)


def format_statistics(summary: dict[str, Any]) -> str:
  """The summary as lines of text."""
  lines = []
  for name, value in summary.items():
    if isinstance(value, dict):
      shown = " ".join(f"{length}:{share:.3f}" for length, share in list(value.items())[:6])
    else:
      shown = f"{value:,.4f}".removesuffix(".0000")
    lines.append(f"{name:20} {shown}")
  return "\n".join(lines) or "no instance could be read"


def main(patterns: Sequence[str]) -> int:
  command = commands.from_flags(Command)
  paths = files.expand_globs(patterns, what="record file")
  tokenizer = load_tokenizer(command.spm_model_file or os.path.dirname(paths[0]) or ".")
  load_tensorflow()
  from tfrecords_tools.inspection import inspect_files, render_first

  for text in render_first(paths, tokenizer, 0 if command.json else command.show):
    print(text)
  found = inspect_files(paths, tokenizer, validate=command.validate)
  summary = found.measurements.summary()
  print(json.dumps(summary, ensure_ascii=False) if command.json else format_statistics(summary))
  for problem in found.problems:
    print(f"problem: {problem}")
  if found.num_problems > len(found.problems):
    print(f"… and {found.num_problems - len(found.problems)} more")
  if command.validate and not found.num_problems:
    print(f"valid: {len(paths)} file(s)")
  return 1 if command.validate and found.num_problems else 0


if __name__ == "__main__":
  commands.run(main, takes_arguments=True)
