"""Rows of tables of four formats, read one after the other: .tsv, .csv, .jsonl and .parquet.

A damaged row is told of, and the rows after it are read. A leaf, without TensorFlow.
"""

import codecs
import collections
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
import contextlib
import csv
import os
from typing import IO, Any, NamedTuple

from albert_tf import files, json_files
from albert_tf.errors import UserError

# Bytes of a line, and characters of a cell of .csv: a book has a million. A file without line ends
# must not fill the memory.
LONGEST_LINE = 16 << 20
_PARQUET_ROWS = 1024  # Rows that are converted together.
# Stands for a cell of .parquet that is not UTF-8. No UTF-8 decodes to it.
_UNDECODABLE = "\udc80"


class Row(NamedTuple):
  """A row of a table.

  Attributes:
    where: names it in messages, such as "reviews.csv:17", the line where it begins.
    cells: column → cell; strings for .tsv and .csv, else the file's types. Cells of .jsonl, and of
      a damaged row, may be absent.
    error: what is wrong with it, "" for nothing.
    position: bytes of the file up to its end; for .parquet an estimate.
  """

  where: str
  cells: Mapping[str, Any]
  error: str
  position: int


class OpenTable(NamedTuple):
  """A table whose rows are read one after the other.

  Attributes:
    names: the columns; None for .jsonl, where each row has its own.
    read: gives the rows in order, once. Its argument names the columns to read, None for all;
      others are in no row.
  """

  names: Sequence[str] | None
  read: Callable[[Collection[str] | None], Iterator[Row]]


@contextlib.contextmanager
def open_table(path: str) -> Iterator[OpenTable]:
  """Opens a table by its suffix. Memory does not grow with the file.

  - TSV has no quoting, so cells cannot contain tabs or line ends; CSV is quoted as RFC 4180 says.
  - A blank line is a row if there is one column.

  Raises:
    UserError: the file is no table of the format that its name says.
  """
  suffix = os.path.splitext(path)[1].lower()
  if suffix not in _TABLES:
    raise UserError(
      f"A table's file name ends in .tsv, .csv, .jsonl or .parquet. Received: {path}."
    )
  with files.open_binary(path) as stream:
    yield _TABLES[suffix](path, stream)


def cell_text(value: Any) -> str:
  """A cell as text; empty for None and NaN."""
  if value is None or value != value:
    return ""
  if isinstance(value, bool):
    return str(value).lower()
  if isinstance(value, float) and value.is_integer():
    # Integer columns with gaps are read as floats: 1 would become "1.0".
    return str(int(value))
  return str(value)


def _checked(row: Row) -> Row:
  """The row, damaged and without these cells if some of its cells are not UTF-8."""
  cells = {name: cell for name, cell in row.cells.items() if _is_unicode(cell)}
  if len(cells) == len(row.cells):
    return row
  wrong = [name for name in row.cells if name not in cells]
  return row._replace(cells=cells, error=f"The cell of {', '.join(wrong)} is not UTF-8.")


def _is_unicode(cell: Any) -> bool:
  """Whether the text of a cell, or of a list of cells, has an encoding in UTF-8."""
  if isinstance(cell, (list, tuple)):
    return all(map(_is_unicode, cell))
  try:
    return not isinstance(cell, str) or cell.isascii() or bool(cell.encode())
  except UnicodeEncodeError:
    return False


def _chosen(cells: Mapping[str, Any], columns: Collection[str] | None) -> Mapping[str, Any]:
  if columns is None:
    return cells
  return {name: cell for name, cell in cells.items() if name in columns}


# ------------------------------------------------------------------ lines


class _Line(NamedTuple):
  number: int  # From 1.
  text: str  # With its end. Bytes that are not UTF-8 are lone surrogates.
  position: int  # Bytes of the file up to its end.


def _lines(path: str, stream: IO[bytes]) -> Iterator[_Line]:
  """The lines of a file, which only line feeds end: `splitlines` would also split at others."""
  number = 0
  position = 0
  while line := stream.readline(LONGEST_LINE + 1):
    number += 1
    position += len(line)
    if len(line) > LONGEST_LINE:
      raise UserError(
        f"A line of a table has at most {LONGEST_LINE:,} bytes. Received: more, in {path}:{number}. "
        "Is it a table in lines of text?"
      )
    # Editors of Windows write a byte order mark before the text.
    if number == 1:
      line = line.removeprefix(codecs.BOM_UTF8)
    yield _Line(number, line.decode("utf-8", "surrogateescape"), position)


def _json_table(path: str, stream: IO[bytes]) -> OpenTable:
  """The table of a file with a JSON object in each line."""

  def read(columns: Collection[str] | None) -> Iterator[Row]:
    for line in _lines(path, stream):
      if not line.text.strip():
        continue
      where = f"{path}:{line.number}"
      try:
        cells = json_files.parse(line.text, "A row")
      except UserError as error:
        yield Row(where, {}, str(error), line.position)
      else:
        yield _checked(Row(where, _chosen(cells, columns), "", line.position))

  return OpenTable(None, read)


# ------------------------------------------------------------------ a header and cells


class _Record(NamedTuple):
  """The cells of a row of text."""

  number: int  # Of the line where it begins.
  cells: Sequence[str]
  error: str  # "" for none.
  position: int


