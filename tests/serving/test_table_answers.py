"""Tables answered by a SavedModel: every kind, damaged rows, kills at every write, and what is refused."""

import json
import os

import numpy as np
import pyarrow
from pyarrow import parquet
import pytest
from support.tiny_run import WORDS, as_bytes

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.serving import table_answers
from albert_tf.serving.table_answers import TableModel, answer_tables

SENTENCES = [" ".join(WORDS[: 1 + number * 5 % 17]) for number in range(12)]
OF_PAIRS = [{"text": text, "text_pair": text[::-1]} for text in SENTENCES]
OF_QUESTIONS = [{"question": "what is blue?", "context": text} for text in SENTENCES]
# The numbers of choices differ, and so do those of words.
OF_CHOICES = [
  {"context": text, "question": "the _ is", "choices": WORDS[: 2 + number % 3]}
  for number, text in enumerate(SENTENCES)
]
OF_WORDS = [{"words": text.split()} for text in SENTENCES]
OF_MASKS = [{"text": text.replace("the", "[MASK]").replace("sky", "[MASK]")} for text in SENTENCES]


def write_json(path, rows):
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return str(path)


def read_json(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def decoded(value):
  """The strings of nested lists."""
  if isinstance(value, list):
    return [decoded(item) for item in value]
  return value.decode() if isinstance(value, bytes) else value


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
  monkeypatch.setattr(table_answers, "_PART_ROWS", 5)
  monkeypatch.setattr(table_answers, "_BATCH_CHARACTERS", 256)


@pytest.mark.parametrize(
  ("kind", "signature", "rows"),
  [
    ("pair", "serving_default", OF_PAIRS),
    pytest.param("labels", "early_exit", OF_PAIRS, marks=pytest.mark.slow),
    ("value", "serving_default", OF_PAIRS),
    ("vectors", "serving_default", OF_PAIRS),
    pytest.param("squad_2.0", "serving_default", OF_QUESTIONS, marks=pytest.mark.slow),
    pytest.param("choice", "serving_default", OF_CHOICES, marks=pytest.mark.slow),
    pytest.param("tags", "serving_default", OF_PAIRS, marks=pytest.mark.slow),
    pytest.param("tags", "words", OF_WORDS, marks=pytest.mark.slow),
    ("fill_mask", "serving_default", OF_MASKS),
    ("encoder", "pairs", OF_PAIRS),
  ],
)
def test_each_row_has_the_answer_that_it_has_alone(exported, tmp_path, kind, signature, rows):
  session = exported(kind).session
  # All outputs, also those of single tokens.
  model = TableModel(session, signature, outputs=sorted(session.signatures[signature].outputs))
  path = write_json(tmp_path / "in.jsonl", rows)
  answered = answer_tables(model, [path], str(tmp_path / "out.jsonl"))
  assert (answered.rows, answered.damaged) == (len(rows), 0)
  answer_tables(model, [path], str(tmp_path / "out.parquet"))
  of_parquet = parquet.read_table(str(tmp_path / "out.parquet")).to_pylist()
  of_json = read_json(tmp_path / "out.jsonl")
  for number, (row, answer, same) in enumerate(zip(rows, of_json, of_parquet, strict=True)):
    assert answer.pop("id") == same.pop("id") == str(number)
    assert same.pop("error") is None
    alone = session.run(signature, {name: as_bytes([row[name]]) for name in model.inputs})
    assert sorted(answer) == sorted(same) == sorted(alone)
    for name, value in answer.items():
      expected = np.asarray(alone[name][0])
      # Alone a row has no padding but that of the answers to a question.
      if kind == "squad_2.0" and expected.ndim:
        expected = expected[alone["ends"][0] > 0]
      if expected.dtype.kind == "f":
        np.testing.assert_allclose(value, expected, atol=1e-5)
        np.testing.assert_array_equal(np.float32(value), np.float32(same[name]))
      elif kind == "squad_2.0" and expected.ndim:
        # Random weights give nearly equal scores: the order depends on the batch.
        assert value == same[name]
        assert sorted(value) == sorted(decoded(expected.tolist()))
      else:
        assert value == same[name] == decoded(expected.tolist())


@pytest.mark.slow
def test_columns_are_matched_in_order_and_choices_have_one_each(exported, tmp_path):
  of_lists = write_json(tmp_path / "lists.jsonl", [{"q": "the _", "c": ["sky", "grass"]}])
  table = tmp_path / "columns.csv"
  table.write_text("id,a,b,q\nx,sky,grass,the _\n")
  session = exported("choice").session
  answers = []
  for path, columns in ((of_lists, ["", "q", "c"]), (str(table), ["", "q", "a", "b"])):
    output = tmp_path / f"{len(columns)}.jsonl"
    answer_tables(TableModel(session, text_columns=columns), [path], str(output))
    answers += read_json(output)
  assert [answer.pop("id") for answer in answers] == ["0", "x"]
  assert answers[0] == answers[1]


def test_damaged_rows_keep_their_places(exported, tmp_path):
  rows = [{"text": text, "id": number} for number, text in enumerate(SENTENCES[:7])]
  rows[2]["text"] = None
  rows[4]["text"] = ["a"]
  rows[5]["text"] = ""  # A text without words is a text.
  lines = [json.dumps(row).encode() for row in rows]
  path = tmp_path / "in.jsonl"
  path.write_bytes(b"\n".join([*lines[:3], b"{", *lines[3:]]))
  model = TableModel(exported("vectors").session)
  for name in ("out.jsonl", "out.parquet", "out.npy"):
    answered = answer_tables(model, [str(path)], str(tmp_path / name))
    assert (answered.rows, answered.damaged) == (8, 3)
    assert [example.partition(": ")[0] for example in answered.examples] == [
      f"{path}:{line}" for line in (3, 4, 6)
    ]
  of_json = read_json(tmp_path / "out.jsonl")
  assert [row["id"] for row in of_json] == ["0", "1", "2", "3", "3", "4", "5", "6"]
  assert [row["vector"] is None for row in of_json] == [
    False,
    False,
    True,
    True,
    False,
    True,
    False,
    False,
  ]
  assert [row.get("error", "")[:20] for row in of_json if row["vector"] is None] == [
    "There is no cell of ", "A row must hold one ", "The cell of text is ",
  ]  # fmt: skip
  of_parquet = parquet.read_table(str(tmp_path / "out.parquet")).to_pylist()
  array = np.load(tmp_path / "out.npy", mmap_mode="r")
  for row, same, vector in zip(of_json, of_parquet, array, strict=True):
    assert (row["id"], row.get("error")) == (same["id"], same["error"])
    if row["vector"] is None:
      assert same["vector"] is None
      assert np.isnan(vector).all()
    else:
      assert np.float32(row["vector"]).tolist() == same["vector"] == vector.tolist()


class Killed(BaseException):
  """Ends a life."""


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet", "out.npy"])
def test_a_run_killed_before_any_write_gives_the_same_bytes(exported, tmp_path, monkeypatch, name):
  model = TableModel(exported("vectors").session)
  paths = [write_json(tmp_path / f"{part}.jsonl", OF_PAIRS) for part in range(2)]
  answer_tables(model, paths, str(tmp_path / name))

  # What is written or removed is so by these two.
  left = 0
  for function in ("move_into_place", "remove"):
    original = getattr(files, function)

    def dying(*arguments, original=original):
      nonlocal left
      if left == 0:
        raise Killed
      left -= 1
      original(*arguments)

    monkeypatch.setattr(files, function, dying)
  rows_before = []
  for number in range(100):
    folder = tmp_path / str(number)
    folder.mkdir()
    left = number
    try:
      answer_tables(model, paths, str(folder / name))
    except Killed:
      left = 100
      rows_before.append(answer_tables(model, paths, str(folder / name)).rows_before)
    else:
      break
    assert (folder / name).read_bytes() == (tmp_path / name).read_bytes()
    assert os.listdir(folder) == [name]
  assert sorted(set(rows_before)) == [0, 5, 10, 15, 20, 24]


def test_an_unfinished_output_of_something_else_is_refused(exported, tmp_path, monkeypatch):
  path = write_json(tmp_path / "in.jsonl", OF_PAIRS)
  session = exported("pair").session
  output = tmp_path / "out.jsonl"

  def first_part_alone(model, rows):
    if rows[0]["text"] != SENTENCES[0]:
      raise Killed
    return answer(model, rows)

  answer = TableModel.answer
  monkeypatch.setattr(TableModel, "answer", first_part_alone)
  with pytest.raises(Killed):
    answer_tables(TableModel(session), [path], str(output))
  with pytest.raises(UserError, match=r"outputs .*label.*--output"):
    answer_tables(TableModel(session, outputs=["label"]), [path], str(output))
  write_json(tmp_path / "in.jsonl", OF_PAIRS[1:])
  with pytest.raises(UserError, match=r"in\.jsonl .*remove this folder"):
    answer_tables(TableModel(session), [path], str(output))


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".npy"])
def test_a_table_without_rows_gives_a_file_without_rows(exported, tmp_path, suffix):
  (tmp_path / "in.csv").write_text("text\n")
  output = tmp_path / f"out{suffix}"
  answer_tables(TableModel(exported("vectors").session), [str(tmp_path / "in.csv")], str(output))
  if suffix == ".npy":
    assert np.load(output).shape == (0, 12)
  elif suffix == ".parquet":
    assert parquet.read_table(str(output)).schema.field("vector").type == pyarrow.list_(
      pyarrow.float32()
    )
  else:
    assert output.read_bytes() == b""
  assert not (tmp_path / f"out{suffix}.partial").exists()


