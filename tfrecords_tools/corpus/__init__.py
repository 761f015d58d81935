"""Corpora of several formats, read as a stream of documents of sentences."""

from tfrecords_tools.corpus.bytestreams import Checksum, expected_text_bytes
from tfrecords_tools.corpus.options import BAD_TEXT_ACTIONS, FORMATS, CorpusOptions, CorpusStats
from tfrecords_tools.corpus.reader import iter_documents

__all__ = [
  "BAD_TEXT_ACTIONS",
  "FORMATS",
  "Checksum",
  "CorpusOptions",
  "CorpusStats",
  "expected_text_bytes",
  "iter_documents",
]
