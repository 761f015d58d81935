"""Files to documents: `iter_documents`, the one entry the data tools use."""

from collections.abc import Iterator

from tfrecords_tools.corpus import text
from tfrecords_tools.corpus.bytestreams import open_stream
from tfrecords_tools.corpus.options import CorpusOptions, CorpusStats

_READERS = {"lines": text.read_sentence_lines, "auto": text.read_sentence_lines}


def iter_documents(path: str, options: CorpusOptions, *, stats: CorpusStats) -> Iterator[list[str]]:
  """Yields the documents of one file, each a list of raw (un-normalised) sentences, in file order.

  The n-th document of a file is the same for the same file and options on every machine, so
  (index of the file, n) is a stable key. A file boundary ends a document. At most one document and one
  block of bytes are in memory.

  Args:
    path: a local file, or whatever `tf.io.gfile` opens; `.gz .bz2 .xz .zst` are decompressed on the way.
    options: format, what to do with bad text, limits.
    stats: counts are added to it while the generator runs.

  Yields:
    Lists of at least one sentence; no sentence is empty or holds a line break.

  Raises:
    UserError: unreadable, damaged, binary or (with `on_bad_text=error`) not UTF-8.

  Example:
    >>> for document in iter_documents("wiki_00", CorpusOptions(), stats=CorpusStats()):
    ...   ...
  """
  stats.files += 1
  before = stats.documents
  with open_stream(path) as stream:
    for document in _READERS[options.input_format](stream, path, options=options, stats=stats):
      stats.documents += 1
      stats.sentences += len(document)
      yield document
  stats.empty_files += stats.documents == before
