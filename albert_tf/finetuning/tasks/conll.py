"""Tagged sentences from files: columns as in the CoNLL tasks, CoNLL-U, and JSON lines."""

from collections.abc import Iterator
import dataclasses
import re
from typing import Any

from albert_tf.errors import UserError
from albert_tf.finetuning.data import parse_json, read_lines
from albert_tf.settings import Settings, setting

_DOCUMENT = "-DOCSTART-"
_BLANK_TAG = "_"  # How column files write "not known".
_CONLLU_SKIPPED = re.compile(r"#|\d+[-.]\d+\t")  # Comments, multi-word tokens and empty nodes of CoNLL-U.


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggedSentence:
  """The words of a sentence and their tags.

  Attributes:
    words: at least one.
    tags: one a word; None where the file has none.
    where: file and line of its first word, for messages.
    new_document: whether a document begins with it, so that predictions can say so too.
  """

  words: tuple[str, ...]
  tags: tuple[str, ...] | None
  where: str
  new_document: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns(Settings):
  """Where words and tags are."""

  token_column: int | None = setting(None, help="The words' column, from 0. Default: 0; .conllu: 1.")
  tag_column: int | None = setting(None, help="The tags' column; -1 is the last. Default: -1; .conllu: 3.")
  token_key: str = setting("tokens", help="The words' key in .jsonl.")
  tag_key: str = setting("tags", help="The tags' key in .jsonl.")


def read_tagged(path: str, columns: Columns) -> list[TaggedSentence]:
  """Reads `.jsonl` (or `.json`) as JSON lines, anything else as columns.

  Column files: a word a line, a blank line between sentences, lines of -DOCSTART- between documents. A line that holds
  a tab is split at tabs, so words may hold spaces; any other at spaces. In `.conllu`, comments, multi-word tokens and
  empty nodes are left out. A file whose tag column does not exist, is the words' own or holds only "_" has no tags.

  Raises:
    UserError: no sentence, a column or key that is not there, or words without a tag beside others; with the line.
  """
  read = _from_json if path.endswith((".jsonl", ".json")) else _from_columns
  sentences = list(read(path, read_lines(path), columns))
  if not sentences:
    raise UserError(f"A file of sentences holds at least one. Received: {path}, which has none.")
  if all(set(sentence.tags or ()) <= {_BLANK_TAG} for sentence in sentences):
    return [dataclasses.replace(sentence, tags=None) for sentence in sentences]
  for sentence in sentences:
    if sentence.tags is None or len(sentence.tags) != len(sentence.words) or not all(sentence.tags):
      raise UserError(
        f"Every word of a file has a tag, or none has. Received: {len(sentence.words)} words and "
        f"{sum(map(bool, sentence.tags or ()))} tags in the sentence of {sentence.where}. Fix it, or name the tags' "
        "column (--tag_column) or key (--tag_key)."
      )
  return sentences


def _from_json(path: str, lines: list[str], columns: Columns) -> Iterator[TaggedSentence]:
  for number, line in enumerate(lines, 1):
    if not line.strip():
      continue
    where = f"{path}:{number}"
    row = parse_json(line, where=where)
    words, tags = (
      row.get(key) if isinstance(row, dict) else None for key in (columns.token_key, columns.tag_key)
    )
    if not _are_texts(words) or not (tags is None or _are_texts(tags)):
      raise UserError(
        f"A sentence has lists of texts under {columns.token_key!r} and, where they are known, {columns.tag_key!r}. "
        f"Received: {line[:60]} in {where}. Name the keys with --token_key and --tag_key."
      )
    if words:
      yield TaggedSentence(words=tuple(words), tags=None if tags is None else tuple(tags), where=where)


def _are_texts(value: Any) -> bool:
  return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _from_columns(path: str, lines: list[str], columns: Columns) -> Iterator[TaggedSentence]:
  conllu = path.endswith(".conllu")
  token_column = columns.token_column if columns.token_column is not None else int(conllu)
  tag_column = columns.tag_column if columns.tag_column is not None else (3 if conllu else -1)
  words: list[str] = []
  tags: list[str] = []
  start, new_document = 0, False
  for number, line in enumerate([*lines, ""], 1):
    if conllu and _CONLLU_SKIPPED.match(line):
      continue
    cells = _cells(line)
    if cells and cells[0] != _DOCUMENT:
      start = start or number
      count = len(cells)
      if not -count <= token_column < count:
        raise UserError(
          f"Words are in column {token_column} (counted from 0). Received: {count} columns in {path}:{number}: "
          f"{' '.join(cells)!r}. Set --token_column."
        )
      words.append(cells[token_column])
      if -count <= tag_column < count and tag_column % count != token_column % count:
        tags.append(cells[tag_column])
      continue
    if words:
      yield TaggedSentence(
        words=tuple(words), tags=tuple(tags) or None, where=f"{path}:{start}", new_document=new_document
      )
      words, tags, start, new_document = [], [], 0, False
    new_document = new_document or bool(cells)


def _cells(line: str) -> list[str]:
  """Not `split()`: a word may hold a no-break space."""
  line = line.strip(" \t") if "\t" not in line.strip(" \t") else line.rstrip(" \t")
  return (line.split("\t") if "\t" in line else re.split(" +", line)) if line else []
