"""A person's own multiple choice questions: which columns of a table are what."""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any

from albert_tf.errors import UserError
from albert_tf.finetuning.data import Table
from albert_tf.finetuning.tasks.choices import LETTERS, ChoiceExample, letter

LABEL_FORMATS = ("auto", "index", "index1", "letter", "text")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceColumns:
  """The columns of a table of questions.

  Attributes:
    question: the question's column.
    choices: a column for each choice, or one column of lists.
    context: the passage's column; empty: there is none.
    label: the right choice's column.
    label_format: how it is written: "index" counts from 0, "index1" from 1, "letter" is A, B, …, "text" the choice
      itself; "auto" takes the one of index, letter and text that fits every row.
    example_id: a column that names a question; empty: the row's number.
  """

  question: str = "question"
  choices: tuple[str, ...] = ("choices",)
  context: str = ""
  label: str = "label"
  label_format: str = "auto"
  example_id: str = ""

  def __post_init__(self) -> None:
    if self.label_format not in LABEL_FORMATS:
      raise UserError(
        f"label_format must be one of {', '.join(LABEL_FORMATS)}. Received: {self.label_format!r}."
      )
    if not self.question or not self.choices:
      raise UserError(
        "A table of questions has a question column and choice columns. Received: "
        f"question={self.question!r}, choices={list(self.choices)}. Name them."
      )
    if len(set(self.choices)) < len(self.choices):
      raise UserError(f"Every choice has a column of its own. Received: {', '.join(self.choices)}.")


def choice_examples(splits: Mapping[str, Table], columns: ChoiceColumns) -> dict[str, list[ChoiceExample]]:
  """The questions of the splits of one data set.

  Args:
    splits: split → its table; of "test" the labels may be missing.
    columns: which column is what.

  Raises:
    UserError: a column is missing, a choice or a label is empty, or a label names none of the choices.
  """
  examples: dict[str, list[ChoiceExample]] = {}
  labels: dict[str, list[str | None]] = {}
  for split, table in splits.items():
    wanted = [columns.context, columns.question, *columns.choices, columns.example_id]
    table.check_columns(
      [name for name in (*wanted, *([columns.label] if split != "test" else [])) if name],
      "--context_column, --question_column, --choice_columns and --label_column",
    )
    examples[split] = [_example(table, number, columns) for number in range(len(table))]
    labels[split] = [
      _text(value, table.where(number))
      for number, value in enumerate(table.columns.get(columns.label, [None] * len(table)))
    ]
  every = [
    (example, label)
    for split in splits
    for example, label in zip(examples[split], labels[split], strict=True)
    if label is not None
  ]
  style = _label_format(every, columns)
  return {
    split: [
      dataclasses.replace(example, label=None if label is None else _index(example, label, style))
      for example, label in zip(examples[split], labels[split], strict=True)
    ]
    for split in splits
  }


def _example(table: Table, number: int, columns: ChoiceColumns) -> ChoiceExample:
  row = {name: values[number] for name, values in table.columns.items()}
  where = table.where(number)
  if len(columns.choices) == 1:
    (name,) = columns.choices
    value = row[name].tolist() if hasattr(row[name], "tolist") else row[name]
    if not isinstance(value, (list, tuple)):
      raise UserError(
        f"A single choice column holds lists of texts. Received: {type(value).__name__} {str(value)[:60]!r} in column "
        f"{name}, {where}. Name a column for each choice, as in --choice_columns=a,b,c,d."
      )
    named = [(f"choice {index + 1}", _text(part, where)) for index, part in enumerate(value)]
  else:
    named = [(name, _text(row[name], where)) for name in columns.choices]
  empty = [name for name, text in named if text is None]
  if empty:
    raise UserError(
      f"Every question has all its choices. Received: {len(named) - len(empty)} of {len(named)} in {where}; empty: "
      f"{', '.join(empty)}. Fill them in, or leave the question out."
    )
  context = _text(row[columns.context], where) if columns.context else None
  question = _text(row[columns.question], where)
  if context is None and question is None:
    raise UserError(f"A row has a question or a context. Received: neither in {where}.")
  return ChoiceExample(
    example_id=(_text(row[columns.example_id], where) if columns.example_id else None) or where,
    context=context or "",
    question=question or "",
    choices=tuple(text for _, text in named if text is not None),
  )


def _text(value: Any, where: str) -> str | None:
  """A cell as text; None where it is empty."""
  if isinstance(value, (list, tuple, dict)):
    raise UserError(
      f"A question, a choice, a context or a label is one text or number. Received: {str(value)[:60]} in {where}."
    )
  if value is None or (isinstance(value, float) and math.isnan(value)):
    return None
  if isinstance(value, float) and value.is_integer():
    value = int(value)  # A column of integers with gaps is read as floats.
  return str(value) if str(value).strip() else None


def _index(example: ChoiceExample, label: str, style: str) -> int | None:
  """Which choice a label names; None if none."""
  label, count = label.strip(), len(example.choices)
  if style == "text":
    choices = [choice.strip() for choice in example.choices]
    return choices.index(label) if choices.count(label) == 1 else None
  if style == "letter":
    index = LETTERS.find(label.upper()) if len(label) == 1 else -1
  else:
    index = int(label) - (style == "index1") if label.isascii() and label.isdigit() else -1
  return index if 0 <= index < count else None


def _label_format(labelled: Sequence[tuple[ChoiceExample, str]], columns: ChoiceColumns) -> str:
  """The way labels are written that fits every row."""
  styles = [columns.label_format] if columns.label_format != "auto" else ["index", "letter", "text"]
  misfits: dict[str, tuple[ChoiceExample, str]] = {}
  fitting = []
  for style in styles:
    wrong = next((pair for pair in labelled if _index(*pair, style) is None), None)
    if wrong is None:
      fitting.append(style)
    else:
      misfits[style] = wrong
  if not fitting:
    # The row that fits no way at all, or else the first that does not fit the way the first row is written in.
    of_first = [style for style in styles if _index(*labelled[0], style) is not None]
    example, label = misfits[(of_first or styles)[0]]
    counted_from_1 = all(_index(*pair, "index1") is not None for pair in labelled)
    last = len(example.choices) - 1
    raise UserError(
      f"A label is an index from 0 to {last}, a letter from A to {letter(last)}, or the text of one choice, written "
      f"the same way in every row. Received: {label!r} in {example.example_id}, label_format={columns.label_format}. "
      + (
        "Give --label_format=index1: they count from 1."
        if counted_from_1
        else "Mend it, or give --label_format."
      )
    )
  for example, label in labelled:
    meanings = {_index(example, label, style) for style in fitting}
    if len(meanings) > 1:
      raise UserError(
        f"A label must have one meaning. Received: {label!r} in {example.example_id}, which may be "
        f"{' or '.join(fitting)}. Give --label_format."
      )
  return fitting[0]
