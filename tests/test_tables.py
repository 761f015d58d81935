"""Rows of tables, one after the other: four formats, damaged rows, files that are no tables, and memory."""

import csv
import json
import tracemalloc

import pyarrow
from pyarrow import parquet
import pytest

from albert_tf import tables
from albert_tf.errors import UserError

ROWS = [
  {"id": "1", "text": 'the "blue" sky, old', "other": "ä"},
  {"id": "2", "text": "", "other": "\u2028x\x0c"},
  {"id": "3", "text": " all day ", "other": "x"},
]
CSV = b"\xef\xbb\xbfid,text\r\n"


def write(path, rows=ROWS):
  """A table of the format that the name says."""
  if path.suffix == ".parquet":
    parquet.write_table(pyarrow.Table.from_pylist(rows), str(path))
  elif path.suffix == ".jsonl":
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  else:
    with path.open("w", newline="") as stream:
      options = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}
      writer = csv.DictWriter(stream, list(rows[0]), **(options if path.suffix == ".tsv" else {}))
      writer.writeheader()
      writer.writerows(rows)
  return str(path)


def read(path, columns=None):
  with tables.open_table(str(path)) as table:
    return list(table.read(columns))


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl", ".parquet"])
def test_four_formats_have_the_same_rows(tmp_path, suffix):
  path = write(tmp_path / f"a{suffix}")
  rows = read(path)
  assert [row.cells for row in rows] == ROWS
  assert [row.error for row in rows] == [""] * 3
  assert [row.cells for row in read(path, ["text", "absent"])] == [
    {"text": row["text"]} for row in ROWS
  ]
  positions = [row.position for row in rows]
  assert positions == sorted(positions)
  assert positions[-1] == (tmp_path / f"a{suffix}").stat().st_size


@pytest.mark.parametrize(
  ("name", "content", "found"),
  [
    ("a.csv", b'1,"x\r\ny"\r\n2\r\n3,z', [(2, "x\r\ny"), (4, "1 cells"), (5, "z")]),
    # A quote that is not doubled, and one that is never closed, take no other row along.
    ("a.csv", b'1,"x" y\n2,z\n3,"x\n4,y\n', [(2, "quoted"), (3, "z"), (4, "quoted"), (5, "y")]),
    ("a.csv", b"1,\xff\n\n2,\0\n", [(2, "text is not UTF-8"), (4, "\0")]),
    ("a.tsv", b"1\tx\n2\tx\ty\n3\t\xc3\n", [(2, "x"), (3, "3 cells"), (4, "not UTF-8")]),
    (
      "a.jsonl",
      b'{"text": "x"}\n\n{"text": "x"\n[1]\n{"text": "\xff"}\n{"text": ["\\ud800"]}\n{"text": 1}',
      [(1, "x"), (3, "A row"), (4, "A row"), (5, "not UTF-8"), (6, "not UTF-8"), (7, 1)],
    ),
  ],
)
def test_damaged_rows_are_named_and_the_others_read(tmp_path, name, content, found):
  path = tmp_path / name
  header = {".csv": CSV, ".tsv": b"id\ttext\r\n", ".jsonl": b""}[path.suffix]
  path.write_bytes(header + content)
  rows = read(path)
  for row, (line, expected) in zip(rows, found, strict=True):
    assert row.where == f"{path}:{line}"
    if row.error:
      assert expected in row.error
    else:
      assert row.cells["text"] == expected


def test_parquet_with_bytes_that_are_no_text(tmp_path):
  texts = pyarrow.array([b"x", b"\xff", None]).cast(pyarrow.binary())
  texts = pyarrow.Array.from_buffers(pyarrow.string(), len(texts), texts.buffers())
  table = pyarrow.table({"id": ["1", "2", "3"], "text": texts})
  parquet.write_table(table, str(tmp_path / "a.parquet"))
  good, damaged, absent = read(tmp_path / "a.parquet")
  assert good.cells == {"id": "1", "text": "x"}
  assert (damaged.cells, damaged.where) == ({"id": "2"}, f"row 2 of {tmp_path}/a.parquet")
  assert "text is not UTF-8" in damaged.error
  assert absent.cells == {"id": "3", "text": None}


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("a.txt", b"text\nx\n", r"\.jsonl or \.parquet\. Received: .*a\.txt"),
    ("a.csv", b"", "first line"),
    ("a.tsv", b"text\ttext\n", "text, text"),
    # Excel's "Unicode text" is UTF-16.
    ("a.tsv", "text\tlabel\nx\ty\n".encode("utf-16"), r"Received: .*a\.tsv.* UTF-8"),
    ("a.csv", b'"text" x,label\n', r"Received: .*a\.csv.* quotes"),
    ("a.parquet", b"PAR1", "complete and undamaged"),
    ("a.csv", b"text\n" + b"x" * 200, r"a\.csv:2"),
  ],
)
def test_a_file_that_is_no_table(tmp_path, monkeypatch, name, content, message):
  monkeypatch.setattr(tables, "LONGEST_LINE", 100)
  (tmp_path / name).write_bytes(content)
  with pytest.raises(UserError, match=message):
    read(tmp_path / name)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_memory_does_not_grow_with_the_file(tmp_path, suffix):
  rows = [{"text": f"{number:0100d}"} for number in range(20_000)]
  path = write(tmp_path / f"a{suffix}", rows)
  del rows
  with tables.open_table(path) as table:
    tracemalloc.start()
    assert sum(1 for _ in table.read(None)) == 20_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
  assert peak < 1 << 20  # Of 2 MB.
