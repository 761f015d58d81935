"""Classification and regression of texts and pairs of texts, for GLUE and for tables of users."""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import functools
import itertools
from typing import Any

import keras
import numpy as np
from scipy import special, stats
from sklearn import metrics as sklearn_metrics

from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.data import (
  TableColumns,
  finite_number,
  known_label,
  read_splits,
  read_table,
  sources_of,
  whole_number,
)
from albert_tf.finetuning.tasks.base import UNNAMED_OUTPUT, Outputs
from albert_tf.finetuning.tasks.scores import ScoresTask, label_cell
from albert_tf.finetuning.tasks.text_tables import TextExample, table_examples
from albert_tf.tokenization import Tokenizer

_MOST_CLASSES = 1000  # More different labels than this are no classes, but numbers or free text.


# ------------------------------------------------------------------ metrics


def _correlation(
  function: Callable[..., Any], labels: np.ndarray, predictions: np.ndarray
) -> float:
  """The correlation of two arrays; 0 if one is constant."""
  if np.ptp(labels) == 0 or np.ptp(predictions) == 0:
    return 0.0
  return float(function(labels.astype(np.float64), predictions.astype(np.float64)).statistic)


# (labels, predictions) → score, as GLUE defines them. "f1" is of class 1 (MRPC's paraphrases, QQP's
# duplicates), "macro_f1" the mean over the classes that occur.
METRICS: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = {
  "accuracy": sklearn_metrics.accuracy_score,
  "f1": functools.partial(sklearn_metrics.f1_score, zero_division=0),
  "micro_f1": functools.partial(sklearn_metrics.f1_score, average="micro", zero_division=0),
  "macro_f1": functools.partial(sklearn_metrics.f1_score, average="macro", zero_division=0),
  "matthews_correlation": sklearn_metrics.matthews_corrcoef,
  "pearson": functools.partial(_correlation, stats.pearsonr),
  "spearman": functools.partial(_correlation, stats.spearmanr),
}


# ------------------------------------------------------------------ one label, or a value


class TextTask(ScoresTask):
  """A classification or regression task on texts.

  A row is [CLS] a [SEP] b [SEP]. The longer text is cut at its end until both fit; an empty second
  text makes a single segment.

  Args:
    spec: kind "classification" or "regression"; `MultiLabelTask` has "multi_label".
    splits: "train", "eval", "test", "eval_…", "test_…" → examples.
    tokenizer: tokenizer of the weights.
    metric_names: keys of `metric_functions`; the first chooses the best checkpoint.
  """

  input_kind = "text"
  inputs: Mapping[str, str] = {"text": "text", "text_pair": "pair"}
  metric_functions = METRICS  # A subclass may have others.

  def __init__(
    self,
    spec: TaskSpec,
    splits: Mapping[str, Sequence[TextExample]],
    *,
    tokenizer: Tokenizer,
    metric_names: Sequence[str],
  ):
    super().__init__(spec, splits, names=spec.label_names, tokenizer=tokenizer)
    self.best_metric = metric_names[0]
    self._metric_names = metric_names

  def choose_by(self, metric: str) -> None:
    """Lets another of the task's metrics choose the checkpoint, such as `f1_CLASS`."""
    known = [self.best_metric] + list(self._metric_names)
    known += [f"f1_{name}" for name in self.names]
    if metric not in known:
      raise UserError(
        f"best_metric must be one of {', '.join(dict.fromkeys(known))}. Received: {metric}."
      )
    self.best_metric = metric
    self.training_options = dict(self.training_options, best_metric=metric)

  def metrics(
    self, labels: np.ndarray, predictions: np.ndarray, examples: Sequence[TextExample]
  ) -> dict[str, float]:
    """The metrics of `metric_names`, and `f1_CLASS` of each class."""
    values = {}
    for name in self._metric_names:
      values[name] = float(self.metric_functions[name](labels, predictions))
    if self.names:
      class_scores = sklearn_metrics.f1_score(
        labels, predictions, labels=range(len(self.names)), average=None, zero_division=0
      )
      for name, score in zip(self.names, class_scores, strict=True):
        values[f"f1_{name}"] = float(score)
    return values


# ------------------------------------------------------------------ labels that overlap


