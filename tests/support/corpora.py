"""Reads a file as a corpus and checks what holds for every corpus."""

import pathlib
from typing import Any

from tfrecords_tools.corpus import CorpusOptions, CorpusStats, iter_documents


def read_corpus(
  path: pathlib.Path, content: bytes | None = None, **options: Any
) -> tuple[list[list[str]], CorpusStats]:
  """Documents and counts of `path`, into which `content` is written first; `options` are of `CorpusOptions`."""
  if content is not None:
    path.write_bytes(content)
  stats = CorpusStats()
  documents = list(iter_documents(str(path), CorpusOptions(**options), stats=stats))
  assert stats.documents == len(documents)
  assert stats.sentences == sum(map(len, documents))
  for sentence in (sentence for document in documents for sentence in document):
    assert sentence.strip() == sentence != ""
    assert "\n" not in sentence
  return documents, stats
