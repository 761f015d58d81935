"""The task of examples with a label each, to which the model gives scores: texts, pairs, choices.

One of three objects says what a label is: `ClassLabels`, `ValueLabels` or `OverlappingLabels`.
"""

import abc
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import os
from typing import Any, NamedTuple, TypeAlias

from absl import logging
import keras
import numpy as np
from scipy import special, stats
from sklearn import metrics as sklearn_metrics

from albert_tf import files
from albert_tf.compat import on_coordinator
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.data import finite_number
from albert_tf.finetuning.tasks.base import UNNAMED_OUTPUT, FineTuningTask, Outputs, write_tsv
from albert_tf.keras_api.examples import Examples
from albert_tf.keras_api.preprocessor import INPUT_NAMES, AlbertPreprocessor
from albert_tf.tokenization import Tokenizer


class TextExample(NamedTuple):
  """A text or a pair of texts, as in the file. Fields have the names of the model's inputs."""

  id: str  # Names it in predictions.
  text: str
  text_pair: str | None = None
  label: str | tuple[str, ...] | None = None  # "multi_label": a tuple of all; None: not known.
  group: str = ""  # A part of the data that gets scores of its own.


# ------------------------------------------------------------------ metrics

# (labels, predictions) → score; the greater, the better.
Metric: TypeAlias = Callable[[Any, Any], float]


def _correlation(
  function: Callable[..., Any], labels: np.ndarray, predictions: np.ndarray
) -> float:
  """The correlation of two arrays; 0 if one is constant."""
  if np.ptp(labels) == 0 or np.ptp(predictions) == 0:
    return 0.0
  return float(function(labels.astype(np.float64), predictions.astype(np.float64)).statistic)


# As GLUE defines them. "f1" is of class 1 (MRPC's paraphrases, QQP's duplicates), "macro_f1" the mean
# over the classes that occur.
METRICS: Mapping[str, Metric] = {
  "accuracy": sklearn_metrics.accuracy_score,
  "f1": functools.partial(sklearn_metrics.f1_score, zero_division=0),
  "micro_f1": functools.partial(sklearn_metrics.f1_score, average="micro", zero_division=0),
  "macro_f1": functools.partial(sklearn_metrics.f1_score, average="macro", zero_division=0),
  "matthews_correlation": sklearn_metrics.matthews_corrcoef,
  "pearson": functools.partial(_correlation, stats.pearsonr),
  "spearman": functools.partial(_correlation, stats.spearmanr),
}


def named_metrics(*names: str) -> dict[str, Metric]:
  """Some of `METRICS`, in this order."""
  return {name: METRICS[name] for name in names}


def _f1_of_each(
  names: Sequence[str], gold: np.ndarray, predictions: np.ndarray
) -> dict[str, float]:
  """`f1_NAME` of each class or label."""
  values = sklearn_metrics.f1_score(
    gold, predictions, labels=range(len(names)), average=None, zero_division=0
  )
  return {f"f1_{name}": float(value) for name, value in zip(names, values, strict=True)}


# ------------------------------------------------------------------ three kinds of labels


