"""Sentence vectors as a fine-tuning task: pairs with scores, or pairs of matching texts."""

from collections.abc import Mapping, Sequence
import functools
import os
from typing import Any

import numpy as np

from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.base import UNNAMED_OUTPUT, Outputs, write_tsv
from albert_tf.finetuning.tasks.rows import in_blocks
from albert_tf.finetuning.tasks.scores import LabelledTask, label_cell
from albert_tf.finetuning.tasks.text import METRICS
from albert_tf.finetuning.tasks.text_tables import TextExample
from albert_tf.keras_api.sentence_vectors import InBatchNegatives, cosine_regression
from albert_tf.tokenization import Tokenizer


class SentenceTask(LabelledTask):
  """Sentence vectors; the loss compares cosines with scores, or a text's positive with others.

  A split whose pairs have scores trains and is evaluated by them; one without by whether each text
  finds its match among all texts of the batch or of the split.

  Args:
    spec: kind "sentence_vectors".
    splits: "train", "eval", "test", "eval_…", "test_…" → examples with two texts; labels are scores.
    tokenizer: tokenizer of the weights.
    max_score: score of texts with the same meaning; 0 is the lowest.
    temperature: see `InBatchNegatives`.

  Raises:
    UserError: a text is empty.
  """

  input_kind = "sentences"
  inputs: Mapping[str, str] = {"text": "text", "positive": "pair", "negative": "negative"}

  def __init__(
    self,
    spec: TaskSpec,
    splits: Mapping[str, Sequence[TextExample]],
    *,
    tokenizer: Tokenizer,
    max_score: float = 1.0,
    temperature: float = 0.05,
  ):
    super().__init__(spec, splits, names=(), tokenizer=tokenizer)
    self.training_options = {"temperature": temperature}
    self.best_metric = "accuracy"
    if self.is_scored("eval"):
      self.best_metric = "spearman"
    self._max_score = max_score
    # An empty text would have a vector like any other.
    for split, examples in splits.items():
      for example in examples:
        columns = (example.text, example.pair, example.negative)
        texts = tuple(text for text in columns if text is not None)
        if not all(map(str.strip, texts)):
          raise UserError(
            f"A row has all its texts. Received: {texts!r:.80}, row {example.id} of {split} data."
          )

  def is_scored(self, split: str) -> bool:
    """Whether a split's pairs have scores."""
    return all(example.label is not None for example in self.splits.get(split, ()))

  @functools.cache  # noqa: B019  A task is needed until the command ends.
  def gold(self, split: str) -> np.ndarray:
    """Scores from 0 to 1; without scores the number of each example's group.

    Examples with equal positives (and hard negatives) are a group: a positive that occurs twice is
    no wrong answer for either.
    """
    if self.is_scored(split):
      return super().gold(split)
    # ("x", "z") → 0, ("y", "z") → 1, and again ("x", "z") → 0.
    numbers: dict[Any, int] = {}
    matches = [(example.pair, example.negative) for example in self.split(split)]
    return np.array([numbers.setdefault(texts, len(numbers)) for texts in matches])

  def target(self, label: Any) -> Any:
    # The loss compares it with a cosine, so 1 is the largest.
    score = float(label) / self._max_score
    if not 0 <= score <= 1:
      raise ValueError(f"{label}, not from 0 to --max_score={self._max_score:g},")
    return np.float32(score)

  def loss(self) -> Any:
    if self.is_scored("train"):
      return cosine_regression
    return InBatchNegatives(**self.training_options)

  def evaluate(self, outputs: Outputs, split: str = "eval") -> dict[str, float]:
    """Correlations of cosines with scores, and the loss.

    Without scores: of the rank of a text's positive among all positives, the share of rank 1 and
    the mean of 1 / rank. A text whose cosines with the positives are 0.9, 0.7 and 0.8 has rank 3
    if the second is its own, and rank 2 if the third is equal to the second.
    """
    # With scores.
    gold = self.gold(split)
    vectors = _unit_vectors(outputs)
    cosines = _cosines(vectors)
    if self.is_scored(split):
      values = {name: METRICS[name](gold, cosines) for name in ("spearman", "pearson")}
      return values | {"loss": float(np.mean((gold.astype(np.float64) - cosines) ** 2))}

    # Without scores. All products of n texts and n positives at once would be n² numbers.
    ranks: list[int] = []
    for block in in_blocks(len(gold), desc="Comparing"):
      is_nearer = vectors[block, 0] @ vectors[:, 1].T > cosines[block, np.newaxis]  # [b, n]
      # Equal positives are not each other's rivals.
      is_rival = gold[block, np.newaxis] != gold
      ranks.extend(1 + (is_nearer & is_rival).sum(axis=1))
    return {
      "accuracy": float(np.mean(np.equal(ranks, 1))),
      "mrr": float(np.mean(1 / np.array(ranks))),
    }

  def write_predictions(self, outputs: Outputs, split: str, directory: str) -> None:
    """Writes `predictions_<split>.tsv`: id, cosine of the two texts, and score if known."""
    rows = [["id", "prediction", "label"]]
    for example, cosine in zip(self.splits[split], _cosines(_unit_vectors(outputs)), strict=True):
      rows.append([example.id, f"{cosine:.4f}", label_cell(example.label)])
    write_tsv(os.path.join(directory, f"predictions_{split}.tsv"), rows)


def _unit_vectors(outputs: Outputs) -> np.ndarray:
  """Vectors of length 1, float64 `[n, N, H]`."""
  vectors = np.asarray(outputs[UNNAMED_OUTPUT], np.float64)
  return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def _cosines(vectors: np.ndarray) -> np.ndarray:
  """Cosines of the first two vectors of each example, `[n]`."""
  return np.einsum("nh,nh->n", vectors[:, 0], vectors[:, 1])
