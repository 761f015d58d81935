"""Records that wait to be merged: sorted runs on disk, and their merge in rounds of bounded width.

Every record has a random 64-bit key; the records of a split in the order of
their keys are the shuffled corpus. A block writes sorted runs. A merge takes
the records of a range of keys from all its runs, a part at a time, so memory is
bounded by the part; it holds no file open and keeps two numbers a run. Where
runs are many, groups of neighbours first become larger runs: a part would
otherwise take a few records of each. Equal keys come in the order of the runs,
so neither rounds nor parts change the bytes.
"""

import bisect
from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import itertools
import json
import math
import os
from typing import IO, NamedTuple

import numpy as np

from albert_tf import files
from albert_tf.errors import UserError
from tfrecords_tools.pretraining.instances import Instance
from tfrecords_tools.pretraining.shards import KEY_SPACE

RUN_BYTES = 32 << 20  # A run is written when this many bytes wait.
PART_BYTES = 16 << 20  # Merged at once.
FAN_IN = 192  # Most runs that one merge reads: a part takes about 85 KiB of each.
_ROW_BYTES = 16  # Of an index: key and end of a record.


@dataclasses.dataclass(frozen=True)
class Run:
  """A sorted run: records in `path`; in `index_path` for each its key and where it ends, as uint64.

  Args:
    path: file of framed records.
    split: train, eval or eval-SOURCE.
    num_records: how many.
    num_bytes: size of the file.
  """

  path: str
  split: str
  num_records: int
  num_bytes: int

  @property
  def index_path(self) -> str:
    return f"{self.path}.keys"

  def is_whole(self) -> bool:
    """Whether both files are there and have their sizes."""
    sizes = {self.path: self.num_bytes, self.index_path: _ROW_BYTES * self.num_records}
    return all(os.path.exists(path) and os.path.getsize(path) == size for path, size in sizes.items())

  def in_folder(self, folder: str) -> "Run":
    return dataclasses.replace(self, path=os.path.join(folder, os.path.basename(self.path)))

  def remove(self) -> None:
    for path in (self.path, self.index_path):
      with contextlib.suppress(FileNotFoundError):
        os.remove(path)


class RunWriter:
  """Collects the records of one block and split, and writes them as sorted runs.

  Args:
    prefix: path that the names of the runs begin with.
    split: train, eval or eval-SOURCE.
  """

  def __init__(self, prefix: str, split: str):
    self._prefix = prefix
    self._split = split
    self._keys: list[int] = []
    self._records: list[bytes] = []
    self._size = 0
    self._runs: list[Run] = []

  def add(self, instances: Sequence[Instance]) -> None:
    for instance in instances:
      self._keys.append(instance.key)
      self._records.append(instance.record)
      self._size += len(instance.record)
    if self._size >= RUN_BYTES:
      self._flush()

  def finish(self) -> list[Run]:
    """Writes what waits; all runs of this writer."""
    self._flush()
    return self._runs

  def _flush(self) -> None:
    if not self._records:
      return
    keys = np.array(self._keys, np.uint64)
    order = np.argsort(keys, kind="stable")
    records = [self._records[i] for i in order.tolist()]
    path = f"{self._prefix}-{self._split}-{len(self._runs):04d}.run"
    with open(path, "wb") as stream:
      stream.writelines(records)
    ends = np.cumsum([len(record) for record in records], dtype=np.uint64)
    run = Run(path, self._split, len(records), self._size)
    np.stack([keys[order], ends], axis=1).tofile(run.index_path)
    self._runs.append(run)
    self._keys, self._records, self._size = [], [], 0


class Part(NamedTuple):
  """Consecutive records of a merge.

  Attributes:
    data: framed records, one after the other.
    keys: uint64 [N] in order.
    sizes: uint64 [N] bytes of each record.
  """

  data: bytes
  keys: np.ndarray
  sizes: np.ndarray


