"""Plain text: one sentence a line with blank lines between documents."""

from collections.abc import Iterator
from typing import IO

from tfrecords_tools.corpus.bytestreams import decode_line, read_lines
from tfrecords_tools.corpus.options import CorpusOptions, CorpusStats
from tfrecords_tools.corpus.sentences import split_sentences


def read_sentence_lines(
  stream: IO[bytes], path: str, *, options: CorpusOptions, stats: CorpusStats
) -> Iterator[list[str]]:
  """`lines`: one sentence a line, a blank line (or the end of the file) ends a document."""
  document: list[str] = []
  for line in read_lines(stream, options=options, stats=stats):
    text = decode_line(line, path=path, options=options, stats=stats)
    if text is None:
      continue
    text = text.strip()
    if not text:
      if document:
        yield document
      document = []
    elif len(text) > options.max_sentence_chars:
      stats.long_lines += 1
      document.extend(split_sentences(text, language=options.language))
    else:
      document.append(text)
  if document:
    yield document
