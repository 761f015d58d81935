"""Beside every shard: where every 64th of its records lies, so that a start need not walk the shard.

`DIR/train-0.tfrecord` has `DIR/index/offsets-train-0.tfrecord.idx`, a name that no pattern for shards matches. It is
written with the shard, or made on demand; a shard of another size than the index says makes it stale.

Layout, little-endian: mark (8 bytes) · size of the shard and number of its records (2 × uint64) · records of a block
(uint32) · digest of the records' own checksums (16 bytes) · zlib of the blocks' lengths (uint64), as eight planes of
bytes · masked CRC32C of all that (uint32). About 1.6 bytes a block of 64 records.
"""

import array
import dataclasses
import hashlib
import os
import struct
import zlib

import numpy as np

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.records.tfrecord import FOOTER_BYTES, HEADER_BYTES, damaged, length_at, masked_crc32c

BLOCK_RECORDS = 64
INDEX_FOLDER = "index"
_MARK = b"ALBERTi1"
_HEAD = struct.Struct("<8sQQI16s")
DIGEST_BYTES = 16
_CRC = struct.Struct("<I")
_CHUNK = 4 << 20


@dataclasses.dataclass(frozen=True)
class ShardIndex:
  """What a start needs to know of one shard.

  Attributes:
    offsets: int64 `[blocks]`, byte where every 64th record starts, the first included.
    digest: 16 bytes over the checksums of all records: equal records, equal digest.
  """

  num_bytes: int
  num_records: int
  offsets: np.ndarray
  digest: bytes

  def to_bytes(self) -> bytes:
    lengths = np.diff(self.offsets, append=self.num_bytes).astype("<u8")
    planes = lengths.view(np.uint8).reshape(-1, 8).T  # High bytes are all alike: they cost nothing.
    head = _HEAD.pack(_MARK, self.num_bytes, self.num_records, BLOCK_RECORDS, self.digest)
    body = head + zlib.compress(planes.tobytes())
    return body + _CRC.pack(masked_crc32c(body))

  @classmethod
  def from_bytes(cls, data: bytes) -> "ShardIndex":
    """The inverse; `ValueError` for what is damaged or of another format."""
    body, crc = data[: -_CRC.size], data[-_CRC.size :]
    if len(data) < _HEAD.size + _CRC.size or _CRC.pack(masked_crc32c(body)) != crc:
      raise ValueError("its checksum does not match")
    mark, num_bytes, num_records, block, digest = _HEAD.unpack_from(body)
    if mark != _MARK or block != BLOCK_RECORDS:
      raise ValueError("it is of another format")
    planes = np.frombuffer(zlib.decompress(body[_HEAD.size :]), np.uint8).reshape(8, -1)
    lengths = np.ascontiguousarray(planes.T).view("<u8")[:, 0].astype(np.int64)
    if len(lengths) != -(-num_records // block) or lengths.sum() != num_bytes:
      raise ValueError("its numbers contradict each other")
    return cls(num_bytes, num_records, np.cumsum(lengths) - lengths, digest)

  def save(self, shard: str) -> None:
    """Writes the index of `shard` to its place, atomically."""
    files.makedirs(os.path.dirname(index_path(shard)))
    with files.atomic_writer(index_path(shard)) as stream:
      stream.write(self.to_bytes())


def index_path(shard: str) -> str:
  """Where the index of a shard lies."""
  folder, name = os.path.split(shard)
  return os.path.join(folder, INDEX_FOLDER, f"offsets-{name}.idx")


class ShardIndexer:
  """Makes an index of a shard's bytes as they come by, in pieces of any size; `path` is for messages."""

  def __init__(self, path: str):
    self._path = path
    self._rest = b""  # Of a record whose end has not come yet.
    self._at = 0  # Byte where `_rest` starts.
    self._count = 0
    self._offsets = array.array("q")
    self._digest = hashlib.blake2b(digest_size=DIGEST_BYTES)

  def feed(self, data: bytes) -> None:
    """Takes the next bytes of the file; `UserError` at a damaged length."""
    data, at, checksums = self._rest + data, 0, []
    while at + HEADER_BYTES <= len(data):
      header = data[at : at + HEADER_BYTES]
      end = at + HEADER_BYTES + length_at(self._path, header, self._count, self._at + at) + FOOTER_BYTES
      if end > len(data):
        break
      if self._count % BLOCK_RECORDS == 0:
        self._offsets.append(self._at + at)
      checksums.append(data[end - FOOTER_BYTES : end])
      self._count += 1
      at = end
    self._digest.update(b"".join(checksums))
    self._rest, self._at = data[at:], self._at + at

  def finish(self) -> ShardIndex:
    """The index of all that was fed; `UserError` where the last record is cut."""
    if self._rest:
      where = "header" if len(self._rest) < HEADER_BYTES else "record"
      raise damaged(self._path, self._count, self._at, f"the file ends inside the {where}")
    return ShardIndex(self._at, self._count, np.array(self._offsets, np.int64), self._digest.digest())


def scan_shard(path: str) -> ShardIndex:
  """Reads all of a shard, which `load_shard_index` spares; `UserError` at a damaged length or a truncated end."""
  indexer = ShardIndexer(path)
  with files.open_binary(path) as stream:
    while chunk := stream.read(_CHUNK):
      indexer.feed(chunk)
  return indexer.finish()


def load_shard_index(shard: str) -> ShardIndex | None:
  """The index beside a shard; None where there is none, or it is damaged, or the shard has another size."""
  num_bytes = files.size(shard)
  try:
    index = ShardIndex.from_bytes(files.read_bytes(index_path(shard)))
  except (OSError, ValueError, UserError, zlib.error):
    return None
  return index if index.num_bytes == num_bytes else None


def index_problem(shard: str) -> str | None:
  """What is wrong with the index beside a shard, by reading both; None where all is well or there is no index."""
  if not files.exists(index_path(shard)):
    return None
  try:
    index = ShardIndex.from_bytes(files.read_bytes(index_path(shard)))
  except (ValueError, zlib.error) as error:
    return f"its index {index_path(shard)} is damaged: {error}. Remove the index; training makes it again"
  found = scan_shard(shard)
  if index.to_bytes() != found.to_bytes():
    return f"its index {index_path(shard)} is of another file. Remove the index; training makes it again"
  return None
