"""Reads tagged sentences: text with a word and its tag in each line, JSON lines and Parquet.

It does not import TensorFlow; `tagging.py` makes the task of these sentences.
"""

from collections.abc import Iterator
import re
from typing import NamedTuple

from albert_tf.errors import UserError
from albert_tf.finetuning.data import read_lines, read_table

_DOCUMENT = "-DOCSTART-"
_BLANK_TAG = "_"  # How column files write "not known".


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


def read_tagged(path: str) -> list[TaggedSentence]:
  """Reads `.jsonl` and `.parquet` as tables of `tokens` and `tags`, other files as columns.

  Column files have a word in each line, a blank line between sentences, and lines of -DOCSTART-
  between documents. The word is in the first column, its tag in the last. A line with a tab is
  split at tabs, so words may contain spaces; other lines at spaces. A file has no tags if it has
  one column, or only "_" in the last.

  Raises:
    UserError: a sentence is no list of words, only some words have tags, or it is CoNLL-U.
  """
  # Its first column has numbers, and its comments would be words.
  if path.endswith(".conllu"):
    raise UserError(
      f"Each line has a word and its tag, or the file is .jsonl. Received: {path}, CoNLL-U. Take "
      "two of its columns, as docs/finetuning_tasks.md shows."
    )
  if path.endswith((".jsonl", ".json", ".parquet")):  # `read_table` refuses .json.
    sentences = list(_from_table(path))
  else:
    sentences = list(_from_columns(path))
  if all(set(sentence.tags) <= {_BLANK_TAG} for sentence in sentences):
    return [sentence._replace(tags=()) for sentence in sentences]
  # Some tags, but not all: most often the wrong column was named.
  for sentence in sentences:
    if len(sentence.tags) != len(sentence.words):
      raise UserError(
        f"All words of a file must have tags, or none. Received: {len(sentence.words)} words and "
        f"{len(sentence.tags)} tags in the sentence of {sentence.where}. Fix it."
      )
  return sentences


def _from_table(path: str) -> Iterator[TaggedSentence]:
  for row in read_table(path).rows:
    words = row.cells.get("tokens")
    tags = row.cells.get("tags") or ()
    if not isinstance(words, list):
      raise UserError(
        'A row is {"tokens": […], "tags": […]}, with a list of words. '
        f"Received: {row.cells!r:.80} in {row.where}. Fix it, or rename its keys."
      )
    if words:
      yield TaggedSentence(tuple(map(str, words)), tuple(map(str, tags)), row.where)


def _from_columns(path: str) -> Iterator[TaggedSentence]:
  rows: list[list[str]] = []  # The lines of the sentence so far.
  # A last blank line ends the last sentence.
  lines = read_lines(path) + [""]
  for number, line in enumerate(lines, 1):
    # A word is collected; a blank line or -DOCSTART- ends the sentence.
    cells = _cells(line)
    if cells and cells[0] != _DOCUMENT:
      rows.append(cells)
    elif rows:
      words = tuple(row[0] for row in rows)
      # The last column of a row of one cell is its word.
      tags = tuple(row[-1] for row in rows if len(row) > 1)
      yield TaggedSentence(words, tags, f"{path}:{number - len(rows)}")
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
