r"""Writes the English that is already on the machine: documentation of the installed Python packages.

Docstrings of the standard library and of everything in site-packages, as one sentence a line with a blank line
between documents (a document is one module, or one docstring with --documents=docstring). Nothing is imported,
source is only parsed. The same environment gives the same files.

  python tfrecords_tools/extract_installed_docs.py --output_dir /tmp/docs
"""

import dataclasses
from typing import Literal

from absl import flags

from albert_tf import commands
from albert_tf.settings import Settings, setting
from tfrecords_tools.corpus import installed_docs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Settings):
  """How much is written, and where."""

  output_dir: str = setting(help="Directory for docs-?????-of-?????.txt.")
  max_megabytes: float = setting(0.0, minimum=0, help="Stop after this much text (10^6 bytes); 0: take all.")
  # A docstring begins with what the thing does, so small models learn its order; over a module there is hardly any.
  documents: Literal["module", "docstring"] = setting(
    "module",
    help="What a document is. The order of sentences is easier to learn within a docstring than over a module.",
  )
  num_files: int = setting(4, minimum=1, help="Files to spread the documents over.")


commands.define_flags(Command)
flags.mark_flags_as_required(["output_dir"])


def main() -> None:
  command = commands.from_flags(Command)
  print(
    installed_docs.extract(
      output_dir=command.output_dir,
      max_megabytes=command.max_megabytes,
      num_files=command.num_files,
      by_docstring=command.documents == "docstring",
    )
  )


if __name__ == "__main__":
  commands.run(main)
