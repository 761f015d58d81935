"""The TFRecord container: framing, checksums and reading, without TensorFlow.

A record is: length (uint64) · masked CRC32C of the length (uint32) · data ·
masked CRC32C of the data (uint32), all little-endian.
"""

from collections.abc import Iterator
import itertools
import struct

import google_crc32c

from albert_tf import files
from albert_tf.errors import UserError

HEADER_BYTES = 12
FOOTER_BYTES = 4
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8


def masked_crc32c(data: bytes) -> int:
  """Masked CRC32C of `data`, as in the TFRecord format."""
  crc = google_crc32c.value(data)
  return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def frame_record(data: bytes) -> bytes:
  """`data` with its TFRecord header and footer."""
  length = _LENGTH.pack(len(data))
  return b"".join((length, _CRC.pack(masked_crc32c(length)), data, _CRC.pack(masked_crc32c(data))))


def read_records(path: str) -> Iterator[bytes]:
  """Yields the data of each record of `path`; raises `UserError` for a damaged or truncated record."""
  num_bytes = files.size(path)
  with files.open_binary(path) as stream:
    offset = 0
    for record in itertools.count():
      header = stream.read(HEADER_BYTES)
      if not header:
        return
      body, fault = b"", ""
      if len(header) < HEADER_BYTES or header[8:] != _CRC.pack(masked_crc32c(header[:8])):
        fault = "the checksum of the length does not match"
      else:
        (length,) = _LENGTH.unpack_from(header)
        body = stream.read(min(length + FOOTER_BYTES, num_bytes))  # A wrong length may be beyond all memory.
        if len(body) < length + FOOTER_BYTES:
          fault = "the file ends inside the record"
        elif _CRC.pack(masked_crc32c(body[:length])) != body[length:]:
          fault = "the checksum of the data does not match"
      if fault:
        raise UserError(
          f"Every record of a TFRecord file must be whole. Received: {path}, record {record} (byte {offset}): "
          f"{fault}. Make the file again or copy it again from its source."
        )
      yield body[:length]
      offset += HEADER_BYTES + len(body)