class MultiLabelTask(TextTask):
  r"""Classification with any number of labels: $p_c = \sigma(z_c)$, and label c is given if $p_c \ge t_c$.

  The loss is the mean of C binary cross-entropies. Thresholds are those of `spec`; if it has none,
  each evaluation of "eval" chooses them. The average precision, which needs no threshold, chooses
  the checkpoint.
  """

  def __init__(
    self, spec: TaskSpec, splits: Mapping[str, Sequence[TextExample]], *, tokenizer: Tokenizer
  ):
    super().__init__(spec, splits, tokenizer=tokenizer, metric_names=("micro_f1", "macro_f1"))
    self.best_metric = "average_precision"
    self._fixed_thresholds = spec.thresholds
    self._thresholds = spec.thresholds

  def target(self, label: Any) -> Any:
    """The labels of an example as 0 and 1, float32 `[C]`."""
    target = np.zeros(len(self.names), np.float32)
    target[[self._class_numbers[name] for name in label]] = 1
    return target

  def loss(self) -> Any:
    return keras.losses.BinaryCrossentropy(from_logits=True)

  def probabilities(self, scores: np.ndarray) -> Any:
    return special.expit(scores)

  def predictions(self, outputs: Outputs) -> np.ndarray:
    """Whether each label is given, `[n, C]`."""
    return np.asarray(special.expit(outputs[UNNAMED_OUTPUT]) >= (self._thresholds or 0.5))

  def label_text(self, prediction: Any) -> str:
    return label_cell(tuple(itertools.compress(self.names, prediction)))

  def losses(self, labels: np.ndarray, scores: np.ndarray) -> Any:
    return np.logaddexp(0, scores) - scores * labels

  def evaluate(self, outputs: Outputs, split: str = "eval") -> dict[str, float]:
    """`average_precision` over labels with examples, F1, `loss`, and thresholds for "eval"."""
    gold = self.gold(split)  # [n, C]
    probabilities = special.expit(np.asarray(outputs[UNNAMED_OUTPUT], np.float64))
    # Chosen before F1 is computed, which depends on them.
    if split == "eval":
      self._thresholds = self._fixed_thresholds or best_thresholds(gold, probabilities)
    # A label without a single example has no precision.
    occurs = gold.any(axis=0)
    precision = 0.0
    if occurs.any():
      precision = float(
        sklearn_metrics.average_precision_score(gold[:, occurs], probabilities[:, occurs])
      )
    values = {"average_precision": precision} | super().evaluate(outputs, split)
    if split == "eval":
      for name, threshold in zip(self.names, self._thresholds, strict=True):
        values[f"threshold_{name}"] = threshold
    return values

  def ensemble(self, outputs: Sequence[Outputs]) -> Outputs:
    """The mean of scores; "eval" chooses the thresholds."""
    # The thresholds of one run are not those of the mean.
    if "eval" in self.splits:
      self._fixed_thresholds = ()
    return {UNNAMED_OUTPUT: np.mean([run[UNNAMED_OUTPUT] for run in outputs], axis=0)}


def best_thresholds(gold: np.ndarray, probabilities: np.ndarray) -> tuple[float, ...]:
  """The threshold with the best F1 for each label; 0.5 without examples.

  It is midway between two probabilities, or between 0 and the lowest:

      # probability  0.2  0.6  0.8
      # label          0    1    1     F1 is best from 0.6: the threshold is (0.2 + 0.6) / 2.

  Args:
    gold: 0 and 1, `[n, C]`.
    probabilities: `[n, C]`.
  """
  chosen = []
  for labels, scores in zip(gold.T, probabilities.T, strict=True):
    if not labels.any():
      chosen.append(0.5)
      continue
    # `thresholds` are the different scores and rise.
    precision, recall, thresholds = sklearn_metrics.precision_recall_curve(labels, scores)
    f1 = precision * recall / np.maximum(precision + recall, 1e-30)  # Half of it.
    best = int(np.argmax(f1))
    bounds = np.append(0.0, thresholds)
    chosen.append(float(bounds[best] + bounds[best + 1]) / 2)
  return tuple(chosen)


# ------------------------------------------------------------------ the task of a user's tables


