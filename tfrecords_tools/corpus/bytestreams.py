"""Opens local or remote files, compressed or not, as one stream of bytes; cuts it into bounded lines."""

import bz2
from collections.abc import Iterator
import contextlib
import gzip
import lzma
from typing import IO, Any, Protocol
import zlib

import zstandard

from albert_tf import files
from albert_tf.errors import UserError
from tfrecords_tools.corpus.options import CorpusOptions, CorpusStats

_MAGIC = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\xfd7zXZ\x00": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}
_DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError)
_BLOCK = 1 << 16
_BOM = b"\xef\xbb\xbf"


class Readable(Protocol):
  """What the readers of a format ask of a stream."""

  def read(self, size: int = -1, /) -> bytes: ...


@contextlib.contextmanager
def open_stream(path: str) -> Iterator[Readable]:
  """Opens `path` for reading; decompresses by the first bytes, whatever the name says.

  Raises:
    UserError: the file cannot be opened, or its compressed data are damaged (also while it is read inside
      the `with` block).
  """
  try:
    raw = files.open_binary(path)
  except OSError as error:
    raise UserError(
      f"An input file must be readable. Received: {path} ({error.strerror or error}). Check its path."
    ) from error
  with raw:
    kind = next((kind for magic, kind in _MAGIC.items() if _peek(raw, len(magic)) == magic), "")
    with contextlib.ExitStack() as stack:
      stream: Any = raw
      if kind == ".gz":
        stream = stack.enter_context(gzip.open(raw, "rb"))
      elif kind == ".bz2":
        stream = stack.enter_context(bz2.open(raw, "rb"))
      elif kind == ".xz":
        stream = stack.enter_context(lzma.open(raw, "rb"))
      elif kind == ".zst":
        stream = _ZstdStream(raw)
      try:
        yield stream
      except _DAMAGE as error:
        raise UserError(
          f"An input file must be readable to its end. Received: {path} ({error}). It is damaged or "
          "cut short: copy it again, or leave it out."
        ) from error


class _ZstdStream:
  """Decompresses frames one after another. The library's own reader takes a file cut short for a whole one."""

  def __init__(self, raw: IO[bytes]):
    self._raw = raw
    self._frame: Any = None
    self._rest = b""  # Compressed, of the next frame.
    self._ready = b""

  def read(self, size: int = -1, /) -> bytes:
    while size < 0 or not self._ready:
      data = self._rest or self._raw.read(_BLOCK >> 3)  # May decompress to much more.
      self._rest = b""
      if not data:
        if self._frame is not None:
          raise EOFError("Compressed file ended before the end of a frame")
        break
      if self._frame is None:
        self._frame = zstandard.ZstdDecompressor().decompressobj()
      self._ready += self._frame.decompress(data)
      if self._frame.eof:
        self._rest, self._frame = self._frame.unused_data, None
    size = len(self._ready) if size < 0 else size
    block, self._ready = self._ready[:size], self._ready[size:]
    return block


def _peek(raw: IO[bytes], size: int) -> bytes:
  position = raw.tell()
  head = raw.read(size)
  raw.seek(position)
  return head


class HeadedStream:
  """A stream whose first bytes have been read already: gives those again, then the rest."""

  def __init__(self, head: bytes, rest: Readable):
    self._head = head
    self._rest = rest

  def read(self, size: int = -1, /) -> bytes:
    if not self._head:
      return self._rest.read(size)
    if size < 0:
      head, self._head = self._head, b""
      return head + self._rest.read()
    head, self._head = self._head[:size], self._head[size:]
    return head


def read_head(stream: Readable, size: int = 1 << 16) -> bytes:
  """The first `size` bytes, or all there are."""
  head = b""
  while len(head) < size and (block := stream.read(size - len(head))):
    head += block
  return head


def read_text_lines(
  stream: Readable, path: str, *, options: CorpusOptions, stats: CorpusStats, limit: int | None = None
) -> Iterator[str]:
  """Lines of text without their end; bad bytes are handled as `on_bad_text` says.

  Args:
    stream: the bytes of `path`.
    path: for messages.
    options: limits and `on_bad_text`.
    stats: bytes, long lines and bad lines are counted.
    limit: longest line in bytes, in the place of `options.max_line_bytes`.

  Raises:
    UserError: a line is not UTF-8 and `on_bad_text=error`.
  """
  number = 0
  for line, begins in _read_lines(stream, limit or options.max_line_bytes, stats):
    number += begins
    try:
      yield line.decode("utf-8")
    except UnicodeDecodeError as error:
      if options.on_bad_text == "skip":
        stats.bad_text_skipped += 1
        continue
      if options.on_bad_text == "replace":
        stats.bad_text_replaced += 1
        yield line.decode("utf-8", errors="replace")
        continue
      raise bad_text_error(
        line[max(0, error.start - 20) : error.start + 20], path, f"line {number}"
      ) from error


def bad_text_error(found: bytes, path: str, where: str) -> UserError:
  return UserError(
    f"Text must be UTF-8. Received: {found!r} in {path}, {where}. Convert the file, or pass "
    "--on_bad_text=skip (leaves such lines out) or --on_bad_text=replace (puts U+FFFD in); both are counted."
  )


def _read_lines(stream: Readable, limit: int, stats: CorpusStats) -> Iterator[tuple[bytes, bool]]:
  """(line, whether a line of the file begins here); ends are LF, CRLF or CR; a leading BOM is dropped."""
  rest = b""
  at_start = True  # Of the file: only there a byte-order mark means anything.
  continues = False  # Whether `rest` is of a line of which a part has been given out.
  while block := stream.read(_BLOCK):
    stats.bytes_read += len(block)
    if at_start:
      block = block.removeprefix(_BOM)
      at_start = False
    lines = (rest + block).split(b"\n")
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
