"""Records on their way to the final files: sorted runs on disk, merged by key, noted when whole.

Every record has a random 64-bit key; the records of a split in the order of
their keys are the shuffled corpus. A block writes sorted runs; a final file
takes the records of one range of keys from all runs, a part at a time, so
memory is bounded by the part and the order does not depend on who wrote what.
"""

from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import itertools
import json
import os

import google_crc32c
import numpy as np

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.records import RecordFile, ShardIndexer
from tfrecords_tools.pretraining.instances import Instance

_RUN_BYTES = 64 << 20  # A run is written when this many bytes wait.
# A final file is put together in parts of this size.
_SMALLEST_PART, _LARGEST_PART, _MOST_PARTS = 4 << 20, 128 << 20, 4096
KEY_SPACE = 1 << 64


@dataclasses.dataclass(frozen=True)
class Run:
  """A sorted run: records in `path`; in `index_path` all their keys, then all their ends, as uint64.

  Args:
    path: file of framed records.
    split: train or eval.
    num_records: how many.
    num_bytes: size of the file.
  """

  path: str
  split: str
  num_records: int
  num_bytes: int

  @property
  def index_path(self) -> str:
    return f"{self.path}.index"

  def is_whole(self) -> bool:
    """Whether both files are there and have their sizes."""
    sizes = {self.path: self.num_bytes, self.index_path: 16 * self.num_records}
    return all(os.path.exists(path) and os.path.getsize(path) == size for path, size in sizes.items())


class RunWriter:
  """Collects the records of one block and split, and writes them as sorted runs.

  Args:
    prefix: path that the names of the runs begin with.
    split: train or eval.
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
    if self._size >= _RUN_BYTES:
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
    np.concatenate([keys[order], ends]).tofile(run.index_path)
    self._runs.append(run)
    self._keys, self._records, self._size = [], [], 0


def part_bytes_for(total_bytes: int) -> int:
  """Size of a part: small, so that memory is, but of a huge corpus larger, so that parts stay few."""
  return min(max(total_bytes // _MOST_PARTS, _SMALLEST_PART), _LARGEST_PART)


def merge_runs(runs: Sequence[Run], *, shard: int, num_shards: int) -> Iterator[bytes]:
  """The records of one final file, a part at a time, from the runs of its split in the order of their blocks."""
  low, high = (number * KEY_SPACE // num_shards for number in (shard, shard + 1))
  total = sum(run.num_bytes for run in runs)
  parts = max(1, -(-total // (num_shards * part_bytes_for(total))))
  edges = [low + (high - low) * part // parts for part in range(parts + 1)]
  places = [_places(run, edges) for run in runs]
  for part in range(parts):
    slices = [(run, place[part], place[part + 1]) for run, place in zip(runs, places, strict=True)]
    yield b"".join(_merge([each for each in slices if each[1] < each[2]]))


def write_shard(path: str, split: str, chunks: Iterable[bytes], *, plan: str) -> RecordFile:
  """Writes a final file, its index, and last the note by which a later run of the same plan knows that it is whole."""
  crc = 0
  indexer = ShardIndexer(path)
  with files.atomic_writer(path) as stream:
    for chunk in chunks:
      stream.write(chunk)
      indexer.feed(chunk)
      crc = google_crc32c.extend(crc, chunk)
  index = indexer.finish()
  index.save(path)
  written = RecordFile(os.path.basename(path), split, index.num_records, index.num_bytes, f"{crc:08x}")
  with files.atomic_writer(f"{path}.json", "w") as stream:
    json.dump({"plan": plan, "file": dataclasses.asdict(written)}, stream)
  return written


def read_note(path: str, *, plan: str) -> RecordFile | None:
  """What the note of `write_shard` says; None without one, or with one of another plan."""
  if not files.exists(f"{path}.json"):
    return None
  note = json.loads(files.read_bytes(f"{path}.json"))
  return RecordFile(**note["file"]) if note.get("plan") == plan else None


def size_and_crc32c(path: str) -> tuple[int, str]:
  """Size of a file, and its CRC32C in hexadecimal."""
  size = crc = 0
  with files.open_binary(path) as stream:
    while chunk := stream.read(1 << 20):
      crc = google_crc32c.extend(crc, chunk)
      size += len(chunk)
  return size, f"{crc:08x}"


def _places(run: Run, edges: Sequence[int]) -> list[int]:
  """How many records of a run have a smaller key than each edge."""
  keys = np.memmap(run.index_path, np.uint64, "r", shape=(run.num_records,))
  inside = np.array([edge for edge in edges if edge < KEY_SPACE], np.uint64)
  places: list[int] = np.searchsorted(keys, inside).tolist()
  return places + [run.num_records] * (len(edges) - len(inside))


def _merge(slices: Sequence[tuple[Run, int, int]]) -> list[bytes]:
  """The records of slices [first, last) of runs, in the order of their keys."""
  keys: list[np.ndarray] = []
  records: list[bytes] = []
  for run, first, last in slices:
    keys.append(np.fromfile(run.index_path, np.uint64, last - first, offset=8 * first))
    before = 1 if first else 0  # The end of the record before is the begin of the first.
    ends = np.fromfile(
      run.index_path, np.uint64, last - first + before, offset=8 * (run.num_records + first - before)
    )
    offsets = ends.astype(np.int64).tolist() if before else [0, *ends.astype(np.int64).tolist()]
    data = _read(run, offsets[0], offsets[-1])
    records += [data[a - offsets[0] : b - offsets[0]] for a, b in itertools.pairwise(offsets)]
  if not keys:
    return []
  order = np.argsort(np.concatenate(keys), kind="stable")
  return [records[i] for i in order.tolist()]


def _read(run: Run, begin: int, end: int) -> bytes:
  with open(run.path, "rb") as stream:
    stream.seek(begin)
    data = stream.read(end - begin)
  if len(data) != end - begin:
    raise UserError(
      f"The unfinished work in {os.path.dirname(run.path)} must be whole. Received: {run.path}, cut short. "
      "Remove that directory and run again."
    )
  return data
