"""Opens local or remote files, compressed or not, as one stream of bytes; cuts it into bounded lines."""

import bz2
from collections.abc import Iterator
import contextlib
import gzip
import lzma
from typing import IO
import zlib

import zstandard

from albert_tf import files
from albert_tf.errors import UserError
from tfrecords_tools.corpus.options import CorpusOptions, CorpusStats

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
_MAGIC = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\xfd7zXZ\x00": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}
_DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError)
_BLOCK = 1 << 16
_BOM = b"\xef\xbb\xbf"


@contextlib.contextmanager
def open_stream(path: str) -> Iterator[IO[bytes]]:
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
      stream: IO[bytes] = raw
      if kind == ".gz":
        stream = stack.enter_context(gzip.open(raw, "rb"))
      elif kind == ".bz2":
        stream = stack.enter_context(bz2.open(raw, "rb"))
      elif kind == ".xz":
        stream = stack.enter_context(lzma.open(raw, "rb"))
      elif kind == ".zst":
        reader = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
        stream = stack.enter_context(reader)
      try:
        yield stream
      except _DAMAGE as error:
        raise UserError(
          f"An input file must be readable to its end. Received: {path} ({error}). It is damaged or "
          "cut short: copy it again, or leave it out."
        ) from error


def _peek(raw: IO[bytes], size: int) -> bytes:
  position = raw.tell()
  head = raw.read(size)
  raw.seek(position)
  return head


def read_lines(stream: IO[bytes], *, options: CorpusOptions, stats: CorpusStats) -> Iterator[bytes]:
  """Lines without their end (LF, CRLF or CR LF mixed), none longer than `options.max_line_bytes`.

  A leading byte-order mark is dropped. A line over the limit comes as several, cut after white space.
  """
  rest = b""
  first = True  # Of the file's blocks: only there a byte-order mark means anything.
  long = False  # Whether `rest` continues a line of which a part has been given out.
  while block := stream.read(_BLOCK):
    stats.bytes_read += len(block)
    if first:
      block = block.removeprefix(_BOM)
      first = False
    lines = (rest + block).split(b"\n")
    rest = lines.pop()
    for line in lines:
      yield from _cut(line.removesuffix(b"\r"), options.max_line_bytes)
    if lines:
      long = False
    while len(rest) > options.max_line_bytes:
      stats.long_lines += not long
      long = True
      at = _cut_position(rest, options.max_line_bytes)
      yield rest[:at]
      rest = rest[at:]
  if rest:
    yield rest.removesuffix(b"\r")


def _cut(line: bytes, limit: int) -> Iterator[bytes]:
  while len(line) > limit:
    at = _cut_position(line, limit)
    yield line[:at]
    line = line[at:]
  yield line


def _cut_position(line: bytes, limit: int) -> int:
  """The last position <= limit after a space; else one that does not cut a UTF-8 character."""
  at = line.rfind(b" ", limit // 2, limit) + 1
  if not at:
    at = limit
    while at > limit - 4 and line[at] & 0xC0 == 0x80:
      at -= 1
  return at


def decode_line(line: bytes, *, path: str, options: CorpusOptions, stats: CorpusStats) -> str | None:
  """The text of a line; None where `on_bad_text=skip` drops it.

  Raises:
    UserError: the line is not UTF-8 and `on_bad_text=error`.
  """
  try:
    return line.decode("utf-8")
  except UnicodeDecodeError as error:
    if options.on_bad_text == "skip":
      stats.bad_text_skipped += 1
      return None
    if options.on_bad_text == "replace":
      stats.bad_text_replaced += 1
      return line.decode("utf-8", errors="replace")
    start = line[max(0, error.start - 20) : error.start + 20]
    raise UserError(
      f"Text must be UTF-8. Received: {path}, in which a line holds {start!r}. Convert the file, or pass "
      "--on_bad_text=skip (drops such lines) or --on_bad_text=replace (puts U+FFFD in); both are counted."
    ) from error
