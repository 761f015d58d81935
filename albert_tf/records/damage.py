"""Which records of a damaged file are whole."""

import array
from collections.abc import Iterator
import hashlib
import struct
from typing import NamedTuple

import numpy as np

from albert_tf import files
from albert_tf.records.shard_index import BLOCK_RECORDS, DIGEST_BYTES
from albert_tf.records.tfrecord import FOOTER_BYTES, HEADER_BYTES, masked_crc32c


class Stretch(NamedTuple):
  """Successive whole records of one file.

  Attributes:
    offsets: int64 `[blocks]`, byte where every 64th starts, the first included.
    end: byte behind the last.
    num_records: how many.
  """

  offsets: np.ndarray
  end: int
  num_records: int


class WholeRecords(NamedTuple):
  """The records of one file whose checksums fit.

  Attributes:
    stretches: one for a file without damage.
    num_damaged: records left out; a damaged length hides all that follows and counts as one.
    digest: as a `ShardIndex` has it, of the whole records.
  """

  stretches: list[Stretch]
  num_damaged: int
  digest: bytes


def _walk(path: str) -> Iterator[tuple[int, bytes | None]]:
  """(offset, data) of every record; data is None where it is damaged. Ends at a damaged length."""
  offset = 0
  with files.open_binary(path) as stream:
    while header := stream.read(HEADER_BYTES):
      length, crc = struct.unpack("<QI", header) if len(header) == HEADER_BYTES else (0, -1)
      if masked_crc32c(header[:8]) != crc:
        yield offset, None
        return
      data, footer = stream.read(length), stream.read(FOOTER_BYTES)
      whole = len(footer) == FOOTER_BYTES and masked_crc32c(data) == struct.unpack("<I", footer)[0]
      yield offset, data if whole else None
      offset += HEADER_BYTES + length + FOOTER_BYTES


def find_whole_records(path: str) -> WholeRecords:
  """Reads all of `path` and verifies both checksums of every record.

  Behind a damaged length nothing can be found again, so the file ends there.
  """
  digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
  stretches: list[Stretch] = []
  offsets, end, count, num_damaged = array.array("q"), 0, 0, 0

  def close() -> None:
    if count:
      stretches.append(Stretch(np.array(offsets, np.int64), end, count))

  for offset, data in _walk(path):
    if data is None:
      close()
      offsets, count, num_damaged = array.array("q"), 0, num_damaged + 1
      continue
    if count % BLOCK_RECORDS == 0:
      offsets.append(offset)
    digest.update(struct.pack("<I", masked_crc32c(data)))
    end, count = offset + HEADER_BYTES + len(data) + FOOTER_BYTES, count + 1
  close()
  return WholeRecords(stretches, num_damaged, digest.digest())


def read_whole_records(path: str) -> Iterator[bytes]:
  """The data of the records of `path` whose checksums fit."""
  return (data for _, data in _walk(path) if data is not None)
