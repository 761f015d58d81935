"""Reads multiple choice questions: RACE in both of its layouts, and tables.

It does not import TensorFlow; `multiple_choice.py` makes the task of these questions.
"""

import os
import string
from typing import NamedTuple

from albert_tf import files, json_files
from albert_tf.errors import UserError
from albert_tf.finetuning.data import (
  Table,
  check_no_answer_is_read,
  known_label,
  read_lines,
  row_ids,
)
from albert_tf.settings import Settings, setting
from albert_tf.tables import Row, cell_text

_LEVELS = ("middle", "high")  # RACE's school levels.
_RACE_LINES = "all.txt"


class ChoiceExample(NamedTuple):
  """One question. A choice replaces "_" in it, or follows it."""

  id: str  # Names it in predictions.
  context: str  # The passage; empty where the data has none.
  question: str
  choices: tuple[str, ...]
  label: str | None = None  # The right choice, as it is written in the data, such as "A".
  group: str = ""  # A part of the data that gets a score of its own, such as "middle".


# ------------------------------------------------------------------ RACE


def read_race(data_dir: str, split: str) -> list[ChoiceExample]:
  """Reads the questions of one split in the order of the files' names, each with its level as group.

  The files of `{train,dev,test}/{middle,high}/` have a JSON object in each line, which is a
  passage. The data set has one file for each passage. The original ALBERT has one file `all.txt`;
  if it is there, only it is read. A level may be missing.

  Args:
    data_dir: the folder `RACE`, or the folder that contains it.
    split: train, dev or test.

  Raises:
    UserError: there are no files, or a passage does not have RACE's format.

  Reference: Lai et al. 2017, arXiv 1704.04683.
  """
  examples = []
  for level, folder in _level_folders(data_dir, split).items():
    names = [name for name in files.listdir(folder) if name.endswith(".txt")]
    # all.txt was made from the other files: both together would be every question twice.
    if _RACE_LINES in names:
      names = [_RACE_LINES]
    for name in names:
      path = os.path.join(folder, name)
      for number, line in enumerate(read_lines(path), 1):
        if line.strip():
          examples.extend(_questions(line, where=f"{path}:{number}", level=level))
  return examples


def _level_folders(data_dir: str, split: str) -> dict[str, str]:
  """The school levels of a split, and their folders."""
  for root in (os.path.join(data_dir, "RACE"), data_dir):
    folders = {level: os.path.join(root, split, level) for level in _LEVELS}
    found = {level: folder for level, folder in folders.items() if files.exists(folder)}
    if found:
      return found
  raise UserError(
    "RACE must be in {train,dev,test}/{middle,high}/ of --data_dir or of its folder RACE. Received: "
    f"--data_dir={data_dir} without {split}/middle and {split}/high. Name another folder."
  )


def _questions(line: str, *, where: str, level: str) -> list[ChoiceExample]:
  """The questions of a passage, such as `high7.txt:0`, `high7.txt:1`."""
  passage = json_files.parse(line, where)
  examples = []
  try:
    name = passage.get("id") or os.path.basename(where)
    questions = passage["questions"]
    labels = passage.get("answers") or [None] * len(questions)
    rows = zip(questions, passage["options"], labels, strict=True)
    for number, (question, choices, label) in enumerate(rows):
      example_id = f"{name}:{number}"
      examples.append(
        ChoiceExample(example_id, passage["article"], question, tuple(choices), label, level)
      )
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise UserError(
      "A passage of RACE is a JSON object with article, questions, options and, where known, "
      f"answers. Received: {where} ({type(error).__name__}: {error}). Other questions: "
      "--task_name=custom."
    ) from error
  return examples


# ------------------------------------------------------------------ tables


class ChoiceColumns(Settings):
  """The columns of a user's table of questions."""

  context_column: str = setting("", "Column of the passages, if there are any.")
  question_column: str = setting("question", "Column of the questions.")
  choice_columns: tuple[str, ...] = setting(
    ("choices",), "One column for each choice, or one of lists."
  )
  label_column: str = setting("label", "Column of the right choices.")
  choice_names: tuple[str, ...] = setting(
    tuple(string.ascii_uppercase), "Labels of the choices in order, such as 0,1,2,3."
  )

  def __post_init__(self) -> None:
    super().__post_init__()
    texts = (self.context_column, self.question_column)
    check_no_answer_is_read([self.label_column], texts, "--context_column and --question_column")
    check_no_answer_is_read([self.label_column], self.choice_columns, "--choice_columns")


def choice_examples(
  table: Table, columns: ChoiceColumns, *, labelled: bool = True
) -> list[ChoiceExample]:
  """The questions of a table; with `labelled` each needs a label.

  Raises:
    UserError: a column is missing, or a choice is empty.
  """
  # A column that is not named is "".
  needed = [columns.context_column, columns.question_column]
  needed.extend(columns.choice_columns)
  if labelled:
    needed.append(columns.label_column)
  table.check_columns(
    list(filter(None, needed)),
    "--context_column, --question_column, --choice_columns and --label_column",
  )
  examples = []
  for row, example_id in zip(table.rows, row_ids(table), strict=True):
    example = _example(row, columns)
    examples.append(example._replace(id=example_id))
  return examples


def _example(row: Row, columns: ChoiceColumns) -> ChoiceExample:
  """One row as a question, without its id."""
  cells = [row.cells.get(name) for name in columns.choice_columns]
  # A single column may hold a list of the choices.
  if isinstance(cells[0], list):
    cells = cells[0]
  choices = tuple(map(cell_text, cells))
  if len(choices) < 2 or not all(map(str.strip, choices)):
    raise UserError(
      "Every question has all its choices, two or more, in a column each (--choice_columns=a,b,c,d) "
      f"or in one of lists. Received: {cells!r:.80} in {row.where}."
    )
  # Columns that are not named, "", are not in the table.
  label = cell_text(row.cells.get(columns.label_column)).strip()
  return ChoiceExample(
    id="",
    context=cell_text(row.cells.get(columns.context_column)),
    question=cell_text(row.cells.get(columns.question_column)),
    choices=choices,
    label=known_label(label, columns.choice_names) or None,
  )
