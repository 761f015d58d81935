"""Multiple choice: packing as the original's, scores and predictions."""

import numpy as np
import pytest
from reference.batches import numpy_batch
from support.tiny_run import train_tokenizer

from albert_tf.errors import UserError
from albert_tf.finetuning.data import Table
from albert_tf.finetuning.tasks.choices import ChoiceColumns, ChoiceExample, choice_examples
from albert_tf.finetuning.tasks.multiple_choice import MultipleChoiceTask


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


@pytest.mark.parametrize(
  ("max_seq_length", "max_qa_length"), [(64, 32), (24, 32), (24, 5), (14, 3), (8, 32), (5, 1)]
)
def test_packing_equals_the_rule(tokenizer, max_seq_length, max_qa_length):
  examples = [
    example(),
    example(context="the sky " * 40, question="ＢＬＵＥ _ and ＿", choices=("a", "small birds sing", "")),
    example(context="", question="", choices=("day", "day long", "the sky is blue and green")),
  ]
  task = MultipleChoiceTask(
    splits={"test": examples},
    tokenizer=tokenizer,
    max_seq_length=max_seq_length,
    max_qa_length=max_qa_length,
  )
  x, _, _ = numpy_batch(task.features("test"), range(3), batch_size=3, length=max_seq_length)
  texts = [
    ["the grass is green", "the grass is small", "the grass is old trees"],
    ["blue a and a", "blue small birds sing and small birds sing", "blue  and "],
    ["day", "day long", "the sky is blue and green"],
  ]
  for row, (source, choices) in enumerate(zip(examples, texts, strict=True)):
    for choice, text in enumerate(choices):
      ids, segments = plain_row(
        tokenizer, source.context, text, max_seq_length=max_seq_length, max_qa_length=max_qa_length
      )
      rest = [0] * (max_seq_length - len(ids))
      assert x["input_ids"][row, choice].tolist() == ids + rest
      assert x["segment_ids"][row, choice].tolist() == segments + rest
      assert x["input_mask"][row, choice].tolist() == [1] * len(ids) + rest


def test_every_question_has_the_same_number_of_choices(tokenizer):
  splits = {"train": [example()], "eval": [example(example_id="row 5", choices=("a", "b"))]}
  with pytest.raises(UserError, match="3 in q, 2 in row 5"):
    MultipleChoiceTask(splits=splits, tokenizer=tokenizer, max_seq_length=64, max_qa_length=32)


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
  assert task.features("eval").labels.tolist() == labels
  assert task.features("test").labels is None
  task.write_predictions({"logits": logits[:1]}, "test", str(tmp_path))
  assert "\tA\t\t\t0.6" in (tmp_path / "predictions_test.tsv").read_text()
  with pytest.raises(UserError, match="needs train data"):
    task.features("train")


# ------------------------------------------------------------------ a person's own table


def table(*rows):
  names = dict.fromkeys(name for row in rows for name in row)
  columns = {name: [row.get(name) for row in rows] for name in names}
  return Table(source="t.csv", columns=columns, first_line=2)


def listed(label, choices=("red", "blue", "green"), **more):
  return {"question": "what is it?", "choices": list(choices), "label": label, **more}


@pytest.mark.parametrize(
  ("label_format", "values", "choices", "expected"),
  [
    ("index", (0, np.int64(2), 1.0), ("red", "blue", "green"), [0, 2, 1]),
    ("index1", (1, 3), ("red", "blue", "green"), [0, 2]),
    ("letter", ("A", "c "), ("red", "blue", "green"), [0, 2]),
    ("text", ("blue", " green"), ("red", "blue", "green"), [1, 2]),
    ("text", ("1", "2"), ("1", "0", "2"), [0, 2]),
  ],
)
def test_labels_in_every_format(label_format, values, choices, expected):
  rows = table(*(listed(value, choices) for value in values))
  examples = choice_examples(rows, ChoiceColumns(label_format=label_format))
  assert [each.label for each in examples] == expected


def test_columns_for_each_choice_and_a_context():
  rows = [
    {"passage": "p", "q": "", "a": "x", "b": 3.0, "gold": "B", "n": "first"},
    {"passage": None, "q": "q", "a": "x", "b": 4, "gold": None, "n": ""},
  ]
  columns = ChoiceColumns(
    context_column="passage",
    question_column="q",
    choice_columns=("a", "b"),
    label_column="gold",
    label_format="letter",
    id_column="n",
  )
  first, second = choice_examples(table(*rows), columns)
  assert (first.example_id, first.context, first.question, first.choices, first.label) == (
    "first", "p", "", ("x", "3"), 1,
  )  # fmt: skip
  assert (second.example_id, second.context, second.label) == ("line 3 of t.csv", "", None)
  (bare,) = choice_examples(table({"question": "q", "choices": ["a", "b"]}), ChoiceColumns(), labelled=False)
  assert bare.label is None


@pytest.mark.parametrize(
  ("row", "columns", "message"),
  [
    ({"question": "q", "choices": ["a"]}, {}, r"columns question, choices, label"),
    (listed("3"), {}, "Received: '3' for 3 choices in line 2 of t.csv"),
    (listed("E"), {"label_format": "letter"}, "Received: 'E' for 3 choices"),
    (listed("x"), {"label_format": "text"}, "Received: 'x' for 3 choices"),
    ({**listed(0), "choices": "a b"}, {}, r"one of lists. Received: .'a b'. in line 2 of t.csv"),
    (listed(0, ("a", "", "c")), {}, r"all its choices.* Received: .'a', '', 'c'. in line 2"),
    ({"question": "q", "a": "x", "b": np.nan, "label": 0}, {"choice_columns": ("a", "b")}, "all its choices"),
  ],
)
def test_rows_that_are_no_questions(row, columns, message):
  with pytest.raises(UserError, match=message):
    choice_examples(table(row), ChoiceColumns(**columns))
