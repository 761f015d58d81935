"""Reading RACE: both layouts, and what is refused."""

import json

import pytest

from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.choices import read_race

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
    ({"answers": ["A", "E"]}, "'E' is not in list"),
    ({"answers": ["A"]}, "zip"),
    ({"options": [["a", "b", "c"], list("abcd")]}, "4 options a question.*task_name=custom"),
  ],
)
def test_wrong_values_are_named(tmp_path, change, message):
  write(tmp_path / "train/high", "1.txt", {**PASSAGE, **change})
  with pytest.raises(UserError, match=message):
    read_race(str(tmp_path), "train", levels=["high"])


def test_a_folder_that_is_not_race(tmp_path):
  with pytest.raises(UserError, match=r"without train/middle"):
    read_race(str(tmp_path), "train")
  (tmp_path / "train/high").mkdir(parents=True)
  (tmp_path / "train/high/1.txt").write_text("[]")
  with pytest.raises(UserError, match=r"1.txt:1 \(TypeError"):
    read_race(str(tmp_path), "train", levels=["high"])
