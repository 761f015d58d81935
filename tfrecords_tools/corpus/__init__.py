"""Corpora of several formats, read as a stream of documents of sentences."""

from tfrecords_tools.corpus.bytestreams import Checksum, expected_text_bytes
from tfrecords_tools.corpus.options import BAD_TEXT_ACTIONS, FORMATS, CorpusOptions, CorpusStats
from tfrecords_tools.corpus.reader import describe_formats, iter_documents, mean_document_bytes

__all__ = [
  "BAD_TEXT_ACTIONS",
  "FORMATS",
  "Checksum",
  "CorpusOptions",
  "CorpusStats",
  "describe_formats",
  "expected_text_bytes",
  "iter_documents",
  "mean_document_bytes",
]
