"""Reads files of examples, text or tables of four formats, and holds out examples for evaluation.

It does not import TensorFlow, so that worker processes start fast.
"""

from collections.abc import Callable, Mapping, Sequence
import csv
import dataclasses
import io
import os
from typing import Any, TypeVar

from absl import logging
import numpy as np

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.settings import Settings, setting

_Example = TypeVar("_Example")


def hold_out(
  examples: Sequence[_Example],
  fraction: float,
  *,
  source: str,
  groups: Sequence[int] | None = None,
) -> tuple[list[_Example], list[_Example]]:
  """Splits the examples of a file into training and evaluation examples, always in the same way.

  Args:
    examples: all examples of the file.
    fraction: share to hold out, above 0 and below 1; whole groups come near it.
    source: the file's name in messages.
    groups: the group of each example, which stays together; None: each example is a group.

  Raises:
    UserError: there are fewer than two groups.
  """
  names, numbers, sizes = np.unique(
    np.arange(len(examples)) if groups is None else groups, return_inverse=True, return_counts=True
  )
  if len(names) < 2:
    raise UserError(
      "Without evaluation data, at least two training examples or paragraphs are needed. Received: "
      f"{len(names)} in {source}. Name evaluation data."
    )
  order = np.random.default_rng(0).permutation(len(names))
  reached = np.cumsum(sizes[order])[:-1]
  count = 1 + int(np.argmin(np.abs(reached - fraction * len(examples))))
  held = np.isin(numbers.reshape(-1), order[:count])
  logging.info("%s: %d of %d examples are held out for evaluation", source, held.sum(), len(examples))
  train, evaluation = ([examples[i] for i in np.flatnonzero(part).tolist()] for part in (~held, held))
  return train, evaluation


def read_splits(
  paths: Mapping[str, str], read: Callable[[str, str], Sequence[_Example]], *, eval_fraction: float
) -> dict[str, Sequence[_Example]]:
  """Reads each split with `read(path, split)`; without "eval", a part of "train" is held out."""
  named = {split: path for split, path in paths.items() if path}
  for split, path in named.items():
    if not files.exists(path) or files.isdir(path):
      raise UserError(
        f"The {split} data are one file. Received: {path}, which is none. Check the path; patterns "
        "such as *.csv are not expanded."
      )
  splits = {split: read(path, split) for split, path in named.items()}
  if "train" in splits and "eval" not in splits:
    splits["train"], splits["eval"] = hold_out(splits["train"], eval_fraction, source=paths["train"])
  return splits


# ------------------------------------------------------------------ text and JSON


def read_text(path: str) -> str:
  """Reads a UTF-8 file, with or without a byte-order mark."""
  try:
    return files.read_bytes(path).decode("utf-8-sig")
  except UnicodeDecodeError as error:
    raise UserError(
      f"Files of examples are UTF-8 text. Received: {path}, which is not at byte {error.start:,} ({error.reason})."
    ) from error


def read_lines(path: str) -> list[str]:
  """Reads lines, which only line feeds end: `splitlines` would also split at other characters."""
  lines = [line.removesuffix("\r") for line in read_text(path).split("\n")]
  return lines if lines[-1] else lines[:-1]  # Nothing follows the last line end.


# ------------------------------------------------------------------ tables


