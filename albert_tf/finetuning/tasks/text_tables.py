"""Examples of texts, and how they are read from a user's table.

It does not import TensorFlow; `text.py` makes the task of these examples.
"""

from collections import Counter
from typing import Any, NamedTuple

from absl import logging

from albert_tf.errors import UserError
from albert_tf.finetuning.data import (
  Table,
  TableColumns,
  cell_text,
  finite_number,
  row_ids,
  warn_of_capitals,
)

# How JSON and Parquet write labels.
_TYPE_NAMES = {bool: "true or false", int: "numbers", float: "numbers"}


class TextExample(NamedTuple):
  """A text or a pair of texts, as in the file."""

  # The stored scores of ensembles have a hash of these fields: renaming one would make them foreign.
  id: str  # Names it in predictions.
  text: str
  pair: str | None = None  # The second text.
  label: str | tuple[str, ...] | None = None  # "multi_label": a tuple of all; None: not known.


def table_examples(
  table: Table, columns: TableColumns, *, labelled: bool, kind: str = "classification"
) -> list[TextExample]:
  """The rows of a table as examples; with `labelled` each needs a label.

  Args:
    table: the rows.
    columns: the names of the columns.
    labelled: whether the rows are to train or to evaluate on.
    kind: "classification", "multi_label" or "regression", which says what a label is.

  Raises:
    UserError: a column or all rows are missing, or a row lacks its text or label, or its label is
      no number.
  """
  needed = list(columns.text_columns)
  if labelled:
    needed.append(columns.label_column)
  table.check_columns(needed, "--text_columns and --label_column")
  has_labels = columns.label_column in table.names

  examples = []
  incomplete = []  # The names of such rows.
  ids = row_ids(table)
  for number, row in enumerate(table.rows):
    where = table.where(number)
    label: Any = None
    # Test data may have labels too: then they are scored.
    if has_labels:
      cell = row.get(columns.label_column)
      label = _labels(cell, where=where) if kind == "multi_label" else _label(cell)
    if labelled and kind == "regression":
      _check_number(label, where=where)
    # Empty cells are empty texts.
    texts = [cell_text(row.get(name)) for name in columns.text_columns]  # One or two.
    if labelled and (label is None or not any(map(str.strip, texts))):
      incomplete.append(where)
      continue
    examples.append(TextExample(ids[number], *texts)._replace(label=label))

  # A row without a label would be a class of its own, and one without a text would teach nothing.
  if incomplete:
    raise UserError(
      "Rows for training and evaluation need a text and a label. Received: none in "
      f"{incomplete[0]}, and {len(incomplete) - 1:,} more such rows. Fix them, or delete them."
    )
  if not labelled and not any(example.label for example in examples):
    # The cells of a table that is to be predicted are empty: this does not mean "no labels".
    return [example._replace(label=None) for example in examples]
  if has_labels and kind != "regression":
    _warn_of_mixed_types(table, columns)
    labels: Counter[str] = Counter()
    for example in examples:
      if isinstance(example.label, str):
        labels[example.label] += 1
      else:
        labels.update(example.label or ())
    warn_of_capitals(labels, source=table.source)
  num_without = sum(example.label == () for example in examples)
  if num_without:
    logging.info(
      "%s: %d of %d rows have none of the labels", table.source, num_without, len(examples)
    )
  return examples


# ------------------------------------------------------------------ labels


def _label(cell: Any) -> str | None:
  """None for an empty cell, and for "nan", as tables of numbers write it."""
  text = cell_text(cell).strip()
  if text.lower() in ("", "nan"):
    return None
  return text


def _labels(cell: Any, *, where: str) -> tuple[str, ...]:
  """The labels in one cell: a list, or names with commas between them."""
  if not isinstance(cell, list):
    text = cell_text(cell)
    # A list in .csv and .tsv is text, such as '["air", "blue"]': '["air"' would be a name.
    if text.lstrip().startswith("["):
      raise UserError(
        "Several labels are names with commas between them, or a list of .jsonl and .parquet. "
        f"Received: {text:.80} in {where}. Write air,blue; or take .jsonl."
      )
    cell = text.split(",")
  labels = [_label(name) for name in cell]
  # Each label once, in the order of the file.
  return tuple(dict.fromkeys(label for label in labels if label))


def _warn_of_mixed_types(table: Table, columns: TableColumns) -> None:
  """Warns of labels of several types in one column."""
  cells: list[Any] = []
  for row in table.rows:
    cell = row.get(columns.label_column)
    cells.extend(cell if isinstance(cell, list) else [cell])
  known = [cell for cell in cells if _label(cell) is not None]
  types = Counter(_TYPE_NAMES.get(type(cell), "texts") for cell in known)
  if len(types) > 1:
    counts = ", ".join(f"{count} {kind}" for kind, count in types.items())
    logging.warning(
      '%s: labels of several types in %s: %s. Each is read as text: 1 and "1" are the class 1, true '
      "is another",
      table.source,
      columns.label_column,
      counts,
    )


def _check_number(label: str | None, *, where: str) -> None:
  """Raises `UserError` if a label is no finite number; a missing one is None."""
  if label is None:
    return
  try:
    finite_number(label)
  except ValueError as error:
    raise UserError(
      f"Labels are finite numbers here. Received: {error} in {where}. Fix it, or name another "
      "column with --label_column."
    ) from error
