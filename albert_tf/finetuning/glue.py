"""GLUE's files: which columns each task's TSVs have, and how they are read."""

from collections.abc import Mapping
import dataclasses
import os

from absl import logging

from albert_tf import files
from albert_tf.errors import UserError
from albert_tf.finetuning.text_task import Texts

_MNLI_LABELS = ("contradiction", "entailment", "neutral")
_NLI_LABELS = ("entailment", "not_entailment")
_BINARY = ("0", "1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueTask:
  """One task of GLUE.

  Attributes:
    name: as on the command line.
    folder: as GLUE names it, also of its submission file.
    texts: columns of the first and the second text.
    label: its column.
    label_names: the classes; empty: regression.
    metrics: the first decides.
    header: whether train and dev have one; else the columns are those of `columns`.
    columns: names by position where there is no header.
    files: split → file name; "eval_…" and "test_…" are further ones.
    drop_short: rows with too few columns are dropped and counted, as in QQP's release.
    submission: split → name of GLUE's submission file.
  """

  name: str
  folder: str
  texts: tuple[str, ...]
  label: str
  label_names: tuple[str, ...]
  metrics: tuple[str, ...] = ("accuracy",)
  header: bool = True
  columns: tuple[str, ...] = ()
  files: Mapping[str, str] = dataclasses.field(
    default_factory=lambda: {"train": "train.tsv", "eval": "dev.tsv", "test": "test.tsv"}
  )
  drop_short: bool = False
  submission: Mapping[str, str] = dataclasses.field(default_factory=dict)


_MNLI_FILES = {
  "train": "train.tsv",
  "eval": "dev_matched.tsv",
  "eval_mismatched": "dev_mismatched.tsv",
  "test": "test_matched.tsv",
  "test_mismatched": "test_mismatched.tsv",
}
_SENTENCES = ("sentence1", "sentence2")

TASKS: dict[str, GlueTask] = {
  task.name: task
  for task in (
    GlueTask(
      name="cola",
      folder="CoLA",
      texts=("sentence",),
      label="label",
      label_names=_BINARY,
      metrics=("matthews_correlation", "accuracy"),
      header=False,
      columns=("source", "label", "mark", "sentence"),
    ),
    GlueTask(name="sst-2", folder="SST-2", texts=("sentence",), label="label", label_names=_BINARY),
    GlueTask(
      name="mrpc",
      folder="MRPC",
      texts=("#1 String", "#2 String"),
      label="Quality",
      label_names=_BINARY,
      metrics=("accuracy", "f1"),
    ),
    GlueTask(
      name="sts-b",
      folder="STS-B",
      texts=_SENTENCES,
      label="score",
      label_names=(),
      metrics=("pearson", "spearman", "mean_squared_error"),
    ),
    GlueTask(
      name="qqp",
      folder="QQP",
      texts=("question1", "question2"),
      label="is_duplicate",
      label_names=_BINARY,
      metrics=("accuracy", "f1"),
      drop_short=True,
    ),
    GlueTask(
      name="mnli",
      folder="MNLI",
      texts=_SENTENCES,
      label="gold_label",
      label_names=_MNLI_LABELS,
      files=_MNLI_FILES,
      submission={"test": "MNLI-m", "test_mismatched": "MNLI-mm", "test_ax": "AX"},
    ),
    GlueTask(
      name="qnli", folder="QNLI", texts=("question", "sentence"), label="label", label_names=_NLI_LABELS
    ),
    GlueTask(name="rte", folder="RTE", texts=_SENTENCES, label="label", label_names=_NLI_LABELS),
    GlueTask(name="wnli", folder="WNLI", texts=_SENTENCES, label="label", label_names=_BINARY),
    GlueTask(
      name="ax",
      folder="AX",
      texts=_SENTENCES,
      label="label",
      label_names=_MNLI_LABELS,
      files={"test": "AX.tsv"},
    ),
  )
}
_OTHER_NAMES = {
  "sst2": "sst-2",
  "stsb": "sts-b",
  "sts": "sts-b",
  "mnli-m": "mnli",
  "mismnli": "mnli",
  "diagnostic": "ax",
}
# The diagnostic set has been distributed under several names.
_AX_FILES = ("AX/AX.tsv", "AX/diagnostic.tsv", "diagnostic/diagnostic.tsv", "AX.tsv", "diagnostic.tsv")


def find_task(name: str) -> GlueTask:
  """The task of a name, however it is spelled.

  Raises:
    UserError: GLUE has no such task.
  """
  key = name.strip().lower().replace("_", "-")
  task = TASKS.get(_OTHER_NAMES.get(key, key))
  if task is None:
    raise UserError(
      f"task_name must be one of {', '.join(TASKS)}, custom. Received: {name!r}. A table of your own is 'custom'."
    )
  return task


def read_splits(task: GlueTask, data_dir: str) -> dict[str, Texts]:
  """Every split whose file is there.

  Args:
    task: of `TASKS`.
    data_dir: the task's own folder, or the one that holds GLUE's folders.

  Raises:
    UserError: no file is there, or one cannot be read as this task's.
  """
  folder = find_folder(task, data_dir)
  splits = {}
  for split, name in task.files.items():
    path = os.path.join(folder, name)
    if files.exists(path):
      splits[split] = read_tsv(task, path, split)
  if task.name == "mnli":
    for place in (folder, os.path.dirname(folder.rstrip("/"))):
      found = next((p for name in _AX_FILES if files.exists(p := os.path.join(place, name))), None)
      if found is not None:
        splits.setdefault("test_ax", read_tsv(TASKS["ax"], found, "test"))
  return splits


def find_folder(task: GlueTask, data_dir: str) -> str:
  """The folder with the task's files: `data_dir` itself, or one in it."""
  names = (
    task.folder,
    f"{task.folder}-sample",
    task.folder.lower(),
    "diagnostic" if task.name == "ax" else "",
  )
  folders = [data_dir, *[os.path.join(data_dir, name) for name in names if name]]
  for folder in folders:
    if any(files.exists(os.path.join(folder, name)) for name in _file_names(task)):
      return folder
  raise UserError(
    f"data_dir must hold {' or '.join(dict.fromkeys(_file_names(task)))}, itself or in {task.folder}/. Received: "
    f"{data_dir!r}, which has none of them. Download GLUE, and name its folder or the task's."
  )


def _file_names(task: GlueTask) -> list[str]:
  return [os.path.basename(name) for name in _AX_FILES] if task.name == "ax" else list(task.files.values())


def read_tsv(task: GlueTask, path: str, split: str) -> Texts:
  """One of GLUE's TSVs: tabs between columns, no quoting; a header or none as the task has it.

  Raises:
    UserError: a column is missing, a row is too short, or there is no row.
  """
  with files.open_binary(path) as stream:
    text = stream.read().decode("utf-8-sig")  # MRPC's files begin with a byte-order mark.
  # Only "\n" ends a row: the texts hold other characters that Python takes for line ends.
  lines = [line.removesuffix("\r") for line in text.split("\n")]
  while lines and not lines[-1].strip():
    lines.pop()
  test = split.startswith("test")
  if test or task.header:
    columns, first = lines[0].split("\t") if lines else [], 1
  else:
    columns, first = list(task.columns), 0
  wanted = [*task.texts, *([] if test else [task.label])]
  missing = [name for name in wanted if name not in columns]
  if missing and lines:
    raise UserError(
      f"{task.folder}'s {split} file needs the columns {', '.join(wanted)}. Received: {path} without "
      f"{', '.join(missing)}; it has {', '.join(columns)}. Is it the file of another task?"
    )
  if len(lines) <= first:
    raise UserError(f"{task.folder}'s {split} file needs rows. Received: {path}, which is empty.")
  return _to_texts(task, path, lines, columns=columns, first=first, test=test)


def _to_texts(
  task: GlueTask, path: str, lines: list[str], *, columns: list[str], first: int, test: bool
) -> Texts:
  at = [columns.index(name) for name in task.texts]
  label_at = None if test else columns.index(task.label)
  needed = max([*at, *([] if label_at is None else [label_at])]) + 1
  # Test rows are told apart by their first column, "index" or "id"; the others have no number of their own.
  numbered = test and columns[0] in ("index", "id")
  ids, rows, short = [], [], []
  for number, line in enumerate(lines[first:]):
    fields = line.split("\t")
    if len(fields) < needed:
      short.append(first + number + 1)
      continue
    ids.append(fields[0] if numbered else str(number))
    rows.append(fields)
  if short and not task.drop_short:
    raise UserError(
      f"Every row of {task.folder} has {needed} columns or more. Received: fewer in {path}, line {short[0]}"
      f"{f' and {len(short) - 1} more' if len(short) > 1 else ''}. Download the file again."
    )
  if short:
    logging.warning("%s: %d rows have too few columns and are left out, as in the original", path, len(short))
  return Texts(
    ids=ids,
    firsts=[row[at[0]] for row in rows],
    seconds=[row[at[1]] for row in rows] if len(at) > 1 else None,
    labels=None if label_at is None else [row[label_at].strip() for row in rows],
    source=path,
    first_line=first + 1,
  )
