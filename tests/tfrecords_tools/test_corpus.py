"""Corpus readers: bytes to lines, every format, what `auto` takes, and bad input."""

import bz2
import gzip
import io
import json
import lzma
import os
import random
import re
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from albert_tf import files
from albert_tf.errors import UserError
from tfrecords_tools.corpus import (
  CorpusOptions,
  CorpusStats,
  describe_format,
  iter_documents,
)
from tfrecords_tools.corpus.options import CorpusFile
from tfrecords_tools.corpus.text import read_text_lines, split_sentences

_TWO = b"The first sentence.\nThe second one.\n\nAnother document is here.\nIt ends now.\n"
_TWO_DOCUMENTS = [
  ["The first sentence.", "The second one."],
  ["Another document is here.", "It ends now."],
]
_COMPRESSIONS = (gzip.compress, bz2.compress, lzma.compress, zstandard.compress)
_WIKI = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10" xml:lang="en"><siteinfo>
<sitename>W</sitename><namespaces><namespace key="0" case="first-letter" /></namespaces></siteinfo>
<page><title>A</title><ns>0</ns><id>1</id><revision><id>1</id><timestamp>2014-10-26T04:50:23Z</timestamp><text>
{{Infobox|x=1}}'''A''' ({{IPA|a}}; , ''x'') ({{lang|y}}) is a
[[letter (alphabet)|letter]].&lt;ref&gt;Not kept.&lt;/ref&gt;
[[File:a.png|thumb|No caption.]]
It is %s first.

