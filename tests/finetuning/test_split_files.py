"""What is held out for evaluation where no file is named."""

import pytest

from albert_tf.errors import UserError
from albert_tf.finetuning.data import hold_out


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
