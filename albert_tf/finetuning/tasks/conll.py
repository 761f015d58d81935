"""Tagged sentences from files: columns as in the CoNLL tasks, CoNLL-U, and JSON lines; and what their tags mean."""

from collections.abc import Iterable, Iterator, Mapping
import dataclasses
import re
from typing import Any

from albert_tf.errors import UserError
from albert_tf.finetuning.data import parse_json, read_lines

OUTSIDE = "O"
_ENTITY_TAG = re.compile(r"[BIESLU]-.+")
_BILOU = {"L": "E", "U": "S"}  # Other letters for the same scheme; seqeval knows E and S.
_DOCUMENT = "-DOCSTART-"
_BLANK_TAG = "_"  # How column files write "not known".
_CONLLU_SKIPPED = re.compile(r"\d+[-.]\d+$")  # Multi-word tokens and empty nodes of CoNLL-U.


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
class Columns:
  """Where words and tags are: columns from 0, negative from the end, or keys of a JSON object.

  Attributes:
    token_column, tag_column: of column files; None: 0 and the last, or FORM and UPOS for `.conllu`.
    token_key, tag_key: of JSON lines.
  """

  token_column: int | None = None
  tag_column: int | None = None
  token_key: str = "tokens"
  tag_key: str = "tags"


def read_tagged(path: str, columns: Columns) -> list[TaggedSentence]:
  """Reads `.jsonl` (or `.json`) as JSON lines, anything else as columns.

  Column files: a word a line, a blank line between sentences, lines of -DOCSTART- between documents. A line that holds
  a tab is split at tabs, so words may hold spaces; any other at spaces. In `.conllu`, comments, multi-word tokens and
  empty nodes are left out. A file whose tag column does not exist, is the words' own or holds only "_" has no tags.

  Raises:
    UserError: no sentence, no UTF-8, a column or key that is not there, or tags that are not as many as words;
      with the line.
  """
  lines = read_lines(path)
  if path.endswith((".jsonl", ".json")):
    sentences = list(_from_json(path, lines, columns))
  else:
    sentences = list(_from_columns(path, lines, columns))
  if not sentences:
    raise UserError(f"A file of sentences holds at least one. Received: {path}, which has none.")
  return _without_blank_tags(sentences)


def _from_json(path: str, lines: list[str], columns: Columns) -> Iterator[TaggedSentence]:
  for number, line in enumerate(lines, 1):
    if not line.strip():
      continue
    where = f"{path}:{number}"
    row = parse_json(line, where=where)
    if not isinstance(row, dict) or columns.token_key not in row:
      received = (
        f"the keys {', '.join(map(repr, row)) or 'none'}" if isinstance(row, dict) else type(row).__name__
      )
      raise UserError(
        f"A sentence has the key {columns.token_key!r}. Received: {received} in {where}. "
        "Name the keys with --token_key and --tag_key."
      )
    words = _texts(row, columns.token_key, where)
    tags = _texts(row, columns.tag_key, where) if row.get(columns.tag_key) is not None else None
    if tags is not None and len(tags) != len(words):
      raise UserError(
        f"A sentence has as many tags as words. Received: {len(words)} words and {len(tags)} tags in {where}."
      )
    if tags is not None and not all(tags):
      raise UserError(f"Every word has a tag. Received: an empty one in {where}.")
    if words:
      yield TaggedSentence(words=words, tags=tags, where=where)


def _texts(row: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
  value = row[key]
  if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
    raise UserError(
      f"{key!r} is a list of texts; tags have names, not numbers. Received: {type(value).__name__} "
      f"{str(value)[:60]!r} in {where}."
    )
  return tuple(value)


def _from_columns(path: str, lines: list[str], columns: Columns) -> Iterator[TaggedSentence]:
  conllu = path.endswith(".conllu")
  token_column = columns.token_column if columns.token_column is not None else int(conllu)
  tag_column = columns.tag_column if columns.tag_column is not None else (3 if conllu else -1)
  words: list[str] = []
  tags: list[str | None] = []
  start, new_document = 0, False
  for number, line in enumerate([*lines, ""], 1):
    cells = _cells(line)
    if conllu and (line.startswith("#") or _CONLLU_SKIPPED.match(cells[0] if cells else "")):
      continue
    if cells and cells[0] != _DOCUMENT:
      where = f"{path}:{number}"
      start = start or number
      words.append(_cell(cells, token_column, where))
      tags.append(_tag(cells, token_column, tag_column))
      if (tags[-1] is None) != (tags[0] is None):
        raise _missing_tag(f"{path}:{number if tags[-1] is None else start}", tag_column)
      continue
    if words:
      known = tuple(tag for tag in tags if tag is not None)
      yield TaggedSentence(
        words=tuple(words), tags=known or None, where=f"{path}:{start}", new_document=new_document
      )
      words, tags, start, new_document = [], [], 0, False
    new_document = new_document or bool(cells)


def _cells(line: str) -> list[str]:
  """Not `split()`: a word may hold a no-break space."""
  line = line.strip(" \t") if "\t" not in line.strip(" \t") else line.rstrip(" \t")
  return (line.split("\t") if "\t" in line else re.split(" +", line)) if line else []


def _cell(cells: list[str], column: int, where: str) -> str:
  if not -len(cells) <= column < len(cells):
    raise UserError(
      f"Words are in column {column} (counted from 0). Received: {len(cells)} columns in {where}: "
      f"{' '.join(cells)!r}. Set --token_column."
    )
  return cells[column]


def _tag(cells: list[str], token_column: int, tag_column: int) -> str | None:
  if not -len(cells) <= tag_column < len(cells):
    return None
  is_word = tag_column % len(cells) == token_column % len(cells)
  return None if is_word else cells[tag_column]


def _missing_tag(where: str, tag_column: int) -> UserError:
  return UserError(
    f"Every word has a tag in column {tag_column}, or none has. Received: none in {where}. "
    "Mend the line, or set --tag_column."
  )


def _without_blank_tags(sentences: list[TaggedSentence]) -> list[TaggedSentence]:
  """A file with tags in some sentences only is refused; one with nothing but "_" has none."""
  if all(set(sentence.tags or ()) <= {_BLANK_TAG} for sentence in sentences):
    return [dataclasses.replace(sentence, tags=None) for sentence in sentences]
  for sentence in sentences:
    if sentence.tags is None:
      raise UserError(
        f"Every sentence of a file has tags, or none has. Received: none in {sentence.where}, and some elsewhere."
      )
  return sentences


def marks_entities(tags: Iterable[str]) -> bool:
  """Whether tags are "O" and B-X, I-X (and E-, S- or L-, U-): then entities are scored, not words alone."""
  tags = set(tags) - {OUTSIDE}
  return bool(tags) and all(_ENTITY_TAG.fullmatch(tag) for tag in tags)


def entity_kinds(tags: Iterable[str]) -> list[str]:
  """The types of entities that tags such as B-PER mark."""
  return sorted({tag[2:] for tag in tags if tag != OUTSIDE})


def iobes(tag: str) -> str:
  """A tag of BILOU in the letters of IOBES."""
  return _BILOU.get(tag[0], tag[0]) + tag[1:] if tag[1:2] == "-" else tag