class TableColumns(Settings):
  """The columns of a user's table of texts."""

  texts: tuple[str, ...] = setting(("text",), "Column of texts, or two for pairs.", flag="text_columns")
  label: str = setting(
    "",
    "Column of the labels; with --multi_label, also one column of 0 and 1 for each label.",
    flag="label_column",
  )
  multi_label: bool = setting(False, "custom: a text may have any number of labels.")
  negative: str = setting("", "Column of a third text.", flag="")
  id: str = setting("", "Column of the rows' names in predictions. Default: numbers.", flag="id_column")
  skip_incomplete_rows: bool = setting(
    False, "Leave out training and evaluation rows without a text or a label, and log their number."
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    if not 1 <= len(self.texts) <= 2 or not all(self.texts):
      raise UserError(
        f"text_columns names one column, or two with a comma. Received: {','.join(self.texts)!r}. For example "
        "--text_columns=question,answer."
      )

  @property
  def labels(self) -> tuple[str, ...]:
    """The columns of the labels."""
    return tuple(self.label.split(",")) if self.multi_label else (self.label,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
  """Rows of a file.

  Attributes:
    source: the file's name in messages.
    columns: name → values; strings for .tsv and .csv, else the file's types, with None for missing values.
    lines: number of each row's first line in the file, from 1; empty for a file without lines.
  """

  source: str
  columns: Mapping[str, Sequence[Any]]
  lines: Sequence[int] = ()

  def __len__(self) -> int:
    return len(next(iter(self.columns.values()), ()))

  def where(self, row: int) -> str:
    """The row's name in messages."""
    return f"{f'line {self.lines[row]}' if self.lines else f'row {row + 1}'} of {self.source}"

  def check_columns(self, wanted: Sequence[str], flags: str) -> None:
    """Raises `UserError` if a column is missing, or there are no rows; `flags` name the columns."""
    if not set(wanted) <= set(self.columns) or not len(self):
      raise UserError(
        f"The table needs rows, and the columns {', '.join(wanted)}. Received: {self.source} with {len(self)} rows; "
        f"it has {', '.join(self.columns) or 'none'}. Name them with {flags}."
      )


def cell_text(value: Any) -> str:
  """A cell as text: empty for None and NaN; "1" for 1.0, because integer columns with gaps are read as floats."""
  if isinstance(value, bool):
    return str(value).lower()
  if isinstance(value, float) and value.is_integer():
    value = int(value)
  return "" if value is None or value != value else str(value)


def read_table(path: str) -> Table:
  """Reads a table by its suffix: .tsv, .csv (RFC 4180 quoting), .jsonl or .parquet.

  TSV has no quoting, so cells cannot contain tabs or line ends. A blank line is a row if there is one column.

  Raises:
    UserError: the file has another format than its suffix.
  """
  suffix = os.path.splitext(path)[1].lower()
  if suffix == ".parquet":
    return Table(source=path, columns=_parquet_columns(path))
  if suffix == ".jsonl":
    return _json_table(path)
  if suffix not in (".tsv", ".csv"):
    raise UserError(f"A table's file name ends in .tsv, .csv, .jsonl or .parquet. Received: {path}.")
  if suffix == ".csv":
    return _text_table(_csv_rows(path), path)
  return _text_table([(number, line.split("\t")) for number, line in enumerate(read_lines(path), 1)], path)


def _csv_rows(path: str) -> list[tuple[int, list[str]]]:
  """Each row with the line where it begins; a cell may have several lines."""
  text = read_text(path)
  csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # A cell may be a whole document.
  reader = csv.reader(io.StringIO(text, newline=""), strict=True)
  rows, line = [], 1
  try:
    for row in reader:
      rows.append((line, row or [""]))
      line = reader.line_num + 1
  except csv.Error as error:
    raise UserError(
      "A cell of a .csv file that has commas, quotes or line ends is quoted as a whole, with its own quotes doubled. "
      f"Received: the row at line {line} of {path} ({error})."
    ) from error
  return rows


def _text_table(rows: list[tuple[int, list[str]]], path: str) -> Table:
  header = rows[0][1] if rows else []
  rows = [(line, row) for line, row in rows[1:] if row != [""] or len(header) == 1]
  wrong = [(line, len(row)) for line, row in rows if len(row) != len(header)]
  if wrong or len(set(header)) < len(header):
    line, count = wrong[0] if wrong else (1, len(header))
    raise UserError(
      "A table needs different names in its header, and equal numbers of columns in all rows. Received: "
      f"{path} with {', '.join(header)}, and {count} in line {line}. Is a text with tabs or commas not quoted, or the "
      "suffix the wrong one?"
    )
  columns = {name: [row[i] for _, row in rows] for i, name in enumerate(header)}
  return Table(source=path, columns=columns, lines=[line for line, _ in rows])


def _json_table(path: str) -> Table:
  rows = {}
  for number, line in enumerate(read_lines(path), 1):
    if line.strip():
      rows[number] = files.parse_json(line, f"line {number} of {path}")
  names = dict.fromkeys(name for row in rows.values() for name in row)
  columns = {name: [row.get(name) for row in rows.values()] for name in names}
  return Table(source=path, columns=columns, lines=list(rows))


def _parquet_columns(path: str) -> dict[str, list[Any]]:
  import pyarrow  # Slow to import.
  from pyarrow import parquet

  data = io.BytesIO(files.read_bytes(path))
  try:
    return parquet.read_table(data).to_pydict()
  except (pyarrow.ArrowException, OSError, ValueError) as error:
    raise UserError(
      f"A .parquet file is complete and undamaged. Received: {path} ({' '.join(str(error).split())}). Copy it again."
    ) from error
