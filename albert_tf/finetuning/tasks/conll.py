"""Reads tagged sentences: columns as in the CoNLL tasks, CoNLL-U, JSON lines and Parquet."""

from collections.abc import Iterator
import re
from typing import NamedTuple

from albert_tf.errors import UserError
from albert_tf.finetuning.data import read_lines, read_table
from albert_tf.settings import Settings, setting

_DOCUMENT = "-DOCSTART-"
_BLANK_TAG = "_"  # How column files write "not known".
_CONLLU_SKIPPED = re.compile(r"#|\d+[-.]\d+\t")  # Comments, multi-word tokens and empty nodes of CoNLL-U.


class TaggedSentence(NamedTuple):
  """The words of a sentence and their tags.

  Attributes:
    words: at least one word.
    tags: a tag for each word; None if the file has none.
    where: file and line of the first word, for messages.
  """

  words: tuple[str, ...]
  tags: tuple[str, ...] | None
  where: str


class Columns(Settings):
  """Columns or keys of words and tags."""

  token_column: int | None = setting(None, "Column of words, from 0. Default: 0, in .conllu 1.", minimum=0)
  tag_column: int | None = setting(None, "Column of tags; -1 is the last. Default: -1, in .conllu 3.")
  token_key: str = setting("tokens", ".jsonl, .parquet: key of the words.")
  tag_key: str = setting("tags", ".jsonl, .parquet: key of the tags.")


def read_tagged(path: str, columns: Columns) -> list[TaggedSentence]:
  """Reads `.jsonl` and `.parquet` as tables of lists, other files as columns.

  Column files have a word in each line, a blank line between sentences, and lines of -DOCSTART- between documents. A
  line with a tab is split at tabs, so words may contain spaces; other lines at spaces. In `.conllu`, comments,
  multi-word tokens and empty nodes are left out. A file has no tags if its tag column is missing, contains only "_"
  or is the column of the words.

  Raises:
    UserError: a key or a column is missing, or only some words have tags.
  """
  is_table = path.endswith((".jsonl", ".json", ".parquet"))  # `read_table` refuses .json.
  sentences = list((_from_table if is_table else _from_columns)(path, columns))
  if all(set(sentence.tags or ()) <= {_BLANK_TAG} for sentence in sentences):
    sentences = [sentence._replace(tags=None) for sentence in sentences]
  elif wrong := [each for each in sentences if len(each.tags or ()) != len(each.words)]:
    raise UserError(
      f"All words of a file must have tags, or none. Received: {len(wrong[0].words)} words and "
      f"{len(wrong[0].tags or ())} tags in the sentence of {wrong[0].where}. Fix it, or name the tags' column "
      "(--tag_column) or key (--tag_key)."
    )
  return sentences


def _from_table(path: str, columns: Columns) -> Iterator[TaggedSentence]:
  table = read_table(path)
  table.check_columns([columns.token_key], "--token_key")
  known = table.columns.get(columns.tag_key, [None] * len(table))
  for number, (words, tags) in enumerate(zip(table.columns[columns.token_key], known, strict=True)):
    if not isinstance(words, list):
      raise UserError(f"A sentence is a list of words. Received: {words!r:.60} in {table.where(number)}.")
    if words:
      tags = tuple(map(str, tags)) if tags else None
      yield TaggedSentence(tuple(map(str, words)), tags, table.where(number))


def _from_columns(path: str, columns: Columns) -> Iterator[TaggedSentence]:
  conllu = path.endswith(".conllu")
  word_at = columns.token_column if columns.token_column is not None else int(conllu)
  tag_at = columns.tag_column if columns.tag_column is not None else (3 if conllu else -1)
  rows: list[list[str]] = []
  for number, line in enumerate([*read_lines(path), ""], 1):
    cells = _cells(line)
    if conllu and _CONLLU_SKIPPED.match(line):
      continue
    if cells and cells[0] != _DOCUMENT:
      if len(cells) <= word_at:
        raise UserError(
          f"Each line has its word in column {word_at}, counted from 0. Received: "
          f"{len(cells)} columns in line {number} of {path}. Fix it, or name another --token_column."
        )
      rows.append(cells)
    elif rows:
      tagged = [row for row in rows if -len(row) <= tag_at < len(row) and tag_at % len(row) != word_at]
      words, tags = tuple(row[word_at] for row in rows), tuple(row[tag_at] for row in tagged)
      yield TaggedSentence(words, tags or None, f"line {number - len(rows)} of {path}")
      rows = []


def _cells(line: str) -> list[str]:
  """The cells of a line; a word may contain a no-break space, so `split()` is not used."""
  line = line.strip(" \t")
  return re.split("\t" if "\t" in line else " +", line) if line else []
