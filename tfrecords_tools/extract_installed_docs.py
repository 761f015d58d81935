r"""Writes the documentation of installed Python packages as text files, a corpus for trials.

It takes the docstrings of the standard library and of all packages in site-packages. The files have
one sentence a line, and a blank line between documents. Source files are parsed, not imported. The
same environment gives the same files.

  python tfrecords_tools/extract_installed_docs.py --output_dir /tmp/docs
"""

from albert_tf.cli import commands
from tfrecords_tools.corpus.installed_docs import Extraction, extract

commands.define_flags(Extraction)


def main() -> None:
  print(extract(commands.from_flags(Extraction)))


if __name__ == "__main__":
  commands.run(main)
