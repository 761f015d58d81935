"""Shared code of the benchmarks: the command, turns and times, and text with a vocabulary."""

from collections.abc import Callable, Mapping, Sequence
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from absl import flags

from albert_tf import files
from albert_tf.cli import commands

_EXTENSIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


def run(measure: Callable[[], Mapping[str, Any] | None]) -> None:
  """The command: what `measure` returns is printed as one JSON line."""

  def main() -> None:
    result = measure()
    if result is not None:
      named = {"benchmark": pathlib.Path(sys.argv[0]).stem, "processor": processor()}
      print(json.dumps({**named, **result}), flush=True)

  commands.run(main)


def processor() -> str:
  """The processor and those of its extensions on which the figures depend; empty where the system does not tell."""
  try:
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
  except OSError:
    return ""
  fields = dict(line.split(":", 1) for line in text.replace("\t", "").splitlines() if ":" in line)
  extensions = [name for name in _EXTENSIONS if name in fields.get("flags", "").split()]
  return " ".join([*fields.get("model name", "").split(), *extensions])


class Times(NamedTuple):
  """Seconds of some work: by the clock, and of the processor over all threads, which a busy machine disturbs less."""

  wall: float
  cpu: float


def timed(work: Callable[[], Any]) -> Times:
  wall, cpu = time.perf_counter(), time.process_time()
  work()
  return Times(time.perf_counter() - wall, time.process_time() - cpu)


def in_turn(sides: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[Any]]:
  """The results of each side in each round, one after the other, so that other work on the machine slows all alike."""
  found: dict[str, list[Any]] = {name: [] for name in sides}
  for _ in range(rounds):
    for name, side in sides.items():
      found[name].append(side())
  return found


class Corpus(NamedTuple):
  """Text, and the model file of a vocabulary for it."""

  documents: list[list[str]]
  model: str


def define_corpus_flags() -> Callable[..., Corpus]:
  """The flags for text and vocabulary; called with a folder and a size in megabytes, the result reads or makes both."""
  inputs = flags.DEFINE_list("input", None, "Text; default: this machine's documentation.")
  input_format = flags.DEFINE_string("input_format", "lines", "Format of --input.")
  model = flags.DEFINE_string(
    "spm_model_file", None, "Vocabulary; default: one of 8,000 tokens is trained."
  )

  def corpus(directory: str, *, megabytes: float) -> Corpus:
    if inputs.value:
      documents = _read_documents(files.expand_globs(inputs.value), input_format.value, megabytes)
    else:
      documents = installed_documentation(directory, megabytes=megabytes)
    return Corpus(documents, model.value or train_vocabulary(documents, directory))

  return corpus


def _read_documents(paths: Sequence[str], input_format: str, megabytes: float) -> list[list[str]]:
  """Documents of `paths`, at most about `megabytes` of text."""
  from tfrecords_tools.corpus import CorpusOptions, CorpusStats, iter_documents

  documents: list[list[str]] = []
  size = 0
  for path in paths:
    for document in iter_documents(
      path, CorpusOptions(input_format=input_format), stats=CorpusStats()
    ):
      documents.append(document)
      size += sum(len(sentence.encode()) + 1 for sentence in document)
      if size >= megabytes * 1e6:
        return documents
  return documents


def data_tool(name: str, *options: str) -> None:
  command = [sys.executable, "-m", f"tfrecords_tools.{name}", *options]
  subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def installed_documentation(directory: str, *, megabytes: float) -> list[list[str]]:
  """Documents of the installed packages."""
  folder = os.path.join(directory, "docs")
  data_tool(
    "extract_installed_docs",
    f"--output_dir={folder}",
    f"--max_megabytes={megabytes}",
  )
  return _read_documents(files.expand_globs([f"{folder}/*.txt"]), "lines", megabytes)


def train_vocabulary(documents: list[list[str]], directory: str) -> str:
  """Trains 8,000 tokens on the documents; returns the model's path."""
  prefix, text = os.path.join(directory, "vocabulary"), os.path.join(directory, "vocabulary.txt")
  write_lines(documents, text)
  data_tool("train_vocab", f"--input={text}", f"--model_prefix={prefix}", "--vocab_size=8000")
  return f"{prefix}.model"


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
