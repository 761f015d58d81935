"""GLUE: columns of each task's files, metrics, and files for GLUE's site."""

from collections.abc import Mapping
import os
from typing import NamedTuple

from absl import logging

from albert_tf import files
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.data import read_lines
from albert_tf.finetuning.tasks.labelled import LabelledTask, Metric, TextExample, named_metrics
from albert_tf.tokenization import Tokenizer

# ------------------------------------------------------------------ the tasks

_FILES = {"train": "train.tsv", "eval": "dev.tsv", "test": "test.tsv"}
_MNLI_FILES = {
  "train": "train.tsv",
  "eval": "dev_matched.tsv",
  "eval_mismatched": "dev_mismatched.tsv",
  "test": "test_matched.tsv",
  "test_mismatched": "test_mismatched.tsv",
  "test_ax": "AX/AX.tsv",
}
_DIAGNOSTIC_FILE = "diagnostic/diagnostic.tsv"  # Another name under which AX.tsv is distributed.


class GlueTask(NamedTuple):
  """One task of GLUE, or one of your own in such files."""

  folder: str  # As GLUE names it, also of its submission file.
  texts: tuple[str, ...] = ("sentence1", "sentence2")  # Their columns.
  label: str = "label"  # Its column.
  label_names: tuple[str, ...] = ("0", "1")  # Empty: regression.
  metrics: Mapping[str, Metric] = named_metrics("accuracy")  # The first chooses the weights.
  columns: tuple[str, ...] = ()  # Names by position where train and dev have no header.
  files: Mapping[str, str] = _FILES
  submission: Mapping[str, str] = {}  # Split → name of its file; empty: "test" → the folder.
  submitted_range: tuple[float, float] | None = None  # Of values; GLUE refuses others.

  @property
  def name(self) -> str:
    """Its name in flags and results, such as "sst-2"."""
    return self.folder.lower()


_NLI_LABELS = ("entailment", "not_entailment")
_ALL_TASKS = (
  GlueTask(
    "CoLA",
    texts=("sentence",),
    metrics=named_metrics("matthews_correlation", "accuracy"),
    columns=("source", "label", "mark", "sentence"),
  ),
  GlueTask("SST-2", texts=("sentence",)),
  GlueTask(
    "MRPC",
    texts=("#1 String", "#2 String"),
    label="Quality",
    metrics=named_metrics("accuracy", "f1"),
  ),
  GlueTask(
    "STS-B",
    label="score",
    label_names=(),
    metrics=named_metrics("pearson", "spearman"),
    submitted_range=(0.0, 5.0),
  ),
  GlueTask(
    "QQP",
    texts=("question1", "question2"),
    label="is_duplicate",
    metrics=named_metrics("accuracy", "f1"),
  ),
  GlueTask(
    "MNLI",
    label="gold_label",
    label_names=("contradiction", "entailment", "neutral"),
    files=_MNLI_FILES,
    submission={"test": "MNLI-m", "test_mismatched": "MNLI-mm", "test_ax": "AX"},
  ),
  GlueTask("QNLI", texts=("question", "sentence"), label_names=_NLI_LABELS),
  GlueTask("RTE", label_names=_NLI_LABELS),
  GlueTask("WNLI"),
)
TASKS: Mapping[str, GlueTask] = {task.name: task for task in _ALL_TASKS}


def find_task(name: str) -> GlueTask:
  """The task of GLUE with this name, such as "mrpc"; raises `UserError` if there is none."""
  if name not in TASKS:
    raise UserError(
      f"task_name must be one of {', '.join(TASKS)}, custom. Received: {name!r}. A table of your "
      "own is 'custom'."
    )
  return TASKS[name]


# ------------------------------------------------------------------ files


