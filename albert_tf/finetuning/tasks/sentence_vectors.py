"""Sentence vectors as a fine-tuning task: pairs with scores, or pairs of matching texts."""

from collections.abc import Mapping, Sequence
import functools
from typing import Any

import numpy as np

from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.base import UNNAMED_OUTPUT, FineTuningTask, Outputs
from albert_tf.finetuning.tasks.rows import PackedRows, tokenized
from albert_tf.finetuning.tasks.text import TextExample, TextTask
from albert_tf.keras_api.sentence_vectors import InBatchNegatives, cosine_regression
from albert_tf.tokenization import Tokenizer

_AT_ONCE = 1024  # Examples.


class SentenceTask(TextTask):
  """Sentence vectors; the loss compares cosines with scores, or without scores a text's positive with others.

  Args:
    spec: kind "sentence_vectors".
    splits: "train", "eval", "test", "eval_…", "test_…" → examples with two texts; labels are scores.
    tokenizer: tokenizer of the weights.
    max_score: score of texts with the same meaning; 0 is the lowest.
    temperature: see `InBatchNegatives`.

  Raises:
    UserError: a text is empty.
  """

  def __init__(
    self,
    spec: TaskSpec,
    splits: Mapping[str, Sequence[TextExample]],
    *,
    tokenizer: Tokenizer,
    max_score: float = 1.0,
    temperature: float = 0.05,
  ):
    super().__init__(spec, splits, tokenizer=tokenizer, metric_names=("spearman", "pearson"))
    self.training_options = {"temperature": temperature}
    self.best_metric = "spearman" if self.is_scored("eval") else "accuracy"
    self._max_score = max_score
    for split, examples in splits.items():
      for each in examples:
        if not all(map(str.strip, _texts(each))):
          raise UserError(
            f"A row has all its texts. Received: {_texts(each)!r:.80}, row {each.id} of {split} data."
          )

  def is_scored(self, split: str) -> bool:
    """Whether a split's pairs have scores."""
    return all(example.label is not None for example in self.splits.get(split, ()))

  def rows(self, examples: Sequence[TextExample]) -> PackedRows:
    """Rows `[N, S]` of each example."""
    length = self.spec.max_seq_length
    return tokenized(self._tokenizer, "sentences", examples, _texts, at_once=_AT_ONCE, max_length=length)

  @functools.cache  # noqa: B019  A task is needed until the command ends.
  def gold(self, split: str) -> np.ndarray:
    """Scores from 0 to 1; without scores group numbers, equal for equal positives and hard negatives."""
    if self.is_scored(split):
      return super().gold(split)
    numbers: dict[tuple[str, ...], int] = {}
    return np.array([numbers.setdefault(_texts(each)[1:], len(numbers)) for each in self.split(split)])

  def target(self, label: Any) -> Any:
    if not 0 <= (score := float(label) / self._max_score) <= 1:
      raise ValueError(f"{label}, not from 0 to --max_score={self._max_score:g},")
    return np.float32(score)

  def loss(self) -> Any:
    return cosine_regression if self.is_scored("train") else InBatchNegatives(**self.training_options)

  def predictions(self, outputs: Outputs) -> np.ndarray:
    """Cosines of the two texts, `[n]`."""
    vectors = _unit(outputs)
    return np.einsum("nh,nh->n", vectors[:, 0], vectors[:, 1])

  def evaluate(self, outputs: Outputs, split: str = "eval") -> dict[str, float]:
    """Correlation with scores; or, of the positive's rank in the split, the share of rank 1 and the mean inverse."""
    if self.is_scored(split):
      return super().evaluate(outputs, split)
    vectors, cosines, gold, ranks = _unit(outputs), self.predictions(outputs), self.gold(split), []
    for begin in range(0, len(gold), _AT_ONCE):
      part = slice(begin, begin + _AT_ONCE)
      nearer = vectors[part, 0] @ vectors[:, 1].T > cosines[part, np.newaxis]
      ranks += list(1 + (nearer & (gold[part, np.newaxis] != gold)).sum(axis=1))
    return {"accuracy": float(np.mean(np.equal(ranks, 1))), "mrr": float(np.mean(1 / np.array(ranks)))}

  stored = FineTuningTask.stored  # The vectors of two runs have nothing in common.


def _texts(example: TextExample) -> tuple[str, ...]:
  return tuple(text for text in (example.text, example.pair, example.negative) if text is not None)


def _unit(outputs: Outputs) -> np.ndarray:
  """Vectors of length 1, float64 `[n, N, H]`."""
  vectors = np.asarray(outputs[UNNAMED_OUTPUT], np.float64)
  return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
