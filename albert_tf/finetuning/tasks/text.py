"""Classification and regression of texts and pairs of texts, for GLUE and tables."""

from collections.abc import Callable, Mapping, Sequence
import functools
import itertools
import re
from typing import Any, NamedTuple

from absl import logging
import numpy as np
from scipy import special, stats
from sklearn import metrics as sklearn_metrics

from albert_tf import files
from albert_tf.compat import keras
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.data import Table, TableColumns, cell_text, read_splits, read_table
from albert_tf.finetuning.tasks.base import UNNAMED_OUTPUT, Outputs
from albert_tf.finetuning.tasks.rows import PackedRows, tokenized
from albert_tf.finetuning.tasks.scores import ScoresTask, finite_number, written
from albert_tf.tokenization import Tokenizer

_TEXTS_AT_ONCE = 4096
_MOST_CLASSES = 1000  # More different labels than this are no classes, but numbers or free text.


class TextExample(NamedTuple):
  """A text or a pair of texts, as in the file."""

  id: str  # Names it in predictions.
  text: str
  pair: str | None = None  # The second text.
  label: str | tuple[str, ...] | None = None  # For "multi_label" a tuple of all labels; None: not known.
  negative: str | None = None  # A third text, unlike the first one.


class TextTask(ScoresTask):
  """A classification or regression task on texts.

  Args:
    spec: kind "classification" or "regression"; `MultiLabelTask` has "multi_label".
    splits: "train", "eval", "test", "eval_…", "test_…" → examples.
    tokenizer: tokenizer of the weights.
    metric_names: keys of `METRICS`; the first chooses the best checkpoint.
  """

  def __init__(
    self,
    spec: TaskSpec,
    splits: Mapping[str, Sequence[TextExample]],
    *,
    tokenizer: Tokenizer,
    metric_names: Sequence[str],
  ):
    super().__init__(spec, splits, names=spec.label_names)
    self.best_metric = metric_names[0]
    self._tokenizer = tokenizer
    self._metric_names = tuple(metric_names)

  def rows(self, examples: Sequence[TextExample]) -> PackedRows:
    return text_rows(examples, self._tokenizer, max_length=self.spec.max_seq_length)

  def metrics(
    self, labels: np.ndarray, predictions: np.ndarray, examples: Sequence[TextExample]
  ) -> dict[str, float]:
    """The metrics of `metric_names`, and `f1_CLASS` of each class."""
    values = {name: float(METRICS[name](labels, predictions)) for name in self._metric_names}
    if self.names:
      classes = range(len(self.names))
      each = sklearn_metrics.f1_score(labels, predictions, labels=classes, average=None, zero_division=0)
      values |= {f"f1_{name}": float(score) for name, score in zip(self.names, each, strict=True)}
    return values


class MultiLabelTask(TextTask):
  r"""Classification with any number of labels: $p_c = \sigma(z_c)$, and label c is given if $p_c \ge t_c$.

  The loss is the mean of C binary cross-entropies. Thresholds are those of `spec`; if it has none, each evaluation of
  "eval" chooses them. The average precision, which needs no threshold, chooses the checkpoint.
  """

  def __init__(self, spec: TaskSpec, splits: Mapping[str, Sequence[TextExample]], *, tokenizer: Tokenizer):
    super().__init__(spec, splits, tokenizer=tokenizer, metric_names=("micro_f1", "macro_f1"))
    self.best_metric = "average_precision"
    self._given = self._thresholds = spec.thresholds

  def target(self, label: Any) -> Any:
    """The labels of an example as 0 and 1, float32 `[C]`."""
    return np.isin(range(len(self.names)), [self._places[name] for name in label]).astype(np.float32)

  def loss(self) -> Any:
    return keras.losses.BinaryCrossentropy(from_logits=True)

  def probabilities(self, scores: np.ndarray) -> Any:
    return special.expit(scores)

  def predictions(self, outputs: Outputs) -> np.ndarray:
    """Whether each label is given, `[n, C]`."""
    return np.asarray(special.expit(outputs[UNNAMED_OUTPUT]) >= (self._thresholds or 0.5))

  def label_text(self, prediction: Any) -> str:
    return written(tuple(itertools.compress(self.names, prediction)))

  def evaluate(self, outputs: Outputs, split: str = "eval") -> dict[str, float]:
    """`average_precision` over labels with examples, F1 and `loss`; for "eval" also the threshold of each label."""
    gold, scores = self.gold(split), np.asarray(outputs[UNNAMED_OUTPUT], np.float64)
    p, occurs = special.expit(scores), gold.any(axis=0)
    found = {"loss": float((np.logaddexp(0, scores) - scores * gold).mean())}
    if split == "eval":
      self._thresholds = self._given or best_thresholds(gold, p)
      found |= {f"threshold_{name}": at for name, at in zip(self.names, self._thresholds, strict=True)}
    mean = sklearn_metrics.average_precision_score(gold[:, occurs], p[:, occurs]) if occurs.any() else 0.0
    f1 = self.metrics(gold, self.predictions(outputs), self.split(split))
    return {"average_precision": float(mean), **f1, **found}

  def ensemble(self, outputs: Sequence[Outputs]) -> Outputs:
    """The mean of scores; "eval" chooses the thresholds."""
    self._given = () if "eval" in self.splits else self._given
    return {UNNAMED_OUTPUT: np.mean([each[UNNAMED_OUTPUT] for each in outputs], axis=0)}


