"""A SavedModel's answers to tables of any length: read, answered and written part after part.

A part is some rows of the input. A killed run continues after the last whole part.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import hashlib
import itertools
import os
import time
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf import files, progress, tables
from albert_tf.errors import UserError
from albert_tf.serving.answer_files import AnsweredRow, AnswerParts, answer_format
from albert_tf.serving.loaded_model import LoadedModel

# A part ends after so many rows, or characters: about a minute of ALBERT base on a small CPU.
_PART_ROWS = 1024
_PART_CHARACTERS = 1 << 20
# Rows × the longest of a batch: about 4,000 tokens of English, 16,000 of Chinese. On two cores the
# sizes tiny and base take the least time for a text near it, and two batches at a time gain nothing.
_BATCH_CHARACTERS = 1 << 14
# A shorter row counts as so long: it has [CLS] and [SEP], too.
_SHORTEST_ROW = 64
_ID = "id"  # The column of the rows' names.
# The inputs of signatures in the order of --text_columns.
_INPUT_ORDERS = (("text", "text_pair"), ("question", "context"), ("context", "question", "choices"))
# Of an encoder: they have numbers for each token, a thousand times as many as its text has letters.
_OF_TOKENS = ("sequence_output", "input_ids", "input_mask")
# The number of a row's values → the outputs that are padding after so many.
_COUNTED = {
  "num_masks": ("words", "probabilities"),
  "num_words": ("words", "tags", "probabilities", "starts", "ends"),
  "num_entities": (
    "entities",
    "entity_types",
    "entity_starts",
    "entity_ends",
    "entity_first_words",
    "entity_end_words",
    "entity_probabilities",
  ),
}
_ANSWERS = ("answers", "probabilities", "scores", "starts", "ends")

# A row's value for each input: a text, or a list of texts.
Texts = Mapping[str, str | list[str]]
# A row's value of each output.
Answer = Mapping[str, Any]


class DamagedRowError(Exception):
  """A row that cannot be answered; the message says why."""


class TableModel:
  """A signature of a SavedModel that answers the rows of tables.

  Args:
    loaded: the SavedModel.
    signature: the name of a signature that takes strings.
    text_columns: the column of each input, in the order of `inputs`; of several choices one for
      each, or one of lists. An empty name stands for empty texts. None at all: the inputs' names.
    outputs: names of the outputs to write; none at all: all that are not of single tokens.

  Attributes:
    inputs: the names of its inputs.
    columns: the columns of a table that it reads.
    outputs: name → `TensorInfo` of each output to write.
  """

  def __init__(
    self,
    loaded: LoadedModel,
    signature: str = "serving_default",
    *,
    text_columns: Sequence[str] = (),
    outputs: Sequence[str] = (),
  ):
    if signature not in loaded.signatures:
      raise UserError(
        f"The model has the signatures {', '.join(loaded.signatures)}. Received: "
        f"--signature={signature}. Choose one of them."
      )
    self._loaded = loaded
    self._signature = signature
    definition = loaded.signatures[signature]
    # An input with a default, such as a threshold, keeps it.
    infos = {
      name: info for name, info in definition.inputs.items() if name not in definition.defaults
    }
    if any(info.dtype != tf.string.as_datatype_enum for info in infos.values()):
      raise UserError(
        f"A table holds texts. Received: --signature={signature}, which takes "
        f"{', '.join(sorted(infos))}. Choose a signature of strings, such as serving_default."
      )
    self.inputs = _in_order(infos)
    # Inputs [B, N], whose rows are lists of texts.
    self._lists = {name for name in infos if len(infos[name].tensor_shape.dim) == 2}
    self._columns = self._match(text_columns or self.inputs)
    self.columns = [name for names in self._columns.values() for name in names if name]

    known = sorted(definition.outputs)
    unknown = sorted(set(outputs).difference(known))
    if unknown:
      raise UserError(
        f"The signature {signature} has the outputs {', '.join(known)}. Received: "
        f"--outputs={','.join(outputs)}. Choose some of them."
      )
    chosen = outputs or [name for name in known if name not in _OF_TOKENS]
    self.outputs = {name: definition.outputs[name] for name in chosen}

  def _match(self, columns: Sequence[str]) -> dict[str, Sequence[str]]:
    """Input → its columns: one or, of an input of lists, several."""
    matched: dict[str, Sequence[str]] = {
      name: [column] for name, column in zip(self.inputs, columns, strict=False)
    }
    last = self.inputs[-1]
    if last in self._lists:
      matched[last] = columns[len(self.inputs) - 1 :]
    if len(columns) != sum(map(len, matched.values())) or len(matched) != len(self.inputs):
      raise UserError(
        f"The signature {self._signature} reads {', '.join(self.inputs)}. Received: "
        f"--text_columns={','.join(columns)}. Name a column for each, in this order."
      )
    return matched

  def identity(self) -> dict[str, Any]:
    """What its answers depend on, as JSON has it."""
    digest = hashlib.sha256()
    # The index has a checksum of each variable.
    for name in ("saved_model.pb", "variables/variables.index"):
      digest.update(files.read_bytes(os.path.join(self._loaded.directory, name)))
    return {
      "saved_model": digest.hexdigest(),
      "signature": self._signature,
      "text_columns": [list(names) for names in self._columns.values()],
      "outputs": list(self.outputs),
    }

  def texts_of(self, cells: Mapping[str, Any]) -> Texts:
    """The inputs for a row's cells; raises `DamagedRowError`."""
    texts: dict[str, str | list[str]] = {}
    for name, columns in self._columns.items():
      if name not in self._lists:
        texts[name] = _text(cells, columns[0])
      elif len(columns) > 1:
        texts[name] = [_text(cells, column) for column in columns]
      else:
        texts[name] = _list_of_texts(cells, columns[0])
    return texts

  def answer(self, rows: Sequence[Texts]) -> list[Answer]:
    """The answers to the rows, in their order."""
    answers: list[Answer] = [{}] * len(rows)
    sizes = [(self._num_choices(row), _size(row)) for row in rows]
    for numbers in _batches(sizes):
      inputs = {name: self._array(name, [rows[number] for number in numbers]) for name in rows[0]}
      outputs = self._loaded.run(self._signature, inputs)
      for number, answer in zip(numbers, self._split(outputs), strict=True):
        answers[number] = answer
    return answers

  def _num_choices(self, row: Texts) -> int:
    """Rows with another number of choices need another batch; words can be padded."""
    return len(row["choices"]) if "choices" in self._lists else 0

  def _array(self, name: str, rows: Sequence[Texts]) -> np.ndarray:
    values = [row[name] for row in rows]
    if name in self._lists:
      width = max(map(len, values))
      values = [[*value, *[""] * (width - len(value))] for value in values]
    return np.vectorize(str.encode, otypes=[object])(np.array(values, object))

  def _split(self, outputs: Mapping[str, np.ndarray]) -> Iterator[Answer]:
    """The answer to each row of a batch, without padding."""
    for name in self.outputs:
      if outputs[name].dtype.kind == "f" and not np.isfinite(outputs[name]).all():
        raise UserError(
          f"Answers are finite numbers. Received: NaN or infinity in {name} of "
          f"{self._loaded.directory}. Its weights are damaged: export it again."
        )
    lengths = _lengths(outputs)
    for row in range(len(outputs[next(iter(self.outputs))])):
      answer = {}
      for name in self.outputs:
        value = outputs[name][row]
        if name in lengths:
          value = value[: lengths[name][row]]
        answer[name] = value
      yield answer


