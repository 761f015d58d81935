"""Classification or regression of a person's own table."""

from collections.abc import Mapping, Sequence

from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.data import TableColumns, cell_text, hold_out, read_table
from albert_tf.finetuning.tasks.text import Texts, TextTask
from albert_tf.tokenization import Tokenizer

_MOST_CLASSES = 1000  # More different labels than this are no classes, but numbers or free text.


def read_texts(path: str, columns: TableColumns, *, with_label: bool | None) -> Texts:
  """Texts and labels of a table; see `data.read_table`. Empty texts are kept; a missing one is refused.

  Args:
    path: of the file.
    columns: which column is what.
    with_label: whether labels are needed; None: they are read where the column is there.

  Raises:
    UserError: the file is no table, is empty, or lacks a column.
  """
  table = read_table(path)
  if with_label is None:
    with_label = columns.label in table.columns
  wanted = [*columns.texts, *([columns.label] if with_label else []), *([columns.id] if columns.id else [])]
  table.check_columns(wanted, "--text_columns and --label_column")
  for name in wanted:
    empty = next((i for i, value in enumerate(table.columns[name]) if value is None), None)
    if empty is not None:
      raise UserError(
        f"Every row needs {', '.join(wanted)}. Received: none for {name!r} in {table.where(empty)}. Remove the row, "
        "or fill it."
      )
  texts = {name: [cell_text(value) for value in table.columns[name]] for name in wanted}
  return Texts(
    ids=texts[columns.id] if columns.id else [str(i) for i in range(len(table))],
    firsts=texts[columns.texts[0]],
    seconds=texts[columns.texts[1]] if len(columns.texts) > 1 else None,
    labels=[label.strip() for label in texts[columns.label]] if with_label else None,
    source=path,
  )


class TableTask(TextTask):
  """Classification or regression of a person's own table.

  Args:
    tables: "train", "eval", "test" → file. Without "eval", `eval_fraction` of the training rows are held out.
    columns: which column is what.
    tokenizer: of the weights.
    regression: whether labels are numbers to predict.
    label_names: the classes in order; empty: those of the training data, sorted.
    max_seq_length: S.
    name: of the task, in results and file names.
    eval_fraction: of the training rows, chosen by number, always the same ones.

  Raises:
    UserError: no such file, column or label.
  """

  def __init__(
    self,
    tables: Mapping[str, str],
    *,
    columns: TableColumns,
    tokenizer: Tokenizer,
    regression: bool = False,
    label_names: Sequence[str] = (),
    max_seq_length: int = 128,
    name: str = "custom",
    eval_fraction: float = 0.1,
  ):
    splits = {
      split: read_texts(path, columns, with_label=None if split == "test" else True)
      for split, path in tables.items()
      if path
    }
    if "train" in splits and "eval" not in splits:
      texts = splits["train"]
      held_out = hold_out(range(len(texts)), eval_fraction, source=texts.source)
      splits["train"], splits["eval"] = map(texts.take, held_out)
    names = () if regression else tuple(label_names) or _classes(splits.get("train"), columns)
    spec = TaskSpec(
      kind="regression" if regression else "classification",
      name=name,
      label_names=names,
      pair=len(columns.texts) > 1,
      max_seq_length=max_seq_length,
    )
    super().__init__(
      spec,
      splits,
      tokenizer=tokenizer,
      metric_names=("pearson", "spearman", "mean_squared_error") if regression else ("accuracy", "macro_f1"),
      data={f"{split}_file": path for split, path in tables.items() if path and split != "test"},
    )


def _classes(train: Texts | None, columns: TableColumns) -> tuple[str, ...]:
  if train is None:
    raise UserError(
      "The classes come from the training data. Received: no --train_file. Name them with --label_names, or the "
      "fine-tuned run as --init_checkpoint."
    )
  # Whole numbers in their order, after everything else.
  names = sorted(set(train.labels or ()), key=lambda label: (len(label) if label.isdigit() else 0, label))
  if not 2 <= len(names) <= _MOST_CLASSES:
    raise UserError(
      f"Classification needs 2 to {_MOST_CLASSES} classes. Received: {len(names)} different values in the column "
      f"{columns.label!r} of {train.source}. Is it the right column? Use --regression for numbers."
    )
  return tuple(names)
