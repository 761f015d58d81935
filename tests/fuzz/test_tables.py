"""Damaged tables of examples, and damaged text of every format that becomes records."""

import bz2
from collections.abc import Callable
import gzip
import io
import json
import pathlib

from hypothesis import strategies as st
import pyarrow
from pyarrow import parquet
import pytest
from support.fuzzing import SEED, Child, damaged, damaged_json, fuzz
import zstandard

ROWS = [{"text": f'a "b", {n}\u00e9', "label": n % 2, "id": str(n)} for n in range(5)]
WIKI = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10" xml:lang="en"><siteinfo>
<sitename>W</sitename><namespaces><namespace key="0" case="first-letter" /></namespaces></siteinfo>
<page><title>A</title><ns>0</ns><id>1</id><revision><id>1</id><timestamp>2014-10-26T04:50:23Z</timestamp><text>
'''A''' ({{IPA|a}}) is a [[letter (alphabet)|letter]].&lt;ref&gt;Not kept.&lt;/ref&gt; It is first.

== Use ==
* It begins [[word]]s.
</text></revision></page></mediawiki>"""
PROSE = "It was the best of times. It was the worst.\n\nAnother one begins here.\n" * 4


def table(path: str) -> int:
  """Reads a table of examples; in the child."""
  from albert_tf.finetuning.data import TableColumns, read_table
  from albert_tf.finetuning.tasks.text import table_examples

  columns = TableColumns(texts=("text",), label="label", id="id")
  return len(table_examples(read_table(path), columns, labelled=True))


def corpus(path: str) -> int:
  """Reads documents; in the child."""
  from tfrecords_tools.corpus import CorpusOptions, CorpusStats, iter_documents

  kind = pathlib.Path(path).name.split(".")[1]
  options = CorpusOptions(input_format=kind, max_line_bytes=200, max_document_bytes=500)
  documents = list(iter_documents(path, options, stats=CorpusStats()))
  sentences = [sentence for document in documents for sentence in document]
  assert all(sentence.strip() == sentence != "" and "\n" not in sentence for sentence in sentences)
  assert "".join(sentences).encode() is not None  # No lone surrogate.
  return len(documents)


def as_parquet(**options: object) -> bytes:
  stream = io.BytesIO()
  parquet.write_table(pyarrow.Table.from_pylist(ROWS), stream, **options)
  return stream.getvalue()


LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
TABLES = {
  "a.csv": b'text,label,id\n"a ""b"", c",0,1\nd,1,2\n"e\nf",1,3\n',
  "a.tsv": b"text\tlabel\tid\na b\t0\t1\nc\t1\t2\n",
  "a.jsonl": LINES.encode(),
  "a.parquet": as_parquet(),
}
PARQUETS = {"text.parquet": as_parquet(compression="zstd"), "text.auto": as_parquet(use_dictionary=False)}
TEXTS = {
  "text.lines": PROSE.encode(),
  "text.paragraphs": PROSE.encode(),
  "text.mediawiki": WIKI.encode(),
  "text.jsonl": LINES.encode(),
  "wiki.auto": WIKI.encode(),
}
PACKED = {f"text.lines.{name}": pack(PROSE.encode()) for name, pack in
          {"gz": gzip.compress, "bz2": bz2.compress, "zst": zstandard.compress}.items()}  # fmt: skip
FUZZED: list[tuple[str, bytes, Callable[[str], int]]] = [
  *((name, content, table) for name, content in TABLES.items()),
  *((name, content, corpus) for name, content in {**TEXTS, **PARQUETS, **PACKED}.items()),
]


@pytest.mark.xfail(not SEED, reason="until damaged pages are named", strict=False)
@pytest.mark.parametrize(("name", "content", "read"), FUZZED, ids=[each[0] for each in FUZZED])
@fuzz(data=st.data(), cost=2)
def test_a_file(
  child: Child,
  name: str,
  content: bytes,
  read: Callable[[str], int],
  tmp_path: pathlib.Path,
  data: st.DataObject,
) -> None:
  path = tmp_path / name
  whole = damaged(content)
  if name.endswith(".jsonl"):
    whole |= damaged_json(json.dumps(ROWS[0])).map(
      lambda line: LINES.encode() + line + b"\n" + LINES.encode()
    )
  path.write_bytes(data.draw(whole))
  child(f"fuzz.test_tables:{read.__name__}", path)