def find_files(task: GlueTask, data_dir: str) -> dict[str, str]:
  """Split → its file in `data_dir` or in its folder of the task; splits without one are left out.

  Raises:
    UserError: there is no file.
  """
  found = {}
  for split, name in task.files.items():
    # Not every copy of GLUE has all.
    folders = [data_dir, os.path.join(data_dir, task.folder)]
    names = [name]
    if split == "test_ax":
      # MNLI's diagnostic set is a task of its own, with a folder beside MNLI.
      folders.append(os.path.dirname(data_dir.rstrip("/")))
      names.append(_DIAGNOSTIC_FILE)
    for path in [os.path.join(folder, name) for folder in folders for name in names]:
      if files.exists(path):
        found[split] = path
        break
  if not found:
    raise UserError(
      f"data_dir holds {' or '.join(task.files.values())}, itself or in {task.folder}/. Received: "
      f"{data_dir!r}, which has none of them. Download GLUE, and name its folder or the task's."
    )
  return found


def read_splits(task: GlueTask, paths: Mapping[str, str]) -> dict[str, list[TextExample]]:
  """Reads the file of each split; see `find_files`."""
  return {split: read_tsv(task, path, split) for split, path in paths.items()}


def read_tsv(task: GlueTask, path: str, split: str) -> list[TextExample]:
  """Reads a TSV file of GLUE, which has no quoting, and a header only for some tasks.

  Raises:
    UserError: a column is missing, in a test file also from one row, or there are no rows.
  """
  # Not `csv`: a quotation mark in GLUE's files is part of the text.
  rows = [line.split("\t") for line in read_lines(path) if line.strip()]
  is_test = split.startswith("test")

  # Where the texts and the label are.
  columns = list(task.columns)
  if rows and (is_test or not columns):
    columns = rows.pop(0)
  needed = list(task.texts)
  if not is_test:
    needed.append(task.label)
  if not rows or not set(needed) <= set(columns):
    raise UserError(
      f"{task.folder}'s {split} file needs rows, and the columns {', '.join(needed)}. Received: "
      f"{path} with {len(rows)} rows and {', '.join(columns)}. Is it the file of another task?"
    )
  # Test rows are identified by their first column; the others have no number of their own.
  has_numbers = is_test and columns[0] in ("index", "id")

  # One example from each complete row.
  examples = []
  for number, cells in enumerate(rows):
    row = dict(zip(columns, cells, strict=False))
    if not set(needed) <= set(row):
      if is_test:
        raise UserError(
          f"Each row of {task.folder}'s {split} file needs the columns {', '.join(needed)}, as the "
          f"submission answers all. Received: {path}, a row of {len(cells)} columns: "
          f"{cells[0]!r}. Download it again."
        )
      continue  # QQP's release has some.
    texts = [row[name] for name in task.texts]
    label = None if is_test else row[task.label].strip()
    example_id = cells[0] if has_numbers else str(number)
    examples.append(TextExample(example_id, *texts)._replace(label=label))
  if len(examples) < len(rows):
    num_short = len(rows) - len(examples)
    logging.warning("%s: %d rows have too few columns and are left out", path, num_short)
  return examples


# ------------------------------------------------------------------ the task


def glue_task(
  task: GlueTask, *, data_dir: str, tokenizer: Tokenizer, max_seq_length: int = 512
) -> LabelledTask:
  """Reads the files of a task of GLUE, and makes the task of them.

  Args:
    task: one of `TASKS`, or another one.
    data_dir: the task's folder, or the folder that contains it.
    tokenizer: tokenizer of the weights.
    max_seq_length: S; 512 in the paper. 128 is enough for all tasks except RTE and QNLI.

  Raises:
    UserError: files or columns are missing.

  Reference: Wang et al. 2019, arXiv 1804.07461.
  """
  spec = TaskSpec(
    kind="classification" if task.label_names else "regression",
    name=task.name,
    label_names=task.label_names,
    pair=len(task.texts) > 1,
    max_seq_length=max_seq_length,
  )
  paths = find_files(task, data_dir)
  submission = task.submission or {"test": task.folder}
  return LabelledTask(
    spec,
    read_splits(task, paths),
    tokenizer=tokenizer,
    metrics=task.metrics,
    sources=paths,
    submission={split: f"{name}.tsv" for split, name in submission.items()},
    submitted_range=task.submitted_range,
  )