def best_thresholds(gold: np.ndarray, probabilities: np.ndarray) -> tuple[float, ...]:
  """The threshold with the best F1 for each label, midway between two probabilities; 0.5 without examples.

  `gold` is 0/1, both are `[n, C]`.
  """
  chosen = []
  for truth, scores in zip(gold.T, probabilities.T, strict=True):
    if not truth.any():
      chosen.append(0.5)
      continue
    precision, recall, at = sklearn_metrics.precision_recall_curve(truth, scores)  # `at` rises.
    best = int(np.argmax(precision * recall / np.maximum(precision + recall, 1e-30)))
    chosen.append(float(at[best] + at[best - 1] * (best > 0)) / 2)
  return tuple(chosen)


def text_rows(examples: Sequence[TextExample], tokenizer: Tokenizer, *, max_length: int) -> PackedRows:
  """Rows [CLS] a [SEP] b [SEP] of each example.

  The longer text is cut at its end until both fit; an empty second text makes a single segment.
  """

  def texts(example: TextExample) -> Sequence[str]:
    return (example.text,) if example.pair is None else (example.text, example.pair)

  return tokenized(tokenizer, "text", examples, texts, at_once=_TEXTS_AT_ONCE, max_length=max_length)


def _correlation(function: Callable[..., Any], labels: np.ndarray, predictions: np.ndarray) -> float:
  """The correlation of two arrays; 0 if one is constant."""
  if not (np.ptp(labels) and np.ptp(predictions)):
    return 0.0
  return float(function(labels.astype(np.float64), predictions.astype(np.float64))[0])


# (labels, predictions) → score, as GLUE defines them. "f1" is of class 1 (MRPC's paraphrases, QQP's duplicates),
# "macro_f1" the mean over the classes that occur.
METRICS: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = {
  "accuracy": sklearn_metrics.accuracy_score,
  "f1": functools.partial(sklearn_metrics.f1_score, zero_division=0),
  "micro_f1": functools.partial(sklearn_metrics.f1_score, average="micro", zero_division=0),
  "macro_f1": functools.partial(sklearn_metrics.f1_score, average="macro", zero_division=0),
  "matthews_correlation": sklearn_metrics.matthews_corrcoef,
  "pearson": functools.partial(_correlation, stats.pearsonr),
  "spearman": functools.partial(_correlation, stats.spearmanr),
}


# ------------------------------------------------------------------ a user's table


def table_examples(
  table: Table, columns: TableColumns, *, labelled: bool, numbers: bool = False
) -> list[TextExample]:
  """The rows of a table as examples; with `labelled` each needs a label, with `numbers` a number.

  Raises:
    UserError: a column or all rows are missing, or a row lacks its text or label and is not to be left out, or its
      label is no number.
  """
  wanted = [*columns.texts, *(columns.labels if labelled else [])]
  wanted += [name for name in (columns.id, columns.negative) if name]
  table.check_columns(wanted, "--text_columns and --label_column")
  cells = {name: list(map(cell_text, table.columns[name])) for name in wanted}
  labels: list[Any] = [None] * len(table)
  if columns.label and set(columns.labels) <= set(table.columns):
    labels = _label_sets(table, columns) if columns.multi_label else _labels(table.columns[columns.label])
  if columns.multi_label and not labelled and not any(labels):
    labels = [None] * len(table)  # Empty cells of a table that is to be predicted.
  if labelled and numbers:
    _check_numbers(table, labels)
  examples = [
    TextExample(*row)
    for row in zip(
      cells[columns.id] if columns.id else map(str, range(len(table))),
      cells[columns.texts[0]],
      cells[columns.texts[1]] if len(columns.texts) > 1 else [None] * len(table),
      labels,
      cells[columns.negative] if columns.negative else [None] * len(table),
      strict=True,
    )
  ]
  incomplete = {
    number
    for number, each in enumerate(examples)
    if labelled and (each.label is None or not (each.text.strip() or (each.pair or "").strip()))
  }
  if incomplete and not columns.skip_incomplete_rows:
    raise UserError(
      "Rows for training and evaluation need a text and a label. Received: none in "
      f"{table.where(min(incomplete))}, and {len(incomplete) - 1:,} more such rows. Fix them, or leave them out with "
      "--skip_incomplete_rows."
    )
  if incomplete:
    logging.warning("%s: %d rows without a text or a label are left out", table.source, len(incomplete))
  without = sum(example.label == () for example in examples)
  if without:
    logging.info("%s: %d of %d rows have none of the labels", table.source, without, len(table))
  return [example for number, example in enumerate(examples) if number not in incomplete]