class Labels(abc.ABC):
  """What a label is, what it costs to miss it, and what is answered.

  Attributes:
    names: of the classes, by number; empty: labels are values.
    own_metrics: names of what `of_scores` gives; the first one chooses the weights.
  """

  names: tuple[str, ...] = ()
  own_metrics: tuple[str, ...] = ()

  @abc.abstractmethod
  def target(self, label: Any) -> Any:
    """A label as the loss takes it; raises KeyError, TypeError or ValueError if it is none."""

  @abc.abstractmethod
  def loss(self) -> Any:
    """Keras' loss."""

  @abc.abstractmethod
  def losses(self, gold: np.ndarray, scores: np.ndarray) -> Any:
    """The same for each example, float64: Keras' is a mean of batches in the model's precision."""

  @abc.abstractmethod
  def predictions(self, scores: np.ndarray) -> np.ndarray:
    """What is answered, in the form of `target`."""

  @abc.abstractmethod
  def text(self, prediction: Any) -> str:
    """An answer as text."""

  @abc.abstractmethod
  def mean(self, scores: np.ndarray) -> np.ndarray:
    """The scores of an ensemble: of M runs `[M, n, C]` → `[n, C]` (section 4.9)."""

  def probabilities(self, scores: np.ndarray) -> Any:
    """The probability of each name, `[n, names]`."""
    return scores[:, :0]

  def choose(self, gold: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """Chooses on the evaluation data what `predictions` depends on; returns it by name."""
    del gold, scores
    return {}

  def of_scores(self, gold: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """The metrics that need more than the predictions."""
    del gold, scores
    return {}

  def f1_of_each(self, gold: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """`f1_NAME` of each name."""
    del gold, predictions
    return {}


class ClassLabels(Labels):
  r"""One of C classes: $p = \mathrm{softmax}(z)$, and the loss is $-\log p_c$.

  Args:
    names: of the classes.
    has_f1: whether each class has a score of its own; a choice's letter has none.
  """

  def __init__(self, names: Sequence[str], *, has_f1: bool = True):
    self.names = tuple(names)
    self._has_f1 = has_f1
    self._numbers = {name: np.int32(number) for number, name in enumerate(names)}

  def target(self, label: Any) -> Any:
    return self._numbers[label]

  def loss(self) -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

  def losses(self, gold: np.ndarray, scores: np.ndarray) -> Any:
    return -special.log_softmax(scores, axis=-1)[np.arange(len(gold)), gold]

  def predictions(self, scores: np.ndarray) -> np.ndarray:
    return scores.argmax(axis=-1)

  def text(self, prediction: Any) -> str:
    return self.names[int(prediction)]

  def mean(self, scores: np.ndarray) -> np.ndarray:
    r"""$\log \frac{1}{M} \sum_m \mathrm{softmax}(s_m)$."""
    # In logarithms: a probability of 1e-50 keeps its digits.
    log_sums: Any = special.logsumexp(special.log_softmax(scores, axis=-1), axis=0)
    return log_sums - np.log(len(scores))

  def probabilities(self, scores: np.ndarray) -> Any:
    return special.softmax(scores, axis=-1)

  def f1_of_each(self, gold: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    return _f1_of_each(self.names, gold, predictions) if self._has_f1 else {}


class ValueLabels(Labels):
  """A number: the loss is the squared error."""

  def target(self, label: Any) -> Any:
    return np.float32(finite_number(label))

  def loss(self) -> Any:
    return keras.losses.MeanSquaredError()

  def losses(self, gold: np.ndarray, scores: np.ndarray) -> Any:
    return (gold - scores[:, 0]) ** 2

  def predictions(self, scores: np.ndarray) -> np.ndarray:
    return scores[:, 0]

  def text(self, prediction: Any) -> str:
    return f"{float(prediction):.4f}"

  def mean(self, scores: np.ndarray) -> np.ndarray:
    return scores.mean(axis=0)


class OverlappingLabels(Labels):
  r"""Any number of C labels: $p_c = \sigma(z_c)$, and label c is given if $p_c \ge t_c$.

  The loss is the mean of C binary cross-entropies. The average precision, which needs no threshold,
  chooses the weights.

  Args:
    names: of the labels.
    thresholds: those of a fine-tuned run; empty: each evaluation chooses them.
  """

  own_metrics = ("average_precision",)

  def __init__(self, names: Sequence[str], thresholds: Sequence[float] = ()):
    self.names = tuple(names)
    self._numbers = {name: number for number, name in enumerate(names)}
    self._thresholds = tuple(thresholds)
    self._are_fixed = bool(thresholds)

  def target(self, label: Any) -> Any:
    """0 and 1, float32 `[C]`."""
    target = np.zeros(len(self.names), np.float32)
    target[[self._numbers[name] for name in label]] = 1
    return target

  def loss(self) -> Any:
    return keras.losses.BinaryCrossentropy(from_logits=True)

  def losses(self, gold: np.ndarray, scores: np.ndarray) -> Any:
    return np.logaddexp(0, scores) - scores * gold

  def predictions(self, scores: np.ndarray) -> np.ndarray:
    """Whether each label is given, `[n, C]`."""
    return np.asarray(special.expit(scores) >= (self._thresholds or 0.5))

  def text(self, prediction: Any) -> str:
    return label_cell(tuple(itertools.compress(self.names, prediction)))

  def mean(self, scores: np.ndarray) -> np.ndarray:
    # The thresholds of one run are not those of the mean: evaluation data choose others.
    self._are_fixed = False
    return scores.mean(axis=0)

  def probabilities(self, scores: np.ndarray) -> Any:
    return special.expit(scores)

  def choose(self, gold: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """`threshold_LABEL` of each label."""
    if not self._are_fixed:
      self._thresholds = best_thresholds(gold, special.expit(scores))
    return {f"threshold_{n}": t for n, t in zip(self.names, self._thresholds, strict=True)}

  def of_scores(self, gold: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    # A label without a single example has no precision.
    occurs = gold.any(axis=0)
    precision = 0.0
    if occurs.any():
      probabilities = special.expit(scores[:, occurs])
      precision = float(sklearn_metrics.average_precision_score(gold[:, occurs], probabilities))
    return {"average_precision": precision}

  def f1_of_each(self, gold: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    return _f1_of_each(self.names, gold, predictions)


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


def labels_of(spec: TaskSpec) -> Labels:
  """The rule of a task of texts."""
  if spec.kind == "multi_label":
    return OverlappingLabels(spec.label_names, spec.thresholds)
  if spec.kind == "regression":
    return ValueLabels()
  return ClassLabels(spec.label_names)


# ------------------------------------------------------------------ the task


class LabelledTask(FineTuningTask):
  """A task of examples with a label each; the model gives scores `[n, C]`, or values `[n, 1]`.

  A row of texts is [CLS] a [SEP] b [SEP]. The longer text is cut at its end until both fit; an empty
  second text makes a single segment.

  Args:
    spec: description of the task.
    splits: "train", "eval", "test", "eval_…", "test_…" → examples, such as `TextExample`: with an
      `id`, a `label` (None if unknown), a `group`, and a field for each input of the model.
    tokenizer: tokenizer of the weights.
    metrics: name → metric; the first one chooses the weights, unless the labels have their own.
    labels: what a label is; None: as `labels_of` the spec.
    best_metric: another metric that chooses, such as `f1_CLASS`.
    class_weights: the weight of each class in the training loss; empty: all are equal.
    sources: see the base class.
    submission: split → file in `submission/` with the predictions, for a benchmark's site.
    submitted_range: values that are submitted are cut to it.

  Raises:
    UserError: the task has no such metric.
  """

  def __init__(
    self,
    spec: TaskSpec,
    splits: Mapping[str, Sequence[Any]],
    *,
    tokenizer: Tokenizer,
    metrics: Mapping[str, Metric],
    labels: Labels | None = None,
    best_metric: str = "",
    class_weights: Sequence[float] = (),
    sources: Mapping[str, str] | None = None,
    submission: Mapping[str, str] | None = None,
    submitted_range: tuple[float, float] | None = None,
  ):
    self.spec = spec
    self.splits = dict(splits)
    self.tokenizer = tokenizer
    self.labels = labels or labels_of(spec)
    self.metrics = metrics
    self.sources = sources or {}
    self._class_weights = class_weights
    self._submission = submission or {}
    self._submitted_range = submitted_range
    known = [*self.labels.own_metrics, *metrics, *(f"f1_{name}" for name in self.labels.names)]
    self.best_metric = best_metric or known[0]
    if self.best_metric not in known:
      raise UserError(
        f"best_metric must be one of {', '.join(dict.fromkeys(known))}. Received: {best_metric}."
      )
    # What a run with other choices must not continue.
    self.training_options = {
      "best_metric": self.best_metric,
      "class_weights": list(class_weights),
    }

  # ------------------------------------------------------------------ examples

  @functools.cache  # noqa: B019  A task is needed until the command ends.
  def features(self, split: str) -> Examples:
    examples = self.split(split)
    gold: np.ndarray | None = None
    # Test data may lack labels, all or some: then they are only predicted.
    num_without = sum(example.label is None for example in examples)
    if 0 < num_without < len(examples) and split.startswith("test"):
      logging.warning(
        "%s: %d of %d rows have no label. Test data are scored if all have one; these are only "
        "predicted",
        self.sources.get(split, split),
        num_without,
        len(examples),
      )
    if not num_without or not split.startswith("test"):
      gold = self.gold(split)
      if not self.labels.names:
        gold = gold[:, np.newaxis]  # [n, 1], like the logits.
    weights: np.ndarray | None = None
    if self._class_weights and split == "train":
      weights = np.array(self._class_weights, np.float32)[gold]
    features = dataclasses.replace(
      self._rows(examples), labels=gold, weights=weights, divides_by_weights=True
    )
    num_full = (features.lengths >= self.spec.max_seq_length).sum()
    logging.info(
      "%s: %d examples, %d fill or exceed --max_seq_length", split, len(features), num_full
    )
    return features

  def _rows(self, examples: Sequence[Any]) -> Examples:
    """The model's input features of the examples, made with the ops of a SavedModel."""
    kind = self.model_class.preprocessor_kind
    columns = {}
    for name in INPUT_NAMES[kind]:
      column = [getattr(example, name) for example in examples]
      # Single texts have no second one.
      if set(column) != {None}:
        columns[name] = column
    with on_coordinator():
      preprocessor = AlbertPreprocessor(
        self.tokenizer,
        kind=kind,
        max_length=self.spec.max_seq_length,
        max_qa_length=self.spec.max_qa_length,
      )
    return Examples.of_texts(columns, preprocessor.pack, desc="Tokenizing")

  @functools.cache  # noqa: B019
  def gold(self, split: str) -> np.ndarray:
    """The labels of a split as the loss takes them.

    Raises:
      UserError: a label is missing, or is no class or number.
    """
    of_file = f" of {self.sources[split]}" if self.sources.get(split) else ""
    values = []
    for example in self.split(split):
      try:
        values.append(self.labels.target(example.label))
      except (KeyError, TypeError, ValueError) as error:
        names = ", ".join(self.labels.names)
        allowed = f"one of {names}" if names else "finite numbers"
        remedy = "Fix the file, or name another column"
        if names and split == "eval" and self.sources.get("eval") == self.sources.get("train"):
          remedy = "All rows of this label were held out: name evaluation data with each label"
        raise UserError(
          f"Labels of {split} data must be {allowed}. Received: {error} in the example with the id "
          f"{example.id}{of_file}. {remedy}."
        ) from error
    return np.array(values)

  # ------------------------------------------------------------------ loss and metrics

  def loss(self) -> Any:
    return self.labels.loss()

  def predictions(self, outputs: Outputs) -> np.ndarray:
    """Predicted classes, values or labels, `[n, …]`."""
    return self.labels.predictions(np.asarray(outputs[UNNAMED_OUTPUT]))

  def evaluate(self, outputs: Outputs, split: str = "eval") -> dict[str, float]:
    """The task's `metrics`, those of each group and of each class, and the mean `loss`."""
    gold = self.gold(split)
    scores = np.asarray(outputs[UNNAMED_OUTPUT], np.float64)
    # Before the predictions, which depend on it.
    chosen = self.labels.choose(gold, scores) if split == "eval" else {}
    predictions = self.predictions(outputs)
    values = self.labels.of_scores(gold, scores) | self._scores(gold, predictions)
    groups = np.array([example.group for example in self.split(split)])
    # Examples without a group have the group "".
    for group in sorted(set(groups) - {""}):
      of_group = self._scores(gold[groups == group], predictions[groups == group])
      values |= {f"{name}_{group}": value for name, value in of_group.items()}
    values |= self.labels.f1_of_each(gold, predictions)
    values["loss"] = float(self.labels.losses(gold, scores).mean())
    return values | chosen

  def _scores(self, gold: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    return {name: float(metric(gold, predictions)) for name, metric in self.metrics.items()}

  # ------------------------------------------------------------------ files

  def write_predictions(self, outputs: Outputs, split: str, directory: str) -> None:
    """Writes `predictions_<split>.tsv`: id, prediction, label if known, probability of each class.

    It also writes `scores_<split>.npz`, for `ensemble`: `scores` float32 `[n, C]`, and `examples`,
    a fingerprint of the examples that they are for; and `submission/`.
    """
    examples = self.splits[split]
    predictions = self.predictions(outputs)
    scores = np.asarray(outputs[UNNAMED_OUTPUT], np.float32)
    probabilities = self.labels.probabilities(scores.astype(np.float64))
    rows = [["id", "prediction", "label"] + [f"probability_{name}" for name in self.labels.names]]
    for example, prediction, of_classes in zip(examples, predictions, probabilities, strict=True):
      row = [example.id, self.labels.text(prediction), label_cell(example.label)]
      rows.append(row + [f"{probability:.6f}" for probability in of_classes])
    write_tsv(os.path.join(directory, f"predictions_{split}.tsv"), rows)
    with files.atomic_writer(os.path.join(directory, f"scores_{split}.npz")) as stream:
      np.savez(stream, scores=scores, examples=np.array(_fingerprint(examples)))
    if split in self._submission:
      self._write_submission(predictions, split, os.path.join(directory, "submission"))

  def _write_submission(self, predictions: np.ndarray, split: str, folder: str) -> None:
    if self._submitted_range is not None:
      predictions = np.clip(predictions, *self._submitted_range)
    rows = [("index", "prediction")]
    for example, prediction in zip(self.splits[split], predictions, strict=True):
      rows.append((example.id, self.labels.text(prediction)))
    files.makedirs(folder)
    write_tsv(os.path.join(folder, self._submission[split]), rows)

  # ------------------------------------------------------------------ ensembles

  def stored(self, directory: str, split: str) -> Outputs:
    path = os.path.join(directory, f"scores_{split}.npz")
    if not files.exists(path):
      raise UserError(
        f"A member of an ensemble must have stored scores. Received: {directory} without "
        f"{os.path.basename(path)}. Let it make them with --do_eval or --do_predict instead of "
        "--do_train."
      )
    with np.load(io.BytesIO(files.read_bytes(path))) as arrays:
      scores = arrays["scores"]
      fingerprint = str(arrays["examples"])
    if fingerprint != _fingerprint(self.split(split)):
      raise UserError(
        f"All runs of an ensemble answer the same examples. Received: {path}, of other texts, "
        "labels or order."
      )
    return {UNNAMED_OUTPUT: scores}

  def ensemble(self, outputs: Sequence[Outputs]) -> Outputs:
    of_runs = [np.asarray(run[UNNAMED_OUTPUT], np.float64) for run in outputs]
    return {UNNAMED_OUTPUT: self.labels.mean(np.stack(of_runs))}


def label_cell(label: str | tuple[str, ...] | None) -> str:
  """A label as text, several labels as a JSON list; empty if unknown."""
  if isinstance(label, tuple):
    return json.dumps(label, ensure_ascii=False)
  return label or ""


def _fingerprint(examples: Sequence[Any]) -> str:
  """A fingerprint of a split's examples; another name of an example's class would change it."""
  return hashlib.sha256("\0".join(map(repr, examples)).encode()).hexdigest()
