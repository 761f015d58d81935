"""Corpus readers: bytes to lines, every format, recognised formats, and bad input."""

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
from tfrecords_tools.corpus import CorpusOptions, CorpusStats, bytestreams, iter_documents
from tfrecords_tools.corpus.options import CorpusFile
from tfrecords_tools.corpus.sentences import split_sentences

_TWO = b"The first sentence.\nThe second one.\n\nAnother document is here.\nIt ends now.\n"
_TWO_DOCUMENTS = [
  ["The first sentence.", "The second one."],
  ["Another document is here.", "It ends now."],
]
_SENTENCES = [f"This is sentence number {n} of the text." for n in range(500)]
_SPACED = "\n\n".join(_SENTENCES)
_LONGER = "\n\n".join(
  f"{text}\n{text}" if n % 3 == 0 else text for n, text in enumerate(_SENTENCES)
)
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
  for name, text in (
    ("wikitext", " = A =\n\n Some text .\n\n = B =\n\n More .\n"),
    ("spaced", f"CHAPTER 1\n\n{_SPACED}"),
  ):
    plain = _read(tmp_path / f"{name}.txt", text.encode())
    other = _read(tmp_path / f"{name}.txt", text.encode().replace(b"\n", end))
    assert (other[0], other[1].formats) == (plain[0], plain[1].formats)


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
  file = CorpusFile("in.txt", b"", chunks, CorpusOptions(), stats)
  lines = list(bytestreams.read_text_lines(file, limit=limit))
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
  with pytest.raises(OSError, match="No such file"):
    list(iter_documents(f"file://{tmp_path}/none", CorpusOptions(), stats=CorpusStats()))


# ---------------------------------------------------------------------- bad input


_MANY = [f"One {number}." for number in range(9000)]
_HALF_A_PAIR = json.dumps({"text": "One \ud83d here."}).encode()
_RECORD = b'{"id": 1, "text": "One."}\n'


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
    (b"\x7fELF\x02\x01\x01\0\0\0", {}, "binary"),
    (bytes(range(1, 9)) * 50 + b"text", {"input_format": "lines"}, "binary"),
    ("text\n".encode("utf-16"), {}, "iconv -f UTF-16"),
    ("text\n".encode("utf-16"), {"input_format": "jsonl"}, "iconv -f UTF-16"),
    ("Où naît l'été à Nîmes, où naît la forêt. ".encode("latin-1") * 3, {}, "iconv -f LATIN1"),
    (_SPACED.encode(), {}, "--input_format=lines.*--input_format=paragraphs"),
    (_LONGER.encode(), {}, "--input_format=lines.*--input_format=paragraphs"),
    (b'<doc id="1" url="u" title="A">\nA\n\nA is one.\n</doc>\n', {}, "--json"),
    (_RECORD + b'\n{"text": \n', {}, "line 3"),
    (_RECORD, {"text_field": "body"}, r"'body'. Received: \['id', 'text'\] in .*line 1"),
    (_RECORD, {"text_field": "id"}, "Received: int .*line 1"),
    (_RECORD + b'{"text": ["One.", {}]}', {}, "Received: dict .*line 2"),
    (_parquet({"text": [None, 5]}), {}, "Received: int .*row 2"),
    (_parquet({"text": _MANY}, row_group_size=3000, damage=-5170), {}, "row 5952 .*header"),
    (_TWO * 10**4 + b"\0", {}, "byte 760,000 .* binary"),
    (_TWO, {"input_format": "parquet"}, "--input_format=parquet"),
    (_parquet({"text": ["One."]})[:-20], {}, "--input_format=parquet"),
    (_parquet({"text": ["One."], "n": [1]}), {"text_field": "body"}, r"'body'.*\['n', 'text'\]"),
    (_XML[:-200].encode(), {}, "XML.*page 2"),
    (_XML.replace("<title>B</title>", "").encode(), {}, "XML.*page 1 .*replace"),
    (_XML.replace("2014", "long ago", 1).encode(), {}, "XML.*page 1 .*date"),
    *((_half_of(compress), {}, "readable to its end") for compress in _COMPRESSIONS),
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


