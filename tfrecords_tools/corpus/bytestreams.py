"""Reads local or remote files, compressed or not, as chunks of bytes or as lines of bounded length."""

import bz2
from collections.abc import Callable, Generator, Iterable, Iterator
import contextlib
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
from tfrecords_tools.corpus.options import CorpusStats

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
# LF, CRLF, CR; and CR CR LF, which a program leaves that writes CRLF for the LF of a CRLF: one end, no blank line.
_LINE_END = re.compile(rb"\r{0,2}\n|\r")
_MOST_CRS = 2  # Before an LF that they belong to.


def expected_text_bytes(path: str, num_bytes: int) -> int:
  """About how much text a file of this size gives, decompressed."""
  return num_bytes * _EXPANSION.get(os.path.splitext(path)[1], 1)


def read_chunks(path: str) -> Generator[bytes, None, None]:
  """Yields the bytes of a file, decompressed as its first bytes tell; raises `UserError` if it is damaged."""
  with files.open_binary(path) as raw:
    magic = raw.read(6)
    raw.seek(0)
    opener = next((opener for begin, opener in _OPENERS.items() if magic.startswith(begin)), None)
    try:
      if magic.startswith(_ZSTD):
        yield from _zstd_chunks(raw)
      else:
        with opener(raw) if opener else contextlib.nullcontext(raw) as stream:
          while chunk := stream.read(_CHUNK):
            yield chunk
    except _DAMAGE as error:
      raise UserError(
        f"An input file must be readable to its end. Received: {path} ({error}). It is damaged or "
        "cut short: copy it again, or leave it out."
      ) from error


def _zstd_chunks(raw: IO[bytes]) -> Iterator[bytes]:
  """Decompresses frame by frame, because the library's own reader does not notice a truncated file."""
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
  """The first `size` bytes, or fewer at the end of a file, with LF as line end; and all chunks, as they are."""
  taken: list[bytes] = []
  for chunk in chunks:
    taken.append(chunk)
    if sum(map(len, taken)) >= size:
      break
  start = b"".join(taken)
  return _LINE_END.sub(b"\n", start[:size]), itertools.chain([start], chunks)


def with_line_feeds(chunks: Iterable[bytes]) -> Iterator[bytes]:
  r"""The same text with LF as its only line end.

  Example:
    >>> list(with_line_feeds([b"one\r", b"\ntwo\rthree"]))
    [b'one', b'\ntwo\nthree', b'']
  """
  held = b""  # CRs at the end of a chunk: the next one may begin with their LF.
  for chunk in chunks:
    text = held + chunk
    held = b""
    if b"\r" in text:
      end = text[-_MOST_CRS:]
      held = end[len(end.rstrip(b"\r")) :]
      text = _LINE_END.sub(b"\n", text[: len(text) - len(held)])
    yield text
  yield held.replace(b"\r", b"\n")


def _counted(chunks: Iterable[bytes], stats: CorpusStats) -> Iterator[bytes]:
  for chunk in chunks:
    stats.bytes_read += len(chunk)
    yield chunk


def read_text_lines(chunks: Iterable[bytes], *, stats: CorpusStats, limit: int) -> Iterator[str]:
  """Lines of text without their end (LF, CRLF or CR); one longer than `limit` bytes comes in parts, which are counted.

  Bytes that are not UTF-8 become U+FFFD; such lines are counted. A leading byte-order mark is dropped.
  """
  rest = b""
  for number, chunk in enumerate(with_line_feeds(_counted(chunks, stats))):
    if number == 0:
      chunk = chunk.removeprefix(_BOM)
    *lines, rest = (rest + chunk).split(b"\n")
    for line in lines:
      if len(line) > limit:
        line = yield from _cut(line, limit, stats)
      yield decode(line, stats)
    if len(rest) > limit:
      rest = yield from _cut(rest, limit, stats)
  if rest:
    yield decode(rest, stats)


def decode(data: bytes, stats: CorpusStats) -> str:
  """Decodes UTF-8; other bytes become U+FFFD and are counted."""
  try:
    return data.decode()
  except UnicodeDecodeError:
    stats.bad_text_replaced += 1
    return data.decode(errors="replace")


def _cut(line: bytes, limit: int, stats: CorpusStats) -> Generator[str, None, bytes]:
  """Yields parts that end after a space, or at least not inside a character; returns the remaining bytes."""
  while len(line) > limit:
    at = line.rfind(b" ", limit // 2, limit) + 1 or limit
    while at > limit - 4 and line[at] & 0xC0 == 0x80:
      at -= 1
    stats.long_lines += 1
    yield decode(line[:at], stats)
    line = line[at:]
  return line
