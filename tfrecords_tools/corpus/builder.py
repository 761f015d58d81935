"""Collects the sentences of a document; cuts a document that grows beyond the limit."""

from collections.abc import Iterable, Iterator

from tfrecords_tools.corpus.options import CorpusOptions, CorpusStats


class DocumentBuilder:
  """The one place where a document is in memory while it is read.

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
    """Adds to the document; yields what is there if it has become too long."""
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
