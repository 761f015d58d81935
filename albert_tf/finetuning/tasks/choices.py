"""Multiple choice: questions with a fixed number of choices, packed as the original packs RACE, and their task."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import os
from typing import Any

from absl import logging
import numpy as np
from scipy import special

from albert_tf.compat import keras
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.engine.features import FeatureSet
from albert_tf.finetuning.tasks import plots
from albert_tf.finetuning.tasks.base import UNNAMED_OUTPUT, FineTuningTask, Outputs, cross_entropy, write_tsv
from albert_tf.finetuning.tasks.stored import mean_probabilities, read_scores, write_scores
from albert_tf.progress import track
from albert_tf.tokenization import AlbertTokenizer
from albert_tf.tokenization.packing import BLANK

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

  Attributes:
    num_cut: how many questions have a row in which the context, or the question with its choice, is cut.

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
    self._special = tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id
    self._room = max_seq_length - 3
    self.num_cut = 0
    contexts: dict[str, np.ndarray] = {}
    self._contexts: list[np.ndarray] = []
    self._tails: list[list[np.ndarray]] = []
    every = list(examples)
    for example in track(every, len(every), desc="Tokenizing", unit="questions"):
      if example.context not in contexts:
        # One piece more than may stay tells that there is more.
        contexts[example.context] = np.array(tokenizer.encode(example.context)[: self._room + 1], np.int32)
      self._contexts.append(contexts[example.context])
      tails = tokenizer.encode_batch(_choice_texts(example, tokenizer))
      self._tails.append([np.array(ids[-kept:], np.int32) for ids in tails])
      longest = max(map(len, tails))
      self.num_cut += longest > kept or len(self._contexts[-1]) + longest > self._room

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


class MultipleChoiceTask(FineTuningTask):
  """Multiple choice; the score is the share of questions answered right.

  Args:
    splits: "train", "eval", "test" → questions; those that are not needed may be absent.
    tokenizer: of the pretrained model.
    max_seq_length: S.
    max_qa_length: most pieces of question and choice; see `PackedChoices`.
    name: for people and file names.
    data: what the questions were read from, by flag.
    columns: of a person's own table; see `TaskSpec.columns`.

  Attributes:
    num_cut: split → of how many questions the passage or a choice was cut, once its features were made.

  Raises:
    UserError: questions differ in their number of choices.
  """

  best_metric = "accuracy"

  def __init__(
    self,
    *,
    splits: Mapping[str, Sequence[ChoiceExample]],
    tokenizer: AlbertTokenizer,
    max_seq_length: int,
    max_qa_length: int,
    name: str = "race",
    data: Mapping[str, str] | None = None,
    columns: Mapping[str, Any] | None = None,
  ):
    self.data = dict(data or {})
    self.splits = splits
    self._tokenizer = tokenizer
    self.num_choices = number_of_choices(splits)
    self.num_cut: dict[str, int] = {}
    self.spec = TaskSpec(
      kind="multiple_choice",
      name=name,
      pair=True,
      max_seq_length=max_seq_length,
      max_qa_length=max_qa_length,
      columns=columns or {},
    )

  def features(self, split: str) -> FeatureSet:
    examples: Sequence[ChoiceExample] = self.split(split)
    unlabelled = next((example for example in examples if example.label is None), None)
    if unlabelled is not None and split != "test":
      raise UserError(
        f"Every {split} question has its right choice. Received: none in {unlabelled.example_id}. "
        "Add the labels, or predict alone with --do_predict."
      )
    lengths = {"max_seq_length": self.spec.max_seq_length, "max_qa_length": self.spec.max_qa_length}
    rows = PackedChoices(examples, self._tokenizer, **lengths)
    self.num_cut[split] = rows.num_cut
    if rows.num_cut:
      logging.info(
        "%s: of %d of %d questions the passage or the choice is cut to fit %d pieces (--max_seq_length)",
        split,
        rows.num_cut,
        len(rows),
        self.spec.max_seq_length,
      )
    return FeatureSet(rows, None if unlabelled is not None else self.gold(split))

  def loss(self) -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

  def predictions(self, outputs: Outputs) -> np.ndarray:
    """The index of the chosen choice, `[n]`."""
    return np.asarray(outputs[UNNAMED_OUTPUT]).argmax(axis=-1)

  def gold(self, split: str) -> np.ndarray:
    """The index of the right choice, `[n]`."""
    return np.array([example.label for example in self.splits[split]], np.int32)

  def evaluate(self, outputs: Outputs, split: str = "eval") -> dict[str, float]:
    """`accuracy`, `accuracy_GROUP` of each group, as RACE's "middle" and "high", and the mean `loss`."""
    labels = self.gold(split)
    right = self.predictions(outputs) == labels
    groups = np.array([example.group for example in self.splits[split]])
    scores = {"accuracy": float(np.mean(right))}
    for group in sorted(set(groups) - {""}):
      scores[f"accuracy_{group}"] = float(np.mean(right[groups == group]))
    return scores | {"loss": float(cross_entropy(outputs[UNNAMED_OUTPUT], labels).mean())}

  def write_predictions(
    self, outputs: Outputs, split: str, directory: str, *, spec: TaskSpec | None = None
  ) -> None:
    """`predictions_SPLIT.tsv`: id, prediction, the right choice, group, each choice's probability; and the scores."""
    write_tsv(os.path.join(directory, f"predictions_{split}.tsv"), self._prediction_rows(outputs, split))
    write_scores(directory, split, outputs[UNNAMED_OUTPUT], examples=map(repr, self.splits[split]))

  def stored(self, directory: str, split: str) -> Outputs:
    scores: Any = read_scores(directory, split, examples=map(repr, self.split(split)))
    return {UNNAMED_OUTPUT: scores}

  def ensemble(self, outputs: Sequence[Outputs]) -> Outputs:
    mean: Any = mean_probabilities([np.asarray(each[UNNAMED_OUTPUT]) for each in outputs])
    return {UNNAMED_OUTPUT: mean}

  def _prediction_rows(self, outputs: Outputs, split: str) -> Iterator[list[str]]:
    names = [letter(index) for index in range(self.num_choices)]
    yield ["id", "prediction", "label", "group", *(f"probability_{name}" for name in names)]
    probabilities = special.softmax(np.asarray(outputs[UNNAMED_OUTPUT], np.float64), axis=-1)
    for example, prediction, row in zip(
      self.splits[split], self.predictions(outputs), probabilities, strict=True
    ):
      label = "" if example.label is None else names[example.label]
      name = " ".join(example.example_id.split())
      yield [name, names[prediction], label, example.group, *(f"{value:.6f}" for value in row)]

  def plot(self, outputs: Outputs, path: str) -> bool:
    labels = self.gold("eval")
    score = self.evaluate(outputs)["accuracy"]
    plots.confusion_matrix(
      path,
      labels,
      self.predictions(outputs),
      names=[letter(index) for index in range(self.num_choices)],
      title=f"{self.spec.name}, {len(labels):,} evaluation questions\naccuracy {score:.3f}",
    )
    return True
