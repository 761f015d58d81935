"""Text and a vocabulary for the data benchmarks: the person's own, or this machine's documentation."""

import os
import subprocess
import sys

from tfrecords_tools.corpus import CorpusOptions, CorpusStats, iter_documents


def read_documents(paths: list[str], *, input_format: str, megabytes: float | None = None) -> list[list[str]]:
  """Documents of `paths`, at most about `megabytes` of text."""
  documents: list[list[str]] = []
  size = 0
  for path in paths:
    for document in iter_documents(path, CorpusOptions(input_format=input_format), stats=CorpusStats()):
      documents.append(document)
      size += sum(len(sentence.encode()) + 1 for sentence in document)
      if megabytes is not None and size >= megabytes * 1e6:
        return documents
  return documents


def installed_documentation(directory: str, *, megabytes: float) -> list[str]:
  """Extracts documentation into `directory` and returns its files."""
  command = [sys.executable, "-m", "tfrecords_tools.extract_installed_docs", f"--output_dir={directory}"]
  subprocess.run(
    [*command, f"--max_megabytes={megabytes}", "--num_files=1"],
    check=True,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )
  return [os.path.join(directory, name) for name in sorted(os.listdir(directory)) if name.endswith(".txt")]


def write_lines(documents: list[list[str]], path: str, *, megabytes: float | None = None) -> None:
  """One sentence a line, blank lines between; with `megabytes` the documents are repeated up to that size."""
  written = 0
  with open(path, "w", encoding="utf-8") as stream:
    while True:
      for document in documents:
        written += stream.write("\n".join(document) + "\n\n")
        if megabytes is not None and written >= megabytes * 1e6:
          return
      if megabytes is None:
        return


def train_vocabulary(documents: list[list[str]], directory: str) -> str:
  """Trains 8,000 pieces on the documents; returns the model's path."""
  prefix, text = os.path.join(directory, "vocabulary"), os.path.join(directory, "vocabulary.txt")
  write_lines(documents, text)
  command = [
    sys.executable,
    "-m",
    "tfrecords_tools.train_vocab",
    f"--input={text}",
    f"--model_prefix={prefix}",
  ]
  subprocess.run(
    [*command, "--vocab_size=8000"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
  )
  return f"{prefix}.model"
