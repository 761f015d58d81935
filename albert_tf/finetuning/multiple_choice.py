"""Multiple choice: questions with a fixed number of choices, packed as the original packs RACE."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from albert_tf.errors import UserError
from albert_tf.tokenization import AlbertTokenizer

BLANK = "_"  # RACE's mark for the place in a question where the choice belongs.
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoiceExample:
  """One question.

  Attributes:
    example_id: names it in predictions.
    context: the passage; empty where the data has none.
    question: may be empty, or hold "_" where a choice belongs.
    choices: C texts.
    label: index of the right choice; None where it is not known.
    group: a part of the data that gets a score of its own, such as "middle"; may be empty.
  """

  example_id: str
  context: str
  question: str
  choices: tuple[str, ...]
  label: int | None = None
  group: str = ""


def letter(index: int) -> str:
  """Name of a choice: A, B, …; a number beyond Z."""
  return LETTERS[index] if index < len(LETTERS) else str(index)


def choice_text(question: str, choice: str) -> str:
  """Question and choice as one text: every "_" becomes the choice; without any, the choice follows.

  Both texts are normalised already.
  """
  return question.replace(BLANK, choice) if BLANK in question else f"{question} {choice}"


def number_of_choices(examples: Mapping[str, Sequence[ChoiceExample]]) -> int:
  """C of a data set, the same for every question of all its splits.

  Args:
    examples: split → its questions.

  Raises:
    UserError: two questions differ, or there are fewer than two choices.
  """
  every = [example for split in examples.values() for example in split]
  if not every:
    raise UserError("A data set has at least one question. Received: none. Check --data_dir.")
  first = every[0]
  for example in every:
    if len(example.choices) != len(first.choices):
      raise UserError(
        "Every question of a data set has the same number of choices. Received: "
        f"{len(first.choices)} in {first.example_id}, {len(example.choices)} in {example.example_id}. "
        "Add or drop choices, or make two data sets."
      )
  if len(first.choices) < 2:
    raise UserError(
      f"A question has at least two choices. Received: {len(first.choices)} in {first.example_id}."
    )
  return len(first.choices)


class PackedChoices(Sequence[Mapping[str, np.ndarray]]):
  """The features of each question: `[CLS] context [SEP] question and choice [SEP]`, one row a choice.

  Question and choice keep their LAST `max_qa_length` pieces, the context is cut at its end to fit. A question
  without context keeps the layout, with nothing between [CLS] and the first [SEP].

  Items are int32 `input_ids`, `input_mask`, `segment_ids`, each `[C, s]` with s the question's longest row. They
  are put together when asked for: RACE's 88,000 training questions would take 2 GB at length 512.

  Args:
    examples: the questions.
    tokenizer: of the pretrained model. A context that several questions share is encoded once.
    max_seq_length: no row is longer, special pieces included.
    max_qa_length: most pieces of question and choice.

  Raises:
    UserError: the lengths leave no room.

  Reference: the original's `race_utils`.
  """

  def __init__(
    self,
    examples: Iterable[ChoiceExample],
    tokenizer: AlbertTokenizer,
    *,
    max_seq_length: int,
    max_qa_length: int,
  ):
    kept = min(max_qa_length, max_seq_length - 3)
    if kept < 1:
      raise UserError(
        "max_seq_length must leave room beside three special pieces, and max_qa_length must be at least 1. "
        f"Received: max_seq_length={max_seq_length}, max_qa_length={max_qa_length}."
      )
    examples = list(examples)
    self._special = tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id
    self._room = max_seq_length - 3
    encoded = {
      context: np.array(tokenizer.encode(context)[: self._room], np.int32)
      for context in dict.fromkeys(example.context for example in examples)
    }
    self._contexts = [encoded[example.context] for example in examples]
    self._tails = [
      [np.array(ids[-kept:], np.int32) for ids in tokenizer.encode_batch(_choice_texts(example, tokenizer))]
      for example in examples
    ]

  def __len__(self) -> int:
    return len(self._contexts)

  def __getitem__(self, index: Any) -> Any:
    cls_id, sep_id, pad_id = self._special
    context, tails = self._contexts[index], self._tails[index]
    contexts = [context[: self._room - len(tail)] for tail in tails]
    length = max(len(first) + len(tail) for first, tail in zip(contexts, tails, strict=True)) + 3
    input_ids = np.full([len(tails), length], pad_id, np.int32)  # [C, s]
    input_mask = np.zeros_like(input_ids)
    segment_ids = np.zeros_like(input_ids)
    for choice, (first, tail) in enumerate(zip(contexts, tails, strict=True)):
      row = np.concatenate([[cls_id], first, [sep_id], tail, [sep_id]])
      input_ids[choice, : len(row)] = row
      input_mask[choice, : len(row)] = 1
      segment_ids[choice, len(first) + 2 : len(row)] = 1
    return {"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids}


def _choice_texts(example: ChoiceExample, tokenizer: AlbertTokenizer) -> list[str]:
  question = tokenizer.normalize(example.question)
  return [choice_text(question, tokenizer.normalize(choice)) for choice in example.choices]
