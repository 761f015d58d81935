"""Exact copies of documents, found before anything is made of them: only the first of each is used.

Two documents are copies where their words are the same in the same order, whatever the white space between them, as
far as a hash of 128 bits tells (among 10^9 documents a false copy has a chance of 10^-21). The first in the order of
the input is kept, so the others are the same whoever finds them; documents keep their numbers, so nothing random
shifts. Of two copies only one is ever read into records: no held-out document stands in train.

Memory does not grow with the corpus. Each file's hashes go to disk in sorted runs; a range of hashes at a time is
read from all runs and compared; what is found is written file by file.
"""

from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import hashlib
import json
import os
from typing import NamedTuple

import numpy as np

from albert_tf import files
from tfrecords_tools.corpus import CorpusOptions, CorpusStats, iter_documents
from tfrecords_tools.pretraining.blocks import Block

_RUN_DOCUMENTS = 1 << 20  # Hashes that are sorted together: 20 MiB.
_PART_BYTES = 16 << 20  # Hashes that are compared together, without what sorting takes.
_BYTES_EACH = 20  # Two halves of a hash, and the number of the document.
_HASH_SPACE = 1 << 64


def hash_document(sentences: Iterable[str]) -> bytes:
  """16 bytes."""
  text = " ".join(" ".join(sentences).split())
  return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def hash_file(path: str, options: CorpusOptions) -> Iterator[bytes]:
  """The hashes of a file's documents, in order."""
  return map(hash_document, iter_documents(path, options, stats=CorpusStats()))


class _Run(NamedTuple):
  """Hashes of one file, sorted: all first halves, all second halves as uint64, all document numbers as uint32."""

  file_index: int
  path: str
  size: int

  def bounds(self, below: int) -> int:
    """How many first halves are smaller."""
    if below >= _HASH_SPACE:
      return self.size
    highs = np.memmap(self.path, "<u8", "r", shape=(self.size,))
    return int(np.searchsorted(highs, np.uint64(below)))

  def read(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First halves, second halves and places (file and document in one uint64) of a stretch."""
    count = end - begin
    high = np.fromfile(self.path, "<u8", count, offset=8 * begin)
    low = np.fromfile(self.path, "<u8", count, offset=8 * (self.size + begin))
    documents = np.fromfile(self.path, "<u4", count, offset=16 * self.size + 4 * begin)
    return high, low, documents.astype(np.uint64) + np.uint64(self.file_index << 32)


class Duplicates:
  """What is known of a job's copies, in its directory of unfinished work.

  Args:
    work_dir: that directory; on a local disk but for `is_known`, `note`, `write` and `drop_from`.
  """

  def __init__(self, work_dir: str):
    self._folder = os.path.join(work_dir, "duplicates")

  def is_known(self) -> bool:
    """Whether all copies have been found."""
    return files.exists(self._path("known"))

  def note(self) -> None:
    """Says that all copies have been found."""
    files.makedirs(self._folder)
    with files.atomic_writer(self._path("known"), "w") as stream:
      stream.write("{}\n")

  def write(self, file_index: int, numbers: np.ndarray) -> None:
    """Keeps the numbers of the documents of a file that are copies; none need not be written."""
    files.makedirs(self._folder)
    with files.atomic_writer(self._path(f"copies-{file_index:05d}")) as stream:
      stream.write(np.sort(numbers).astype("<u4").tobytes())

  def drop_from(self, blocks: Iterable[Block], file_index: int) -> Iterator[Block]:
    """The blocks of a file without the copies; the others keep their numbers."""
    path = self._path(f"copies-{file_index:05d}")
    copies = np.frombuffer(files.read_bytes(path) if files.exists(path) else b"", "<u4")
    for block in blocks:
      first = block.first_document
      begin, end = np.searchsorted(copies, [first, first + len(block.documents)])
      numbers = frozenset(copies[begin:end].tolist())
      documents = [
        [] if number in numbers else sentences for number, sentences in enumerate(block.documents, first)
      ]
      yield dataclasses.replace(block, documents=documents, dropped=numbers) if numbers else block

  def is_hashed(self, file_index: int) -> bool:
    return files.exists(self._path(f"hashes-{file_index:05d}.json"))

  def hash(self, file_index: int, path: str, options: CorpusOptions) -> None:
    """Writes the sorted hashes of a file, and last a note of how many each run has."""
    files.makedirs(self._folder)
    sizes: list[int] = []
    waiting = bytearray()
    first = 0

    def flush() -> None:
      nonlocal first
      halves = np.frombuffer(bytes(waiting), "<u8").reshape(-1, 2)
      order = np.lexsort((halves[:, 1], halves[:, 0]))  # Stable: copies stay in the order of their numbers.
      with files.atomic_writer(self._run_path(file_index, len(sizes))) as stream:
        for column in (*halves[order].T, (first + order).astype("<u4")):
          stream.write(np.ascontiguousarray(column).tobytes())
      sizes.append(len(order))
      first += len(order)
      waiting.clear()

    for digest in hash_file(path, options):
      waiting += digest
      if len(waiting) >= 16 * _RUN_DOCUMENTS:
        flush()
    if waiting:
      flush()
    with files.atomic_writer(self._path(f"hashes-{file_index:05d}.json"), "w") as stream:
      stream.write(json.dumps(sizes))

  def compare(self, num_files: int) -> None:
    """Finds the copies among the hashes of all files."""
    runs = list(self._runs(num_files))
    parts = 1 + sum(run.size for run in runs) * _BYTES_EACH // _PART_BYTES
    begins = [0] * len(runs)
    found: list[str] = []
    for part in range(parts):
      ends = [run.bounds(_HASH_SPACE * (part + 1) // parts) for run in runs]
      stretches = zip(runs, begins, ends, strict=True)
      copies = _copies([run.read(begin, end) for run, begin, end in stretches if begin < end])
      begins = ends
      if len(copies):
        found.append(self._path(f"part-{part:05d}"))
        with files.atomic_writer(found[-1]) as stream:
          stream.write(np.sort(copies).tobytes())
    for file_index in range(num_files if found else 0):
      numbers = np.concatenate([_of_file(path, file_index) for path in found])
      if len(numbers):
        self.write(file_index, numbers & np.uint64(0xFFFFFFFF))
    self.note()

  def _runs(self, num_files: int) -> Iterator[_Run]:
    """In the order of the input."""
    for file_index in range(num_files):
      sizes = json.loads(files.read_bytes(self._path(f"hashes-{file_index:05d}.json")))
      for number, size in enumerate(sizes):
        yield _Run(file_index, self._run_path(file_index, number), size)

  def _run_path(self, file_index: int, number: int) -> str:
    return self._path(f"hashes-{file_index:05d}-{number:04d}")

  def _path(self, name: str) -> str:
    return os.path.join(self._folder, name)


def _of_file(path: str, file_index: int) -> np.ndarray:
  """The places in one file, of sorted ones on disk; nothing stays open."""
  places = np.memmap(path, "<u8", "r")
  edges = np.array([file_index << 32, (file_index + 1) << 32], np.uint64)
  return np.array(places[slice(*np.searchsorted(places, edges))])


def _copies(stretches: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> np.ndarray:
  """Places whose hash has an earlier place, of stretches in the order of the input."""
  if not stretches:
    return np.zeros(0, np.uint64)
  high, low, places = (np.concatenate(column) for column in zip(*stretches, strict=True))
  order = np.lexsort((low, high))  # Stable, so the first of equal ones is the first of the input.
  high, low = high[order], low[order]
  again = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
  return places[order[1:]][again]
