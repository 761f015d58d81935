"""Reads files as documents: `iter_documents`, which all data tools use.

A file is opened, decompressed and checked here; the reader of its format makes sentences of it.
"""

import bz2
from collections.abc import Callable, Generator, Iterable, Iterator
import contextlib
import gzip
import itertools
import lzma
import os
from typing import IO, Any
import zlib

import zstandard

from albert_tf import files
from albert_tf.errors import UserError
from tfrecords_tools.corpus import mediawiki, structured, text
from tfrecords_tools.corpus.options import CorpusFile, CorpusOptions, CorpusStats, Part

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
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_TEXT_CONTROLS = frozenset(b"\t\n\v\f\r\x1b\x1c\x1d\x1e\x1f\b")
_MAX_CONTROL_SHARE = 0.02
# Of the first bytes: more is another encoding. Fewer are replaced and counted.
_MAX_BAD_SHARE = 0.001
_BINARY = (
  "Input must be text (plain or compressed by gzip, bzip2, xz or zstd) or Parquet. Received: {}, "
  "which is binary. Leave it out of --input; for Parquet of another name than .parquet pass "
  "--input_format=parquet."
)
# The format of a file by the end of its name; other files are plain text.
_FORMAT_OF_ENDING = {
  ".jsonl": "jsonl",
  ".json": "jsonl",
  ".parquet": "parquet",
  ".xml": "mediawiki",
}
_TABLES = (".csv", ".tsv")
_MARKUP = ("<", "{")  # HTML, XML and JSON begin with it, and hardly a text.
# What `auto` says of the two formats of plain text.
_MEANING = {
  "lines": ": a line is a sentence, a blank line ends a document",
  "paragraphs": ": a blank line ends a paragraph, three end a document",
}
_READERS = {
  "lines": text.read_sentence_lines,
  "paragraphs": text.read_paragraphs,
  "mediawiki": mediawiki.read_mediawiki,
  "jsonl": structured.read_json_lines,
  "parquet": structured.read_parquet,
}


def iter_documents(path: str, options: CorpusOptions, *, stats: CorpusStats) -> Iterator[list[str]]:
  """Yields the documents of one file, each a list of raw (un-normalised) sentences, in file order.

  The n-th document of a file is the same for the same file and options on every machine, so (index
  of the file, n) is a stable key. A file boundary ends a document. Memory is bounded by the longest
  document, at most `options.max_document_bytes`, and one block of bytes.

  Args:
    path: a local file, or one that `tf.io.gfile` opens; gzip, bzip2, xz and zstd are decompressed.
    options: format, limits.
    stats: counts are added to it while the generator runs.

  Yields:
    Lists of at least one sentence; no sentence is empty or holds a line break.

  Raises:
    UserError: unreadable, damaged, binary, or not of the format named.

  Example:
    >>> for document in iter_documents("wiki_00", CorpusOptions(), stats=CorpusStats()):
    ...   ...
  """
  stats.files += 1
  before = stats.documents
  with contextlib.closing(_read_chunks(path)) as file_chunks:
    head, chunks = _split_head(file_chunks)
    kind = _detect(head, path, options)
    stats.formats[kind] += 1
    if head:
      if kind != "parquet":
        chunks = _checked(chunks, path, stats)
      file = CorpusFile(path, chunks, options, stats)
      for document in _join_parts(_READERS[kind](file), file):
        stats.documents += 1
        stats.sentences += len(document)
        yield document
  if stats.documents == before:
    stats.empty_files += 1


def _join_parts(parts: Iterable[Part], file: CorpusFile) -> Iterator[list[str]]:
  """Joins what a reader yields to documents, and limits their size, so that memory is bounded."""
  document: list[str] = []
  size = 0
  was_cut = False
  for sentences in itertools.chain(parts, [None]):
    if sentences is None:
      if document:
        yield document
      document = []
      size = 0
      was_cut = False
      continue

    for sentence in sentences:
      if size > file.options.max_document_bytes:
        yield document
        document = []
        size = 0
        # A document is counted once, however often it is cut.
        if not was_cut:
          file.stats.long_documents += 1
        was_cut = True
      document.append(sentence)
      size += len(sentence)


