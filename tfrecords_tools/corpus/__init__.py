"""Corpora of several formats, read as a stream of documents of sentences."""

from tfrecords_tools.corpus.bytestreams import Checksum, expected_text_bytes
from tfrecords_tools.corpus.options import CorpusOptions, CorpusStats
from tfrecords_tools.corpus.reader import describe_formats, iter_documents

__all__ = [
  "Checksum",
  "CorpusOptions",
  "CorpusStats",
  "describe_formats",
  "expected_text_bytes",
  "iter_documents",
]
