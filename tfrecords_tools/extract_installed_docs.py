r"""Writes the English that is already on the machine: documentation of the installed Python packages.

Docstrings of the standard library and of everything in site-packages, and the topics that `help()` shows,
as one sentence a line with a blank line between documents (a document is one module). Nothing is imported,
source is only parsed. The same environment gives the same files.

  python tfrecords_tools/extract_installed_docs.py --output_dir /tmp/docs
"""

from collections.abc import Iterable, Iterator, Sequence
import concurrent.futures
import dataclasses
import os
import re
import sysconfig
import warnings

from absl import app, flags
from tqdm import tqdm

from albert_tf import files
from albert_tf.errors import UserError, exit_on_user_error
from tfrecords_tools.corpus.docstrings import prose_paragraphs, source_docstrings, topic_texts

_OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Directory for docs-?????-of-?????.txt.", required=True)
_MAX_MEGABYTES = flags.DEFINE_float(
  "max_megabytes", 0.0, "Stop after this much text (10^6 bytes); 0: take all."
)
_NUM_FILES = flags.DEFINE_integer("num_files", 4, "Files to spread the documents over.", lower_bound=1)
_NUM_WORKERS = flags.DEFINE_integer(
  "num_workers", 0, "Processes; 0: one a core, at most 8. The result is the same.", lower_bound=0
)

_MAX_SOURCE_BYTES = 4_000_000  # Larger ones are generated tables.
_MIN_SENTENCES = 3  # A document of fewer is no document.
_TOPICS = os.path.join("pydoc_data", "topics.py")
# Tests and vendored copies are not documentation; generated files repeat one sentence.
_SKIPPED = re.compile(
  r"(^|[/\\])((tests?|testing|_?vendor(ed)?|lib2to3|idle_test)[/\\]|test_[^/\\]*$)|(_pb2|_pb2_grpc|_tests?)\.py$"
)
_BATCH = 32  # Source files a task of a worker process.


@dataclasses.dataclass(frozen=True)
class Summary:
  """What was written."""

  sources: int
  documents: int
  sentences: int
  megabytes: float
  paths: list[str]


def source_files() -> list[str]:
  """Python files of the standard library and site-packages, in a fixed order, packages' own first."""
  roots = dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
  found: dict[str, str] = {}  # Path below its root → path.
  for root in roots:
    for directory, subdirectories, names in os.walk(root):
      subdirectories[:] = sorted(
        name
        for name in subdirectories
        if name not in ("site-packages", "dist-packages") and not name.startswith(".")
      )
      for name in names:
        path = os.path.join(directory, name)
        relative = os.path.relpath(path, root)
        if name.endswith(".py") and not _SKIPPED.search(relative):
          found.setdefault(relative, path)
  return [found[relative] for relative in sorted(found)]


def read_documents(paths: Sequence[str]) -> list[list[list[list[str]]]]:
  """For each source file its documents; a document is paragraphs of sentences."""
  return [_read_source(path) for path in paths]


def _read_source(path: str) -> list[list[list[str]]]:
  try:
    if os.path.getsize(path) > _MAX_SOURCE_BYTES:
      return []
    with open(path, encoding="utf-8") as stream:
      source = stream.read()
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # Invalid escapes and the like in the sources of others.
      if path.endswith(_TOPICS):
        return [prose_paragraphs(text) for text in topic_texts(source)]
      return [[paragraph for text in source_docstrings(source) for paragraph in prose_paragraphs(text)]]
  except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
    return []  # Not this Python's syntax (templates, Python 2), or not text.


def unique_documents(documents: Iterable[list[list[str]]]) -> Iterator[list[str]]:
  """Documents as sentences, each sentence only where it is first met; short documents are left out."""
  seen: set[str] = set()
  for paragraphs in documents:
    sentences: list[str] = []
    for sentence in (sentence for paragraph in paragraphs for sentence in paragraph):
      if sentence not in seen:
        seen.add(sentence)
        sentences.append(sentence)
    if len(sentences) >= _MIN_SENTENCES:
      yield sentences


def extract(*, output_dir: str, max_megabytes: float, num_files: int, num_workers: int) -> Summary:
  """Writes the corpus and says what it holds.

  Args:
    output_dir: directory for `docs-?????-of-?????.txt`; files of an earlier run there are replaced.
    max_megabytes: stop after this much text (10^6 bytes); 0 takes all there is.
    num_files: files to spread the documents over.
    num_workers: processes; 0 is one a core, at most 8.

  Raises:
    UserError: the directory cannot be written, or no documentation was found.
  """
  files.makedirs(output_dir)
  sources = source_files()
  batches = [sources[start : start + _BATCH] for start in range(0, len(sources), _BATCH)]
  limit = max_megabytes * 1e6 or float("inf")
  documents: list[list[str]] = []
  size = 0
  workers = num_workers or min(os.cpu_count() or 1, 8)
  with (
    concurrent.futures.ProcessPoolExecutor(workers) as pool,
    tqdm(total=len(sources), unit=" files", desc="Reading documentation", mininterval=1.0) as progress,
  ):

    def results() -> Iterator[list[list[str]]]:
      for batch, found in zip(batches, pool.map(read_documents, batches), strict=True):
        progress.update(len(batch))
        yield from (document for source in found for document in source)

    for document in unique_documents(results()):
      documents.append(document)
      size += sum(len(sentence.encode()) + 1 for sentence in document) + 1
      if size >= limit:
        pool.shutdown(wait=False, cancel_futures=True)
        break
  if not documents:
    raise UserError(
      "The installed packages must hold documentation. Received: none in "
      f"{sysconfig.get_path('stdlib')} and {sysconfig.get_path('purelib')}. Use a Python with sources."
    )
  paths = _write(documents, output_dir=output_dir, num_files=num_files)
  return Summary(len(sources), len(documents), sum(map(len, documents)), size / 1e6, paths)


def _write(documents: Sequence[list[str]], *, output_dir: str, num_files: int) -> list[str]:
  paths = [os.path.join(output_dir, f"docs-{index:05d}-of-{num_files:05d}.txt") for index in range(num_files)]
  try:
    for index, path in enumerate(paths):
      with files.atomic_writer(path) as stream:
        for document in documents[index::num_files]:
          stream.write("\n".join([*document, "", ""]).encode())
  except OSError as error:
    raise UserError(
      f"The output directory must be writable. Received: {output_dir} ({error.strerror or error}). "
      "Choose another --output_dir, or make room."
    ) from error
  for name in files.listdir(output_dir):
    path = os.path.join(output_dir, name)
    if re.fullmatch(r"docs-\d{5}-of-\d{5}\.txt", name) and path not in paths:
      files.remove(path)  # Of an earlier run with another number of files.
  return paths


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise UserError(f"This command takes flags alone. Received: {argv[1:]}. See --help.")
  summary = extract(
    output_dir=_OUTPUT_DIR.value,
    max_megabytes=_MAX_MEGABYTES.value,
    num_files=_NUM_FILES.value,
    num_workers=_NUM_WORKERS.value,
  )
  print(
    f"{summary.documents:,} documents, {summary.sentences:,} sentences, {summary.megabytes:.1f} MB of English"
    f" from {summary.sources:,} source files, in {len(summary.paths)} files:"
  )
  for path in summary.paths:
    print(f"  {path}")


if __name__ == "__main__":
  app.run(exit_on_user_error(main))
