r"""Writes the English that is already on the machine: documentation of the installed Python packages.

Docstrings of the standard library and of everything in site-packages, as one sentence a line with a blank line
between documents (a document is one module, or one docstring with --documents=docstring). Nothing is imported,
source is only parsed. The same environment gives the same files.

  python tfrecords_tools/extract_installed_docs.py --output_dir /tmp/docs
"""

from albert_tf import commands
from tfrecords_tools.corpus.installed_docs import Extraction, extract

commands.define_flags(Extraction)


def main() -> None:
  print(extract(commands.from_flags(Extraction)))


if __name__ == "__main__":
  commands.run(main)