def _tsv_table(path: str, stream: IO[bytes]) -> OpenTable:
  records = (
    _Record(line.number, _without_end(line.text).split("\t"), "", line.position)
    for line in _lines(path, stream)
  )
  return _text_table(path, records)


def _without_end(line: str) -> str:
  return line.removesuffix("\n").removesuffix("\r")


class _LinesOfRow:
  """An iterator over lines for the csv module; `row` has those since the last `begin`."""

  def __init__(self, lines: Iterable[_Line]):
    self._lines = iter(lines)
    self._again: collections.deque[_Line] = collections.deque()
    self.row: list[_Line] = []

  def __iter__(self) -> "_LinesOfRow":
    return self

  def __next__(self) -> str:
    line = self._again.popleft() if self._again else next(self._lines)
    self.row.append(line)
    return line.text

  def begin(self) -> None:
    """Begins a row."""
    self.row = []

  def take_back(self) -> None:
    """Gives all lines of the row but the first again."""
    self._again.extendleft(reversed(self.row[1:]))


def _csv_table(path: str, stream: IO[bytes]) -> OpenTable:
  return _text_table(path, _csv_records(_LinesOfRow(_lines(path, stream))))


def _csv_records(lines: _LinesOfRow) -> Iterator[_Record]:
  """The rows of a .csv file, whose cells may have several lines."""
  # The library's own limit is 128 KiB, but a cell may be a whole document.
  csv.field_size_limit(LONGEST_LINE)
  # Strict: a stray quote would otherwise merge rows in silence.
  reader = csv.reader(lines, strict=True)
  while True:
    lines.begin()
    try:
      cells = next(reader)
    except StopIteration:
      return
    except csv.Error as error:
      # A quote that is never closed must not take the lines after it along.
      first = lines.row[0]
      lines.take_back()
      message = (
        "A cell that has commas, quotes or line ends is quoted as a whole, with its own quotes "
        f"doubled. This row is not ({error})."
      )
      yield _Record(first.number, (), message, first.position)
    else:
      yield _Record(lines.row[0].number, cells or [""], "", lines.row[-1].position)


def _text_table(path: str, records: Iterator[_Record]) -> OpenTable:
  """The table of a file of text, whose first line names the columns."""
  first = next(records, _Record(1, (), "", 0))
  header = list(first.cells)
  if first.error or not _is_unicode(header):
    problem = first.error or "It is not UTF-8."
    raise UserError(
      f"A table's first line names its columns. Received: {path}. {problem} Save the file as UTF-8, "
      "in the format of its suffix."
    )
  if not header or len(set(header)) < len(header):
    raise UserError(
      "A table has a header with different names. Received: "
      f"{', '.join(header) or 'none'} in {path}. Write the names of the columns in its first line."
    )

  def read(columns: Collection[str] | None) -> Iterator[Row]:
    for record in records:
      where = f"{path}:{record.number}"
      # A blank line is an empty cell where there is one column, and no row elsewhere.
      if record.cells == [""] and len(header) != 1:
        continue
      if record.error:
        yield Row(where, {}, record.error, record.position)
      elif len(record.cells) != len(header):
        message = f"The row has {len(record.cells)} cells, and the header {len(header)}."
        yield Row(where, {}, message, record.position)
      else:
        cells = dict(zip(header, record.cells, strict=True))
        yield _checked(Row(where, _chosen(cells, columns), "", record.position))

  return OpenTable(header, read)


# ------------------------------------------------------------------ Parquet


def _parquet_table(path: str, stream: IO[bytes]) -> OpenTable:
  import pyarrow  # Slow to import.
  from pyarrow import parquet

  size = files.size(path)
  damage = (pyarrow.ArrowException, OSError, ValueError)

  def refuse(error: Exception) -> UserError:
    message = " ".join(str(error).split())
    return UserError(
      f"A .parquet file is complete and undamaged. Received: {path} ({message}). Copy it again."
    )

  try:
    table = parquet.ParquetFile(stream)
  except damage as error:
    raise refuse(error) from error
  header = table.schema_arrow.names

  def read(columns: Collection[str] | None) -> Iterator[Row]:
    wanted = None if columns is None else [name for name in header if name in columns]
    count = table.metadata.num_rows
    number = 0
    try:
      for batch in table.iter_batches(_PARQUET_ROWS, columns=wanted):
        cells_of_columns = map(_python_values, batch.columns)
        names = batch.schema.names
        for cells in zip(*cells_of_columns, strict=True):
          number += 1
          where = f"row {number} of {path}"
          position = size * number // count
          yield _checked(Row(where, dict(zip(names, cells, strict=True)), "", position))
    except damage as error:
      raise refuse(error) from error

  return OpenTable(header, read)


def _python_values(column: Any) -> list[Any]:
  """The cells of an Arrow column; what is not UTF-8 is `_UNDECODABLE`."""
  try:
    return column.to_pylist()
  except UnicodeDecodeError:
    pass
  values = []
  for cell in column:
    try:
      values.append(cell.as_py())
    except UnicodeDecodeError:
      values.append(_UNDECODABLE)
  return values


_TABLES: dict[str, Callable[[str, IO[bytes]], OpenTable]] = {
  ".csv": _csv_table,
  ".jsonl": _json_table,
  ".parquet": _parquet_table,
  ".tsv": _tsv_table,
}
