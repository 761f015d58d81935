"""Local or remote files, compressed or not, as chunks of bytes; chunks as bounded lines of text."""

import bz2
from collections.abc import Callable, Generator, Iterable, Iterator
import contextlib
import gzip
import itertools
import lzma
import os
from typing import IO, Any
import zlib

import google_crc32c
import zstandard

from albert_tf import files
from albert_tf.errors import UserError
from tfrecords_tools.corpus.options import CorpusOptions, CorpusStats

_OPENERS: dict[bytes, Callable[[IO[bytes]], Any]] = {
  b"\x1f\x8b": gzip.open,
  b"BZh": bz2.open,
  b"\xfd7zXZ\x00": lzma.open,
}
# Size of the text over size of the file, by the end of its name.
_EXPANSION = {".gz": 3, ".bz2": 4, ".xz": 4, ".zst": 3}
_ZSTD = b"\x28\xb5\x2f\xfd"
_DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError)
_CHUNK = 1 << 16
_BOM = b"\xef\xbb\xbf"


def expected_text_bytes(path: str, num_bytes: int) -> int:
  """About how much text a file of this size gives, decompressed."""
  return num_bytes * _EXPANSION.get(os.path.splitext(path)[1], 1)


class Checksum:
  """Size and CRC32C of a file as it is stored, summed up while it is read from its begin to its end."""

  def __init__(self) -> None:
    self.num_bytes = 0
    self._crc = 0

  @property
  def crc32c(self) -> str:
    return f"{self._crc:08x}"

  def add(self, data: bytes) -> bytes:
    self._crc = google_crc32c.extend(self._crc, data)
    self.num_bytes += len(data)
    return data


class _Summed:
  """A file whose bytes are added to a checksum as they are read."""

  def __init__(self, raw: IO[bytes], checksum: Checksum):
    self._raw = raw
    self._checksum = checksum

  def read(self, size: int = -1) -> bytes:
    return self._checksum.add(self._raw.read(size))


def read_chunks(path: str, checksum: Checksum | None = None) -> Generator[bytes, None, None]:
  """The bytes of a file, decompressed by its first bytes, whatever the name says.

  Args:
    path: of the file.
    checksum: gets the bytes of the file as they are; all of them, if the generator is read to its end.

  Raises:
    UserError: the compressed data are damaged.
  """
  with files.open_binary(path) as raw:
    magic = raw.read(6)
    raw.seek(0)
    stored: Any = _Summed(raw, checksum) if checksum else raw
    opener = next((opener for begin, opener in _OPENERS.items() if magic.startswith(begin)), None)
    try:
      if magic.startswith(_ZSTD):
        yield from _zstd_chunks(stored)
      else:
        with opener(stored) if opener else contextlib.nullcontext(stored) as stream:
          while chunk := stream.read(_CHUNK):
            yield chunk
      while checksum and stored.read(_CHUNK):
        pass  # What follows compressed data and is none.
    except _DAMAGE as error:
      raise UserError(
        f"An input file must be readable to its end. Received: {path} ({error}). It is damaged or "
        "cut short: copy it again, or leave it out."
      ) from error


def _zstd_chunks(raw: IO[bytes]) -> Iterator[bytes]:
  """Decompresses frame after frame. The library's own reader takes a file cut short for a whole one."""
  frame: Any = None
  rest = b""
  while data := rest or raw.read(_CHUNK >> 3):  # May decompress to much more.
    frame = frame or zstandard.ZstdDecompressor().decompressobj()
    yield frame.decompress(data)
    rest = b""
    if frame.eof:
      frame, rest = None, frame.unused_data
  if frame is not None:
    raise EOFError("Compressed file ended before the end of a frame")


def split_head(chunks: Iterator[bytes], size: int = _CHUNK) -> tuple[bytes, Iterator[bytes]]:
  """The first `size` bytes, or all there are; and all chunks, those too."""
  taken: list[bytes] = []
  for chunk in chunks:
    taken.append(chunk)
    if sum(map(len, taken)) >= size:
      break
  start = b"".join(taken)
  return start[:size], itertools.chain([start], chunks)


def read_text_lines(
  chunks: Iterable[bytes], path: str, *, options: CorpusOptions, stats: CorpusStats, limit: int | None = None
) -> Iterator[str]:
  """Lines of text without their end, of at most `limit` bytes (default `options.max_line_bytes`).

  Bad bytes are handled as `on_bad_text` says; bytes, long lines and bad lines are counted in `stats`.
  """
  number = 0
  for line, begins in _read_lines(chunks, limit or options.max_line_bytes, stats):
    number += begins
    try:
      yield line.decode()
    except UnicodeDecodeError:
      yield decode(line, path, f"line {number}", options=options, stats=stats)


def decode(data: bytes, path: str, where: str, *, options: CorpusOptions, stats: CorpusStats) -> str:
  """Text of UTF-8; of what is not, what `on_bad_text` says: an error, or U+FFFD put in and counted.

  Args:
    data: bytes of the text.
    path, where: what an error names.
    options, stats: of the reader.
  """
  try:
    return data.decode()
  except UnicodeDecodeError as error:
    if options.on_bad_text == "error":
      found = data[max(0, error.start - 20) : error.start + 20]
      raise UserError(
        f"Text must be UTF-8. Received: {found!r} in {path}, {where}. Convert the file; or give the same command with "
        "--on_bad_text=replace, which puts U+FFFD in and goes on from the finished parts."
      ) from error
    stats.bad_text_replaced += 1
    return data.decode(errors="replace")


def _read_lines(chunks: Iterable[bytes], limit: int, stats: CorpusStats) -> Iterator[tuple[bytes, bool]]:
  """(line, whether a line of the file begins here); ends are LF, CRLF or CR; a leading BOM is dropped."""
  rest = b""
  at_start = True  # Of the file: only there a byte-order mark means anything.
  continues = False  # Whether `rest` is of a line of which a part has been given out.
  for chunk in chunks:
    stats.bytes_read += len(chunk)
    if at_start:
      chunk = chunk.removeprefix(_BOM)
      at_start = False
    lines = (rest + chunk).split(b"\n")
    rest = lines.pop()
    for line in lines:
      line = line.removesuffix(b"\r")
      if b"\r" in line or len(line) > limit:
        yield from _split(line, limit, continues, stats)
      else:
        yield line, not continues
      continues = False
    while len(rest) > limit:
      at = _cut_position(rest, limit)
      stats.long_lines += not continues
      for line, begins in _split(rest[:at], limit, continues, stats):
        yield line, begins
      continues = True
      rest = rest[at:]
  if rest:
    yield from _split(rest.removesuffix(b"\r"), limit, continues, stats)


def _split(text: bytes, limit: int, continues: bool, stats: CorpusStats) -> Iterator[tuple[bytes, bool]]:
  """Splits at CR, and cuts what is longer than the limit."""
  for line in text.split(b"\r"):
    if len(line) > limit:
      stats.long_lines += not continues
      while len(line) > limit:
        at = _cut_position(line, limit)
        yield line[:at], not continues
        line = line[at:]
        continues = True
    yield line, not continues
    continues = False


def _cut_position(line: bytes, limit: int) -> int:
  """The last position <= limit after a space; else one that does not cut a UTF-8 character."""
  at = line.rfind(b" ", limit // 2, limit) + 1
  if not at:
    at = limit
    while at > limit - 4 and line[at] & 0xC0 == 0x80:
      at -= 1
  return at
