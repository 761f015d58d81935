"""Splits running text into sentences with a library, and joins sentences to documents."""

from collections.abc import Iterable, Iterator
import re

import sentencex

from tfrecords_tools.corpus.options import CorpusFile

_LONE_NUMBER = re.compile(r"\(?(\d{1,3}|[A-Za-z])[.)]$")  # "1." of "1. First, open the box."


def split_sentences(paragraph: str, *, language: str = "en") -> list[str]:
  """Splits one paragraph of running text into sentences, stripped and never empty.

  Args:
    paragraph: running text. Line breaks in it are read as spaces.
    language: ISO 639 code; languages the library does not know fall back to a related one.

  Returns:
    The sentences in order. An enumerator that stands alone ("1.") stays with what follows it.

  Example:
    >>> split_sentences("Dr. Smith left. 2. He came back!")
    ['Dr. Smith left.', '2. He came back!']
  """
  # The library takes the number of a list for a sentence.
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


class DocumentBuilder:
  """Collects the sentences of a document, and limits its size, so that memory is bounded.

  Example:
    >>> builder = DocumentBuilder(file)
    >>> for sentence in sentences:
    ...   yield from builder.add([sentence])
    >>> yield from builder.end()
  """

  def __init__(self, file: CorpusFile):
    self._options = file.options
    self._stats = file.stats
    self._sentences: list[str] = []
    self._size = 0
    self._was_cut = False

  def add(self, sentences: Iterable[str]) -> Iterator[list[str]]:
    """Adds sentences to the document; yields it if it has become too long."""
    for sentence in sentences:
      if self._size > self._options.max_document_bytes:
        yield self._take()
        # A document is counted once, however often it is cut.
        if not self._was_cut:
          self._stats.long_documents += 1
        self._was_cut = True
      self._sentences.append(sentence)
      self._size += len(sentence)

  def add_text(self, paragraph: str) -> Iterator[list[str]]:
    """Adds the sentences of running text."""
    return self.add(split_sentences(paragraph, language=self._options.language))

  def end(self) -> Iterator[list[str]]:
    """Ends the document; yields it unless it is empty."""
    if self._sentences:
      yield self._take()
    self._was_cut = False

  def _take(self) -> list[str]:
    sentences = self._sentences
    self._sentences = []
    self._size = 0
    return sentences
