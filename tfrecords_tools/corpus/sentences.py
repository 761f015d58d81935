"""Splits running text into sentences with a library, and joins sentences to documents."""

from collections.abc import Iterable, Iterator
import re

import sentencex

from tfrecords_tools.corpus.options import CorpusOptions, CorpusStats

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
  sentences: list[str] = []
  pending = ""
  for sentence in map(str.strip, sentencex.segment(language, " ".join(paragraph.split()))):
    if _LONE_NUMBER.match(sentence):
      pending += sentence + " "
    elif sentence:
      sentences.append(pending + sentence)
      pending = ""
  if pending:
    sentences.append(pending.rstrip())
  return sentences


class DocumentBuilder:
  """Collects the sentences of a document, and limits its size.

  Example:
    >>> builder = DocumentBuilder(options, stats)
    >>> for sentence in sentences:
    ...   yield from builder.add([sentence])
    >>> yield from builder.end()
  """

  def __init__(self, options: CorpusOptions, stats: CorpusStats):
    self._limit = options.max_document_bytes
    self._stats = stats
    self._sentences: list[str] = []
    self._size = 0
    self._was_cut = False

  def add(self, sentences: Iterable[str]) -> Iterator[list[str]]:
    """Adds sentences to the document; yields it if it has become too long."""
    for sentence in sentences:
      if self._size > self._limit:
        yield self._take()
        self._stats.long_documents += not self._was_cut
        self._was_cut = True
      self._sentences.append(sentence)
      self._size += len(sentence)

  def end(self) -> Iterator[list[str]]:
    """Ends the document; yields it unless it is empty."""
    if self._sentences:
      yield self._take()
    self._was_cut = False

  def _take(self) -> list[str]:
    sentences, self._sentences, self._size = self._sentences, [], 0
    return sentences
