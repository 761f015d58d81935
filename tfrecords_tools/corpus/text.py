"""Plain text: one sentence a line, or paragraphs in several layouts."""

import collections
from collections.abc import Callable, Iterable, Iterator
import csv
import functools
import itertools
import re
from typing import NamedTuple

from tfrecords_tools.corpus.bytestreams import read_text_lines
from tfrecords_tools.corpus.options import CorpusFile, Part
from tfrecords_tools.corpus.sentences import split_sentences

_CHAPTER = re.compile(
  r"^\s*(CHAPTER|Chapter|BOOK|Book|PART|Part|VOLUME|Volume)\s+"
  r"([IVXLCDM]+|\d+|[Oo]ne|ONE|[Tt]wo|TWO|[Tt]hree|THREE|THE \w+)\b"
  r"(\s*$|\s*[.:–—-].{0,60}$|\s+\S.{0,40}[^.,;]$)"
)
_BLANK_LINES_OF_A_CHAPTER = 3  # As many or more end a document.
_WIKITEXT_HEADING = re.compile(r"^\s*(=( =)*) (.*\S) \1\s*$")
_WIKITEXT_JOINERS = re.compile(r" @([-.,])@ ")  # "34 @.@ 76" is how that corpus writes "34.76".
_WIKITEXT_TITLE = re.compile(r"^ ?= [^=].* = ?$", re.MULTILINE)
_SAMPLED_LINES = 400
_SEVERAL = 0.3  # Share of lines with several sentences above which lines are paragraphs,
_SEVERAL_SPACED = 0.2  # and where blank lines stand around each; one sentence a line stays below.
_SENTENCE_ENDS = tuple(".!?\"'”’")
_LARGE_GAP = re.compile(r"\n\s*\n\s*\n\s*\n|\f")
# A name in the first line of a table; pandas leaves one empty.
_COLUMN = re.compile(r'"?([^\W\d][\w ./()-]*(?<!\.))?"?')
_TABLE_ROWS = 0.9  # So many of a table's rows have as many cells as the first.
_PARAGRAPH_CHARS = 1 << 16  # A wrapped paragraph that never ends is split into sentences in parts.


def read_sentence_lines(file: CorpusFile) -> Iterator[Part]:
  """`lines`: one sentence a line, a blank line (or the end of the file) ends a document."""
  for line in read_text_lines(file, limit=file.options.max_line_bytes):
    text = line.strip()
    if not text:
      yield None
    # So long a line cannot be one sentence.
    elif len(text) > file.options.max_sentence_chars:
      file.stats.long_lines += 1
      yield file.sentences(text)
    else:
      yield [text]


class _Paragraph(NamedTuple):
  """A paragraph, or another line of a text that has no sentences of its own.

  Attributes:
    text: one line; may be empty.
    ends_document: a document ends before this paragraph.
    is_heading: the text is one sentence, whatever its punctuation.
  """

  text: str
  ends_document: bool = False
  is_heading: bool = False


def read_paragraphs(file: CorpusFile) -> Iterator[Part]:
  """`paragraphs`: running text; `_layout` says what lines and blank lines mean."""
  find_paragraphs = _layout(file.head)
  lines = read_text_lines(file, limit=file.options.max_line_bytes)
  for paragraph in find_paragraphs(lines):
    if paragraph.ends_document:
      yield None
    if paragraph.is_heading:
      yield [paragraph.text]
    else:
      yield file.sentences(paragraph.text)


def _layout(head: bytes) -> Callable[[Iterable[str]], Iterator[_Paragraph]]:
  """What finds the paragraphs in the lines of a file with these first bytes."""
  text = head.decode("utf-8-sig", errors="replace")
  if _WIKITEXT_TITLE.search(text):
    return _wikitext_paragraphs
  lines = text.split("\n")
  if _is_wrapped(lines):
    return _wrapped_paragraphs
  if _is_spaced(lines):
    return _spaced_paragraphs
  # Dense: every line is a paragraph, and a blank line ends a document.
  return functools.partial(_spaced_paragraphs, blank_lines=1)


def _wikitext_paragraphs(lines: Iterable[str]) -> Iterator[_Paragraph]:
  """WikiText: " = Title = " begins a document, " = = Section = = " is left out.

  All other lines are paragraphs.
  """
  for line in lines:
    heading = _WIKITEXT_HEADING.match(line)
    if heading is None:
      yield _Paragraph(_WIKITEXT_JOINERS.sub(r"\1", line.strip()))
    elif heading[1] == "=":
      yield _Paragraph("", ends_document=True)


def _wrapped_paragraphs(lines: Iterable[str]) -> Iterator[_Paragraph]:
  """The lines up to a blank one or a heading are a paragraph."""
  # Lines wait until their paragraph ends.
  waiting: list[str] = []
  size = 0
  for line in _spaced_paragraphs(lines):
    is_text = bool(line.text) and not line.is_heading
    if is_text:
      waiting.append(line.text)
      size += len(line.text)
    if not is_text or size > _PARAGRAPH_CHARS:
      yield _Paragraph(_join_wrapped(waiting))
      waiting = []
      size = 0
    if not is_text:
      yield line
  yield _Paragraph(_join_wrapped(waiting))


