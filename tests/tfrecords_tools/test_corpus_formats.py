"""Corpus readers: marked-up and structured formats, and real corpora."""

import bz2
import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.corpora import read_corpus as _read

from albert_tf.errors import UserError

_TWO = b"The first sentence.\nThe second one.\n\nAnother document is here.\nIt ends now.\n"


def test_wikiextractor(tmp_path: pathlib.Path):
  content = (
    '<doc id="1" url="u" title="A &amp; B">\nA & B\n\nA and B are two. They are letters.\n\nSection.\n</doc>\n'
    '<doc id="2" url="u" title="Empty">\nEmpty\n\n</doc>\n<doc id="3" url="u" title="C">\nC\n\nC is one.\n</doc>\n'
  )
  documents, stats = _read(tmp_path / "wiki_00", content.encode())
  assert documents == [["A and B are two.", "They are letters.", "Section."], ["C is one."]]
  assert (stats.skipped_records, dict(stats.formats)) == (1, {"wikiextractor": 1})
  with pytest.raises(UserError, match=r"must hold <doc …> blocks .* Received: 'The first sentence\.'"):
    _read(tmp_path / "in.txt", _TWO, input_format="wikiextractor")


def test_json_lines(tmp_path: pathlib.Path):
  rows = [
    {"text": "One is here. Two\u2028is here.\nThree.", "id": 1},
    {"text": ["As it is.", " ", "No split. Kept."]},
  ]
  content = "\n".join(map(json.dumps, [*rows, {"text": None}])).encode()
  documents, stats = _read(tmp_path / "in.jsonl", content)
  assert documents == [["One is here.", "Two", "is here.", "Three."], ["As it is.", "No split. Kept."]]
  assert stats.skipped_records == 1
  with pytest.raises(UserError, match=r"must have the column 'body'. Received: \['id', 'text'\]"):
    _read(tmp_path / "in.jsonl", text_field="body")
  with pytest.raises(UserError, match="must hold text, or lists of sentences"):
    _read(tmp_path / "in.jsonl", text_field="id")
  broken = content + b'\n{"text": \n'
  with pytest.raises(UserError, match="one JSON object a line"):
    _read(tmp_path / "in.jsonl", broken)


@pytest.mark.parametrize("as_list", [False, True])
def test_half_a_surrogate_pair_in_json_is_bad_text(tmp_path: pathlib.Path, as_list: bool):
  texts = ["One \ud83d here.", "Two \U0001f600 here."]
  content = "\n".join(json.dumps({"text": [text] if as_list else text}) for text in texts).encode()
  path = tmp_path / "in.jsonl"
  with pytest.raises(UserError, match=r"Text must be UTF-8.*in\.jsonl, column 'text'"):
    _read(path, content)
  documents, stats = _read(path, on_bad_text="replace")
  assert (documents[1], stats.bad_text_replaced) == ([texts[1]], 1)
  assert documents[0][0].replace("\ufffd", "") == "One  here."


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_parquet(tmp_path: pathlib.Path, kind: pa.DataType):
  path = tmp_path / "in.parquet"
  column = pa.array(["One is here. Two is here.", None, "Three."]).cast(kind)
  pq.write_table(pa.table({"text": column, "n": [1, 2, 3]}), path)
  documents, stats = _read(path)
  assert documents == [["One is here.", "Two is here."], ["Three."]]
  assert (stats.skipped_records, dict(stats.formats)) == (1, {"parquet": 1})
  with pytest.raises(UserError, match=r"must have the column 'body'. Received: \['n', 'text'\]"):
    _read(path, text_field="body")
  with pytest.raises(UserError, match="must be a complete one"):
    _read(path, path.read_bytes()[:-20])
  with pytest.raises(UserError, match="must be a complete one"):
    _read(path, _TWO, input_format="parquet")


def test_parquet_lists_and_bad_text(tmp_path: pathlib.Path):
  path = tmp_path / "in.parquet"
  pq.write_table(pa.table({"text": [["One.", "Two."], []], "raw": [b"Good one.", b"Bad \xff one."]}), path)
  assert _read(path)[0] == [["One.", "Two."]]
  with pytest.raises(UserError, match=r"in\.parquet, column 'raw'\."):
    _read(path, text_field="raw")
  documents, stats = _read(path, text_field="raw", on_bad_text="replace")
  assert (documents, stats.bad_text_replaced) == ([["Good one."], ["Bad \ufffd one."]], 1)


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


def test_mediawiki(tmp_path: pathlib.Path):
  documents, stats = _read(tmp_path / "dump.xml.bz2", bz2.compress((_WIKI % "the").encode()))
  assert documents == [["A (x) is a letter.", "It is the first.", "It begins words."]]
  assert (stats.skipped_records, dict(stats.formats)) == (2, {"mediawiki": 1})
  documents, _ = _read(tmp_path / "dump.xml", (_WIKI % "the&amp;#xD800;").encode())
  assert documents[0][1] == "It is the\ufffd first."  # No half of a pair, which no tokenizer takes.
  with pytest.raises(UserError, match="complete, well-formed XML"):
    _read(tmp_path / "cut.xml", (_WIKI % "the").encode()[:-200])
  bad = (_WIKI % "th\udcff").encode("utf-8", errors="surrogateescape")
  with pytest.raises(UserError, match=r"bad\.xml.*--on_bad_text=rep"):
    _read(tmp_path / "bad.xml", bad)
  documents, stats = _read(tmp_path / "bad.xml", bad, on_bad_text="replace")
  assert (documents[0][1], stats.bad_text_replaced) == ("It is th\ufffd first.", 1)


# ---------------------------------------------------------------------- real corpora

_REAL = {
  "novels/Doyle_Hound_1902.txt": ("paragraphs", 16),
  "novels/Cbronte_Jane_1847.txt": ("paragraphs", 39),
  "novels/Chesterton_Thursday_1908.txt": ("paragraphs", 18),
  "wikitext-2/valid.txt": ("paragraphs", 60),
  "wikiextractor/wiki_01": ("wikiextractor", 78),
}
_REAL_SLOW = {"wikidump/enwiki-slice.xml.bz2": ("mediawiki", 106)}


@pytest.mark.parametrize(
  "name", [*_REAL, *(pytest.param(name, marks=pytest.mark.slow) for name in _REAL_SLOW)]
)
def test_real_corpora(shared_dir: pathlib.Path, name: str):
  path = shared_dir / "data" / "corpora" / name
  documents, stats = _read(path)
  assert (*stats.formats, stats.documents) == {**_REAL, **_REAL_SLOW}[name]
  assert stats.bad_text_replaced == 0
  lengths = sorted(len(sentence.split()) for document in documents for sentence in document)
  assert 8 <= lengths[len(lengths) // 2] <= 30  # Sentences of English, not lines or paragraphs.
  assert lengths[-1] < 700


def test_all_novels_are_paragraphs(shared_dir: pathlib.Path):
  for path in (shared_dir / "data/corpora/novels").iterdir():
    assert _read(path)[1].formats == {"paragraphs": 1}, path.name
  assert _read(shared_dir / "oracle/golden_pretrain_input.txt")[1].formats == {"lines": 1}
