"""Which records of a damaged file are whole."""

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


def find_whole_records(path: str) -> WholeRecords:
  """Reads all of `path` and verifies both checksums of every record.

  Behind a damaged length nothing can be found again, so the file ends there.
  """
  offsets, ordinals, damaged, offset = [], [], 0, 0
  with files.open_binary(path) as stream:
    for ordinal, header in enumerate(iter(lambda: stream.read(HEADER_BYTES), b"")):
      if len(header) < HEADER_BYTES:
        damaged += 1
        break
      length, crc = struct.unpack("<QI", header)
      if masked_crc32c(header[:8]) != crc:
        damaged += 1
        break
      data, footer = stream.read(length), stream.read(FOOTER_BYTES)
      if len(footer) == FOOTER_BYTES and masked_crc32c(data) == struct.unpack("<I", footer)[0]:
        offsets.append(offset)
        ordinals.append(ordinal)
      else:
        damaged += 1
      offset += HEADER_BYTES + length + FOOTER_BYTES
  return WholeRecords(np.array(offsets, np.int64), np.array(ordinals, np.int64), damaged)
