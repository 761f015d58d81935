"""The task of a user's tables: a class, any number of labels, or a value for each text."""

from collections import Counter
from collections.abc import Mapping, Sequence
import contextlib
from typing import Any

from absl import logging

from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.data import (
  Table,
  TableColumns,
  finite_number,
  known_label,
  read_splits,
  read_table,
  row_ids,
  sources_of,
  warn_of_capitals,
  whole_number,
)
from albert_tf.finetuning.tasks.labelled import LabelledTask, TextExample, named_metrics
from albert_tf.tables import cell_text
from albert_tf.tokenization import Tokenizer

_MOST_CLASSES = 1000  # More different labels than this are no classes, but numbers or free text.
# Kind → metrics. The average precision of labels that overlap is their own.
_METRICS = {
  "classification": named_metrics("accuracy", "macro_f1"),
  "multi_label": named_metrics("micro_f1", "macro_f1"),
  "regression": named_metrics("pearson", "spearman"),
}
# How JSON and Parquet write labels.
_TYPE_NAMES = {bool: "true or false", int: "numbers", float: "numbers"}


def table_examples(
  table: Table, columns: TableColumns, *, labelled: bool, kind: str = "classification"
) -> list[TextExample]:
  """The rows of a table as examples; with `labelled` each needs a label.

  Args:
    table: the rows.
    columns: the names of the columns.
    labelled: whether the rows are to train or to evaluate on.
    kind: "classification", "multi_label" or "regression", which says what a label is.

  Raises:
    UserError: a column or all rows are missing, or a row lacks its text or label, or its label is
      no number.
  """
  needed = list(columns.text_columns)
  if labelled:
    needed.append(columns.label_column)
  table.check_columns(needed, "--text_columns and --label_column")
  has_labels = columns.label_column in table.names

  examples = []
  incomplete = []  # The names of such rows.
  for row, row_id in zip(table.rows, row_ids(table), strict=True):
    label: Any = None
    # Test data may have labels too: then they are scored.
    if has_labels:
      cell = row.cells.get(columns.label_column)
      label = _labels(cell, where=row.where) if kind == "multi_label" else _label(cell)
    if labelled and kind == "regression":
      _check_number(label, where=row.where)
    # Empty cells are empty texts.
    texts = [cell_text(row.cells.get(name)) for name in columns.text_columns]  # One or two.
    if labelled and (label is None or not any(map(str.strip, texts))):
      incomplete.append(row.where)
      continue
    examples.append(TextExample(row_id, *texts)._replace(label=label))

  # A row without a label would be a class of its own, and one without a text would teach nothing.
  if incomplete:
    raise UserError(
      "Rows for training and evaluation need a text and a label. Received: none in "
      f"{incomplete[0]}, and {len(incomplete) - 1:,} more such rows. Fix them, or delete them."
    )
  if not labelled and not any(example.label for example in examples):
    # The cells of a table that is to be predicted are empty: this does not mean "no labels".
    return [example._replace(label=None) for example in examples]
  if has_labels and kind != "regression":
    _warn_of_mixed_types(table, columns)
    labels: Counter[str] = Counter()
    for example in examples:
      if isinstance(example.label, str):
        labels[example.label] += 1
      else:
        labels.update(example.label or ())
    warn_of_capitals(labels, source=table.source)
  num_without = sum(example.label == () for example in examples)
  if num_without:
    logging.info(
      "%s: %d of %d rows have none of the labels", table.source, num_without, len(examples)
    )
  return examples


# ------------------------------------------------------------------ labels


def _label(cell: Any) -> str | None:
  """None for an empty cell, and for "nan", as tables of numbers write it."""
  text = cell_text(cell).strip()
  if text.lower() in ("", "nan"):
    return None
  return text


def _labels(cell: Any, *, where: str) -> tuple[str, ...]:
  """The labels in one cell: a list, or names with commas between them."""
  if not isinstance(cell, list):
    text = cell_text(cell)
    # A list in .csv and .tsv is text, such as '["air", "blue"]': '["air"' would be a name.
    if text.lstrip().startswith("["):
      raise UserError(
        "Several labels are names with commas between them, or a list of .jsonl and .parquet. "
        f"Received: {text:.80} in {where}. Write air,blue; or take .jsonl."
      )
    cell = text.split(",")
  labels = [_label(name) for name in cell]
  # Each label once, in the order of the file.
  return tuple(dict.fromkeys(label for label in labels if label))


