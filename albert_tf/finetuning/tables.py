"""A user's own table as a task: TSV, CSV, JSON lines or Parquet; classification or regression."""

from collections.abc import Mapping, Sequence
import csv
import dataclasses
import io
import os
from typing import Any

from absl import logging
import numpy as np

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.finetuning.json_text import parse_json
from albert_tf.finetuning.task_spec import TaskSpec
from albert_tf.finetuning.text_task import Texts, TextTask
from albert_tf.tokenization import AlbertTokenizer, WordPieceTokenizer

FORMATS = (".tsv", ".csv", ".jsonl", ".parquet")
_MOST_CLASSES = 1000  # More different labels than this are no classes, but numbers or free text.


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableColumns:
  """Which columns of a table are what.

  Attributes:
    texts: one or two.
    label: the label's; empty where there is none.
    id: of each row's name in predictions; empty: the row's number.
  """

  texts: tuple[str, ...]
  label: str = ""
  id: str = ""

  def __post_init__(self) -> None:
    if not 1 <= len(self.texts) <= 2 or not all(self.texts):
      raise UserError(
        f"text_columns names one column, or two with a comma. Received: {','.join(self.texts)!r}. For example "
        "--text_columns=question,answer."
      )


def read_table(path: str, columns: TableColumns, *, with_label: bool | None) -> Texts:
  """The texts and labels of a file, by its suffix: .tsv, .csv (RFC 4180 quoting), .jsonl or .parquet.

  TSV has no quoting: tabs and line ends are what separates. Empty texts are kept; a missing one is refused.

  Args:
    path: of the file.
    columns: which column is what.
    with_label: whether labels are needed; None: they are read where the column is there.

  Raises:
    UserError: the file is not there, is empty, or lacks a column.
  """
  table, first_line = read_columns(path)
  if with_label is None:
    with_label = columns.label in table
  wanted = [*columns.texts, *([columns.label] if with_label else []), *([columns.id] if columns.id else [])]
  missing = [name for name in wanted if name not in table]
  if missing:
    raise UserError(
      f"The table needs the columns {', '.join(wanted)}. Received: {path} without {', '.join(missing)}; it has "
      f"{', '.join(table) or 'none'}. Name them with --text_columns and --label_column."
    )
  count = len(table[columns.texts[0]])
  if not count:
    raise UserError(f"A table needs rows. Received: {path}, which is empty. Check the file.")
  for name in wanted:
    empty = next((i for i, value in enumerate(table[name]) if value is None), None)
    if empty is not None:
      raise UserError(
        f"Every row needs {', '.join(wanted)}. Received: {path} without {name!r} at line {first_line + empty}. "
        "Remove the row, or fill it."
      )
  return Texts(
    ids=[_text(value) for value in table[columns.id]] if columns.id else [str(i) for i in range(count)],
    firsts=[_text(value) for value in table[columns.texts[0]]],
    seconds=[_text(value) for value in table[columns.texts[1]]] if len(columns.texts) > 1 else None,
    labels=[_text(value).strip() for value in table[columns.label]] if with_label else None,
    source=path,
    first_line=first_line,
  )


def _text(value: Any) -> str:
  """A cell as text; 1.0 of a column that Parquet or JSON holds as floats is the class "1"."""
  if isinstance(value, bool):
    return str(value).lower()
  if isinstance(value, float) and value.is_integer():
    return str(int(value))
  return str(value).replace("\r", " ").replace("\n", " ").replace("\t", " ")


def read_columns(path: str) -> tuple[dict[str, list[Any]], int]:
  """Column → values, and the line of the first row; see `read_table`."""
  suffix = os.path.splitext(path)[1].lower()
  if suffix not in FORMATS:
    raise UserError(f"A table's file name ends in {', '.join(FORMATS)}. Received: {path}.")
  if not files.exists(path):
    raise UserError(f"The table must exist. Received: {path}, which does not. Check the path.")
  with files.open_binary(path) as stream:
    content = stream.read()
  if suffix == ".parquet":
    return _read_parquet(content, path), 1
  try:
    text = content.decode("utf-8-sig")
  except UnicodeDecodeError as error:
    raise UserError(f"A table is UTF-8 text. Received: {path} ({error}). Convert it first.") from error
  if suffix == ".jsonl":
    return _read_json_lines(text, path), 1
  return _read_rows(_split_rows(text, suffix), path), 2


def _split_rows(text: str, suffix: str) -> list[list[str]]:
  if suffix == ".csv":
    return [row for row in csv.reader(io.StringIO(text, newline="")) if row]
  lines = (line.removesuffix("\r") for line in text.split("\n"))
  return [line.split("\t") for line in lines if line.strip()]


def _read_rows(rows: Sequence[list[str]], path: str) -> dict[str, list[Any]]:
  if not rows:
    raise UserError(f"A table needs a header and rows. Received: {path}, which is empty. Check the file.")
  header = rows[0]
  twice = sorted({name for name in header if header.count(name) > 1})
  if twice:
    raise UserError(
      f"Every column has a name of its own. Received: {', '.join(map(repr, twice))} more than once in {path}. "
      "Rename one."
    )
  wrong = next((i for i, row in enumerate(rows) if len(row) != len(header)), None)
  if wrong is not None:
    raise UserError(
      f"Every row has as many columns as the header. Received: {path} with {len(header)} columns, and "
      f"{len(rows[wrong])} in row {wrong}. Is a text with tabs or commas not quoted, or the suffix the wrong one?"
    )
  return {name: [row[i] for row in rows[1:]] for i, name in enumerate(header)}


