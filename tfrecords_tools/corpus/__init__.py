"""Corpora of several formats, read as a stream of documents of sentences."""

from tfrecords_tools.corpus.options import CorpusOptions, CorpusStats
from tfrecords_tools.corpus.reader import describe_format, expected_text_bytes, iter_documents

__all__ = [
  "CorpusOptions",
  "CorpusStats",
  "describe_format",
  "expected_text_bytes",
  "iter_documents",
]
