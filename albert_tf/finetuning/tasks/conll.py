"""Reads tagged sentences: columns as in the CoNLL tasks, CoNLL-U, JSON lines and Parquet.

It does not import TensorFlow; `tagging.py` makes the task of these sentences.
"""

from collections.abc import Iterator, Sequence
import re
from typing import NamedTuple

from albert_tf.errors import UserError
from albert_tf.finetuning.data import check_no_answer_is_read, read_lines, read_table
from albert_tf.settings import Settings, setting

_DOCUMENT = "-DOCSTART-"
_BLANK_TAG = "_"  # How column files write "not known".
# Comments, multi-word tokens and empty nodes of CoNLL-U.
_CONLLU_SKIPPED = re.compile(r"#|\d+[-.]\d+\t")


class TaggedSentence(NamedTuple):
  """The words of a sentence and their tags.

  Attributes:
    words: at least one word.
    tags: a tag for each word; empty if the file has none.
    where: file and line of the first word, for messages.
  """

  words: tuple[str, ...]
  tags: tuple[str, ...]
  where: str


class Columns(Settings):
  """Columns or keys of words and tags."""

  token_column: int | None = setting(
    None, "Column of words, from 0. Default: 0, in .conllu 1.", minimum=0
  )
  tag_column: int | None = setting(
    None, "Column of tags; -1 is the last. Default: -1, in .conllu 3."
  )
  token_key: str = setting("tokens", ".jsonl, .parquet: key of the words.")
  tag_key: str = setting("tags", ".jsonl, .parquet: key of the tags.")

  def __post_init__(self) -> None:
    super().__post_init__()
    check_no_answer_is_read([self.tag_key], [self.token_key], "--token_key")


def read_tagged(path: str, columns: Columns) -> list[TaggedSentence]:
  """Reads `.jsonl` and `.parquet` as tables of lists, other files as columns.

  Column files have a word in each line, a blank line between sentences, and lines of -DOCSTART-
  between documents. A line with a tab is split at tabs, so words may contain spaces; other lines at
  spaces. In `.conllu`, comments, multi-word tokens and empty nodes are left out. A file has no tags
  if its tag column is missing, contains only "_" or is the column of the words.

  Raises:
    UserError: a key or a column is missing, or only some words have tags.
  """
  if path.endswith((".jsonl", ".json", ".parquet")):  # `read_table` refuses .json.
    sentences = list(_from_table(path, columns))
  else:
    sentences = list(_from_columns(path, columns))
  if all(set(sentence.tags) <= {_BLANK_TAG} for sentence in sentences):
    return [sentence._replace(tags=()) for sentence in sentences]
  # Some tags, but not all: most often the wrong column was named.
  for sentence in sentences:
    if len(sentence.tags) != len(sentence.words):
      raise UserError(
        f"All words of a file must have tags, or none. Received: {len(sentence.words)} words and "
        f"{len(sentence.tags)} tags in the sentence of {sentence.where}. Fix it, or name the tags' column "
        "(--tag_column) or key (--tag_key)."
      )
  return sentences


def _from_table(path: str, columns: Columns) -> Iterator[TaggedSentence]:
  table = read_table(path)
  table.check_columns([columns.token_key], "--token_key")
  for number, row in enumerate(table.rows):
    words = row.get(columns.token_key)
    tags = row.get(columns.tag_key) or ()
    if not isinstance(words, list):
      raise UserError(
        f"A sentence is a list of words. Received: {words!r:.60} in {table.where(number)}."
      )
    if words:
      yield TaggedSentence(tuple(map(str, words)), tuple(map(str, tags)), table.where(number))


def _from_columns(path: str, columns: Columns) -> Iterator[TaggedSentence]:
  # The columns of the format, unless others are named.
  is_conllu = path.endswith(".conllu")
  word_column = 0
  tag_column = -1
  if is_conllu:
    word_column = 1
    tag_column = 3
  if columns.token_column is not None:
    word_column = columns.token_column
  if columns.tag_column is not None:
    tag_column = columns.tag_column

  rows: list[list[str]] = []  # The lines of the sentence so far.
  # A last blank line ends the last sentence.
  lines = read_lines(path) + [""]
  for number, line in enumerate(lines, 1):
    if is_conllu and _CONLLU_SKIPPED.match(line):
      continue
    # A word is collected; a blank line or -DOCSTART- ends the sentence.
    cells = _cells(line)
    is_word = bool(cells) and cells[0] != _DOCUMENT
    if is_word and len(cells) <= word_column:
      raise UserError(
        f"Each line has its word in column {word_column}, counted from 0. Received: {len(cells)} "
        f"columns in line {number} of {path}. Fix it, or name another --token_column."
      )
    if is_word:
      rows.append(cells)
    elif rows:
      words = tuple(row[word_column] for row in rows)
      tags = _tags(rows, word_column, tag_column)
      yield TaggedSentence(words, tags, f"line {number - len(rows)} of {path}")
      rows = []


def _cells(line: str) -> list[str]:
  """The cells of a line; a word may contain a no-break space, so `split()` is not used."""
  line = line.strip(" \t")
  if not line:
    return []
  # With a tab as separator, "New York" is one word.
  if "\t" in line:
    return line.split("\t")
  return re.split(" +", line)


def _tags(rows: Sequence[Sequence[str]], word_column: int, tag_column: int) -> tuple[str, ...]:
  """The tags of the rows that have one: the last column of a row of one cell is its word."""
  tags = []
  for cells in rows:
    has_column = -len(cells) <= tag_column < len(cells)
    if has_column and tag_column % len(cells) != word_column:
      tags.append(cells[tag_column])
  return tuple(tags)
