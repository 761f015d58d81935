r"""Writes the English that is already on the machine: documentation of the installed Python packages.

Docstrings of the standard library and of everything in site-packages, and the topics that `help()` shows,
as one sentence a line with a blank line between documents (a document is one module, or one docstring with
--documents=docstring). Nothing is imported, source is only parsed. The same environment gives the same files.

  python tfrecords_tools/extract_installed_docs.py --output_dir /tmp/docs
"""

from collections.abc import Sequence

from absl import app, flags

from albert_tf.errors import UserError, exit_on_user_error
from tfrecords_tools.corpus import installed_docs

_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Directory for docs-?????-of-?????.txt.", required=True)
_MAX_MEGABYTES = flags.DEFINE_float(
  "max_megabytes", 0.0, "Stop after this much text (10^6 bytes); 0: take all."
)
_DOCUMENTS = flags.DEFINE_enum(
  "documents",
  "module",
  installed_docs.DOCUMENTS,
  "What a document is. The order of sentences is easier to learn within a docstring than over a module.",
)
_NUM_FILES = flags.DEFINE_integer("num_files", 4, "Files to spread the documents over.", lower_bound=1)
_NUM_WORKERS = flags.DEFINE_integer(
  "num_workers", 0, "Processes; 0: one a core, at most 8. The result is the same.", lower_bound=0
)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise UserError(f"This command takes flags alone. Received: {argv[1:]}. See --help.")
  summary = installed_docs.extract(
    output_dir=_OUTPUT_DIR.value,
    max_megabytes=_MAX_MEGABYTES.value,
    num_files=_NUM_FILES.value,
    num_workers=_NUM_WORKERS.value,
    documents=_DOCUMENTS.value,
  )
  print(
    f"{summary.documents:,} documents, {summary.sentences:,} sentences, {summary.megabytes:.1f} MB of English"
    f" from {summary.sources:,} source files, in {len(summary.paths)} files:"
  )
  for path in summary.paths:
    print(f"  {path}")


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