def _labels(cells: Sequence[Any]) -> list[str | None]:
  """None where one is missing: empty, or "nan", as tables of numbers write it."""
  texts = [cell_text(cell).strip() for cell in cells]
  return [None if text.lower() in ("", "nan") else text for text in texts]


def _check_numbers(table: Table, labels: Sequence[str | None]) -> None:
  """Raises `UserError` if a label is no finite number; a missing one is None."""
  for row, label in enumerate(labels):
    if label is None:
      continue
    try:
      finite_number(label)
    except ValueError as error:
      raise UserError(
        f"Labels are finite numbers here. Received: {error} in {table.where(row)}. Fix it, or "
        "name another column with --label_column."
      ) from error


def _label_sets(table: Table, columns: TableColumns) -> list[tuple[str, ...] | None]:
  """The labels of each row: a list in one column, or a 0/1 column for each; None where such a cell is empty."""
  found: list[tuple[str, ...] | None] = []
  if len(columns.labels) == 1:
    for row, cell in enumerate(table.columns[columns.label]):
      if isinstance(cell, str) and cell.lstrip().startswith("["):
        cell = files.parse_json(f'{{"labels": {cell}}}', table.where(row), labels=list)["labels"]
      parts = cell if isinstance(cell, list) else re.split("[,;|]", cell_text(cell))
      found.append(tuple(dict.fromkeys(label for label in _labels(parts) if label)))
    return found
  marks = {"0": False, "false": False, "1": True, "true": True}
  for row, cells in enumerate(zip(*(_labels(table.columns[name]) for name in columns.labels), strict=True)):
    given = [marks.get((cell or "0").lower()) for cell in cells]
    if None in given:
      raise UserError(
        f"Each of several label columns holds 0 or 1. Received: {cells[given.index(None)]!r} in {table.where(row)}. A "
        "column with names of labels is named alone."
      )
    found.append(None if None in cells else tuple(itertools.compress(columns.labels, given)))
  return found


def table_task(
  tables: Mapping[str, str],
  *,
  columns: TableColumns,
  tokenizer: Tokenizer,
  regression: bool = False,
  label_names: Sequence[str] = (),
  thresholds: Sequence[float] = (),
  max_seq_length: int = 128,
  eval_fraction: float = 0.1,
) -> TextTask:
  """Makes the task of a user's tables: classification with one or several labels, or regression.

  Args:
    tables: "train", "eval", "test" → file, "" for none. Without "eval", `eval_fraction` of the training rows are held
      out, always the same ones.
    columns: names of the columns.
    tokenizer: tokenizer of the weights.
    regression: whether labels are numbers to predict.
    label_names: classes in order; empty: the columns of 0 and 1, or the sorted labels of the training data.
    thresholds: thresholds of the labels; empty: chosen on the evaluation data.
    max_seq_length: S.

  Raises:
    UserError: a file, column or class is missing, or one of several labels has no training example.
  """
  if regression and (columns.multi_label or label_names):
    raise UserError(
      "Labels are numbers or names. Received: --regression with --multi_label or --label_names. Choose one."
    )

  def read(path: str, split: str) -> list[TextExample]:
    return table_examples(read_table(path), columns, labelled=split != "test", numbers=regression)

  splits = read_splits(tables, read, eval_fraction=eval_fraction)
  labels = [each.label for each in splits.get("train", ())]
  taught = set().union(*(label if isinstance(label, tuple) else (label,) for label in labels))
  columns_of_labels = columns.labels if len(columns.labels) > 1 else ()
  # Whole numbers in their order, after everything else.
  ordered = sorted(map(str, taught), key=lambda label: (len(label) if label.isdigit() else 0, label))
  names = () if regression else tuple(label_names or columns_of_labels or ordered)
  if not regression and not 2 <= len(names) <= _MOST_CLASSES:
    raise UserError(
      f"Classification needs 2 to {_MOST_CLASSES} classes. Received: {len(names)} different labels in training data. "
      "Is it the right column? Name the classes with --label_names, or use --regression for numbers."
    )
  untaught = ", ".join(name for name in names if name not in taught)
  if columns.multi_label and labels and untaught:
    raise UserError(
      f"Each of several labels needs a training example. Received: none for {untaught} in {len(labels)} rows. Add one, "
      "or leave the label out."
    )
  spec = TaskSpec(
    kind="regression" if regression else "multi_label" if columns.multi_label else "classification",
    name="custom",
    label_names=names,
    thresholds=tuple(thresholds),
    pair=len(columns.texts) > 1,
    max_seq_length=max_seq_length,
  )
  if columns.multi_label:
    return MultiLabelTask(spec, splits, tokenizer=tokenizer)
  metric_names = ("pearson", "spearman") if regression else ("accuracy", "macro_f1")
  return TextTask(spec, splits, tokenizer=tokenizer, metric_names=metric_names)
