"""Multiple choice questions from files: RACE in both of its layouts, and a person's own tables."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import os
from typing import Any, Literal

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.finetuning.data import Table, cell_text, parse_json, read_lines
from albert_tf.settings import Settings, setting

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LEVELS = ("middle", "high")  # Of RACE.
_RACE_CHOICES = 4
_RACE_LINES = "all.txt"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceExample:
  """One question.

  Attributes:
    example_id: names it in predictions.
    context: the passage; empty where the data has none.
    question: may be empty, or hold "_" where a choice belongs; without any, the choice follows.
    choices: C texts.
    label: index of the right choice; None where it is not known.
    group: a part of the data that gets a score of its own, such as "middle"; may be empty.
  """

  example_id: str
  context: str
  question: str
  choices: tuple[str, ...]
  label: int | None = None
  group: str = ""


def letter(index: int) -> str:
  """Name of a choice: A, B, …; a number beyond Z."""
  return LETTERS[index] if index < len(LETTERS) else str(index)


# ------------------------------------------------------------------ RACE


def read_race(data_dir: str, split: str, *, levels: Sequence[str] = LEVELS) -> list[ChoiceExample]:
  """The questions of one split, each with its level as group.

  The files of `{train,dev,test}/{middle,high}/` hold one JSON object a line: a passage each, as the data set is
  distributed, or all of them, as the original ALBERT's `all.txt`, which then alone counts.

  Args:
    data_dir: the folder `RACE`, or the one that holds it.
    split: train, dev or test.
    levels: middle, high or both.

  Returns:
    The questions in the order of the files' names.

  Raises:
    UserError: no files, or a passage that is not RACE's.

  Reference: Lai et al. 2017, arXiv 1704.04683.
  """
  return [
    example
    for level in levels
    for where, text in _passages(_race_folder(data_dir, split, level))
    for example in _questions(parse_json(text, where=where), where=where, level=level)
  ]


def _race_folder(data_dir: str, split: str, level: str) -> str:
  for root in (os.path.join(data_dir, "RACE"), data_dir):
    if files.exists(os.path.join(root, split, level)):
      return os.path.join(root, split, level)
  raise UserError(
    "RACE lies in {train,dev,test}/{middle,high}/ of --data_dir or of its folder RACE. Received: "
    f"{data_dir} without {split}/{level}. If one level is all there is, give --middle_only or --high_only."
  )


def _passages(folder: str) -> Iterator[tuple[str, str]]:
  """Where it is, and the JSON text of each passage."""
  names = [name for name in files.listdir(folder) if name.endswith(".txt")]
  for name in [_RACE_LINES] if _RACE_LINES in names else names:
    path = os.path.join(folder, name)
    for number, line in enumerate(read_lines(path), 1):
      if line.strip():
        yield f"{path}:{number}", line


def _questions(passage: Any, *, where: str, level: str) -> Iterator[ChoiceExample]:
  try:
    article, questions, options = passage["article"], passage["questions"], passage["options"]
    labels: list[int | None] = [
      list(LETTERS[:_RACE_CHOICES]).index(answer) for answer in passage.get("answers", ())
    ]
    rows = list(zip(questions, options, labels or [None] * len(questions), strict=True))
    name = passage.get("id") or os.path.basename(where)
    if {len(each) for each in options} - {_RACE_CHOICES}:
      raise ValueError(f"not {_RACE_CHOICES} options a question")
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise UserError(
      f"A passage of RACE is a JSON object with article, questions, {_RACE_CHOICES} options each and, where known, "
      f"answers A to D. Received: {where} ({type(error).__name__}: {error}). Other questions: --task_name=custom."
    ) from error
  for number, (question, choices, label) in enumerate(rows):
    yield ChoiceExample(
      example_id=f"{name}:{number}",
      context=article,
      question=question,
      choices=tuple(choices),
      label=label,
      group=level,
    )


# ------------------------------------------------------------------ tables


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceColumns(Settings):
  """The columns of a person's own table of questions."""

  context_column: str = setting("", help="The passage's column, where there is one.")
  question_column: str = setting("question", help="The question's column.")
  choice_columns: tuple[str, ...] = setting(("choices",), help="A column for each choice, or one of lists.")
  label_column: str = setting("label", help="The right choice's column.")
  label_format: Literal["index", "index1", "letter", "text"] = setting(
    "index",
    help="How it is written: a number from 0 (index) or 1 (index1), A, B, … (letter), or the choice itself (text).",
  )
  id_column: str = setting("", help="Names the rows in predictions. Default: file and line.")


def choice_examples(table: Table, columns: ChoiceColumns, *, labelled: bool = True) -> list[ChoiceExample]:
  """The questions of a table.

  Args:
    table: of `read_table`.
    columns: which column is what.
    labelled: whether the labels must be there, as they need not in test data.

  Raises:
    UserError: a column is missing, a choice is empty, or a label names none of the choices.
  """
  wanted = [columns.context_column, columns.question_column, *columns.choice_columns, columns.id_column]
  wanted += [columns.label_column] if labelled else []
  table.check_columns(
    [name for name in wanted if name],
    "--context_column, --question_column, --choice_columns and --label_column",
  )
  return [_example(table, number, columns) for number in range(len(table))]


def _example(table: Table, number: int, columns: ChoiceColumns) -> ChoiceExample:
  where = table.where(number)
  row: Mapping[str, Any] = {name: values[number] for name, values in table.columns.items()}
  cells = [row[name] for name in columns.choice_columns]
  if len(cells) == 1 and isinstance(cells[0], list):
    cells = cells[0]
  choices = [cell_text(cell) for cell in cells]
  if not all(map(str.strip, choices)) or len(choices) < 2:
    raise UserError(
      "Every question has all its choices, two or more, in a column each (--choice_columns=a,b,c,d) or in one of "
      f"lists. Received: {cells!r:.80} in {where}."
    )
  label = cell_text(row.get(columns.label_column)).strip()
  index = None if not label else _index(label, choices, columns.label_format)
  if label and index is None:
    raise UserError(
      f"A label must name one choice, as --label_format={columns.label_format} says. Received: {label!r} for "
      f"{len(choices)} choices in {where}."
    )
  return ChoiceExample(
    example_id=cell_text(row.get(columns.id_column)) or where,
    context=cell_text(row.get(columns.context_column)),
    question=cell_text(row[columns.question_column]),
    choices=tuple(choices),
    label=index,
  )


def _index(label: str, choices: Sequence[str], label_format: str) -> int | None:
  """Which choice a label names; None if none."""
  if label_format == "text":
    texts = [choice.strip() for choice in choices]
    return texts.index(label) if texts.count(label) == 1 else None
  if label_format == "letter":
    index = LETTERS.find(label.upper()) if len(label) == 1 else -1
  else:
    index = int(label) - (label_format == "index1") if label.isdecimal() else -1
  return index if 0 <= index < len(choices) else None
