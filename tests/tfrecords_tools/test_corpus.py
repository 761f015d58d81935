"""Corpus readers: bytes to lines, layouts of plain text, and what bad input does."""

import bz2
import gzip
import json
import lzma
import os
import pathlib
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.corpora import read_corpus as _read
import zstandard

from albert_tf.errors import UserError
from tfrecords_tools.corpus import CorpusOptions, CorpusStats, bytestreams, iter_documents
from tfrecords_tools.corpus.sentences import split_sentences

_TWO = b"The first sentence.\nThe second one.\n\nAnother document is here.\nIt ends now.\n"
_TWO_DOCUMENTS = [["The first sentence.", "The second one."], ["Another document is here.", "It ends now."]]


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
def test_compressions(tmp_path: pathlib.Path, suffix: str, compress):
  documents, stats = _read(tmp_path / f"in{suffix}", compress(_TWO))
  assert documents == _TWO_DOCUMENTS
  assert (stats.bytes_read, stats.files, dict(stats.formats)) == (len(_TWO), 1, {"lines": 1})


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress, zstandard.compress])
def test_damaged_compressed_file(tmp_path: pathlib.Path, compress):
  data = compress(os.urandom(30000).hex().encode())
  with pytest.raises(UserError, match=r"readable to its end. Received: .*in\.bin"):
    _read(tmp_path / "in.bin", data[: len(data) // 2])


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_line_ends_and_byte_order_mark(tmp_path: pathlib.Path, end: bytes):
  assert _read(tmp_path / "in.txt", b"\xef\xbb\xbf" + _TWO.replace(b"\n", end).rstrip())[0] == _TWO_DOCUMENTS


@given(
  data=st.lists(st.sampled_from([b"a", b"bc ", b"\n", b"\r\n", "é".encode(), b" "]), max_size=60).map(
    b"".join
  ),
  limit=st.integers(8, 20),
  block=st.integers(1, 30),
)
def test_lines_are_bounded_and_nothing_is_lost(data: bytes, limit: int, block: int):
  chunks = [data[start : start + block] for start in range(0, len(data), block)]
  stats = CorpusStats()
  whole: list[bytes] = []
  for piece, begins in bytestreams._read_lines(chunks, limit, stats):
    assert len(piece) <= limit
    piece.decode("utf-8")  # Never cut inside a character.
    if begins:
      whole.append(piece)
    else:
      whole[-1] += piece
  expected = data.replace(b"\r\n", b"\n").split(b"\n")
  expected = expected if expected[-1] else expected[:-1]
  assert whole == expected
  assert stats.long_lines >= sum(len(line) > limit + 1 for line in expected)
  assert stats.bytes_read == len(data)


def test_a_ten_megabyte_line_is_read_as_sentences(tmp_path: pathlib.Path):
  sentence = "This sentence has eight words in it today."
  documents, stats = _read(
    tmp_path / "in.txt", b" ".join([sentence.encode()] * 240_000), input_format="lines"
  )
  sentences = [text for document in documents for text in document]
  assert abs(len(sentences) - 240_000) < 50  # A few are cut where the line was.
  assert sentences.count(sentence) > 239_900
  assert stats.long_lines >= 1
  assert len(documents) == 2  # 10 MB is more than one document may be.
  assert stats.long_documents == 1


def test_memory_does_not_grow_with_the_file(tmp_path: pathlib.Path):
  """10 and 60 MB, as one document and as one line: the peak is the same."""
  script = (
    "import resource, sys\n"
    "from tfrecords_tools.corpus import *\n"
    "for path in sys.argv[1:]:\n"
    "  for _ in iter_documents(path, CorpusOptions(max_document_bytes=1 << 20), stats=CorpusStats()): pass\n"
    "  print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
  )
  line = b"These are some words that make a line of text.\n"
  paths = []
  for name, content in (("small", line), ("lines", line), ("one_line", line.replace(b"\n", b" "))):
    paths.append(tmp_path / name)
    with open(paths[-1], "wb") as stream:
      for _ in range(1 if name == "small" else 6):
        stream.write(content * 200_000)
  environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
  result = subprocess.run(
    [sys.executable, "-c", script, *map(str, paths)],
    capture_output=True,
    text=True,
    check=True,
    env=environment,
  )
  small, lines, one_line = map(int, result.stdout.split())
  assert lines < 1.1 * small
  assert one_line < 1.2 * small


def test_remote_paths_go_through_gfile(tmp_path: pathlib.Path):
  """`file://` stands for `gs://`: the same code opens both."""
  (tmp_path / "in.gz").write_bytes(gzip.compress(_TWO))
  pq.write_table(pa.table({"text": ["One is. Two is."]}), tmp_path / "in.parquet")
  for name, expected in (("in.gz", _TWO_DOCUMENTS), ("in.parquet", [["One is.", "Two is."]])):
    assert list(iter_documents(f"file://{tmp_path}/{name}", CorpusOptions(), stats=CorpusStats())) == expected
  with pytest.raises(OSError, match="No such file"):
    list(iter_documents(f"file://{tmp_path}/none", CorpusOptions(), stats=CorpusStats()))


# ---------------------------------------------------------------------- bad input


def test_bad_text(tmp_path: pathlib.Path):
  content = b"The first is good.\nThe second \xff\xfe is not.\nThe third is good.\n"
  with pytest.raises(
    UserError, match=r"Received: b'.*The second .*in\.txt, line 2\. .*--on_bad_text=replace"
  ):
    _read(tmp_path / "in.txt", content)
  documents, stats = _read(tmp_path / "in.txt", on_bad_text="replace")
  assert documents[0][1] == "The second \ufffd\ufffd is not."
  assert stats.bad_text_replaced == 1


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (b"\x7fELF\x02\x01\x01\0\0\0", "which is binary"),
    (bytes(range(1, 9)) * 50 + b"text", "which is binary"),
    ("text\n".encode("utf-16"), "iconv -f UTF-16"),
  ],
)
@pytest.mark.parametrize("input_format", ["auto", "lines", "paragraphs", "jsonl"])
def test_binary_and_other_encodings(tmp_path: pathlib.Path, content: bytes, message: str, input_format: str):
  with pytest.raises(UserError, match=message):
    _read(tmp_path / "in.txt", content, input_format=input_format)