def _in_order(names: Iterable[str]) -> Sequence[str]:
  """The names of inputs, in the order of --text_columns."""
  for order in _INPUT_ORDERS:
    if set(names) <= set(order):
      return [name for name in order if name in names]
  return sorted(names)


def _text(cells: Mapping[str, Any], column: str) -> str:
  """The text of a cell; raises `DamagedRowError`."""
  if not column:
    return ""
  value = cells.get(column)
  if value is None or value != value:  # NaN.
    raise DamagedRowError(f"There is no cell of {column}.")
  if isinstance(value, (list, dict, bytes)):
    raise DamagedRowError(f"The cell of {column} is no text: {value!r:.60}.")
  return tables.cell_text(value)


def _list_of_texts(cells: Mapping[str, Any], column: str) -> list[str]:
  """The texts of a cell; raises `DamagedRowError`."""
  value = cells.get(column)
  if isinstance(value, list) and value and all(isinstance(text, str) and text for text in value):
    return value
  raise DamagedRowError(f"The cell of {column} is no list of texts: {value!r:.60}.")


def _size(row: Texts) -> int:
  """Characters that a row takes in a batch. Each choice has the context and the question again."""
  lists = [value for value in row.values() if isinstance(value, list)]
  size = sum(len(value) for value in row.values() if isinstance(value, str))
  for texts in lists:
    size = size * len(texts) + sum(map(len, texts))
  return max(size, _SHORTEST_ROW)