== Use ==
* It begins [[word]]s.
* no sentence
{| class="x"
| Not kept.
|}
== References ==
Not kept.
=== Deeper ===
Not kept.
</text></revision></page>
<page><title>B</title><ns>0</ns><id>2</id><redirect title="A" />
<revision><id>2</id><timestamp>2014-10-26T04:50:23Z</timestamp>
<text>#REDIRECT [[A]]</text></revision></page>
<page><title>Talk:A</title><ns>1</ns><id>3</id><revision><id>3</id><timestamp>2014-10-26T04:50:23Z</timestamp>
<text>Talk is not kept.</text></revision></page></mediawiki>"""
_XML = _WIKI % "the"
_BAD_WIKI = (_WIKI % "th\udcff").encode("utf-8", errors="surrogateescape")


def _read(path, content=None, **options):
  """Documents and counts of `path`, into which `content` is written first; `options` are of `CorpusOptions`."""
  if content is not None:
    path.write_bytes(content)
  stats = CorpusStats()
  documents = list(iter_documents(str(path), CorpusOptions(**options), stats=stats))
  sentences = [sentence for document in documents for sentence in document]
  assert (stats.documents, stats.sentences) == (len(documents), len(sentences))
  assert all(sentence.strip() == sentence != "" and "\n" not in sentence for sentence in sentences)
  return documents, stats


def _half_of(compress):
  data = compress(random.Random(1).randbytes(30000).hex().encode())
  return data[: len(data) // 2]


# ---------------------------------------------------------------------- bytes and lines


@pytest.mark.parametrize(
  ("suffix", "compress"),
  [
    (".txt", bytes),
    (".gz", lambda data: gzip.compress(data[:30]) + gzip.compress(data[30:])),  # Two members.
    (".bz2", bz2.compress),
    (".xz", lzma.compress),
    (".zst", lambda data: zstandard.compress(data[:9]) + zstandard.compress(data[9:])),
    (".misnamed", gzip.compress),
  ],
)
def test_compressions(tmp_path, suffix, compress):
  documents, stats = _read(tmp_path / f"in{suffix}", compress(_TWO))
  assert documents == _TWO_DOCUMENTS
  assert (stats.bytes_read, stats.files, dict(stats.formats)) == (len(_TWO), 1, {"lines": 1})


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r", b"\r\r\n"])
def test_line_ends_and_byte_order_mark(tmp_path, end):
  content = b"\xef\xbb\xbf" + _TWO.replace(b"\n", end).rstrip()
  assert _read(tmp_path / "in.txt", content)[0] == _TWO_DOCUMENTS
  paragraphs = b"It was\ncold.\n\n\n\nIt is\nwarm.\n".replace(b"\n", end)
  assert _read(tmp_path / "in.txt", paragraphs)[0] == [["It was cold."], ["It is warm."]]


@given(
  data=st.lists(
    st.sampled_from([b"a", b"bc ", b"\n", b"\r", b"\r\n", "é".encode(), b" "]), max_size=60
  ).map(b"".join),
  limit=st.integers(8, 20),
  block=st.integers(1, 30),
)
def test_lines_are_bounded_and_nothing_is_lost(data, limit, block):
  chunks = [data[start : start + block] for start in range(0, len(data), block)]
  stats = CorpusStats()
  file = CorpusFile("in.txt", chunks, CorpusOptions(), stats)
  lines = list(read_text_lines(file, limit=limit))
  expected = re.sub(r"\r{0,2}\n|\r", "\n", data.decode()).split("\n")
  expected = expected if expected[-1] else expected[:-1]
  assert max((len(line.encode()) for line in lines), default=0) <= limit
  assert "".join(lines) == "".join(expected)
  assert "\ufffd" not in "".join(lines)  # Never cut inside a character.
  assert len(lines) == len(expected) + stats.long_lines


def test_memory_does_not_grow_with_the_file(tmp_path):
  """2 and 15 MB, as one document and as one line: the peak is the same."""
  # Not the peak of getrusage, which begins with that of the process which starts this one.
  script = (
    "import re, sys\n"
    "from tfrecords_tools.corpus import *\n"
    "for path in sys.argv[1:]:\n"
    "  for _ in iter_documents(path, CorpusOptions(max_document_bytes=1 << 20), stats=CorpusStats()): pass\n"
    "  print(*re.findall(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read()))\n"
  )
  paths = []
  for end in (b"\n", b" "):
    for count in (50_000, 320_000):
      paths.append(tmp_path / str(len(paths)))
      paths[-1].write_bytes((b"These are some words that make a line of text." + end) * count)
  environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
  told = subprocess.check_output([sys.executable, "-c", script, *paths], text=True, env=environment)
  small, large, small_line, large_line = map(int, told.split())
  assert large < 1.1 * small
  assert large_line < 1.2 * small_line


def test_remote_paths_go_through_gfile(tmp_path):
  """`file://` stands for `gs://`: the same code opens both."""
  (tmp_path / "in.gz").write_bytes(gzip.compress(_TWO))
  pq.write_table(pa.table({"text": ["One is. Two is."]}), tmp_path / "in.parquet")
  for name, expected in (("in.gz", _TWO_DOCUMENTS), ("in.parquet", [["One is.", "Two is."]])):
    path = f"file://{tmp_path}/{name}"
    assert list(iter_documents(path, CorpusOptions(), stats=CorpusStats())) == expected
  with pytest.raises(OSError, match=f"Received: file://{tmp_path}/none:"):
    list(iter_documents(f"file://{tmp_path}/none", CorpusOptions(), stats=CorpusStats()))


# ---------------------------------------------------------------------- bad input


_MANY = [f"One {number}." for number in range(9000)]
_HALF_A_PAIR = json.dumps({"text": "One \ud83d here."}).encode()
_RECORD = b'{"id": 1, "text": "One."}\n'
_JSONL = {"input_format": "jsonl"}
_PARQUET = {"input_format": "parquet"}
_MEDIAWIKI = {"input_format": "mediawiki"}


def _parquet(columns, damage=None, **more):
  stream = io.BytesIO()
  pq.write_table(pa.table(columns), stream, **more)
  content = bytearray(stream.getvalue())
  if damage is not None:
    content[damage] ^= 0xFF
  return bytes(content)


@pytest.mark.parametrize(
  ("content", "options", "message"),
  [
    (b"\x7fELF\x02\x01\x01\0\0\0", {}, "--input_format=parquet"),
    (bytes(range(1, 9)) * 50 + b"text", {"input_format": "lines"}, "--input_format=parquet"),
    ("text\n".encode("utf-16"), {}, "iconv -f UTF-16"),
    ("text\n".encode("utf-16"), {"input_format": "jsonl"}, "iconv -f UTF-16"),
    ("Où naît l'été à Nîmes, où naît la forêt. ".encode("latin-1") * 3, {}, "iconv -f LATIN1"),
    (_parquet({"text": ["One."]}), {}, "--input_format=parquet"),
    (_RECORD + b'\n{"text": \n', _JSONL, "line 3"),
    (_RECORD, {**_JSONL, "text_field": "body"}, r"'body'. Received: \['id', 'text'\] in .*line 1"),
    (_RECORD, {**_JSONL, "text_field": "id"}, "Received: int .*line 1"),
    (_RECORD + b'{"text": ["One.", {}]}', _JSONL, "Received: dict .*line 2"),
    (b'[{"text": "One."}]', _JSONL, "Received: list .*line 1"),
    (_parquet({"text": [None, 5]}), _PARQUET, "Received: int .*row 2"),
    (_parquet({"text": _MANY}, row_group_size=3000, damage=-5170), _PARQUET, " 5952 .*header"),
    (_TWO * 10**4 + b"\0", {}, " 760,000 "),
    (_TWO, _PARQUET, "--input_format=parquet"),
    (_parquet({"text": ["One."]})[:-20], _PARQUET, "--input_format=parquet"),
    (
      _parquet({"text": ["One."], "n": [1]}),
      {**_PARQUET, "text_field": "body"},
      r"'body'.*\['n', 'text'\]",
    ),
    (_XML[:-200].encode(), _MEDIAWIKI, " 2 .no element"),
    (_XML.replace("<title>B</title>", "").encode(), _MEDIAWIKI, "NoneType.*replace"),
    (_XML.replace("2014", "long ago", 1).encode(), _MEDIAWIKI, "long ago"),
    *((_half_of(compress), {}, "in.bin .Compressed") for compress in _COMPRESSIONS),
  ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path, content, options, message):
  with pytest.raises(UserError, match=message) as refused:
    _read(tmp_path / "in.bin", content, **options)
  assert "in.bin" in str(refused.value)


def test_bad_text_is_replaced_and_counted(tmp_path):
  content = b"The first is good.\nThe second \xff\xfe is not.\nThe third is good.\n"
  documents, stats = _read(tmp_path / "in.txt", content)
  assert documents[0][1] == "The second \ufffd\ufffd is not."
  assert stats.bad_text_replaced == 1
  documents, stats = _read(tmp_path / "in.jsonl", _HALF_A_PAIR)
  assert documents[0][0].replace("\ufffd", "") == "One  here."
  assert stats.bad_text_replaced == 1
  content = _parquet({"text": [b"Good one.", b"Bad \xff one."]})
  documents, stats = _read(tmp_path / "in.parquet", content)
  assert (documents, stats.bad_text_replaced) == ([["Good one."], ["Bad \ufffd one."]], 1)


def test_missing_and_empty_files(tmp_path):
  with pytest.raises(FileNotFoundError, match=r"none\.txt"):
    _read(tmp_path / "none.txt")
  for content in (b"", b"\xef\xbb\xbf", b"\n \n\n"):
    documents, stats = _read(tmp_path / "in.txt", content)
    assert (documents, stats.files, stats.empty_files) == ([], 1, 1)


# ---------------------------------------------------------------------- layouts of plain text


def test_paragraphs(tmp_path):
  """Lines are joined up to a blank line; three blank lines end a document."""
  content = (
    "CHAPTER I\n\nIt was a long\nsentence of self-\nimportance. It\nended here.\n\n\n"
    "Another one followed it. Two\n \n\t\n\nThe end - \nit came.\n"
  )
  found, _ = _read(tmp_path / "in.txt", content.encode(), input_format="paragraphs")
  assert found == [
    [
      "CHAPTER I",
      "It was a long sentence of self-importance.",
      "It ended here.",
      "Another one followed it.",
      "Two",
    ],
    ["The end - it came."],
  ]


def test_enumerators_stay_with_their_sentence():
  sentences = ["Dr. Smith left.", "2. He came back!", "3."]
  assert split_sentences("Dr. Smith left. 2. He\tcame   back! 3.") == sentences
  assert split_sentences(" \n ") == []


@pytest.mark.parametrize("language", ["german", "DE", "de_DE", "de-AT", "xx", "tr", ""])
def test_a_language_without_rules_is_not_taken_for_english(language):
  with pytest.raises(UserError, match=rf", de, .*Received: '{language}'.*--language=en"):
    CorpusOptions(language=language)


@pytest.mark.parametrize(
  ("language", "sentences"),
  [
    ("de", ["Am 3. Oktober war es.", "Er kam."]),
    ("el", ["Ήρθε;", "Ναι."]),
    ("zh", ["你好。", "再见！", "真的？"]),
  ],
)
def test_sentences_end_by_the_rules_of_their_language(tmp_path, language, sentences):
  joiner = "" if language == "zh" else " "
  content = joiner.join(sentences).encode()
  options = {"input_format": "paragraphs", "language": language}
  assert _read(tmp_path / "in.txt", content, **options)[0] == [sentences]


# ---------------------------------------------------------------------- what `auto` takes a file for


@pytest.mark.parametrize(
  ("text", "kind"),
  [
    ("One is here.", "lines"),
    ("One is here.\nTwo is.\nThree is.\n\nFour is here.\nFive is.\n", "lines"),
    ("\n\n\n\nOne is here.\nTwo is.\n\n\nThree is.\nFour is.\n\n\n\n", "lines"),
    ("One.\n\nTwo is here.\nThree is.\n\nFour.\n", "lines"),
    ("One.\n\nTwo is here.\nThree is.\n\nFour.\n\nFive.\n", "paragraphs"),
    ("One is\nhere.\nTwo is.\n \n\t\n\nThree is.\nFour is.\n", "paragraphs"),
    ('["Yes", said he, and left.]\nA, b, c\nD, e, f', "lines"),
  ],
)
def test_blank_lines_alone_decide_how_text_is_read(tmp_path, text, kind):
  (tmp_path / "in.txt").write_text(text)
  told = describe_format(str(tmp_path / "in.txt"), CorpusOptions())
  assert f"in.txt is read as {kind}: a " in told
  assert _read(tmp_path / "in.txt")[1].formats == {kind: 1}


@pytest.mark.parametrize(
  ("name", "text", "received"),
  [
    ("in.txt", '{"text": "One."}', r"in\.txt, .*'\{'"),
    ("wiki_00", '\n<doc id="1" url="u" title="A">\nA is.\n</doc>', "wiki_00, .*'<'"),
    ("in.csv", "id,text\n1,One.\n", r"in\.csv,"),
    ("in.tsv.gz", "id\ttext\n1\tOne.\n", r"in\.tsv\.gz,"),
  ],
)
def test_what_is_no_plain_text_is_refused_unless_a_format_is_named(tmp_path, name, text, received):
  with pytest.raises(UserError, match=rf"Received: .*{received}.*--input_format"):
    _read(tmp_path / name, text.encode())
  assert _read(tmp_path / name, text.encode(), input_format="lines")[0]


def test_a_link_that_leads_nowhere_is_refused_by_name(tmp_path):
  (tmp_path / "a.txt").write_bytes(_TWO)
  (tmp_path / "b.txt").symlink_to(tmp_path / "gone")
  (tmp_path / "c").mkdir()
  with pytest.raises(UserError, match=f"Received: {tmp_path}/b.txt,"):
    files.expand_globs(f"{tmp_path}/*")


# ---------------------------------------------------------------------- marked-up and structured formats


def test_json_lines(tmp_path):
  rows = [
    {"text": "One is here. Two\u2028is here.\nThree.", "id": 1},
    {"text": ["As it is.", " ", "No split. Kept."]},
  ]
  content = "\n".join(map(json.dumps, [*rows, {"text": None}])).encode()
  documents, stats = _read(tmp_path / "in.jsonl", content)
  assert documents == [
    ["One is here.", "Two", "is here.", "Three."],
    ["As it is.", "No split. Kept."],
  ]
  assert stats.skipped_records == 1


@pytest.mark.parametrize(
  "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]
)
def test_parquet(tmp_path, kind):
  path = tmp_path / "in.parquet"
  column = pa.array(["One is here. Two is here.", None, "", "Three."]).cast(kind)
  pq.write_table(pa.table({"text": column, "n": [1, 2, 3, 4]}), path)
  documents, stats = _read(path)
  assert documents == [["One is here.", "Two is here."], ["Three."]]
  assert (stats.skipped_records, dict(stats.formats)) == (2, {"parquet": 1})
  pq.write_table(pa.table({"text": [["One.", "Two."], []]}), path)
  assert _read(path)[0] == [["One.", "Two."]]


def test_mediawiki(tmp_path):
  documents, stats = _read(tmp_path / "dump.xml.bz2", bz2.compress(_XML.encode()))
  assert documents == [["A (x) is a letter.", "It is the first.", "It begins words."]]
  assert (stats.skipped_records, dict(stats.formats)) == (2, {"mediawiki": 1})
  documents, _ = _read(tmp_path / "dump.xml", (_WIKI % "the&amp;#xD800;").encode())
  assert documents[0][1] == "It is the\ufffd first."  # No half of a pair, which no tokenizer takes.
  documents, stats = _read(tmp_path / "bad.xml", _BAD_WIKI)
  assert (documents[0][1], stats.bad_text_replaced) == ("It is th\ufffd first.", 1)


# ---------------------------------------------------------------------- real corpora


@pytest.mark.parametrize(
  ("name", "kind", "count"),
  [
    ("novels/Burnett_Garden_1911.txt", "paragraphs", 28),
    pytest.param("wikidump/enwiki-slice.xml.bz2", "mediawiki", 106, marks=pytest.mark.slow),
  ],
)
def test_real_corpora(shared_dir, name, kind, count):
  documents, stats = _read(shared_dir / "data" / "corpora" / name)
  assert (*stats.formats, stats.documents) == (kind, count)
  assert stats.bad_text_replaced == 0
  lengths = sorted(len(sentence.split()) for document in documents for sentence in document)
  assert 8 <= lengths[len(lengths) // 2] <= 30  # Sentences of English, not lines or paragraphs.
  assert lengths[-1] < 700
