"""Records on their way to the final files: sorted runs on disk, merged by key.

Every record has a random 64-bit key; the records of a split in the order of
their keys are the shuffled corpus. A block writes sorted runs; a final file
takes the records of one range of keys from all runs, a part at a time, so
memory is bounded by the part and the order does not depend on who wrote what.
"""

from collections.abc import Iterator, Sequence
import dataclasses
import os

import google_crc32c
import numpy as np

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.records import RecordFile
from tfrecords_tools.pretraining.instances import Instance

RUN_BYTES = 64 << 20  # A run is written when this many bytes wait.
PART_BYTES = 32 << 20  # A final file is put together in parts of about this size.
KEY_SPACE = 1 << 64


@dataclasses.dataclass(frozen=True)
class Run:
  """A sorted run: records in `path`, their keys and ends in `path`.npy.

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


class RunWriter:
  """Collects the records of one block and split, and writes them as sorted runs.

  Args:
    prefix: path that the names of the runs begin with.
    split: train or eval.
  """

  def __init__(self, prefix: str, split: str, *, run_bytes: int = RUN_BYTES):
    self._prefix = prefix
    self._split = split
    self._run_bytes = run_bytes
    self._keys: list[int] = []
    self._records: list[bytes] = []
    self._size = 0
    self.runs: list[Run] = []

  def add(self, instances: Sequence[Instance]) -> None:
    for instance in instances:
      self._keys.append(instance.key)
      self._records.append(instance.record)
      self._size += len(instance.record)
    if self._size >= self._run_bytes:
      self.flush()

  def flush(self) -> None:
    """Writes what waits."""
    if not self._records:
      return
    keys = np.array(self._keys, np.uint64)
    order = np.argsort(keys, kind="stable")
    records = [self._records[i] for i in order.tolist()]
    path = f"{self._prefix}-{self._split}-{len(self.runs):04d}.run"
    with open(path, "wb") as stream:
      stream.writelines(records)
    ends = np.cumsum([len(record) for record in records], dtype=np.uint64)
    np.save(f"{path}.npy", np.stack([keys[order], ends]))
    self.runs.append(Run(path, self._split, len(records), self._size))
    self._keys, self._records, self._size = [], [], 0


def shard_range(shard: int, num_shards: int) -> tuple[int, int]:
  """The keys [low, high) of a final file."""
  return shard * KEY_SPACE // num_shards, (shard + 1) * KEY_SPACE // num_shards


def write_shard(
  runs: Sequence[Run], path: str, *, split: str, shard: int, num_shards: int, part_bytes: int = PART_BYTES
) -> RecordFile:
  """Writes one final file, atomically, from the runs of its split in the order of their blocks."""
  low, high = shard_range(shard, num_shards)
  total = sum(run.num_bytes for run in runs)
  parts = max(1, -(-total // (num_shards * part_bytes)))
  crc = num_records = num_bytes = 0
  with files.atomic_writer(path) as stream:
    for part in range(parts):
      begin = low + (high - low) * part // parts
      end = low + (high - low) * (part + 1) // parts
      for chunk, count in _merge(runs, begin, end):
        stream.write(chunk)
        crc = google_crc32c.extend(crc, chunk)
        num_bytes += len(chunk)
        num_records += count
  return RecordFile(os.path.basename(path), split, num_records, num_bytes, f"{crc:08x}")


def _merge(runs: Sequence[Run], low: int, high: int) -> Iterator[tuple[bytes, int]]:
  """The records with keys [low, high) in order, as one chunk of bytes, and their number."""
  keys, records = [], []
  for run in runs:
    index = np.load(f"{run.path}.npy", mmap_mode="r")
    first = int(np.searchsorted(index[0], np.uint64(low)))
    last = len(index[0]) if high >= KEY_SPACE else int(np.searchsorted(index[0], np.uint64(high)))
    if first == last:
      continue
    keys.append(np.array(index[0, first:last]))
    ends = index[1, first:last].astype(np.int64)
    begin = int(index[1, first - 1]) if first else 0
    data = _read(run, begin, int(ends[-1]))
    offsets = [0, *(ends - begin).tolist()]
    records += [data[offsets[i] : offsets[i + 1]] for i in range(last - first)]
  if keys:
    order = np.argsort(np.concatenate(keys), kind="stable")
    yield b"".join([records[i] for i in order.tolist()]), len(records)


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