# The bytes of a file.


def expected_text_bytes(path: str, num_bytes: int) -> int:
  """About how much text a file of this size gives, decompressed."""
  return num_bytes * _EXPANSION.get(os.path.splitext(path)[1], 1)


def _read_chunks(path: str) -> Generator[bytes, None, None]:
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


def _split_head(chunks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
  """The beginning of a file, and all of it.

  Returns:
    The first bytes with LF as line end; all chunks, the first ones too, as they are.
  """
  start = b""
  for chunk in chunks:
    start += chunk
    if len(start) >= _CHUNK:
      break
  head = b"".join(text.with_line_feeds([start[:_CHUNK]]))
  return head, itertools.chain([start], chunks)


def _checked(chunks: Iterable[bytes], path: str, stats: CorpusStats) -> Iterator[bytes]:
  """Yields and counts the text; a NUL, which may come from a disk failure, is a `UserError`."""
  position = 0
  for chunk in chunks:
    if b"\0" in chunk:
      raise UserError(
        _BINARY.format(f"{path}, with a NUL at byte {position + chunk.index(0):,} of its text")
      )
    position += len(chunk)
    stats.bytes_read += len(chunk)
    yield chunk


# The format of a file.


def describe_format(path: str, options: CorpusOptions) -> str:
  """What `auto` takes a file for, in one line."""
  with contextlib.closing(_read_chunks(path)) as chunks:
    kind = _detect(_split_head(chunks)[0], path, options)
  return f"--input_format=auto: {path} is read as {kind}{_MEANING.get(kind, '')}"


def _detect(head: bytes, path: str, options: CorpusOptions) -> str:
  """The format of a file: as it is named, else by its name, or by the blank lines of a text."""
  kind: str | None = options.input_format
  if kind == "auto":
    ending = _text_ending(path)
    kind = _FORMAT_OF_ENDING.get(ending)
    if ending in _TABLES:
      raise _not_plain(path, "is a table")
  if kind != "parquet":
    _check_is_text(head, path)
  if kind is not None:
    return kind

  start = head.decode("utf-8-sig", errors="replace").lstrip()
  if start.startswith(_MARKUP):
    raise _not_plain(path, f"begins with {start[:1]!r}")
  return "paragraphs" if text.has_paragraphs(start) else "lines"


def _text_ending(path: str) -> str:
  """The end of a file's name, without that of its compression: .xml of dump.xml.bz2."""
  name, ending = os.path.splitext(path)
  if ending in _EXPANSION:
    ending = os.path.splitext(name)[1]
  return ending


def _check_is_text(head: bytes, path: str) -> None:
  """Raises a `UserError` for a binary file: NUL or many control bytes, or another encoding."""
  if head.startswith(_UTF16):
    raise UserError(
      f"Text must be UTF-8. Received: {path}, which is UTF-16. Convert it: iconv -f UTF-16 -t UTF-8 "
      "FILE."
    )
  controls = sum(byte < 32 and byte not in _TEXT_CONTROLS for byte in head)
  if b"\0" in head or controls > _MAX_CONTROL_SHARE * len(head):
    raise UserError(_BINARY.format(path))
  # The character U+FFFD may be in the text itself.
  num_bad = head.decode(errors="replace").count("\ufffd") - head.count("\ufffd".encode())
  if num_bad > max(3, _MAX_BAD_SHARE * len(head)):
    raise UserError(
      f"Text must be UTF-8. Received: {path}, where {num_bad} of the first {len(head):,} bytes are "
      "not. Convert it: iconv -f LATIN1 -t UTF-8 FILE."
    )


def _not_plain(path: str, reason: str) -> UserError:
  return UserError(
    "--input_format=auto takes plain text, and by the end of their names JSON lines (.jsonl, "
    f".json), Parquet (.parquet) and MediaWiki dumps (.xml). Received: {path}, which {reason}. "
    "Convert it, or name its format with --input_format."
  )
