"""Files to documents: `iter_documents`, the one entry the data tools use."""

from collections.abc import Iterator

from tfrecords_tools.corpus import detect, mediawiki, structured, text
from tfrecords_tools.corpus.bytestreams import HeadedStream, open_stream, read_head
from tfrecords_tools.corpus.options import CorpusOptions, CorpusStats

_READERS = {
  "lines": text.read_sentence_lines,
  "paragraphs": text.read_paragraphs,
  "wikiextractor": text.read_wikiextractor,
  "mediawiki": mediawiki.read_mediawiki,
  "jsonl": structured.read_json_lines,
  "parquet": structured.read_parquet,
}


def iter_documents(path: str, options: CorpusOptions, *, stats: CorpusStats) -> Iterator[list[str]]:
  """Yields the documents of one file, each a list of raw (un-normalised) sentences, in file order.

  The n-th document of a file is the same for the same file and options on every machine, so
  (index of the file, n) is a stable key. A file boundary ends a document. Memory is bounded by the longest
  document, at most `options.max_document_bytes`, and one block of bytes.

  Args:
    path: a local file, or whatever `tf.io.gfile` opens; gzip, bzip2, xz and zstd are decompressed on the way.
    options: format, what to do with bad text, limits.
    stats: counts are added to it while the generator runs.

  Yields:
    Lists of at least one sentence; no sentence is empty or holds a line break.

  Raises:
    UserError: unreadable, damaged, binary, not of the format named, or (with `on_bad_text=error`) not UTF-8.

  Example:
    >>> for document in iter_documents("wiki_00", CorpusOptions(), stats=CorpusStats()):
    ...   ...
  """
  stats.files += 1
  before = stats.documents
  with open_stream(path) as stream:
    head = read_head(stream)
    kind = options.input_format
    if kind == "auto":
      kind = detect.detect_format(head, path) if head else "lines"
    elif kind != "parquet":
      detect.check_is_text(head, path)
    stats.formats[kind] += 1
    if head:
      source = HeadedStream(head, stream)
      for document in _READERS[kind](source, head, path, options=options, stats=stats):
        stats.documents += 1
        stats.sentences += len(document)
        yield document
  stats.empty_files += stats.documents == before


def detect_format(path: str) -> str:
  """The format `auto` finds for a file, for showing to the user."""
  with open_stream(path) as stream:
    return detect.detect_format(read_head(stream), path)