def _spaced_paragraphs(
  lines: Iterable[str], *, blank_lines: int = _BLANK_LINES_OF_A_CHAPTER
) -> Iterator[_Paragraph]:
  """Every line is a paragraph, with blank lines around it.

  So many blank lines, a form feed or the heading of a chapter end a document.
  """
  blank = 0
  for line in lines:
    text = line.strip()
    has_form_feed = "\f" in line
    if text:
      blank = 0
      is_heading = has_form_feed or _CHAPTER.match(text) is not None
      yield _Paragraph(text, ends_document=is_heading, is_heading=is_heading)
    else:
      blank += 1
      yield _Paragraph("", ends_document=has_form_feed or blank == blank_lines)


def _join_wrapped(lines: list[str]) -> str:
  """Joins lines by spaces, but not after the hyphen of a compound that was broken there.

  Example:
    >>> _join_wrapped(["a well-", "known man -", "and woman"])
    'a well-known man - and woman'
  """
  text = ""
  for line in lines:
    is_broken_compound = text[-1:] == "-" and text[-2:-1].isalpha() and line[:1].islower()
    if text and not is_broken_compound:
      text += " "
    text += line
  return text


def plain_format(text: str) -> str | None:
  """The format of plain text, `lines` or `paragraphs`; None if both are possible.

  Lines that hold several sentences, or sentences that go on over lines, are paragraphs. Single
  sentences with blank lines between them are paragraphs of one document where something else ends
  documents: a heading or a larger gap. Without that, each may be a document.
  """
  # The beginning of a file says enough, and splitting into sentences takes time.
  lines = text.split("\n")[:_SAMPLED_LINES]
  filled = [line for line in lines if line.strip()]
  with_several = [line for line in filled if len(split_sentences(line[:2000])) > 1]
  several = len(with_several) / max(1, len(filled))
  if several > _SEVERAL or _is_wrapped(lines):
    return "paragraphs"
  if not _is_spaced(lines):
    return "lines"

  # The lines are single sentences, with a blank line between them.
  has_headings = any(map(_CHAPTER.match, filled)) or _WIKITEXT_TITLE.search(text)
  if several > _SEVERAL_SPACED or has_headings or _LARGE_GAP.search(text):
    return "paragraphs"
  return None


def is_table(text: str) -> bool:
  """Whether the lines are rows of cells between commas, semicolons or tabs."""
  lines = text.splitlines()
  if not lines:
    return False
  # One kind of mark divides all rows.
  marks = [mark for mark in ",;\t" if _may_name_columns(lines[0], mark)]
  return any(_has_equal_rows(lines, mark) for mark in marks)


def _may_name_columns(line: str, mark: str) -> bool:
  """Whether a first line may be that of a table with `mark` between its cells.

  Prose has a space behind its commas. So the line must name columns or have quoted cells, unless
  tabs divide it.
  """
  if mark == "\t" or f'"{mark}"' in line:
    return True
  return all(map(_COLUMN.fullmatch, line.split(mark)))


def _has_equal_rows(lines: list[str], mark: str) -> bool:
  """Whether nearly all lines have as many cells as the first, more than one.

  The last line may be cut.
  """
  num_complete = max(2, len(lines) - 1)
  rows = list(csv.reader(lines, delimiter=mark))[:num_complete]
  num_cells, num_rows = collections.Counter(map(len, rows)).most_common(1)[0]
  # Prose may have many lines with as many commas; a table has the names of its columns first.
  has_header = num_cells == len(rows[0])
  return has_header and num_cells > 1 and len(rows) > 1 and num_rows >= _TABLE_ROWS * len(rows)


def _is_wrapped(lines: list[str]) -> bool:
  """Whether sentences go on over lines.

  Then many lines in the middle of one begin in lower case, and not all lines do.
  """
  stripped = [line.strip() for line in lines]
  num_pairs = 0
  num_going_on = 0
  for line, following in itertools.pairwise(stripped):
    if line and following:
      num_pairs += 1
      if following[:1].islower() and not line.endswith(_SENTENCE_ENDS):
        num_going_on += 1
  # Text that was lower-cased before has no capitals, and nothing can be said of it.
  num_capitals = sum(line[:1].isupper() for line in stripped)
  return num_going_on > 0.2 * num_pairs and num_capitals > 0.02 * len(stripped)


def _is_spaced(lines: list[str]) -> bool:
  """Whether most lines have a blank one before and after them."""
  # A line is alone if the lines before and after it are blank.
  filled = [bool(line.strip()) for line in lines]
  num_filled = sum(filled)
  num_alone = 0
  padded = [False] + filled + [False]  # The file's ends count as blank lines.
  for start in range(len(lines)):
    num_alone += padded[start : start + 3] == [False, True, False]
  return num_filled > 2 and num_alone > 0.5 * num_filled