def test_missing_and_empty_files(tmp_path: pathlib.Path):
  with pytest.raises(FileNotFoundError, match=r"none\.txt"):
    _read(tmp_path / "none.txt")
  for content in (b"", b"\xef\xbb\xbf", b"\n \n\n"):
    documents, stats = _read(tmp_path / "in.txt", content)
    assert (documents, stats.files, stats.empty_files) == ([], 1, 1)


def test_stats_add_up(tmp_path: pathlib.Path):
  _, one = _read(tmp_path / "in.txt", _TWO)
  total = CorpusStats()
  total.update(one)
  total.update(one)
  assert (total.documents, total.sentences, total.files) == (4, 8, 2)
  assert total.to_dict()["formats"] == {"lines": 2}
  assert json.loads(json.dumps(total.to_dict())) == total.to_dict()


# ---------------------------------------------------------------------- layouts of plain text


def test_dense_paragraphs_have_blank_lines_between_documents(tmp_path: pathlib.Path):
  content = b"One is here. Two is here.\nThree is here. Four is here.\n\nFive is new. Six is last.\n"
  documents, stats = _read(tmp_path / "in.txt", content)
  assert documents == [
    ["One is here.", "Two is here.", "Three is here.", "Four is here."],
    ["Five is new.", "Six is last."],
  ]
  assert dict(stats.formats) == {"paragraphs": 1}


def test_spaced_paragraphs_and_chapters(tmp_path: pathlib.Path):
  content = b'CHAPTER I\n\n"Well?" he said.\n\nNobody spoke.\n\n'
  content += b"Chapter 2: The Moor\n\nIt rained.\n\n\n\n\nThe end came.\n"
  assert _read(tmp_path / "in.txt", content)[0] == [
    ["CHAPTER I", '"Well?" he said.', "Nobody spoke."],
    ["Chapter 2: The Moor", "It rained."],
    ["The end came."],
  ]


def test_wrapped_paragraphs(tmp_path: pathlib.Path):
  content = b"It was a long\nsentence of self-\nimportance. It\nended here.\n\n"
  content += b"Another one\nfollowed it.\n\fNew page\nbegins.\n"
  assert _read(tmp_path / "in.txt", content)[0] == [
    ["It was a long sentence of self-importance.", "It ended here.", "Another one followed it."],
    ["New page", "begins."],
  ]


def test_wikitext_titles_begin_documents(tmp_path: pathlib.Path):
  content = b" \n = First = \n \n It ran 34 @.@ 7 mi . It was well @-@ known . \n"
  content += b" = = Part = = \n \n More . \n \n = Second = \n \n Last . \n"
  assert _read(tmp_path / "in.txt", content)[0] == [
    ["It ran 34.7 mi .", "It was well-known .", "More ."],
    ["Last ."],
  ]


def test_lower_cased_sentences_are_not_wrapped_paragraphs(tmp_path: pathlib.Path):
  lines = [f"the number {n} has no full stop" for n in range(50)]
  assert _read(tmp_path / "in.txt", "\n".join(lines).encode())[0] == [lines]


def test_enumerators_stay_with_their_sentence():
  assert split_sentences("Dr. Smith left. 2. He\tcame   back! 3.") == [
    "Dr. Smith left.",
    "2. He came back!",
    "3.",
  ]
  assert split_sentences(" \n ") == []
