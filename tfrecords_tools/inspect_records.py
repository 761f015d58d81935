r"""Shows pretraining records as text, and checks them.

  python tfrecords_tools/inspect_records.py records/train-00000-of-00004.tfrecord
  python tfrecords_tools/inspect_records.py --validate 'records/*.tfrecord'

The vocabulary is the spm.model or vocab.txt in the records' folder, or --spm_model_file. Records of
google-research/albert are read too. With --validate, exit status 1 means that an error was found.
"""

from collections.abc import Sequence
import os

from albert_tf import files
from albert_tf.cli import commands
from albert_tf.settings import Settings, setting
from albert_tf.tokenization import load_tokenizer


class Command(Settings):
  """What to show and check."""

  validate: bool = setting(
    False,
    "Check every record and file, and exit with status 1 if one is wrong. Behind a damaged record "
    "the next file is checked.",
  )
  show: int = setting(3, "Number of instances to print.", minimum=0)
  spm_model_file: str | None = setting(None, "Vocabulary. Default: the one in the records' folder.")


commands.define_flags(Command)


def main(patterns: Sequence[str]) -> int:
  command = commands.from_flags(Command)
  paths = files.expand_globs(patterns, name="record file")
  tokenizer = load_tokenizer(command.spm_model_file or os.path.dirname(paths[0]) or ".")
  commands.load_tensorflow()
  # They need TensorFlow.
  from tfrecords_tools.inspection import Findings, inspect_files, render_first

  findings = Findings()
  for text in render_first(paths, tokenizer, command.show, findings):
    print(text)
  if command.validate:
    findings = inspect_files(paths, tokenizer)

  # Problems are shown in any case; they are an error where they were asked for.
  for problem in findings.problems:
    print(f"problem: {problem}")
  if findings.num_problems > len(findings.problems):
    print(f"… and {findings.num_problems - len(findings.problems)} more")
  if not command.validate:
    return 0
  if findings.num_problems:
    return 1
  print(f"valid: {len(paths)} file(s)")
  return 0


if __name__ == "__main__":
  commands.run(main, takes_arguments=True)