def _warn_of_mixed_types(table: Table, columns: TableColumns) -> None:
  """Warns of labels of several types in one column."""
  cells: list[Any] = []
  for row in table.rows:
    cell = row.cells.get(columns.label_column)
    cells.extend(cell if isinstance(cell, list) else [cell])
  known = [cell for cell in cells if _label(cell) is not None]
  types = Counter(_TYPE_NAMES.get(type(cell), "texts") for cell in known)
  if len(types) > 1:
    counts = ", ".join(f"{count} {kind}" for kind, count in types.items())
    logging.warning(
      '%s: labels of several types in %s: %s. Each is read as text: 1 and "1" are the class 1, true '
      "is another",
      table.source,
      columns.label_column,
      counts,
    )


def _check_number(label: str | None, *, where: str) -> None:
  """Raises `UserError` if a label is no finite number; a missing one is None."""
  if label is None:
    return
  try:
    finite_number(label)
  except ValueError as error:
    raise UserError(
      f"Labels are finite numbers here. Received: {error} in {where}. Fix it, or name another "
      "column with --label_column."
    ) from error


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
) -> LabelledTask:
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
  sources = sources_of(tables)
  _warn_of_known_texts(splits, sources)
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
  weights: Sequence[float] = ()
  if class_weights:
    weights = _class_weights(class_weights, spec, splits.get("train", ()))
  return LabelledTask(
    spec,
    splits,
    tokenizer=tokenizer,
    metrics=_METRICS[kind],
    best_metric=best_metric,
    class_weights=weights,
    sources=sources,
  )


def _warn_of_known_texts(
  splits: Mapping[str, Sequence[TextExample]], sources: Mapping[str, str]
) -> None:
  """Warns of evaluation and test rows whose texts are training rows, too."""
  known = {(example.text, example.text_pair) for example in splits.get("train", ())}
  for split, examples in splits.items():
    if split == "train":
      continue
    num_known = sum((example.text, example.text_pair) in known for example in examples)
    if num_known:
      logging.warning(
        "%s: %d of %d %s rows have the texts of training rows. Their scores say little of new "
        "texts: remove them from one side",
        sources[split],
        num_known,
        len(examples),
        split,
      )


def _of_class(example: TextExample, names: Sequence[str]) -> TextExample:
  """The example with its labels as the classes have them; see `known_label`."""
  label = example.label
  if isinstance(label, tuple):
    label = tuple(known_label(each, names) for each in label)
  elif label is not None:
    label = known_label(label, names)
  return example._replace(label=label)


def _class_weights(
  requested: Sequence[str], spec: TaskSpec, training_examples: Sequence[TextExample]
) -> Sequence[float]:
  """The weight of each class; "balanced" makes the classes count alike.

  90 and 10 examples of two classes get 100 / (2 · 90) = 0.56 and 100 / (2 · 10) = 5.
  """
  names = spec.label_names
  weights: list[float] = []
  if spec.kind == "classification":
    if list(requested) == ["balanced"]:
      # An evaluation alone has no training examples, and no use for weights.
      counts = Counter(example.label for example in training_examples) or Counter(names)
      weights = [counts.total() / (len(names) * max(counts[name], 1)) for name in names]
    else:
      with contextlib.suppress(ValueError):
        weights = [finite_number(weight) for weight in requested]
  if len(weights) != len(names) or not weights or min(weights) <= 0:
    raise UserError(
      "class_weights are for classes that exclude each other: balanced, or a number above 0 for "
      f"each of {', '.join(names) or 'them'}. Received: {','.join(requested)} for "
      f"{spec.kind}."
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
    remedy = "Numbers to predict are --problem=regression. For more classes take AlbertClassifier"
    if kind == "multi_label":
      remedy = "Write several as air,blue. For more take AlbertClassifier"
    raise UserError(
      f"A table has 2 to {_MOST_CLASSES} different labels. Received: {len(label_names)} in the "
      f"training data. Is it the right column? {remedy}."
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