@pytest.mark.parametrize(
  ("kind", "options", "name", "message"),
  [
    ("pair", {"signature": "depth_9"}, "o.jsonl", "tokens. Received: --signature=depth_9"),
    ("pair", {"signature": "tokens"}, "o.jsonl", "--signature=tokens, which takes input_ids"),
    ("pair", {"outputs": ["words"]}, "o.jsonl", "--outputs=words"),
    ("pair", {"text_columns": ["text"]}, "o.jsonl", "--text_columns=text"),
    ("vectors", {"text_columns": ["text", "b"]}, "o.jsonl", "--text_columns=text,b"),
    ("vectors", {"text_columns": ["b"]}, "o.jsonl", "without b; it has text, text_pair"),
    ("vectors", {}, "o.txt", "--output=.*o.txt"),
    ("pair", {"outputs": ["label"]}, "o.npy", "none such of label.*--outputs"),
    ("encoder", {}, "o.npy", "mean_output, pooled_output.*--outputs"),
  ],
)
def test_mistakes_are_refused(exported, tmp_path, kind, options, name, message):
  (tmp_path / "in.csv").write_text("text,text_pair\nx,y\n")
  with pytest.raises(UserError, match=message):
    answer_tables(
      TableModel(exported(kind).session, **options),
      [str(tmp_path / "in.csv")],
      str(tmp_path / name),
    )
  assert os.listdir(tmp_path) == ["in.csv"]


def test_an_output_that_is_there_is_kept(exported, tmp_path):
  path = write_json(tmp_path / "in.jsonl", OF_PAIRS)
  with pytest.raises(UserError, match=r"in\.jsonl, which is there.*--output"):
    answer_tables(TableModel(exported("vectors").session), [path], path)
  assert os.listdir(tmp_path) == ["in.jsonl"]


def test_a_table_without_a_single_text_is_refused(exported, tmp_path):
  path = write_json(tmp_path / "in.jsonl", [{"review": text} for text in SENTENCES])
  with pytest.raises(UserError, match=r"in\.jsonl:1: There is no cell of text.*--text_columns"):
    answer_tables(TableModel(exported("vectors").session), [path], str(tmp_path / "out.jsonl"))
  assert os.listdir(tmp_path) == ["in.jsonl"]
