"""Reads files, local or remote, compressed or not, as chunks of bytes or as bounded lines."""

import bz2
from collections.abc import Callable, Generator, Iterable, Iterator
import gzip
import itertools
import lzma
import os
import re
from typing import IO, Any
import zlib

import zstandard

from albert_tf import files
from albert_tf.errors import UserError
from tfrecords_tools.corpus.options import CorpusFile, CorpusStats

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
# LF, CRLF, CR; and CR CR LF, which a program leaves that writes CRLF for the LF of a CRLF: one end,
# no blank line.
_LINE_END = re.compile(rb"\r{0,2}\n|\r")


def expected_text_bytes(path: str, num_bytes: int) -> int:
  """About how much text a file of this size gives, decompressed."""
  return num_bytes * _EXPANSION.get(os.path.splitext(path)[1], 1)


def text_ending(path: str) -> str:
  """The end of a file's name, without that of its compression: .xml of dump.xml.bz2."""
  name, ending = os.path.splitext(path)
  if ending in _EXPANSION:
    ending = os.path.splitext(name)[1]
  return ending


def read_chunks(path: str) -> Generator[bytes, None, None]:
  """Yields the bytes of a file, decompressed as its first bytes tell.

  Raises:
    UserError: the file is damaged.
  """
  with files.open_binary(path) as raw:
    magic = raw.read(6)
    raw.seek(0)
    stream: Any = raw
    for beginning, opener in _OPENERS.items():
      if magic.startswith(beginning):
        stream = opener(raw)
    try:
      if magic.startswith(_ZSTD):
        yield from _zstd_chunks(raw)
      else:
        while chunk := stream.read(_CHUNK):
          yield chunk
    except _DAMAGE as error:
      raise UserError(
        f"An input file must be readable to its end. Received: {path} ({error}). It is damaged or "
        "cut short: copy it again, or leave it out."
      ) from error


def _zstd_chunks(raw: IO[bytes]) -> Iterator[bytes]:
  """Decompresses frame by frame, as the library's own reader does not notice a truncated file."""
  frame: Any = None
  data = raw.read(_CHUNK >> 3)  # May decompress to much more.
  while data:
    if frame is None:
      frame = zstandard.ZstdDecompressor().decompressobj()
    yield frame.decompress(data)
    data = b""
    if frame.eof:
      data = frame.unused_data  # The beginning of the next frame.
      frame = None
    if not data:
      data = raw.read(_CHUNK >> 3)
  if frame is not None:
    raise EOFError("Compressed file ended before the end of a frame")


def split_head(chunks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
  """The beginning of a file, and all of it.

  Returns:
    The first bytes with LF as line end; all chunks, the first ones too, as they are.
  """
  start = b""
  for chunk in chunks:
    start += chunk
    if len(start) >= _CHUNK:
      break
  return _LINE_END.sub(b"\n", start[:_CHUNK]), itertools.chain([start], chunks)


def with_line_feeds(chunks: Iterable[bytes]) -> Iterator[bytes]:
  r"""The same text with LF as its only line end.

  Example:
    >>> list(with_line_feeds([b"one\r", b"\ntwo\rthree"]))
    [b'one', b'\ntwo\nthree', b'']
  """
  held = b""  # CRs at the end of a chunk: the next one may begin with their LF.
  for chunk in chunks:
    text = held + chunk
    complete = text.rstrip(b"\r")
    held = text[len(complete) :]
    if b"\r" in complete:
      complete = _LINE_END.sub(b"\n", complete)
    yield complete
  yield _LINE_END.sub(b"\n", held)


def read_text_lines(file: CorpusFile, *, limit: int) -> Iterator[str]:
  """Lines of text without their end (LF, CRLF or CR).

  A line longer than `limit` bytes comes in parts. Bytes that are not UTF-8 become U+FFFD. Both are
  counted. A leading byte-order mark is dropped.
  """
  stats = file.stats
  begun_line = b""
  # A line may go over several chunks.
  for number, chunk in enumerate(with_line_feeds(file.chunks)):
    if number == 0:
      chunk = chunk.removeprefix(_BOM)
    lines = (begun_line + chunk).split(b"\n")
    begun_line = lines.pop()
    for line in lines:
      end_of_line = yield from _long_parts(line, limit, stats)
      yield decode(end_of_line, stats)
    begun_line = yield from _long_parts(begun_line, limit, stats)
  if begun_line:
    yield decode(begun_line, stats)


def decode(data: bytes, stats: CorpusStats) -> str:
  """Decodes UTF-8; other bytes become U+FFFD and are counted."""
  try:
    return data.decode()
  except UnicodeDecodeError:
    stats.bad_text_replaced += 1
    return data.decode(errors="replace")


def _long_parts(line: bytes, limit: int, stats: CorpusStats) -> Generator[str, None, bytes]:
  """Yields parts of a line until no more than `limit` bytes are left, which it returns.

  A part ends after a space, or at least not inside a character.
  """
  while len(line) > limit:
    cut = line.rfind(b" ", limit // 2, limit) + 1
    if cut == 0:
      cut = limit
    # Bytes 10…… continue a character of UTF-8, which has four at most.
    while cut > limit - 4 and line[cut] & 0xC0 == 0x80:
      cut -= 1
    stats.long_lines += 1
    yield decode(line[:cut], stats)
    line = line[cut:]
  return line
