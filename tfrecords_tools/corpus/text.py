"""Plain text: one sentence a line, or paragraphs between blank lines."""

from collections.abc import Iterator, Sequence
import itertools

from tfrecords_tools.corpus.bytestreams import read_text_lines
from tfrecords_tools.corpus.options import CorpusFile, Part

_BLANK_LINES_OF_A_DOCUMENT = 3  # As many or more end a document of `paragraphs`.
_PARAGRAPH_CHARS = 1 << 16  # A paragraph that never ends is split into sentences in parts.


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


def read_paragraphs(file: CorpusFile) -> Iterator[Part]:
  """`paragraphs`: a blank line ends a paragraph of running text, three or more end a document."""
  # Lines wait until their paragraph ends.
  waiting: list[str] = []
  size = 0
  num_blank = 0
  lines = read_text_lines(file, limit=file.options.max_line_bytes)
  for line in itertools.chain(lines, [""]):
    text = line.strip()
    if text:
      waiting.append(text)
      size += len(text)
      num_blank = 0
    else:
      num_blank += 1
    if not text or size > _PARAGRAPH_CHARS:
      yield file.sentences(_join_lines(waiting))
      waiting = []
      size = 0
    if num_blank == _BLANK_LINES_OF_A_DOCUMENT:
      yield None


def _join_lines(lines: Sequence[str]) -> str:
  """Joins lines by spaces, but not after the hyphen of a compound that was broken there.

  Example:
    >>> _join_lines(["a well-", "known man -", "and woman"])
    'a well-known man - and woman'
  """
  text = ""
  for line in lines:
    is_broken_compound = text[-1:] == "-" and text[-2:-1].isalpha() and line[:1].islower()
    if text and not is_broken_compound:
      text += " "
    text += line
  return text


def has_paragraphs(text: str) -> bool:
  """Whether the blank lines of a text say that it is `paragraphs`: else it is `lines`.

  Three of them follow one another, or most of the other lines stand alone between blank ones.
  """
  filled_lines: list[int] = []  # Between blank lines.
  lines = text.strip().split("\n")
  for is_blank, group in itertools.groupby(lines, key=lambda line: not line.strip()):
    num_lines = len(list(group))
    if is_blank and num_lines >= _BLANK_LINES_OF_A_DOCUMENT:
      return True
    if not is_blank:
      filled_lines.append(num_lines)
  has_blank = len(filled_lines) > 1
  return has_blank and filled_lines.count(1) > sum(filled_lines) / 2