def merge(runs: Sequence[Run], *, low: int = 0, high: int = KEY_SPACE) -> Iterator[Part]:
  """The records of all runs with keys in [low, high), in the order of their keys."""
  total = sum(run.num_bytes for run in runs) * (high - low) // KEY_SPACE
  parts = max(1, -(-total // PART_BYTES))
  starts = np.array([_find(run, low) for run in runs], np.int64).reshape(-1, 2)  # [runs, (record, byte)]
  for part in range(parts):
    edge = low + (high - low) * (part + 1) // parts
    yield _merge_part(runs, starts, edge, share=(high - low) / KEY_SPACE / parts)


def merge_group(runs: Sequence[Run], path: str) -> Run:
  """Merges neighbouring runs into one at `path`, noted when whole, and removes them; or takes what is noted."""
  merged = read_group(path)
  if merged is None:
    try:
      merged = _merged(runs, path)
    except UserError:
      merged = read_group(path)  # Another process at the same task was faster, and has removed the runs.
      if merged is None:
        raise
  for run in runs:
    run.remove()
  return merged


def _merged(runs: Sequence[Run], path: str) -> Run:
  num_records = num_bytes = 0
  run = Run(path, runs[0].split, 0, 0)
  with files.atomic_writer(path) as stream, files.atomic_writer(run.index_path) as index:
    for data, keys, sizes in merge(runs):
      stream.write(data)
      index.write(np.stack([keys, num_bytes + np.cumsum(sizes, dtype=np.uint64)], axis=1).tobytes())
      num_records += len(keys)
      num_bytes += len(data)
  merged = dataclasses.replace(run, num_records=num_records, num_bytes=num_bytes)
  with files.atomic_writer(_note_path(path), "w") as stream:
    json.dump(dataclasses.asdict(merged), stream)
  return merged


def read_group(path: str) -> Run | None:
  """What `merge_group` noted at `path`, whose files a later round may have taken up; None without a note."""
  if not files.exists(_note_path(path)):
    return None
  return Run(**json.loads(files.read_bytes(_note_path(path)))).in_folder(os.path.dirname(path))


def groups_of_round(runs: Sequence[Run]) -> list[Sequence[Run]]:
  """Which neighbours the next round merges; none where one merge can read all runs."""
  if len(runs) <= FAN_IN:
    return []
  rounds = math.ceil(math.log(len(runs), FAN_IN))  # With the last one, which gives the final files.
  width = math.ceil(len(runs) ** (1 / rounds))
  return [runs[first : first + width] for first in range(0, len(runs), width)]


def _note_path(path: str) -> str:
  return f"{path}.json"


def _find(run: Run, key: int) -> tuple[int, int]:
  """The first record of a run with that key or a larger one, and the byte where it begins."""
  if not key:
    return 0, 0
  with _open(run.index_path) as stream:

    def row(record: int) -> tuple[int, int]:
      stream.seek(_ROW_BYTES * record)
      data = _read(stream, run.index_path, _ROW_BYTES)
      return int.from_bytes(data[:8], "little"), int.from_bytes(data[8:], "little")

    first = bisect.bisect_left(range(run.num_records), key, key=lambda record: row(record)[0])
    return first, row(first - 1)[1] if first else 0


def _merge_part(runs: Sequence[Run], starts: np.ndarray, edge: int, *, share: float) -> Part:
  """The records below `edge` from `starts` on, which move behind them; `share` of a run's records is expected."""
  rows: list[np.ndarray] = []
  sizes: list[np.ndarray] = []
  records: list[memoryview] = []
  for run, start in zip(runs, starts, strict=True):
    found = _rows(run, int(start[0]), edge, expected=64 + int(1.1 * share * run.num_records))
    if not len(found):
      continue
    begin, end = int(start[1]), int(found[-1, 1])
    with _open(run.path) as stream:
      stream.seek(begin)
      data = memoryview(_read(stream, run.path, end - begin))
    places = [0, *(found[:, 1] - np.uint64(begin)).tolist()]
    rows.append(found[:, 0])
    sizes.append(np.diff(found[:, 1], prepend=np.uint64(begin)))
    records += [data[first:last] for first, last in itertools.pairwise(places)]
    start[:] = start[0] + len(found), end
  if not rows:
    return Part(b"", np.zeros(0, np.uint64), np.zeros(0, np.uint64))
  keys = np.concatenate(rows)
  order = np.argsort(keys, kind="stable")
  merged = b"".join([records[i] for i in order.tolist()])
  return Part(merged, keys[order], np.concatenate(sizes)[order])


def _rows(run: Run, first: int, edge: int, *, expected: int) -> np.ndarray:
  """uint64 [N, 2]: the rows from `first` on with a smaller key than `edge`."""
  left = run.num_records - first
  count = left if edge == KEY_SPACE else min(left, expected)
  while True:
    with _open(run.index_path) as stream:
      stream.seek(_ROW_BYTES * first)
      rows = np.frombuffer(_read(stream, run.index_path, _ROW_BYTES * count), "<u8").reshape(-1, 2)
    if edge == KEY_SPACE:
      return rows
    below = int(np.searchsorted(rows[:, 0], np.uint64(edge)))
    if below < count or count == left:
      return rows[:below]
    count = min(left, 2 * count)


def _open(path: str) -> IO[bytes]:
  try:
    return open(path, "rb")
  except FileNotFoundError as error:
    raise _damaged(path, "which is missing") from error


def _read(stream: IO[bytes], path: str, size: int) -> bytes:
  data = stream.read(size)
  if len(data) != size:
    raise _damaged(path, "cut short")
  return data


def _damaged(path: str, what: str) -> UserError:
  return UserError(
    f"The unfinished work in {os.path.dirname(path)} must be whole. Received: {path}, {what}. "
    "Remove that directory and run again."
  )
