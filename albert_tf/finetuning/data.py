"""Files of examples for fine-tuning: lines of text, whole tables, and a part held out to evaluate.

The commands import it for its flags, and readers of tasks for its tables. It does not import
TensorFlow, so that a command with a wrong flag fails at once.
"""

import collections
from collections.abc import Callable, Collection, Mapping, Sequence
import itertools
import re
from typing import Any, NamedTuple, TypeVar

from absl import logging
import numpy as np

from albert_tf import files, tables
from albert_tf.errors import UserError
from albert_tf.settings import Settings, is_finite, setting

_Example = TypeVar("_Example")
_ID_COLUMN = "id"  # The names of a table's rows in predictions.

# ------------------------------------------------------------------ splits


def read_splits(
  paths: Mapping[str, str], read: Callable[[str, str], Sequence[_Example]], *, eval_fraction: float
) -> dict[str, Sequence[_Example]]:
  """Reads the file of each split; without "eval", a part of "train" is held out.

  Args:
    paths: split → file; splits without a file ("") are left out.
    read: returns the examples of `(path, split)`.
    eval_fraction: share of the training examples to hold out.

  Raises:
    UserError: a path is not that of a file.
  """
  splits = {}
  for split, path in paths.items():
    if not path:
      continue
    if not files.exists(path) or files.isdir(path):
      raise UserError(
        f"The {split} data are one file. Received: {path}, which is none. Check the path; patterns "
        "such as *.csv are not expanded."
      )
    splits[split] = read(path, split)
  if "train" in splits and "eval" not in splits:
    train, evaluation = hold_out(splits["train"], eval_fraction, source=paths["train"])
    splits |= {"train": train, "eval": evaluation}
  return splits


def sources_of(paths: Mapping[str, str]) -> dict[str, str]:
  """Split → the file that `read_splits` reads it from; of a part held out that of "train"."""
  named = {split: path for split, path in paths.items() if path}
  return {"eval": named.get("train", "")} | named


def hold_out(
  examples: Sequence[_Example], fraction: float, *, source: str, groups: Sequence[int] | None = None
) -> tuple[list[_Example], list[_Example]]:
  """Splits the examples of a file into training and evaluation examples, always in the same way.

  Groups are taken in a random order until they hold about `fraction` of the examples:

      # Groups of 3, 2, 4 and 1 examples in this order; fraction 0.4 of 10 examples is 4.
      # Taken together they hold 3, 5, 9 examples: 3 and 5 are equally near, and the first wins.

  Args:
    examples: all examples of the file.
    fraction: share to hold out, above 0 and below 1; whole groups come near it.
    source: the file's name in messages.
    groups: the group of each example, which stays together; None: each example is a group.

  Returns:
    The training examples and the evaluation examples, each in the order of the file.

  Raises:
    UserError: there are fewer than two groups.
  """
  if groups is None:
    groups = range(len(examples))
  names, group_numbers, sizes = np.unique(groups, return_inverse=True, return_counts=True)
  if len(names) < 2:
    raise UserError(
      "Without evaluation data, at least two training examples or paragraphs are needed. "
      f"Received: {len(names)} in {source}. Name evaluation data."
    )
  # A fixed seed: every run of a file evaluates on the same examples.
  order = np.random.default_rng(0).permutation(len(names))
  # The last group is never taken: something must be left to train on.
  sizes_taken = np.cumsum(sizes[order])[:-1]
  nearest = int(np.argmin(np.abs(sizes_taken - fraction * len(examples))))
  is_held_out = np.isin(group_numbers, order[: nearest + 1])
  logging.info(
    "%s: %d of %d examples are held out for evaluation", source, is_held_out.sum(), len(examples)
  )
  train = list(itertools.compress(examples, ~is_held_out))
  return train, list(itertools.compress(examples, is_held_out))


# ------------------------------------------------------------------ text


def read_text(path: str) -> str:
  """Reads a UTF-8 file, with or without a byte-order mark."""
  try:
    return files.read_bytes(path).decode("utf-8-sig")
  except UnicodeDecodeError as error:
    raise UserError(
      f"Files of examples are UTF-8 text. Received: {path}, which is not at byte {error.start:,} "
      f"({error.reason})."
    ) from error


def read_lines(path: str) -> list[str]:
  """Reads lines, which only line feeds end: `splitlines` would also split at other characters."""
  lines = [line.removesuffix("\r") for line in read_text(path).split("\n")]
  # Nothing follows the last line end.
  if not lines[-1]:
    lines.pop()
  return lines


# ------------------------------------------------------------------ tables


