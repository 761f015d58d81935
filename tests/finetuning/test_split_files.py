"""Which file is which split, and what is held out where there is none."""

import pytest

from albert_tf.errors import UserError
from albert_tf.finetuning.data import find_split_files, hold_out


def find(folder, *needed, **named):
  return find_split_files(str(folder), (".csv", ".jsonl"), needed=needed, **named)


def test_files_by_name(tmp_path):
  for name in ("train.csv", "valid.jsonl", "test.txt", "dev.txt"):
    (tmp_path / name).touch()
  found = find(tmp_path, "train", "eval")
  assert found == {"train": str(tmp_path / "train.csv"), "eval": str(tmp_path / "valid.jsonl")}
  assert find(tmp_path, "test", test="other.csv", eval="")["test"] == "other.csv"
  (tmp_path / "dev.csv").touch()
  with pytest.raises(UserError, match=r"Received: dev.csv, valid.jsonl in .*--eval_file"):
    find(tmp_path, "train")
  assert find(tmp_path, "train", eval="mine.csv")["eval"] == "mine.csv"


def test_what_is_missing(tmp_path):
  with pytest.raises(UserError, match=r"Received: files for nothing alone"):
    find(tmp_path, "train")
  (tmp_path / "train.csv").touch()
  assert set(find(tmp_path, "train", "eval")) == {"train"}  # A part of it will be held out.
  with pytest.raises(UserError, match=r"needs test data. Received: files for train alone"):
    find(tmp_path, "test")


def test_held_out_examples_are_always_the_same():
  examples = list(range(20))
  train, held = hold_out(examples, 0.1, source="f")
  assert (train, held) == hold_out(examples, 0.1, source="f")
  assert len(held) == 2
  assert sorted(train + held) == examples
  with pytest.raises(UserError, match=r"0\.1 of 1 in f"):
    hold_out(["one"], 0.1, source="f")
  assert [len(part) for part in hold_out("abcd", 0.01, source="f")] == [3, 1]


def test_groups_are_held_out_whole():
  groups = [4, 4, 4, 9, 9, 2, 2, 2, 2, 7]
  for seed in range(5):
    train, held = hold_out(range(10), 0.3, source="f", groups=groups, seed=seed)
    assert sorted([*train, *held]) == list(range(10))
    assert {groups[i] for i in train}.isdisjoint(groups[i] for i in held)
    assert held
    assert train
