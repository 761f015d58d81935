"""Reading RACE: both layouts, and what is refused."""

import json

import pytest

from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.race import read_race

PASSAGE = {
  "article": "the sky is blue\u2028and green",  # RACE holds characters that `splitlines` splits at.
  "questions": ["the sky is _ .", ""],
  "options": [["blue", "old", "small", "long"], ["a", "b", "c", "d"]],
  "answers": ["A", "D"],
  "id": "high7.txt",
}


def write(folder, name, *passages):
  folder.mkdir(parents=True, exist_ok=True)
  lines = [json.dumps(passage, ensure_ascii=False) for passage in passages]
  (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_both_layouts_give_the_same_questions(tmp_path):
  other = {**PASSAGE, "id": "high9.txt", "answers": ["C", "B"]}
  for level in ("middle", "high"):
    write(tmp_path / "files/RACE/dev" / level, "7.txt", PASSAGE)
    write(tmp_path / "files/RACE/dev" / level, "9.txt", other)
    write(tmp_path / "lines/dev" / level, "all.txt", PASSAGE, other)
  write(tmp_path / "lines/dev/high", "7.txt", PASSAGE)  # Left from making all.txt: not read twice.
  one_file_each = read_race(str(tmp_path / "files"), "dev")
  assert one_file_each == read_race(str(tmp_path / "lines"), "dev")
  assert one_file_each == read_race(str(tmp_path / "files/RACE"), "dev")
  assert [example.group for example in one_file_each] == ["middle"] * 4 + ["high"] * 4
  assert [example.label for example in one_file_each[:4]] == [0, 3, 2, 1]
  assert [example.example_id for example in one_file_each[:3]] == [
    "high7.txt:0",
    "high7.txt:1",
    "high9.txt:0",
  ]
  assert one_file_each[1].context == PASSAGE["article"]
  assert len(read_race(str(tmp_path / "lines"), "dev", levels=["high"])) == 4


def test_a_test_set_needs_no_answers(tmp_path):
  write(tmp_path / "test/high", "1.txt", {key: value for key, value in PASSAGE.items() if key != "answers"})
  assert [example.label for example in read_race(str(tmp_path), "test", levels=["high"])] == [None, None]


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"answers": ["A", "E"]}, "one of A, B, C, D. Received: 'E' in question 2 of .*1.txt"),
    ({"answers": ["A", ""]}, "Received: '' in question 2"),
    ({"answers": ["A"]}, "2 / 2 / 1 questions / options / answers in .*1.txt"),
    ({"options": [["a", "b", "c"], list("abcd")]}, "has 4 options. Received: 3 in question 1 of .*task_name=custom"),
    ({"options": None}, "questions and options are lists"),
    ({"questions": [3, "a"]}, "are texts. Received: others in question 1"),
  ],
)  # fmt: skip
def test_wrong_values_are_named(tmp_path, change, message):
  write(tmp_path / "train/high", "1.txt", {**PASSAGE, **change})
  with pytest.raises(UserError, match=message):
    read_race(str(tmp_path), "train", levels=["high"])


@pytest.mark.parametrize(
  ("text", "message"),
  [
    (b"", "which is empty"),
    (b"{", "1.txt, not JSON"),
    (b'{"article": "a \\ud83d b"}', r"half of one .\\ud83d. in .*1.txt"),
    (b"[]", "a list"),
    (b'{"article": "", "answers": []}', "without questions, options; it has answers, article"),
    (b"\xff\xfe", "UTF-8"),
    (b'{"article": "", "questions": [], "options": [], "answers": []}', "at least one question"),
  ],
)
def test_files_that_are_no_passages(tmp_path, text, message):
  (tmp_path / "train/high").mkdir(parents=True)
  (tmp_path / "train/high/1.txt").write_bytes(text)
  with pytest.raises(UserError, match=message):
    read_race(str(tmp_path), "train", levels=["high"])


def test_a_folder_that_is_not_race(tmp_path):
  (tmp_path / "train.csv").touch()
  with pytest.raises(UserError, match=r"without train/middle; it holds train.csv"):
    read_race(str(tmp_path), "train")
  with pytest.raises(UserError, match=r"without train/middle. Unpack"):
    read_race(str(tmp_path / "nowhere"), "train")
  (tmp_path / "train/middle").mkdir(parents=True)
  with pytest.raises(UserError, match="must hold passages"):
    read_race(str(tmp_path), "train")
