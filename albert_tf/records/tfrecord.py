"""The TFRecord container: framing, checksums and reading, without TensorFlow.

A record is: length (uint64) · masked CRC32C of the length (uint32) · data · masked CRC32C of the
data (uint32), all little-endian.
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
_LENGTH = struct.Struct("<Q")
_MASK_DELTA = 0xA282EAD8


def masked_crc32c(data: bytes) -> bytes:
  """Masked CRC32C of `data`, as in the TFRecord format: rotated by 15 bits, plus a constant."""
  crc = google_crc32c.value(data)
  masked = ((crc >> 15) | (crc << 17)) + _MASK_DELTA
  return (masked & 0xFFFFFFFF).to_bytes(4, "little")


def frame_record(data: bytes) -> bytes:
  """`data` with its TFRecord header and footer."""
  length = _LENGTH.pack(len(data))
  return b"".join((length, masked_crc32c(length), data, masked_crc32c(data)))


def read_records(path: str) -> Iterator[bytes]:
  """Yields the data of each record; raises `UserError` for a damaged or truncated record."""
  num_bytes = files.size(path)
  offset = 0
  with files.open_binary(path) as stream:
    for record in itertools.count():
      header = stream.read(HEADER_BYTES)
      if not header:
        return
      try:
        data = _read_data(stream, header, num_bytes)
      except ValueError as fault:
        raise UserError(
          f"Every record of a TFRecord file must be whole. Received: {path}, record {record} "
          f"(byte {offset}): {fault}. Make the file again or copy it again from its source."
        ) from fault
      yield data
      offset += HEADER_BYTES + len(data) + FOOTER_BYTES


def _read_data(stream: IO[bytes], header: bytes, num_bytes: int) -> bytes:
  """The data behind a header, in a file of `num_bytes`; raises `ValueError` if it is damaged."""
  # The length first: without its checksum it may be anything.
  if len(header) < HEADER_BYTES or header[8:] != masked_crc32c(header[:8]):
    raise ValueError("the checksum of the length does not match")
  (length,) = _LENGTH.unpack_from(header)
  body = stream.read(min(length + FOOTER_BYTES, num_bytes))  # Else it might be beyond all memory.
  if len(body) < length + FOOTER_BYTES:
    raise ValueError("the file ends inside the record")
  data = body[:length]
  if masked_crc32c(data) != body[length:]:
    raise ValueError("the checksum of the data does not match")
  return data