def _batches(sizes: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
  """Numbers of rows that are answered together: of one group, and of similar sizes.

  Args:
    sizes: the group and the size of each row.
  """
  # The longest first: a batch that is too large for the memory then fails at once.
  left = sorted(range(len(sizes)), key=lambda number: sizes[number], reverse=True)
  while left:
    group, longest = sizes[left[0]]
    count = max(1, _BATCH_CHARACTERS // longest)
    batch = [number for number in left[:count] if sizes[number][0] == group]
    left = left[len(batch) :]
    yield batch


def _lengths(outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Output → the number of values in each row that are no padding."""
  lengths: dict[str, np.ndarray] = {}
  for count, names in _COUNTED.items():
    if count in outputs:
      lengths |= dict.fromkeys(names, outputs[count])
  if "answers" in outputs:
    lengths |= dict.fromkeys(_ANSWERS, np.sum(outputs["ends"] > 0, axis=1))
  if "sequence_output" in outputs:
    lengths |= dict.fromkeys(_OF_TOKENS, np.sum(outputs["input_mask"], axis=1))
  return lengths


# ------------------------------------------------------------------ tables


class Answered(NamedTuple):
  """What `answer_tables` has done.

  Attributes:
    rows: their number in all tables.
    rows_before: those that an earlier, killed run had answered.
    damaged: the number of rows without an answer.
    examples: the first of these, with what is wrong.
    seconds: of this run.
  """

  rows: int
  rows_before: int
  damaged: int
  examples: Sequence[str]
  seconds: float


class _Question(NamedTuple):
  """A row of the input."""

  id: str  # Its cell of the column "id", else its number from 0.
  where: str
  texts: Texts
  error: str  # Why it cannot be answered, "" if it can.
  position: int  # Bytes of all tables up to its end.


def answer_tables(model: TableModel, paths: Sequence[str], output: str) -> Answered:
  """Answers all rows of tables, in their order.

  Args:
    model: answers.
    paths: .csv, .tsv, .jsonl or .parquet.
    output: .jsonl, .parquet or, for one output of numbers, .npy; a new file.

  Raises:
    UserError: the output is there, a table lacks a column or all texts, or an unfinished output is
      of other tables or of another model.
  """
  begin = time.monotonic()
  answer_file = answer_format(output, model.outputs)
  for path in paths:
    _check_columns(path, model)
  identity = model.identity() | {"input": {path: files.size_and_time(path) for path in paths}}
  with AnswerParts(output, identity) as parts:
    rows_before = parts.rows
    questions = _questions(model, paths)
    position = 0
    for question in itertools.islice(questions, rows_before):
      position = question.position
    # What is left, so that the time left is that of the rows to answer.
    num_bytes = sum(map(files.size, paths)) - position
    with progress.bar(num_bytes, desc="answering", unit="B") as bar:
      for part in _parts(questions):
        rows = _answered(model, part)
        if not parts.rows and all(row.error for row in rows):
          raise UserError(
            f"A table has texts to answer. Received: none in the first {len(rows)} rows. "
            f"{part[0].where}: {part[0].error} Correct --input or --text_columns."
          )
        damaged = [f"{asked.where}: {asked.error}" for asked in part if asked.error]
        parts.add(answer_file.encode(rows), num_rows=len(rows), damaged=damaged)
        bar.update(part[-1].position - position)
        position = part[-1].position
    parts.finish(answer_file.join)
  seconds = time.monotonic() - begin
  return Answered(parts.rows, rows_before, parts.damaged, parts.examples, seconds)


def _check_columns(path: str, model: TableModel) -> None:
  with tables.open_table(path) as table:
    missing = [] if table.names is None else sorted(set(model.columns).difference(table.names))
    if missing:
      raise UserError(
        f"A table needs a column for each of {', '.join(model.inputs)}. Received: {path}, without "
        f"{', '.join(missing)}; it has {', '.join(table.names or ())}. Name the columns in this "
        "order with --text_columns."
      )


def _questions(model: TableModel, paths: Sequence[str]) -> Iterator[_Question]:
  """All rows of all tables."""
  number = 0
  bytes_before = 0
  for path in paths:
    with tables.open_table(path) as table:
      for row in table.read([*model.columns, _ID]):
        texts: Texts = {}
        error = row.error
        if not error:
          try:
            texts = model.texts_of(row.cells)
          except DamagedRowError as damage:
            error = str(damage)
        name = row.cells.get(_ID)
        yield _Question(
          id=str(number) if name is None else tables.cell_text(name),
          where=row.where,
          texts=texts,
          error=error,
          position=bytes_before + row.position,
        )
        number += 1
    bytes_before += files.size(path)


def _parts(questions: Iterable[_Question]) -> Iterator[list[_Question]]:
  """The rows of each part. Where it ends depends on its rows alone, so a killed run cuts the same."""
  part: list[_Question] = []
  characters = 0
  for question in questions:
    part.append(question)
    characters += _size(question.texts)
    if len(part) == _PART_ROWS or characters >= _PART_CHARACTERS:
      yield part
      part = []
      characters = 0
  if part:
    yield part


def _answered(model: TableModel, part: Sequence[_Question]) -> list[AnsweredRow]:
  """The rows of a part with their answers."""
  answers = iter(model.answer([question.texts for question in part if not question.error]))
  return [
    AnsweredRow(question.id, None if question.error else next(answers), question.error)
    for question in part
  ]