class TableColumns(Settings):
  """The columns of a user's table of texts."""

  text_columns: tuple[str, ...] = setting(
    ("text",),
    "Column of texts, or two for pairs, by the names of a table's first line. A name with a comma "
    "has quotes of its own: --text_columns='\"Review text, English\"'.",
  )
  label_column: str = setting(
    "label",
    "Column of the labels. A class's number in answers is its place in the sorted labels of training. "
    "A new label may move it: go by names, or fix them by label_names of AlbertClassifier.",
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    names = self.text_columns
    if not 1 <= len(names) <= 2 or not all(names):
      raise UserError(
        f"text_columns names one column, or two with a comma. Received: {','.join(names)!r}. "
        "For example --text_columns=question,answer."
      )
    check_no_answer_is_read([self.label_column], names, "--text_columns")


def check_no_answer_is_read(labels: Sequence[str], texts: Sequence[str], flag: str) -> None:
  """Raises `UserError` if a column of labels is one that the model reads, named by `flag`."""
  read = [name for name in labels if name in texts]
  if read:
    raise UserError(
      "The model must not read the answer. Received: the column of the labels "
      f"{', '.join(read)} in {flag}={','.join(texts)}. Leave it out there."
    )


class Table(NamedTuple):
  """All rows of a file.

  Attributes:
    source: the file's name in messages.
    names: the columns.
    rows: none of them is damaged. A cell of .jsonl may be absent.
  """

  source: str
  names: Sequence[str]
  rows: Sequence[tables.Row]

  def check_columns(self, needed: Sequence[str], flags: str) -> None:
    """Raises `UserError` if a column is missing, or there are no rows; `flags` name the columns."""
    if not self.rows or not set(needed) <= set(self.names):
      raise UserError(
        f"The table needs rows, and the columns {', '.join(needed)}. Received: {self.source} with "
        f"{len(self.rows)} rows; it has {', '.join(self.names) or 'none'}. Name them with {flags}."
      )


def row_ids(table: Table) -> list[str]:
  """The rows' names in predictions: the cells of the column `id` or, without one, numbers from 0."""
  if _ID_COLUMN not in table.names:
    return [str(number) for number in range(len(table.rows))]
  ids = [tables.cell_text(row.cells.get(_ID_COLUMN)) for row in table.rows]
  counts = collections.Counter(ids)
  repeated = [number for number, name in enumerate(ids) if counts[name] > 1]
  if repeated:
    logging.warning(
      "%s: %d of %d rows share their id with another, the first %r in %s",
      table.source,
      len(repeated),
      len(ids),
      ids[repeated[0]],
      table.rows[repeated[0]].where,
    )
  return ids


def known_label(label: str, names: Collection[str]) -> str:
  """A label as the classes have it: "1.0" of a table is the class "1", if there is no class "1.0".

  A column of whole numbers with gaps is written as "1.0" by many programs.
  """
  if label not in names:
    return whole_number(label)
  return label


def whole_number(text: str) -> str:
  """ "1.0" as "1", as `cell_text` of the number; other texts stay."""
  return re.sub(r"^([+-]?\d+)\.0+$", r"\1", text)


def warn_of_capitals(counts: Mapping[str, int], *, source: str) -> None:
  """Warns of labels, given with their counts, that differ in their capitals only."""
  spellings: dict[str, list[str]] = {}
  for name in counts:
    spellings.setdefault(name.lower(), []).append(name)
  for names in spellings.values():
    if len(names) > 1:
      logging.warning(
        "%s: labels that differ in capitals only are classes of their own: %s",
        source,
        ", ".join(f"{name} ({counts[name]})" for name in names),
      )


def finite_number(label: Any) -> float:
  """A label as a number; raises `ValueError` if it is none, or not finite in 32 bits."""
  number = float(label)
  if not is_finite(number):
    raise ValueError(f"{label}, not a finite number of 32 bits,")
  return number


def read_table(path: str) -> Table:
  """Reads all rows of a table, as `albert_tf.tables` reads its format.

  Raises:
    UserError: the file has another format than its suffix, or a row is damaged.
  """
  rows = []
  with tables.open_table(path) as table:
    for row in table.read(None):
      # A row that is left out would change the scores, and nobody would see it.
      if row.error:
        raise UserError(
          f"Every row of a file of examples is read. Received: a damaged row, {row.where}. "
          f"{row.error} Is the suffix the wrong one? Else correct the row, or delete it."
        )
      rows.append(row)
  names = table.names
  if names is None:
    # All keys of JSON lines, in the order in which they first occur.
    names = list(dict.fromkeys(name for row in rows for name in row.cells))
  return Table(source=path, names=names, rows=rows)