def table_task(
  tables: Mapping[str, str],
  *,
  columns: TableColumns,
  tokenizer: Tokenizer,
  kind: str = "classification",
  label_names: Sequence[str] = (),
  thresholds: Sequence[float] = (),
  max_seq_length: int = 128,
  eval_fraction: float = 0.1,
  class_weights: Sequence[str] = (),
  best_metric: str = "",
) -> TextTask:
  """Makes the task of a user's tables: classification with one or several labels, or regression.

  Args:
    tables: "train", "eval", "test" → file, "" for none. Without "eval", `eval_fraction` of the
      training rows are held out, always the same ones.
    columns: names of the columns.
    tokenizer: tokenizer of the weights.
    kind: "classification", "multi_label" or "regression".
    label_names: classes in order; empty: the sorted labels of the training data.
    thresholds: thresholds of the labels; empty: chosen on the evaluation data.
    max_seq_length: S.
    class_weights: a number for each class, or "balanced"; empty: all are equal.
    best_metric: the metric that chooses the checkpoint; "": the task's first.

  Raises:
    UserError: a file, column or class is missing, or one of several labels has no training example.
  """

  def read(path: str, split: str) -> list[TextExample]:
    table = read_table(path)
    return table_examples(table, columns, labelled=split != "test", kind=kind)

  splits = read_splits(tables, read, eval_fraction=eval_fraction)
  if kind != "regression":
    label_names = _class_names(splits.get("train", ()), kind, label_names)
    for split, examples in splits.items():
      splits[split] = [_of_class(example, label_names) for example in examples]
  spec = TaskSpec(
    kind=kind,
    name="custom",
    label_names=tuple(label_names),
    thresholds=tuple(thresholds),
    pair=len(columns.text_columns) > 1,
    max_seq_length=max_seq_length,
  )
  if kind == "multi_label":
    task: TextTask = MultiLabelTask(spec, splits, tokenizer=tokenizer)
  else:
    metric_names = ["accuracy", "macro_f1"]
    if kind == "regression":
      metric_names = ["pearson", "spearman"]
    task = TextTask(spec, splits, tokenizer=tokenizer, metric_names=metric_names)

  task.sources = sources_of(tables)
  # What a run with other choices must not continue.
  if class_weights:
    task.class_weights = _class_weights(class_weights, task)
    task.training_options = {"class_weights": list(class_weights)}
  if best_metric:
    task.choose_by(best_metric)
  return task


def _of_class(example: TextExample, names: Sequence[str]) -> TextExample:
  """The example with its labels as the classes have them; see `known_label`."""
  label = example.label
  if isinstance(label, tuple):
    label = tuple(known_label(each, names) for each in label)
  elif label is not None:
    label = known_label(label, names)
  return example._replace(label=label)


def _class_weights(requested: Sequence[str], task: TextTask) -> Sequence[float]:
  """The weight of each class; "balanced" makes the classes count alike.

  90 and 10 examples of two classes get 100 / (2 · 90) = 0.56 and 100 / (2 · 10) = 5.
  """
  num_classes = len(task.names)
  weights: list[float] = []
  if task.spec.kind == "classification":
    if list(requested) == ["balanced"]:
      # An evaluation alone has no training examples, and no use for weights.
      labels = task.gold("train") if "train" in task.splits else np.arange(num_classes)
      counts = np.bincount(labels, minlength=num_classes)
      weights = [float(len(labels) / (num_classes * max(count, 1))) for count in counts]
    else:
      with contextlib.suppress(ValueError):
        weights = [finite_number(weight) for weight in requested]
  if len(weights) != num_classes or not weights or min(weights) <= 0:
    raise UserError(
      "class_weights are for classes that exclude each other: balanced, or a number above 0 for "
      f"each of {', '.join(task.names) or 'them'}. Received: {','.join(requested)} for "
      f"{task.spec.kind}."
    )
  return weights


def _class_names(
  training_examples: Sequence[TextExample], kind: str, label_names: Sequence[str]
) -> Sequence[str]:
  """The classes: those asked for, or the labels of the training data."""
  labels: set[str] = set()
  for example in training_examples:
    if isinstance(example.label, tuple):
      labels.update(example.label)
    else:
      labels.add(str(example.label))
  if not label_names:
    # "0.0" and "1.0" are the classes "0" and "1"; "1.0" beside "1.1" is a name.
    whole = set(map(whole_number, labels))
    if all(name.removeprefix("-").isdigit() for name in whole):
      labels = whole
    # Whole numbers in their order, after everything else: "b", "2", "10".
    label_names = sorted(labels, key=lambda name: (len(name) if name.isdigit() else 0, name))
  if not label_names and not training_examples:
    raise UserError(
      "The classes are those of the training data, or of the run that is used. Received: neither. "
      "Give --do_train, or name a fine-tuned run with --init_checkpoint."
    )
  if not 2 <= len(label_names) <= _MOST_CLASSES:
    raise UserError(
      f"Classification needs 2 to {_MOST_CLASSES} classes. Received: {len(label_names)} different "
      "labels in training data. Is it the right column? Numbers to predict are --problem=regression."
    )
  # One of several labels without an example would be learned as "never".
  known = {known_label(label, label_names) for label in labels}
  without_example = [name for name in label_names if name not in known]
  if kind == "multi_label" and training_examples and without_example:
    raise UserError(
      f"Each of several labels needs a training example. Received: none for "
      f"{', '.join(without_example)} in {len(training_examples)} rows. Add one, or leave the label "
      "out."
    )
  return label_names
