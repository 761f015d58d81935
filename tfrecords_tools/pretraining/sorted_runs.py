"""Records that wait for their final file: sorted runs on disk.

Every record has a random 64-bit key; the records of a split in the order of their keys are the shuffled corpus. A block
writes sorted runs. A final file takes a range of keys: of every run the records in it are read, and sorted in memory.
Equal keys come in the order of the runs, so the bytes do not depend on how the range is divided.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import itertools
import os

import numpy as np

from albert_tf.errors import UserError
from tfrecords_tools.pretraining.instances import Instances

KEY_SPACE = 1 << 64  # Every key is below it.
RUN_BYTES = 32 << 20  # A run is written when this many bytes wait.
SORTED_BYTES = 64 << 20  # Records sorted together; a larger final file is sorted range by range.


@dataclasses.dataclass(frozen=True)
class Run:
  """A sorted run: framed records in `path`; in `index_path` uint64 [2, N], their keys and the bytes where they end."""

  path: str
  split: str
  num_records: int
  num_bytes: int

  @property
  def index_path(self) -> str:
    return f"{self.path}.keys"

  def is_complete(self) -> bool:
    """Whether both files are there and have their sizes."""
    sizes = {self.path: self.num_bytes, self.index_path: 16 * self.num_records}
    return all(os.path.exists(path) and os.path.getsize(path) == size for path, size in sizes.items())

  def read(self, low: int, high: int) -> tuple[np.ndarray, list[bytes]]:
    """The records with keys in [low, high): uint64 [N] keys in order, and the framed bytes of each."""
    keys, ends = np.memmap(self.index_path, "<u8", "r", shape=(2, self.num_records))
    first = int(keys.searchsorted(np.uint64(low)))
    last = self.num_records if high == KEY_SPACE else int(keys.searchsorted(np.uint64(high)))
    if first == last:
      return np.zeros(0, np.uint64), []
    begin = int(ends[first - 1]) if first else 0
    offsets = [0, *(ends[first:last] - np.uint64(begin)).tolist()]
    with open(self.path, "rb") as stream:
      stream.seek(begin)
      data = stream.read(offsets[-1])
    if len(data) != offsets[-1]:
      raise UserError(
        f"Unfinished work must not be changed. Received: {self.path}, cut short. Give the same command again."
      )
    return np.array(keys[first:last]), [data[begin:end] for begin, end in itertools.pairwise(offsets)]


class RunWriter:
  """Collects the records of one block and split, and writes them as sorted runs; `prefix` begins their paths."""

  def __init__(self, prefix: str, split: str):
    self._prefix = prefix
    self._split = split
    self._keys: list[np.ndarray] = []
    self._records: list[bytes] = []
    self._size = 0
    self._runs: list[Run] = []

  def add(self, instances: Instances) -> None:
    self._keys.append(instances.keys)
    self._records += instances.records
    self._size += sum(map(len, instances.records))
    if self._size >= RUN_BYTES:
      self._flush()

  def finish(self) -> list[Run]:
    """Writes what waits; all runs of this writer."""
    self._flush()
    return self._runs

  def _flush(self) -> None:
    if not self._records:
      return
    keys = np.concatenate(self._keys)
    order = np.argsort(keys, kind="stable")
    records = [self._records[i] for i in order.tolist()]
    run = Run(
      f"{self._prefix}-{self._split}-{len(self._runs):04d}.run", self._split, len(records), self._size
    )
    with open(run.path, "wb") as stream:
      stream.writelines(records)
    np.stack([keys[order], np.cumsum(list(map(len, records)), dtype=np.uint64)]).tofile(run.index_path)
    self._runs.append(run)
    self._keys, self._records, self._size = [], [], 0


def read_sorted(runs: Sequence[Run], *, low: int = 0, high: int = KEY_SPACE) -> Iterator[bytes]:
  """Yields the framed records of all runs with keys in [low, high), in the order of their keys."""
  num_bytes = sum(run.num_bytes for run in runs) * (high - low) // KEY_SPACE
  ranges = max(1, -(-num_bytes // SORTED_BYTES))
  edges = [low + (high - low) * number // ranges for number in range(ranges + 1)]
  for begin, end in itertools.pairwise(edges):
    keys: list[np.ndarray] = []
    records: list[bytes] = []
    for run in runs:
      found, framed = run.read(begin, end)
      keys.append(found)
      records += framed
    for place in np.argsort(np.concatenate(keys), kind="stable").tolist() if records else ():
      yield records[place]
