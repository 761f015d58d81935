"""Plain text to sentences: a sentence a line, or paragraphs between blank lines.

Readers of other formats share the steps: bytes to lines, running text to sentences.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
import itertools
import re

import sentencex

from tfrecords_tools.corpus.options import CorpusFile, CorpusStats, Part

_BLANK_LINES_OF_A_DOCUMENT = 3  # As many or more end a document of `paragraphs`.
_PARAGRAPH_CHARS = 1 << 16  # A paragraph that never ends is split into sentences in parts.
_BOM = b"\xef\xbb\xbf"
# LF, CRLF, CR; and CR CR LF, which a program leaves that writes CRLF for the LF of a CRLF: one end,
# no blank line.
_LINE_END = re.compile(rb"\r{0,2}\n|\r")
_LONE_NUMBER = re.compile(r"\(?(\d{1,3}|[A-Za-z])[.)]$")  # "1." of "1. First, open the box."


def read_sentence_lines(file: CorpusFile) -> Iterator[Part]:
  """`lines`: one sentence a line, a blank line (or the end of the file) ends a document."""
  for line in read_text_lines(file, limit=file.options.max_line_bytes):
    text = line.strip()
    if not text:
      yield None
    # So long a line cannot be one sentence.
    elif len(text) > file.options.max_sentence_chars:
      file.stats.long_lines += 1
      yield split_sentences(text, language=file.options.language)
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
      yield split_sentences(_join_lines(waiting), language=file.options.language)
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


# Lines.


def with_line_feeds(chunks: Iterable[bytes]) -> Iterator[bytes]:
  r"""The same text with LF as its only line end.

  Example:
    >>> list(with_line_feeds([b"one\r", b"\ntwo\rthree"]))
    [b'one', b'\ntwo\nthree', b'']
  """
  held = b""  # CRs at the end of a chunk: the next one may begin with their LF.
  for chunk in chunks:
    text = held + chunk
    complete = text.rstrip(b"\r")
    held = text[len(complete) :]
    if b"\r" in complete:
      complete = _LINE_END.sub(b"\n", complete)
    yield complete
  yield _LINE_END.sub(b"\n", held)


def read_text_lines(file: CorpusFile, *, limit: int) -> Iterator[str]:
  """Lines of text without their end (LF, CRLF or CR).

  A line longer than `limit` bytes comes in parts. Bytes that are not UTF-8 become U+FFFD. Both are
  counted. A leading byte-order mark is dropped.
  """
  stats = file.stats
  begun_line = b""
  # A line may go over several chunks.
  for number, chunk in enumerate(with_line_feeds(file.chunks)):
    if number == 0:
      chunk = chunk.removeprefix(_BOM)
    lines = (begun_line + chunk).split(b"\n")
    begun_line = lines.pop()
    for line in lines:
      end_of_line = yield from _long_parts(line, limit, stats)
      yield decode(end_of_line, stats)
    begun_line = yield from _long_parts(begun_line, limit, stats)
  if begun_line:
    yield decode(begun_line, stats)


def decode(data: bytes, stats: CorpusStats) -> str:
  """Decodes UTF-8; other bytes become U+FFFD and are counted."""
  try:
    return data.decode()
  except UnicodeDecodeError:
    stats.bad_text_replaced += 1
    return data.decode(errors="replace")


def _long_parts(line: bytes, limit: int, stats: CorpusStats) -> Generator[str, None, bytes]:
  """Yields parts of a line until no more than `limit` bytes are left, which it returns.

  A part ends after a space, or at least not inside a character.
  """
  while len(line) > limit:
    cut = line.rfind(b" ", limit // 2, limit) + 1
    if cut == 0:
      cut = limit
    # Bytes 10…… continue a character of UTF-8, which has four at most.
    while cut > limit - 4 and line[cut] & 0xC0 == 0x80:
      cut -= 1
    stats.long_lines += 1
    yield decode(line[:cut], stats)
    line = line[cut:]
  return line


# Sentences.


def split_sentences(paragraph: str, *, language: str = "en") -> list[str]:
  """Splits one paragraph of running text into sentences, stripped and never empty.

  Args:
    paragraph: running text. Line breaks in it are read as spaces.
    language: one of `LANGUAGES`.

  Returns:
    The sentences in order. An enumerator that stands alone ("1.") stays with what follows it.

  Example:
    >>> split_sentences("Dr. Smith left. 2. He came back!")
    ['Dr. Smith left.', '2. He came back!']
  """
  # `sentencex` takes the number of a list for a sentence.
  sentences: list[str] = []
  pending = ""
  one_line = " ".join(paragraph.split())
  for segment in sentencex.segment(language, one_line):
    sentence = segment.strip()
    if _LONE_NUMBER.match(sentence):
      pending += sentence + " "
    elif sentence:
      sentences.append(pending + sentence)
      pending = ""
  if pending:
    sentences.append(pending.rstrip())
  return sentences
