"""The task of tagging words: named entities, parts of speech, or any tags of a person's own."""

from collections import Counter
from collections.abc import Mapping, Sequence
import functools
import os
import re
from typing import Any

import numpy as np

from albert_tf import files
from albert_tf.compat import keras
from albert_tf.errors import UserError
from albert_tf.finetuning import plots
from albert_tf.finetuning.conll import TaggedSentence
from albert_tf.finetuning.features import FeatureSet
from albert_tf.finetuning.prediction import UNNAMED_OUTPUT
from albert_tf.finetuning.tagging import TaggingFeatures, align
from albert_tf.finetuning.tagging_metrics import (
  OUTSIDE,
  entity_kinds,
  entity_scores,
  marks_entities,
  word_accuracy,
)
from albert_tf.finetuning.task import FineTuningTask, Outputs
from albert_tf.finetuning.task_spec import TaskSpec
from albert_tf.tokenization import AlbertTokenizer

_IN_CELL = re.compile(r"[\t\r\n]")  # What a cell of a table cannot hold.


class TaggingTask(FineTuningTask):
  """Token classification; the score is the entities' F1 where tags mark entities, else the words' accuracy.

  Args:
    splits: "train", "eval", "test" → sentences; those that are not needed may be absent.
    tokenizer: of the pretrained model.
    max_seq_length: S.
    name: for people and file names.
    label_names: the tags by id, of an earlier run; empty: those of the training and evaluation sentences, the most
      frequent first.
    data: what the sentences were read from, by flag.

  Raises:
    UserError: training or evaluation sentences have no tags, or there are fewer than two tags.
  """

  def __init__(
    self,
    *,
    splits: Mapping[str, Sequence[TaggedSentence]],
    tokenizer: AlbertTokenizer,
    max_seq_length: int,
    name: str = "tagging",
    label_names: Sequence[str] = (),
    data: Mapping[str, str] | None = None,
  ):
    self.data = dict(data or {})
    self._splits = splits
    self._tokenizer = tokenizer
    names = tuple(label_names) or _tags_by_frequency(splits)
    self.spec = TaskSpec(
      kind="token_classification", name=name, label_names=names, max_seq_length=max_seq_length
    )
    self._entities = marks_entities(names)
    self.best_metric = "f1" if self._entities else "accuracy"
    if self._entities:
      entity_scores(
        [[OUTSIDE]], [[OUTSIDE]], kinds=[]
      )  # Says now, not after training, that a package is missing.

  @functools.cache  # noqa: B019  A task lives as long as the command.
  def aligned(self, split: str) -> TaggingFeatures:
    """The features of a split, and where each word's tag is read."""
    label_ids = {name: index for index, name in enumerate(self.spec.label_names)}
    return align(
      self._splits[split], self._tokenizer, label_ids=label_ids, max_seq_length=self.spec.max_seq_length
    )

  def train_features(self) -> FeatureSet:
    return self._tagged("train")

  def eval_features(self) -> FeatureSet:
    return self._tagged("eval")

  def test_features(self) -> FeatureSet | None:
    return self.aligned("test").features if "test" in self._splits else None

  def loss(self) -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

  def evaluate(self, outputs: Outputs, split: str = "eval") -> dict[str, float]:
    """`accuracy` of words; of entities `precision`, `recall`, `f1` and `f1_TYPE`; the words' mean `loss`.

    Every word counts once; one without pieces counts with the tag it is given, "O" or the most frequent.
    """
    gold = [sentence.tags or () for sentence in self._splits[split]]
    predicted = self.predict(outputs, split)
    scores = {"accuracy": word_accuracy(gold, predicted)}
    if self._entities:
      scores |= entity_scores(gold, predicted, kinds=entity_kinds(self.spec.label_names))
    return scores | {"loss": self._mean_loss(outputs, split)}

  def predict(self, outputs: Outputs, split: str) -> list[list[str]]:
    """A tag for every word of every sentence."""
    names = self.spec.label_names
    without_piece = OUTSIDE if OUTSIDE in names else names[0]
    best = [np.argmax(row, axis=-1) for row in outputs[UNNAMED_OUTPUT]]
    return [
      [without_piece if place is None else names[best[place.row][place.position]] for place in sentence]
      for sentence in self.aligned(split).places
    ]

  def _mean_loss(self, outputs: Outputs, split: str) -> float:
    """Mean cross-entropy of the words that have pieces."""
    features = self.aligned(split).features
    rows: Any = zip(outputs[UNNAMED_OUTPUT], features.labels or (), features.weights or (), strict=True)
    total, count = 0.0, 0.0
    for logits, labels, weights in rows:
      x = np.asarray(logits[: len(labels)], np.float64)  # [s, C]
      x = x - x.max(axis=-1, keepdims=True)
      losses = np.log(np.exp(x).sum(axis=-1)) - x[np.arange(len(labels)), labels]
      total += float((losses * weights).sum())
      count += float(weights.sum())
    return total / count if count else 0.0

  def write_predictions(self, outputs: Outputs, split: str, directory: str) -> None:
    """`predictions_SPLIT.tsv`: a word a line with its tag, where known, and the predicted one, a blank line between."""
    path = os.path.join(directory, f"predictions_{split}.tsv")
    with files.atomic_writer(path, "w") as stream:
      for sentence, tags in zip(self._splits[split], self.predict(outputs, split), strict=True):
        if sentence.new_document:
          stream.write("-DOCSTART-\n\n")
        words = [_IN_CELL.sub(" ", word) for word in sentence.words]
        columns = [words, *([sentence.tags] if sentence.tags else []), tags]
        stream.writelines("\t".join(cells) + "\n" for cells in zip(*columns, strict=True))
        stream.write("\n")

  def plot(self, outputs: Outputs, path: str) -> bool:
    index = {name: number for number, name in enumerate(self.spec.label_names)}
    gold = np.array([index[tag] for sentence in self._splits["eval"] for tag in sentence.tags or ()])
    predicted = np.array([index[tag] for tags in self.predict(outputs, "eval") for tag in tags])
    scores = self.evaluate(outputs)
    title = (
      f"{self.spec.name}, {len(gold):,} evaluation words\n{self.best_metric} {scores[self.best_metric]:.3f}"
    )
    plots.confusion_matrix(path, gold, predicted, names=self.spec.label_names, title=title)
    return True

  def example(self) -> Mapping[str, Any]:
    sentences = next(iter(self._splits.values()))
    return {"words": list(sentences[0].words)}

  def _tagged(self, split: str) -> FeatureSet:
    if split not in self._splits:
      raise UserError(f"There must be {split} sentences for this. Received: a task without. Name their file.")
    return self.aligned(split).features


def _tags_by_frequency(splits: Mapping[str, Sequence[TaggedSentence]]) -> tuple[str, ...]:
  counts: Counter[str] = Counter()
  for split in ("train", "eval"):
    for sentence in splits.get(split, ()):
      if sentence.tags is None:
        raise UserError(
          f"The {split} sentences have a tag for each word. Received: none in {sentence.where}. "
          "Choose the column with --tag_column or the key with --tag_key."
        )
      counts.update(sentence.tags)
  if len(counts) < 2:
    raise UserError(
      f"There are at least two tags. Received: {', '.join(counts) or 'none'}. "
      "Check --tag_column (or --tag_key); to predict alone, name the fine-tuned run as --init_checkpoint."
    )
  return tuple(sorted(counts, key=lambda tag: (-counts[tag], tag)))
