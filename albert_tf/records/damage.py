"""Which records of a damaged file are whole."""

from collections.abc import Iterator
import struct
from typing import NamedTuple

import numpy as np

from albert_tf import files
from albert_tf.records.tfrecord import FOOTER_BYTES, HEADER_BYTES, masked_crc32c


class WholeRecords(NamedTuple):
  """The records of one file whose checksums fit.

  Attributes:
    offsets: int64 `[records]`, byte where each starts.
    ordinals: int64 `[records]`, its number among all records of the file.
    num_damaged: records left out; a damaged length hides all that follows and counts as one.
  """

  offsets: np.ndarray
  ordinals: np.ndarray
  num_damaged: int


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
  found = [(ordinal, offset, data is not None) for ordinal, (offset, data) in enumerate(_walk(path))]
  whole = [(ordinal, offset) for ordinal, offset, good in found if good]
  ordinals, offsets = np.array(whole, np.int64).reshape(-1, 2).T
  return WholeRecords(offsets, ordinals, num_damaged=len(found) - len(whole))


def read_whole_records(path: str) -> Iterator[bytes]:
  """The data of the records of `path` whose checksums fit."""
  return (data for _, data in _walk(path) if data is not None)