@pytest.mark.parametrize(
  ("content", "documents"),
  [
    (  # Blank lines between documents.
      "One is here. Two is here.\nThree is here. Four is here.\n\nFive is new. Six is last.\n",
      "One is here.|Two is here.|Three is here.|Four is here.||Five is new.|Six is last.",
    ),
    (  # Spaced paragraphs and chapters.
      (
        'CHAPTER I\n\n"Well?" he said.\n\nNobody spoke.\n\n'
        "Chapter 2: The Moor\n\nIt rained.\n\n\n\n\nThe end came.\n"
      ),
      'CHAPTER I|"Well?" he said.|Nobody spoke.||Chapter 2: The Moor|It rained.||The end came.',
    ),
    (  # Wrapped paragraphs.
      (
        "It was a long\nsentence of self-\nimportance. It\nended here.\n\n"
        "Another one\nfollowed it.\n\fNew page\nbegins.\n"
      ),
      (
        "It was a long sentence of self-importance.|It ended here.|Another one followed it."
        "||New page|begins."
      ),
    ),
    (  # WikiText's titles.
      (
        " \n = First = \n \n It ran 34 @.@ 7 mi . It was well @-@ known . \n"
        " = = Part = = \n \n More . \n \n = Second = \n \n Last . \n"
      ),
      "It ran 34.7 mi .|It was well-known .|More .||Last .",
    ),
  ],
)
def test_paragraphs(tmp_path, content, documents):
  found, stats = _read(tmp_path / "in.txt", content.encode())
  assert found == [document.split("|") for document in documents.split("||")]
  assert dict(stats.formats) == {"paragraphs": 1}


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
  ("text", "kind", "documents"),
  [
    ("\n".join(_SENTENCES), "lines", 1),
    ("\n".join(f"the number {n} has no full stop" for n in range(50)), "lines", 1),
    ("\n\n".join("\n".join(_SENTENCES[n : n + 5]) for n in range(0, 500, 5)), "lines", 100),
    ("\n\n".join(f"{text} {text}" for text in _SENTENCES), "paragraphs", 1),
    (f"CHAPTER I\n\n{_SPACED}", "paragraphs", 1),
    # One large gap is beyond the first bytes.
    (f"{_SENTENCES[0]}\n\n\n\n\n{_SPACED}\n\n\n\n\n{_SPACED}", "paragraphs", 3),
    ("\n\n\n\n".join(_SENTENCES), "paragraphs", 500),
    (f"{_SPACED[:2000]}\f{_SPACED[2000:]}", "paragraphs", 2),
    ("One sentence.\n\nAnother one.", "lines", 2),
  ],
)
def test_what_is_certain_is_read(tmp_path, text, kind, documents):
  found, stats = _read(tmp_path / "in.txt", text.encode())
  assert (dict(stats.formats), len(found)) == ({kind: 1}, documents)


_ONE_MORE = {  # Begin or look a little like another format, and are text.
  "<unk> is a token.\nIt is common.": "lines",
  "<3 is a heart.\nSo is this. </3 is not.": "paragraphs",
  "[Illustration: a <b>]\n\nCHAPTER I\n\nIt was.": "paragraphs",
  '["Yes", said he, and left.]\nNobody spoke.': "lines",
  "[[Link]] is here.\n{So is this.}": "lines",
  "However, I left.\nThen, I came.\nSo, we met.": "lines",
  "1,000 people came.\n2,000 people left.\n3,000 stayed.": "lines",
  "床前明月光,疑是地上霜。\n举头望明月,低头思故乡。": "lines",
  '"Yes", he said.\n"No", she said.': "lines",
  "\tIt was a night.\n\tIt was a day.\n\tIt was late.": "lines",
}
_OTHER_FORMATS = {
  "JSON": ('[{"text": "One."}]', '["One.", "Two."]', '[["One.", 1]]', '{\n "data": [1]\n}'),
  "HTML or XML": (
    "<!DOCTYPE html>\n<p>One.",
    "<p class='x'>One.</p>",
    "<?xml version='1.0'?>\n<a/>",
  ),
  "a table": (
    'id,text\n1,One.\n2,"Two,\nand three."\n',
    ",text,label\n0,One.,1\n1,Two.,0\n",
    "id;text\n1;One.\n2;Two.\n",
    '"3","One, two."\n"2","Three, four."\n',
    "cj\t1\t\tOne.\ncj\t0\t*\tTwo.\n",
  ),
}


@pytest.mark.parametrize("text", _ONE_MORE)
def test_prose_that_looks_like_another_format_is_read(tmp_path, text):
  assert _read(tmp_path / "in.txt", text.encode())[1].formats == {_ONE_MORE[text]: 1}


@pytest.mark.parametrize(
  ("kind", "text"), [(kind, text) for kind, texts in _OTHER_FORMATS.items() for text in texts]
)
def test_another_format_is_refused_unless_one_is_named(tmp_path, kind, text):
  with pytest.raises(
    UserError, match=rf"in\.txt, which begins like {kind}.*pass --input_format=lines"
  ):
    _read(tmp_path / "in.txt", text.encode())
  assert _read(tmp_path / "in.txt", text.encode(), input_format="lines")[0]


def test_a_link_that_leads_nowhere_is_refused_by_name(tmp_path):
  (tmp_path / "a.txt").write_bytes(_TWO)
  (tmp_path / "b.txt").symlink_to(tmp_path / "gone")
  (tmp_path / "c").mkdir()
  with pytest.raises(UserError, match=r"b\.txt, which leads to none"):
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
    ("novels/Doyle_Hound_1902.txt", "paragraphs", 16),
    ("wikitext-2/valid.txt", "paragraphs", 60),
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
