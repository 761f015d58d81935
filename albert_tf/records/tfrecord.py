"""The TFRecord container: framing, checksums and reading, without TensorFlow.

A record is: length (uint64) · masked CRC32C of the length (uint32) · data ·
masked CRC32C of the data (uint32), all little-endian.
"""

from collections.abc import Iterator
import itertools
import struct
from typing import IO

import google_crc32c

from albert_tf import files
from albert_tf.errors import UserError

HEADER_BYTES = 12
FOOTER_BYTES = 4
_HEADER = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8


def masked_crc32c(data: bytes) -> int:
  """CRC32C of `data`, rotated and shifted as the TFRecord format asks."""
  crc = google_crc32c.value(data)
  return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def frame_record(data: bytes) -> bytes:
  """`data` with its TFRecord header and footer."""
  length = _LENGTH.pack(len(data))
  return b"".join((length, _CRC.pack(masked_crc32c(length)), data, _CRC.pack(masked_crc32c(data))))


class TFRecordWriter:
  """Writes records to an open binary stream; the caller owns the stream.

  Example:
    with atomic_writer(path) as stream:
      writer = TFRecordWriter(stream)
      writer.write(serialized)
  """

  def __init__(self, stream: IO[bytes]):
    self._stream = stream
    self.num_records = 0
    self.num_bytes = 0

  def write(self, data: bytes) -> None:
    framed = frame_record(data)
    self._stream.write(framed)
    self.num_records += 1
    self.num_bytes += len(framed)


def damaged(path: str, record: int, offset: int, what: str) -> UserError:
  """The refusal of a file that is not whole."""
  return UserError(
    f"Every record of a TFRecord file must be whole. Received: {path}, record {record} (byte {offset}): "
    f"{what}. Make the file again or copy it again from its source."
  )


def read_records(path: str) -> Iterator[bytes]:
  """Yields the data of each record of `path`; a `UserError` names the one that is not whole."""
  with files.open_binary(path) as stream:
    offset = 0
    for record in itertools.count():
      header = stream.read(HEADER_BYTES)
      if not header:
        return
      if len(header) < HEADER_BYTES:
        raise damaged(path, record, offset, "the file ends inside the header")
      length, crc = _HEADER.unpack(header)
      if masked_crc32c(header[:8]) != crc:
        raise damaged(path, record, offset, "the checksum of the length does not match")
      body = stream.read(length + FOOTER_BYTES)
      if len(body) < length + FOOTER_BYTES:
        raise damaged(path, record, offset, "the file ends inside the record")
      if _CRC.pack(masked_crc32c(body[:length])) != body[length:]:
        raise damaged(path, record, offset, "the checksum of the data does not match")
      yield body[:length]
      offset += HEADER_BYTES + len(body)
