"""Classification and regression of texts and pairs of texts: what GLUE and a person's own table share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools
import itertools
from typing import Any
import warnings

from absl import logging
import numpy as np
from scipy import stats
from sklearn import metrics as sklearn_metrics

from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.base import UNNAMED_OUTPUT, FeatureSet, Outputs, cross_entropy
from albert_tf.finetuning.tasks.scores import ScoresTask
from albert_tf.progress import track
from albert_tf.tokenization import Tokenizer

_ROWS_AT_ONCE = 4096  # Examples that are tokenized together.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts:
  """The examples of one split as they are in the file.

  Attributes:
    ids: of each example, for predictions.
    firsts: the texts.
    seconds: the second texts, or None.
    labels: strings as in the file, or None.
    source: the file, for messages.
  """

  ids: Sequence[str]
  firsts: Sequence[str]
  seconds: Sequence[str] | None
  labels: Sequence[str] | None
  source: str

  def __len__(self) -> int:
    return len(self.firsts)

  def take(self, rows: Sequence[int]) -> "Texts":
    """The examples of these numbers."""
    names = ("ids", "firsts", "seconds", "labels")
    columns = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
    taken: Any = {name: [column[i] for i in rows] for name, column in columns.items()}
    return dataclasses.replace(self, **taken)


class TextTask(ScoresTask):
  """A classification or regression task on texts.

  Args:
    spec: kind "classification" or "regression".
    splits: "train", "eval", "test", "eval_…", "test_…" → texts.
    tokenizer: of the weights.
    metric_names: keys of `METRICS`; the first decides which checkpoint is the best.
    data: what the splits were read from.
  """

  def __init__(
    self,
    spec: TaskSpec,
    splits: Mapping[str, Texts],
    *,
    tokenizer: Tokenizer,
    metric_names: Sequence[str],
    data: Mapping[str, str] | None = None,
  ):
    self.spec = spec
    self.names = spec.label_names if spec.kind == "classification" else ()
    self.splits = dict(splits)
    self.best_metric = metric_names[0]
    self.data = dict(data or {})
    self._tokenizer = tokenizer
    self._metric_names = tuple(metric_names)

  @functools.cache  # noqa: B019  A task lives as long as the command.
  def features(self, split: str) -> FeatureSet:
    texts: Texts = self.split(split)
    if texts.labels is None and not split.startswith("test"):
      raise UserError(
        f"Training and evaluation need labels. Received: {texts.source} without. Predict it as test data instead."
      )
    labels = None if texts.labels is None else self._label_array(texts)
    return FeatureSet(text_rows(texts, self._tokenizer, max_length=self.spec.max_seq_length), labels)

  def _label_array(self, texts: Texts) -> np.ndarray:
    labels = texts.labels or ()
    if not self.names:
      return _numbers(texts)[:, np.newaxis]  # [n, 1], like the logits.
    index = {name: i for i, name in enumerate(self.spec.label_names)}
    unknown = sorted(set(labels) - index.keys())
    if unknown:
      raise UserError(
        f"A label must be one of {', '.join(self.spec.label_names)}. Received: "
        f"{', '.join(map(repr, unknown[:5]))} in {texts.source}. Fix the file, or name the classes (--label_names)."
      )
    return np.array([index[label] for label in labels], np.int32)

  def gold(self, split: str) -> np.ndarray:
    """The labels of a split, `[n]`."""
    return self._label_array(self.split(split)).reshape(-1)

  def evaluate(self, outputs: Outputs, split: str = "eval") -> dict[str, float]:
    labels, predictions = self.gold(split), self.predictions(outputs)
    values = {name: float(METRICS[name](labels, predictions)) for name in self._metric_names}
    if not self.names:
      return values | {"loss": float(METRICS["mean_squared_error"](labels, predictions))}
    return (
      values
      | class_scores(labels, predictions, names=self.spec.label_names)
      | {"loss": float(cross_entropy(outputs[UNNAMED_OUTPUT], labels).mean())}
    )

  def columns(self, split: str) -> Mapping[str, Sequence[str]]:
    texts: Texts = self.splits[split]
    return {"id": texts.ids} | ({} if texts.labels is None else {"label": texts.labels})

  def examples(self, split: str) -> Iterable[str]:
    texts: Texts = self.splits[split]
    return itertools.chain(texts.ids, texts.firsts, texts.seconds or (), texts.labels or ())


def text_rows(texts: Texts, tokenizer: Tokenizer, *, max_length: int) -> list[dict[str, np.ndarray]]:
  """[CLS] a [SEP] b [SEP] of each example, int32 `input_ids`, `input_mask`, `segment_ids`, unpadded.

  The longer text is cut at its end until both fit; an empty second text makes a single segment.
  """
  rows: list[dict[str, np.ndarray]] = []
  begins = range(0, len(texts), _ROWS_AT_ONCE)
  for begin in track(begins, len(begins), desc=f"Tokenizing {texts.source}", unit=f"x {_ROWS_AT_ONCE}"):
    part = slice(begin, begin + _ROWS_AT_ONCE)
    seconds = None if texts.seconds is None else list(texts.seconds[part])
    packed = tokenizer(list(texts.firsts[part]), seconds, max_length=max_length)
    for i, length in enumerate(packed["input_mask"].sum(axis=1)):
      rows.append({name: array[i, :length].copy() for name, array in packed.items()})
  full = sum(len(row["input_ids"]) == max_length for row in rows)
  if full:
    logging.info("%s: %d of %d examples fill or exceed %d pieces", texts.source, full, len(rows), max_length)
  return rows


def _numbers(texts: Texts) -> np.ndarray:
  try:
    values = np.array([float(label) for label in texts.labels or ()], np.float32)
    if np.isfinite(values).all():
      return values
    wrong = "one that is not finite"
  except ValueError as error:
    wrong = str(error)
  raise UserError(f"A regression task's labels are numbers. Received: {wrong} in {texts.source}.")


def class_scores(labels: np.ndarray, predictions: np.ndarray, *, names: Sequence[str]) -> dict[str, float]:
  """`f1_CLASS` of each class, and `majority_accuracy`: that of always answering with the most frequent label."""
  each = sklearn_metrics.f1_score(
    labels, predictions, labels=range(len(names)), average=None, zero_division=0
  )
  scores = {f"f1_{name}": float(score) for name, score in zip(names, each, strict=True)}
  return {**scores, "majority_accuracy": float(np.bincount(labels).max() / len(labels))}


def _correlation(function: Callable[..., Any], labels: np.ndarray, predictions: np.ndarray) -> float:
  """0 where one side is constant."""
  if len(labels) < 2:
    return 0.0
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Constant input: the value is then not a number.
    value = float(function(np.asarray(labels, np.float64), np.asarray(predictions, np.float64))[0])
  return value if np.isfinite(value) else 0.0


# (labels, predictions) → score, as GLUE defines them. "f1" is of class 1 (MRPC's paraphrases, QQP's duplicates),
# "macro_f1" the mean over the classes that occur; a correlation of constants is 0.
METRICS: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = {
  "accuracy": sklearn_metrics.accuracy_score,
  "f1": functools.partial(sklearn_metrics.f1_score, zero_division=0),
  "macro_f1": functools.partial(sklearn_metrics.f1_score, average="macro", zero_division=0),
  "matthews_correlation": sklearn_metrics.matthews_corrcoef,
  "pearson": functools.partial(_correlation, stats.pearsonr),
  "spearman": functools.partial(_correlation, stats.spearmanr),
  "mean_squared_error": lambda labels, values: np.mean((np.asarray(labels, np.float64) - values) ** 2),
}
