"""Text for benchmarks, and a vocabulary for it: given files, or this machine's documentation."""

from collections.abc import Sequence
import os
import re
import subprocess
import sys

from albert_tf import files

# NumPy's style of docstrings: a heading between a blank line and a line of dashes.
NUMPY_HEADING = re.compile(r"\n\n([A-Z][A-Za-z ]+)\n-{3,}\n")
# What may follow the parameters.
NUMPY_SECTIONS = (
  "Returns",
  "Raises",
  "See Also",
  "Notes",
  "References",
  "Examples",
  "Attributes",
  "Methods",
)

Documents = list[list[str]]  # Sentences of each.


def data_tool(name: str, *options: str) -> None:
  """Runs a command of tfrecords_tools as a user does."""
  command = [sys.executable, "-m", f"tfrecords_tools.{name}"]
  command.extend(options)
  # A benchmark's standard output is its JSON line. Errors are shown.
  subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def installed_documentation(directory: str, *, megabytes: float) -> Documents:
  """Documents of the installed packages; the directory holds their text."""
  folder = os.path.join(directory, "docs")
  data_tool("extract_installed_docs", f"--output_dir={folder}", f"--max_megabytes={megabytes}")
  return read_documents(files.expand_globs([f"{folder}/*.txt"]), "lines", megabytes)


def read_documents(paths: Sequence[str], input_format: str, megabytes: float) -> Documents:
  """Documents of files, at most about so many megabytes of text."""
  from tfrecords_tools.corpus import CorpusOptions, CorpusStats, iter_documents

  options = CorpusOptions(input_format=input_format)
  documents: Documents = []
  num_bytes = 0
  for path in paths:
    for document in iter_documents(path, options, stats=CorpusStats()):
      documents.append(document)
      # Each sentence ends with a line end.
      num_bytes += sum(len(sentence.encode()) + 1 for sentence in document)
      if num_bytes >= megabytes * 1e6:
        return documents
  return documents


def train_vocabulary(documents: Documents, directory: str, *, vocab_size: int = 8000) -> str:
  """Trains a vocabulary on the documents; returns the model's path."""
  text = os.path.join(directory, "vocabulary.txt")
  prefix = os.path.join(directory, "vocabulary")
  write_lines(documents, text)
  data_tool(
    "train_vocab", f"--input={text}", f"--model_prefix={prefix}", f"--vocab_size={vocab_size}"
  )
  return f"{prefix}.model"


def write_lines(documents: Documents, path: str, *, megabytes: float | None = None) -> None:
  """One sentence a line, blank lines between documents.

  Args:
    documents: what is written.
    path: of the file.
    megabytes: the documents are repeated up to this size; None: they are written once.
  """
  num_written = 0
  with open(path, "w", encoding="utf-8") as stream:
    while True:
      for document in documents:
        num_written += stream.write("\n".join(document) + "\n\n")
        if megabytes is not None and num_written >= megabytes * 1e6:
          return
      if megabytes is None:
        return
