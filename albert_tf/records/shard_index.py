"""Index of a shard: the byte offset of every 64th record.

With it a run starts without reading whole shards. The index of `DIR/train-0.tfrecord` is
`DIR/index/offsets-train-0.tfrecord.npy`, which patterns for shards do not match. It is written with
the shard, or made on demand.

The file is NumPy's: int64 `[3 + blocks + 1]`, the number of records, a digest of their checksums
(two numbers), the byte where each block of 64 records starts, and the size of the shard. The masked
CRC-32C of all this follows.
"""

import array
import dataclasses
import hashlib
import io
import os

import numpy as np

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.records.tfrecord import FOOTER_BYTES, frame_record, masked_crc32c, read_records

BLOCK_RECORDS = 64
INDEX_FOLDER = "index"


@dataclasses.dataclass(frozen=True)
class ShardIndex:
  """Size, record offsets and digest of one shard.

  Attributes:
    offsets: int64 `[blocks]`, byte where every 64th record starts, the first included.
    digest: 16 bytes, a hash of the checksums of all records.
  """

  num_bytes: int
  num_records: int
  offsets: np.ndarray
  digest: bytes

  def to_bytes(self) -> bytes:
    # One array of integers, so that NumPy reads and writes the file.
    digest = np.frombuffer(self.digest, "<i8")
    numbers = np.concatenate([[self.num_records], digest, self.offsets, [self.num_bytes]])
    buffer = io.BytesIO()
    np.save(buffer, numbers.astype("<i8"))
    data = buffer.getvalue()
    return data + masked_crc32c(data)

  def save(self, shard: str) -> None:
    """Writes the index of `shard` to its place, atomically."""
    files.makedirs(os.path.dirname(index_path(shard)))
    files.write_bytes(index_path(shard), self.to_bytes())


def load_shard_index(shard: str) -> ShardIndex | None:
  """The stored index of a shard; None if it is missing, damaged, or not of the shard as it is now.

  The shard must have the indexed size, and on a disk it must not be newer than its index. In a
  bucket the times are those of the uploads, in any order.
  """
  num_bytes, changed_at = files.size_and_time(shard)
  # An index only saves time, so whatever is wrong with it the shard is read instead.
  try:
    data = files.read_bytes(index_path(shard))
    _, indexed_at = files.size_and_time(index_path(shard))
  except (OSError, UserError):
    return None
  if not files.is_remote(shard) and changed_at > indexed_at:
    return None
  if data[-4:] != masked_crc32c(data[:-4]):
    return None
  numbers = np.load(io.BytesIO(data), allow_pickle=False)
  if numbers[-1] != num_bytes:
    return None
  return ShardIndex(num_bytes, int(numbers[0]), numbers[3:-1], numbers[1:3].tobytes())


def index_path(shard: str) -> str:
  """The path of a shard's index."""
  folder, name = os.path.split(shard)
  return os.path.join(folder, INDEX_FOLDER, f"offsets-{name}.npy")


class ShardIndexer:
  """Makes the index of a shard from its framed records, one after the other."""

  def __init__(self) -> None:
    self._num_bytes = 0
    self._num_records = 0
    self._offsets = array.array("q")
    self._digest = hashlib.blake2b(digest_size=16)

  def add(self, framed: bytes) -> None:
    if self._num_records % BLOCK_RECORDS == 0:
      self._offsets.append(self._num_bytes)
    self._digest.update(framed[-FOOTER_BYTES:])  # The checksum of the data.
    self._num_bytes += len(framed)
    self._num_records += 1

  def finish(self) -> ShardIndex:
    """The index of all added records."""
    offsets = np.array(self._offsets, np.int64)
    return ShardIndex(self._num_bytes, self._num_records, offsets, self._digest.digest())


def scan_shard(path: str) -> ShardIndex:
  """An index made by reading a whole shard; raises `UserError` for a damaged record."""
  # The digest is of framed records, as their writer has them.
  indexer = ShardIndexer()
  for data in read_records(path):
    indexer.add(frame_record(data))
  return indexer.finish()
