"""The task of multiple choice: RACE, or a person's own questions."""

from collections.abc import Mapping, Sequence
import os
from typing import Any

import numpy as np

from albert_tf import files
from albert_tf.compat import keras
from albert_tf.errors import UserError
from albert_tf.finetuning import plots
from albert_tf.finetuning.features import FeatureSet
from albert_tf.finetuning.multiple_choice import ChoiceExample, PackedChoices, letter, number_of_choices
from albert_tf.finetuning.prediction import UNNAMED_OUTPUT
from albert_tf.finetuning.task import FineTuningTask, Outputs
from albert_tf.finetuning.task_spec import TaskSpec
from albert_tf.tokenization import AlbertTokenizer


class MultipleChoiceTask(FineTuningTask):
  """Multiple choice; the score is the share of questions answered right.

  Args:
    splits: "train", "eval", "test" → questions; those that are not needed may be absent.
    tokenizer: of the pretrained model.
    max_seq_length: S.
    max_qa_length: most pieces of question and choice; see `PackedChoices`.
    name: for people and file names.
    data: what the questions were read from, by flag.

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
  ):
    self.data = dict(data or {})
    self._splits = splits
    self._tokenizer = tokenizer
    self.num_choices = number_of_choices(splits)
    self.spec = TaskSpec(
      kind="multiple_choice", name=name, pair=True, max_seq_length=max_seq_length, max_qa_length=max_qa_length
    )

  def train_features(self) -> FeatureSet:
    return self._features("train", labelled=True)

  def eval_features(self) -> FeatureSet:
    return self._features("eval", labelled=True)

  def test_features(self) -> FeatureSet | None:
    return self._features("test", labelled=False) if "test" in self._splits else None

  def loss(self) -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

  def predictions(self, outputs: Outputs) -> np.ndarray:
    """The index of the chosen choice, `[n]`."""
    return np.asarray(outputs[UNNAMED_OUTPUT]).argmax(axis=-1)

  def gold(self, split: str) -> np.ndarray:
    """The index of the right choice, `[n]`."""
    return np.array([example.label for example in self._splits[split]], np.int32)

  def evaluate(self, outputs: Outputs, split: str = "eval") -> dict[str, float]:
    """`accuracy`, `accuracy_GROUP` of each group, as RACE's "middle" and "high", and the mean `loss`."""
    labels = self.gold(split)
    right = self.predictions(outputs) == labels
    groups = np.array([example.group for example in self._splits[split]])
    scores = {"accuracy": float(np.mean(right))}
    for group in sorted(set(groups) - {""}):
      scores[f"accuracy_{group}"] = float(np.mean(right[groups == group]))
    log_probabilities = _log_softmax(outputs)
    return scores | {"loss": float(-log_probabilities[np.arange(len(labels)), labels].mean())}

  def write_predictions(self, outputs: Outputs, split: str, directory: str) -> None:
    """`predictions_SPLIT.tsv`: id, prediction, the right choice where known, group, each choice's probability."""
    names = [letter(index) for index in range(self.num_choices)]
    lines = ["\t".join(["id", "prediction", "label", "group", *(f"probability_{name}" for name in names)])]
    rows = zip(self._splits[split], self.predictions(outputs), np.exp(_log_softmax(outputs)), strict=True)
    for example, prediction, probabilities in rows:
      label = "" if example.label is None else names[example.label]
      cells = [" ".join(example.example_id.split()), names[prediction], label, example.group]
      lines.append("\t".join([*cells, *(f"{value:.6f}" for value in probabilities)]))
    with files.atomic_writer(os.path.join(directory, f"predictions_{split}.tsv"), "w") as stream:
      stream.write("\n".join(lines) + "\n")

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

  def example(self) -> Mapping[str, Any]:
    first = next(iter(self._splits.values()))[0]
    return {"context": first.context, "question": first.question, "choices": list(first.choices)}

  def _features(self, split: str, *, labelled: bool) -> FeatureSet:
    if split not in self._splits:
      raise UserError(f"There must be {split} questions for this. Received: a task without. Name their file.")
    examples = self._splits[split]
    unlabelled = next((example for example in examples if example.label is None), None)
    if labelled and unlabelled is not None:
      raise UserError(
        f"Every {split} question has its right choice. Received: none in {unlabelled.example_id}. "
        "Add the labels, or predict alone with --do_predict."
      )
    rows = PackedChoices(
      examples,
      self._tokenizer,
      max_seq_length=self.spec.max_seq_length,
      max_qa_length=self.spec.max_qa_length,
    )
    labels = None if unlabelled is not None else np.array([example.label for example in examples], np.int32)
    return FeatureSet(rows, labels)


def _log_softmax(outputs: Outputs) -> np.ndarray:
  logits = np.asarray(outputs[UNNAMED_OUTPUT], np.float64)  # [n, C]
  shifted = logits - logits.max(axis=-1, keepdims=True)
  return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
