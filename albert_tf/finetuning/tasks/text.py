"""Classification and regression of texts and pairs of texts: what GLUE and a person's own table share."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
from typing import Any, NamedTuple

from absl import logging
import numpy as np
from scipy import stats
from sklearn import metrics as sklearn_metrics
import tensorflow as tf

from albert_tf.checkpoints.bundle import coordinator_cpu
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.data import Table, TableColumns, cell_text, hold_out, read_table
from albert_tf.finetuning.tasks.rows import PackedRows, in_blocks
from albert_tf.finetuning.tasks.scores import ScoresTask
from albert_tf.tokenization import Tokenizer
from albert_tf.tokenization.graph import graph_tokenizer

_TEXTS_AT_ONCE = 4096
_MOST_CLASSES = 1000  # More different labels than this are no classes, but numbers or free text.


class TextExample(NamedTuple):
  """A text or a pair of texts as it is in the file."""

  id: str  # Names it in predictions.
  text: str
  pair: str | None = None  # The second text.
  label: str | None = None  # None: it is not known.


class TextTask(ScoresTask):
  """A classification or regression task on texts.

  Args:
    spec: kind "classification" or "regression".
    splits: "train", "eval", "test", "eval_…", "test_…" → examples.
    tokenizer: of the weights.
    metric_names: keys of `METRICS`; the first decides which checkpoint is the best.
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
    """Those of `metric_names`; of classes `f1_CLASS` of each too."""
    values = {name: float(METRICS[name](labels, predictions)) for name in self._metric_names}
    if self.names:
      classes = range(len(self.names))
      each = sklearn_metrics.f1_score(labels, predictions, labels=classes, average=None, zero_division=0)
      values |= {f"f1_{name}": float(score) for name, score in zip(self.names, each, strict=True)}
    return values


def text_rows(examples: Sequence[TextExample], tokenizer: Tokenizer, *, max_length: int) -> PackedRows:
  """[CLS] a [SEP] b [SEP] of each example.

  The longer text is cut at its end until both fit; an empty second text makes a single segment.
  """
  return PackedRows.of(_text_batches(examples, tokenizer, max_length=max_length))


def _text_batches(
  examples: Sequence[TextExample], tokenizer: Tokenizer, *, max_length: int
) -> Iterator[Mapping[str, tf.Tensor]]:
  with tf.device(coordinator_cpu()):  # Its tables too: a slice's first host could not give them to us.
    graph = graph_tokenizer(tokenizer)
  for block in in_blocks(examples, _TEXTS_AT_ONCE, desc="Tokenizing texts"):
    with tf.device(coordinator_cpu()):
      pairs = None if block[0].pair is None else tf.constant([str(example.pair) for example in block])
      batch = graph(tf.constant([example.text for example in block]), pairs, max_length=max_length)
    yield batch


def _correlation(function: Callable[..., Any], labels: np.ndarray, predictions: np.ndarray) -> float:
  """0 where one side is constant."""
  if not (np.ptp(labels) and np.ptp(predictions)):
    return 0.0
  return float(function(labels.astype(np.float64), predictions.astype(np.float64))[0])


# (labels, predictions) → score, as GLUE defines them. "f1" is of class 1 (MRPC's paraphrases, QQP's duplicates),
# "macro_f1" the mean over the classes that occur.
METRICS: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = {
  "accuracy": sklearn_metrics.accuracy_score,
  "f1": functools.partial(sklearn_metrics.f1_score, zero_division=0),
  "macro_f1": functools.partial(sklearn_metrics.f1_score, average="macro", zero_division=0),
  "matthews_correlation": sklearn_metrics.matthews_corrcoef,
  "pearson": functools.partial(_correlation, stats.pearsonr),
  "spearman": functools.partial(_correlation, stats.spearmanr),
}


# ------------------------------------------------------------------ a person's own table


def table_examples(table: Table, columns: TableColumns, *, labelled: bool) -> list[TextExample]:
  """The rows of a table; without `labelled` they need no labels.

  Raises:
    UserError: a column is missing, there is no row, or one lacks its text or label and is not to be left out.
  """
  wanted = [*columns.texts, *([columns.label] if labelled else []), *([columns.id] if columns.id else [])]
  table.check_columns(wanted, "--text_columns and --label_column")
  wanted += [columns.label] if columns.label in table.columns else []
  cells = {name: list(map(cell_text, table.columns[name])) for name in wanted}
  examples = [
    TextExample(*row)
    for row in zip(
      cells[columns.id] if columns.id else map(str, range(len(table))),
      cells[columns.texts[0]],
      cells[columns.texts[1]] if len(columns.texts) > 1 else [None] * len(table),
      [_label(text) for text in cells.get(columns.label, [""] * len(table))],
      strict=True,
    )
  ]
  incomplete = [
    number
    for number, (_, text, pair, label) in enumerate(examples)
    if labelled and (label is None or not (text.strip() or (pair or "").strip()))
  ]
  if incomplete and not columns.skip_incomplete_rows:
    raise UserError(
      "Rows for training and evaluation need a text and a label. Received: none in "
      f"{table.where(incomplete[0])}, and {len(incomplete) - 1:,} more such rows. Fix them, or leave them out with "
      "--skip_incomplete_rows."
    )
  if incomplete:
    logging.warning("%s: %d rows without a text or a label are left out", table.source, len(incomplete))
  left_out = set(incomplete)
  return [example for number, example in enumerate(examples) if number not in left_out]


def _label(text: str) -> str | None:
  """None where it is missing: empty, or "nan", as tables of numbers write it."""
  text = text.strip()
  return None if text.lower() in ("", "nan") else text


def table_task(
  tables: Mapping[str, str],
  *,
  columns: TableColumns,
  tokenizer: Tokenizer,
  regression: bool = False,
  label_names: Sequence[str] = (),
  max_seq_length: int = 128,
  eval_fraction: float = 0.1,
) -> TextTask:
  """Classification or regression of a person's own tables.

  Args:
    tables: "train", "eval", "test" → file, "" for none. Without "eval", `eval_fraction` of the training rows are held
      out, always the same ones.
    columns: which column is what.
    tokenizer: of the weights.
    regression: whether labels are numbers to predict.
    label_names: the classes in order; empty: those of the training data, sorted.
    max_seq_length: S.

  Raises:
    UserError: no such file or column, or no classes.
  """
  paths = {split: path for split, path in tables.items() if path}
  splits = {
    split: table_examples(read_table(path), columns, labelled=split != "test")
    for split, path in paths.items()
  }
  if "train" in splits and "eval" not in splits:
    splits["train"], splits["eval"] = hold_out(splits["train"], eval_fraction, source=paths["train"])
  names = (
    set() if regression else set(label_names) or {each.label for each in splits.get("train", ())} - {None}
  )
  if not regression and not 2 <= len(names) <= _MOST_CLASSES:
    raise UserError(
      f"Classification needs 2 to {_MOST_CLASSES} classes. Received: {len(names)} different labels in training data. "
      "Is it the right column? Name the classes with --label_names, or use --regression for numbers."
    )
  # Whole numbers in their order, after everything else.
  ordered = sorted(map(str, names), key=lambda label: (len(label) if label.isdigit() else 0, label))
  spec = TaskSpec(
    kind="regression" if regression else "classification",
    name="custom",
    label_names=tuple(label_names or ordered),
    pair=len(columns.texts) > 1,
    max_seq_length=max_seq_length,
  )
  metric_names = ("pearson", "spearman") if regression else ("accuracy", "macro_f1")
  return TextTask(spec, splits, tokenizer=tokenizer, metric_names=metric_names)