def _read_json_lines(text: str, path: str) -> dict[str, list[Any]]:
  rows = []
  for number, line in enumerate(text.split("\n"), 1):
    if not line.strip():
      continue
    row = parse_json(line, where=f"line {number} of {path}")
    if not isinstance(row, dict):
      raise UserError(f"Every line is a JSON object. Received: line {number} of {path} is none.")
    rows.append(row)
  if not rows:
    raise UserError(f"A table needs rows. Received: {path}, which is empty. Check the file.")
  names = dict.fromkeys(name for row in rows for name in row)
  return {name: [row.get(name) for row in rows] for name in names}


def _read_parquet(content: bytes, path: str) -> dict[str, list[Any]]:
  try:
    import pyarrow
    from pyarrow import parquet
  except ImportError as error:
    raise UserError(
      f'Parquet needs pyarrow. Received: {path} without it. Install ".[data]", or convert the file.'
    ) from error
  try:
    table = parquet.read_table(pyarrow.BufferReader(content))
  except (pyarrow.ArrowInvalid, OSError) as error:
    raise UserError(f"The file must be Parquet. Received: {path} ({error}). Check the file.") from error
  return {name: table.column(name).to_pylist() for name in table.column_names}


class TableTask(TextTask):
  """Classification or regression of a user's own table.

  Args:
    tables: "train", "eval", "test" → file. Without "eval", `eval_fraction` of the training rows are held out.
    columns: which column is what.
    tokenizer: of the weights.
    regression: whether labels are numbers to predict.
    label_names: the classes in order; empty: those of the training data, sorted.
    max_seq_length: S.
    name: of the task, in results and file names.
    eval_fraction: of the training rows, chosen by number, always the same ones.

  Raises:
    UserError: no such file, column or label.
  """

  def __init__(
    self,
    tables: Mapping[str, str],
    *,
    columns: TableColumns,
    tokenizer: AlbertTokenizer | WordPieceTokenizer,
    regression: bool = False,
    label_names: Sequence[str] = (),
    max_seq_length: int = 128,
    name: str = "custom",
    eval_fraction: float = 0.1,
  ):
    splits = {
      split: read_table(path, columns, with_label=None if split == "test" else True)
      for split, path in tables.items()
      if path
    }
    if not splits:
      raise UserError(
        "A table task needs a file. Received: none. Name --train_file, --eval_file or --test_file."
      )
    if "train" in splits and "eval" not in splits:
      splits["train"], splits["eval"] = _hold_out(splits["train"], eval_fraction)
    if not regression and not label_names:
      label_names = _classes(splits.get("train"), columns)
    spec = TaskSpec(
      kind="regression" if regression else "classification",
      name=name,
      label_names=() if regression else tuple(label_names),
      pair=len(columns.texts) > 1,
      max_seq_length=max_seq_length,
    )
    super().__init__(
      spec,
      splits,
      tokenizer=tokenizer,
      metric_names=("pearson", "spearman", "mean_squared_error") if regression else ("accuracy", "macro_f1"),
      data={f"{split}_file": path for split, path in tables.items() if path and split != "test"},
    )


def _classes(train: Texts | None, columns: TableColumns) -> list[str]:
  if train is None:
    raise UserError(
      "The classes come from the training data. Received: no --train_file. Name them with --label_names, or the "
      "fine-tuned run as --init_checkpoint."
    )
  names = sorted(
    set(train.labels or ()), key=lambda label: (len(label), label) if label.isdigit() else (0, label)
  )
  if not 2 <= len(names) <= _MOST_CLASSES:
    raise UserError(
      f"Classification needs 2 to {_MOST_CLASSES} classes. Received: {len(names)} different values in the column "
      f"{columns.label!r} of {train.source}. Is it the right column? Use --regression for numbers."
    )
  return names


def _hold_out(texts: Texts, fraction: float) -> tuple[Texts, Texts]:
  count = round(len(texts) * fraction)
  if not 0 < count < len(texts):
    raise UserError(
      f"Some training rows are held out for evaluation. Received: {len(texts)} rows and --eval_fraction={fraction}. "
      "Name an --eval_file."
    )
  order = np.random.default_rng(0).permutation(len(texts))
  logging.info("%s: %d of %d rows are held out for evaluation", texts.source, count, len(texts))
  return _take(texts, np.sort(order[count:])), _take(texts, np.sort(order[:count]))


def _take(texts: Texts, numbers: np.ndarray) -> Texts:
  def pick(column: Sequence[str] | None) -> list[str] | None:
    return None if column is None else [column[i] for i in numbers]

  return dataclasses.replace(
    texts,
    ids=pick(texts.ids) or [],
    firsts=pick(texts.firsts) or [],
    seconds=pick(texts.seconds),
    labels=pick(texts.labels),
  )
