"""Multiple choice: packing as the original's, scores and predictions."""

import numpy as np
import pytest
from support.tiny_run import train_tokenizer

from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.choices import (
  ChoiceExample,
  MultipleChoiceTask,
  PackedChoices,
  choice_text,
  number_of_choices,
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
  return train_tokenizer(tmp_path_factory.mktemp("spm"))


def example(**changes):
  values = {
    "context": "birds sing all day",
    "question": "the Grass is",
    "choices": ("Green", "small", "old trees"),
  }
  return ChoiceExample(**{"example_id": "q", "label": 1, **values, **changes})  # fmt: skip


def plain_row(tokenizer, context, text, *, max_seq_length, max_qa_length):
  """The rule of the original, for a choice at a time."""
  tail = tokenizer.encode(text)
  tail = tail[max(0, len(tail) - min(max_qa_length, max_seq_length - 3)) :]
  head = tokenizer.encode(context)
  while len(head) + len(tail) > max_seq_length - 3:
    head.pop()
  ids = [tokenizer.cls_id, *head, tokenizer.sep_id, *tail, tokenizer.sep_id]
  return ids, [0] * (len(head) + 2) + [1] * (len(tail) + 1)


def test_the_choice_takes_the_place_of_every_blank():
  assert choice_text("the _ is as _", "sky") == "the sky is as sky"
  assert choice_text("what is blue?", "sky") == "what is blue? sky"


@pytest.mark.parametrize(
  ("max_seq_length", "max_qa_length"), [(64, 32), (24, 32), (24, 5), (14, 3), (8, 32), (4, 1)]
)
def test_packing_equals_the_rule(tokenizer, max_seq_length, max_qa_length):
  examples = [
    example(),
    example(context="the sky " * 40, question="ＢＬＵＥ _ and ＿", choices=("a", "small birds sing", "")),
    example(context="", question="", choices=("day", "day long", "the sky is blue and green")),
  ]
  packed = PackedChoices(examples, tokenizer, max_seq_length=max_seq_length, max_qa_length=max_qa_length)
  texts = [
    ["the grass is green", "the grass is small", "the grass is old trees"],
    ["blue a and a", "blue small birds sing and small birds sing", "blue  and "],
    ["day", "day long", "the sky is blue and green"],
  ]
  assert len(packed) == 3
  for row, source, choices in zip(packed, examples, texts, strict=True):
    wanted = [
      plain_row(tokenizer, source.context, text, max_seq_length=max_seq_length, max_qa_length=max_qa_length)
      for text in choices
    ]
    width = max(len(ids) for ids, _ in wanted)
    assert row["input_ids"].shape == (3, width)
    assert width <= max_seq_length
    for index, (ids, segments) in enumerate(wanted):
      rest = [0] * (width - len(ids))
      np.testing.assert_array_equal(row["input_ids"][index], ids + rest)
      np.testing.assert_array_equal(row["segment_ids"][index], segments + rest)
      np.testing.assert_array_equal(row["input_mask"][index], [1] * len(ids) + rest)
    assert {array.dtype for array in row.values()} == {np.dtype(np.int32)}


def test_no_room_is_refused(tokenizer):
  for lengths in ({"max_seq_length": 3, "max_qa_length": 8}, {"max_seq_length": 8, "max_qa_length": 0}):
    with pytest.raises(UserError, match="leave room"):
      PackedChoices([example()], tokenizer, **lengths)


def test_every_question_has_the_same_number_of_choices():
  splits = {"train": [example()], "eval": [example(example_id="row 5", choices=("a", "b"))]}
  with pytest.raises(UserError, match="3 in q, 2 in row 5"):
    number_of_choices(splits)
  with pytest.raises(UserError, match=r"at least two choices. Received: 1 in q"):
    number_of_choices({"train": [example(choices=("a",))]})
  with pytest.raises(UserError, match="at least one question"):
    number_of_choices({"train": []})


def test_scores_by_group_and_predictions(tokenizer, tmp_path):
  labels, groups = [0, 1, 2, 0], ["middle", "middle", "high", "high"]
  examples = [
    example(example_id=f"q{number}\tx", label=label, group=group)
    for number, (label, group) in enumerate(zip(labels, groups, strict=True))
  ]
  unknown = [example(label=None)]
  task = MultipleChoiceTask(
    splits={"eval": examples, "test": unknown}, tokenizer=tokenizer, max_seq_length=24, max_qa_length=12
  )
  logits = np.log([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.7, 0.2, 0.1], [0.5, 0.25, 0.25]])
  wanted = {"accuracy": 0.75, "accuracy_middle": 1.0, "accuracy_high": 0.5}
  wanted["loss"] = -np.log([0.6, 0.5, 0.1, 0.5]).mean()
  assert task.evaluate({"logits": logits}) == pytest.approx(wanted)
  task.write_predictions({"logits": logits}, "eval", str(tmp_path))
  lines = (tmp_path / "predictions_eval.tsv").read_text().splitlines()
  assert lines[0] == "id\tprediction\tlabel\tgroup\tprobability_A\tprobability_B\tprobability_C"
  assert lines[3] == "q2 x\tA\tC\thigh\t0.700000\t0.200000\t0.100000"
  assert task.eval_features().labels.tolist() == labels
  assert task.test_features().labels is None
  task.write_predictions({"logits": logits[:1]}, "test", str(tmp_path))
  assert "\tA\t\t\t0.6" in (tmp_path / "predictions_test.tsv").read_text()
  with pytest.raises(UserError, match="needs train data"):
    task.train_features()


def test_training_needs_labels(tokenizer):
  task = MultipleChoiceTask(
    splits={"train": [example(), example(example_id="row 9", label=None)]},
    tokenizer=tokenizer,
    max_seq_length=24,
    max_qa_length=12,
  )
  with pytest.raises(UserError, match="Received: none in row 9"):
    task.train_features()


def test_what_is_cut_is_counted_and_said_once(tokenizer, caplog):
  long = example(context="the sky " * 40)
  short = example(context="")
  packed = PackedChoices([long, short, long], tokenizer, max_seq_length=24, max_qa_length=12)
  assert packed.num_cut == 2
  assert PackedChoices([short], tokenizer, max_seq_length=24, max_qa_length=1).num_cut == 1
  fits = max(
    len(row)
    for row in PackedChoices([example()], tokenizer, max_seq_length=99, max_qa_length=50)[0]["input_ids"]
  )
  for length, cut in ((fits, 0), (fits - 1, 1)):
    assert PackedChoices([example()], tokenizer, max_seq_length=length, max_qa_length=50).num_cut == cut
  task = MultipleChoiceTask(
    splits={"eval": [long, short], "test": [short]}, tokenizer=tokenizer, max_seq_length=24, max_qa_length=12
  )
  with caplog.at_level("INFO", logger="absl"):
    task.eval_features()
    task.test_features()
  assert [record.getMessage() for record in caplog.records] == [
    "eval: of 1 of 2 questions the passage or the choice is cut to fit 24 pieces (--max_seq_length)"
  ]
