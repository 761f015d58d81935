"""Plain text: one sentence a line, or paragraphs in several layouts."""

import collections
from collections.abc import Iterable, Iterator
import csv
import itertools
import re

from tfrecords_tools.corpus.bytestreams import read_text_lines
from tfrecords_tools.corpus.options import CorpusOptions, CorpusStats
from tfrecords_tools.corpus.sentences import DocumentBuilder, split_sentences

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
_LARGE_GAP = re.compile(r"\n\s*\n\s*\n\s*\n|\f")
# A name in the first line of a table; pandas leaves one empty.
_COLUMN = re.compile(r'"?([^\W\d][\w ./()-]*(?<!\.))?"?')
_TABLE_ROWS = 0.9  # So many of a table's rows have as many cells as the first.
_PARAGRAPH_CHARS = 1 << 16  # A wrapped paragraph that never ends is split into sentences in parts.


def read_sentence_lines(
  chunks: Iterable[bytes], head: bytes, path: str, *, options: CorpusOptions, stats: CorpusStats
) -> Iterator[list[str]]:
  """`lines`: one sentence a line, a blank line (or the end of the file) ends a document."""
  builder = DocumentBuilder(options, stats)
  for line in read_text_lines(chunks, stats=stats, limit=options.max_line_bytes):
    text = line.strip()
    if not text:
      yield from builder.end()
    elif len(text) > options.max_sentence_chars:
      stats.long_lines += 1
      yield from builder.add(split_sentences(text, language=options.language))
    else:
      yield from builder.add((text,))
  yield from builder.end()


def read_paragraphs(
  chunks: Iterable[bytes], head: bytes, path: str, *, options: CorpusOptions, stats: CorpusStats
) -> Iterator[list[str]]:
  """`paragraphs`: running text; `paragraph_layout` says what lines and blank lines mean.

  Three blank lines, a form feed or a chapter's heading begin a document too, in every layout but `wikitext`.
  """
  layout = paragraph_layout(head)
  builder = DocumentBuilder(options, stats)
  pending: list[str] = []  # Lines of a wrapped paragraph.
  pending_size = blank = 0

  def flush() -> list[str]:
    nonlocal pending_size
    sentences = split_sentences(_join_wrapped(pending), language=options.language)
    pending.clear()
    pending_size = 0
    return sentences

  for line in read_text_lines(chunks, stats=stats, limit=options.max_line_bytes):
    text = line.strip()
    if not text:
      blank += 1
      yield from builder.add(flush())
      ends = "\f" in line or blank == _BLANK_LINES_OF_A_CHAPTER or (layout == "dense" and blank == 1)
      if ends and layout != "wikitext":
        yield from builder.end()
      continue
    blank = 0
    heading = _WIKITEXT_HEADING.match(line) if layout == "wikitext" else None
    if heading:
      if heading[1] == "=":
        yield from builder.end()
      continue
    if "\f" in line or (layout != "wikitext" and _CHAPTER.match(text)):
      yield from builder.add(flush())
      yield from builder.end()
      yield from builder.add((text,))
      continue
    if layout == "wikitext":
      text = _WIKITEXT_JOINERS.sub(r"\1", text)
    pending.append(text)
    pending_size += len(text)
    if layout != "wrapped" or pending_size > _PARAGRAPH_CHARS:
      yield from builder.add(flush())
  yield from builder.add(flush())
  yield from builder.end()


def _join_wrapped(lines: list[str]) -> str:
  """Joins lines by spaces, but not after the hyphen of a compound that was broken there."""
  text = ""
  for line in lines:
    hyphen = text[-1:] == "-" and text[-2:-1].isalpha() and line[:1].islower()
    text += line if hyphen or not text else " " + line
  return text


def plain_format(text: str) -> str | None:
  """The format of plain text, `lines` or `paragraphs`; None if both are possible and give different documents.

  Lines that hold several sentences, or sentences that go on over lines, are paragraphs. Single sentences with blank
  lines between them are paragraphs of one document where something else ends documents: a heading or a larger gap.
  Without that, each may be a document.
  """
  lines = text.split("\n")[:_SAMPLED_LINES]
  filled = [line for line in lines if line.strip()]
  several = sum(len(split_sentences(line[:2000])) > 1 for line in filled) / max(1, len(filled))
  if several > _SEVERAL or _is_wrapped(lines):
    return "paragraphs"
  if not _is_spaced(lines):
    return "lines"
  marked = any(map(_CHAPTER.match, filled)) or _WIKITEXT_TITLE.search(text) or _LARGE_GAP.search(text)
  return "paragraphs" if several > _SEVERAL_SPACED or marked else None


def is_table(text: str) -> bool:
  """Whether the lines are rows of cells between commas, semicolons or tabs.

  Prose has a space behind its commas, and not the same number in each line. So the first line must name columns or
  have quoted cells, unless tabs divide them.
  """
  lines = text.splitlines() or [""]
  for mark in ",;\t":
    if mark == "\t" or f'"{mark}"' in lines[0] or all(map(_COLUMN.fullmatch, lines[0].split(mark))):
      rows = list(csv.reader(lines, delimiter=mark))[: max(2, len(lines) - 1)]  # The last may be cut.
      size, count = collections.Counter(map(len, rows)).most_common(1)[0]
      if len(rows) > 1 and size == len(rows[0]) > 1 and count >= _TABLE_ROWS * len(rows):
        return True
  return False


def _is_wrapped(lines: list[str]) -> bool:
  """Whether sentences go on over lines: many lines in the middle of one begin in lower case, and not all do."""
  lines = [line.strip() for line in lines]
  pairs = [(a, b) for a, b in itertools.pairwise(lines) if a and b]
  going_on = sum(after[0].islower() and before[-1] not in ".!?\"'”’" for before, after in pairs)
  capitals = sum(line[:1].isupper() for line in lines)  # None in text that was lower-cased before.
  return going_on > 0.2 * len(pairs) and capitals > 0.02 * len(lines)


def paragraph_layout(head: bytes) -> str:
  """The layout of a file of `paragraphs`, from its first bytes.

  Returns:
    `wikitext`: lines " = Title = " begin documents; every other line is a paragraph.
    `wrapped`: a paragraph goes over several lines.
    `spaced`: a paragraph is one line, with a blank line after each.
    `dense`: a paragraph is one line; a blank line ends a document.
  """
  text = head.decode("utf-8-sig", errors="replace")
  if _WIKITEXT_TITLE.search(text):
    return "wikitext"
  lines = text.split("\n")
  if _is_wrapped(lines):
    return "wrapped"
  return "spaced" if _is_spaced(lines) else "dense"


def _is_spaced(lines: list[str]) -> bool:
  """Whether most lines have a blank one before and after them."""
  filled = [bool(line.strip()) for line in lines]
  before, after = [False, *filled[:-1]], [*filled[1:], False]
  alone = sum(b and not a and not c for a, b, c in zip(before, filled, after, strict=True))
  return sum(filled) > 2 and alone > 0.5 * sum(filled)
