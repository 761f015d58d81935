"""GLUE: the columns of each task's files, its metrics, and the files that GLUE's site takes."""

from collections.abc import Iterable, Mapping
import dataclasses
import os

from absl import logging
import numpy as np

from albert_tf import files
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.data import read_lines
from albert_tf.finetuning.tasks.base import FeatureSet, Outputs, write_tsv
from albert_tf.finetuning.tasks.text import Texts, TextTask
from albert_tf.tokenization import Tokenizer

SUBMISSION_FOLDER = "submission"
_MNLI_LABELS = ("contradiction", "entailment", "neutral")
_NLI_LABELS = ("entailment", "not_entailment")
_BINARY = ("0", "1")
_SENTENCES = ("sentence1", "sentence2")


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
    columns: names by position where train and dev have no header; else empty.
    files: split → file name; "eval_…" and "test_…" are further ones.
    drop_short: rows with too few columns are dropped and counted, as in QQP's release.
    submission: split → name of GLUE's submission file.
  """

  name: str
  folder: str
  texts: tuple[str, ...] = _SENTENCES
  label: str = "label"
  label_names: tuple[str, ...] = _BINARY
  metrics: tuple[str, ...] = ("accuracy",)
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
_ALL_TASKS = (
  GlueTask(
    name="cola",
    folder="CoLA",
    texts=("sentence",),
    metrics=("matthews_correlation", "accuracy"),
    columns=("source", "label", "mark", "sentence"),
  ),
  GlueTask(name="sst-2", folder="SST-2", texts=("sentence",)),
  GlueTask(
    name="mrpc",
    folder="MRPC",
    texts=("#1 String", "#2 String"),
    label="Quality",
    metrics=("accuracy", "f1"),
  ),
  GlueTask(
    name="sts-b",
    folder="STS-B",
    label="score",
    label_names=(),
    metrics=("pearson", "spearman", "mean_squared_error"),
  ),
  GlueTask(
    name="qqp",
    folder="QQP",
    texts=("question1", "question2"),
    label="is_duplicate",
    metrics=("accuracy", "f1"),
    drop_short=True,
  ),
  GlueTask(
    name="mnli",
    folder="MNLI",
    label="gold_label",
    label_names=_MNLI_LABELS,
    files=_MNLI_FILES,
    submission={"test": "MNLI-m", "test_mismatched": "MNLI-mm", "test_ax": "AX"},
  ),
  GlueTask(name="qnli", folder="QNLI", texts=("question", "sentence"), label_names=_NLI_LABELS),
  GlueTask(name="rte", folder="RTE", label_names=_NLI_LABELS),
  GlueTask(name="wnli", folder="WNLI"),
  GlueTask(name="ax", folder="AX", label_names=_MNLI_LABELS, files={"test": "AX.tsv"}),
)
TASKS: Mapping[str, GlueTask] = {task.name: task for task in _ALL_TASKS}
_OTHER_NAMES = {
  "sst2": "sst-2",
  "stsb": "sts-b",
  "sts": "sts-b",
  "mnli-m": "mnli",
  "mismnli": "mnli",
  "diagnostic": "ax",
}
# The diagnostic set has been distributed under several names.
_AX_FOLDERS = ("AX", "ax", "diagnostic", "")
_AX_FILES = ("AX.tsv", "diagnostic.tsv")


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
  if task.name == "ax":
    found = _find_diagnostic(data_dir)
    if found is None:
      raise _no_files(task, _AX_FILES, data_dir)
    return {"test": read_tsv(task, found, "test")}
  names = (task.folder, f"{task.folder}-sample", task.folder.lower())
  folders = [data_dir, *(os.path.join(data_dir, name) for name in names)]
  for folder in folders:
    paths = {split: os.path.join(folder, name) for split, name in task.files.items()}
    splits = {split: read_tsv(task, path, split) for split, path in paths.items() if files.exists(path)}
    if not splits:
      continue
    if task.name == "mnli":
      found = _find_diagnostic(folder) or _find_diagnostic(os.path.dirname(folder.rstrip("/")))
      if found is not None:
        splits["test_ax"] = read_tsv(TASKS["ax"], found, "test")
    return splits
  raise _no_files(task, task.files.values(), data_dir)


def _find_diagnostic(directory: str) -> str | None:
  places = (os.path.join(directory, folder, name) for folder in _AX_FOLDERS for name in _AX_FILES)
  return next((path for path in places if files.exists(path)), None)


def _no_files(task: GlueTask, names: Iterable[str], data_dir: str) -> UserError:
  return UserError(
    f"data_dir must hold {' or '.join(names)}, itself or in {task.folder}/. Received: {data_dir!r}, which has none of "
    "them. Download GLUE, and name its folder or the task's."
  )


def read_tsv(task: GlueTask, path: str, split: str) -> Texts:
  """One of GLUE's TSVs: tabs between columns, no quoting; a header or none as the task has it.

  Raises:
    UserError: a column is missing, a row is too short, or there is no row.
  """
  lines = read_lines(path)
  while lines and not lines[-1].strip():
    lines.pop()
  test = split.startswith("test")
  columns, first = list(task.columns), 0
  if lines and (test or not task.columns):
    columns, first = lines[0].split("\t"), 1
  if len(lines) <= first:
    raise UserError(f"{task.folder}'s {split} file needs rows. Received: {path}, which is empty.")
  wanted = [*task.texts, *([] if test else [task.label])]
  missing = [name for name in wanted if name not in columns]
  if missing:
    raise UserError(
      f"{task.folder}'s {split} file needs the columns {', '.join(wanted)}. Received: {path} without "
      f"{', '.join(missing)}; it has {', '.join(columns)}. Is it the file of another task?"
    )
  places = [columns.index(name) for name in wanted]
  # Test rows are told apart by their first column, "index" or "id"; the others have no number of their own.
  numbered = test and columns[0] in ("index", "id")
  ids: list[str] = []
  rows: list[list[str]] = []
  short: list[int] = []
  for number, line in enumerate(lines[first:]):
    fields = line.split("\t")
    if len(fields) <= max(places):
      short.append(first + number + 1)
      continue
    ids.append(fields[0] if numbered else str(number))
    rows.append([fields[place] for place in places])
  if short and not task.drop_short:
    raise UserError(
      f"Every row of {task.folder} has {max(places) + 1} columns or more. Received: fewer in {path}, line {short[0]}"
      f"{f' and {len(short) - 1} more' if len(short) > 1 else ''}. Download the file again."
    )
  if short:
    logging.warning("%s: %d rows have too few columns and are left out, as in the original", path, len(short))
  return Texts(
    ids=ids,
    firsts=[row[0] for row in rows],
    seconds=[row[1] for row in rows] if len(task.texts) > 1 else None,
    labels=None if test else [row[-1].strip() for row in rows],
    source=path,
    first_line=first + 1,
  )


class GlueTextTask(TextTask):
  """A task of GLUE.

  Args:
    name: such as "mrpc"; see `TASKS`.
    data_dir: the task's own folder, or the one that holds GLUE's folders.
    tokenizer: of the weights.
    max_seq_length: S; the paper has 512, 128 is enough for all of GLUE but RTE and QNLI.

  Raises:
    UserError: unknown task, missing files or columns.

  Reference: Wang et al. 2019, arXiv 1804.07461.
  """

  def __init__(
    self,
    name: str,
    *,
    data_dir: str,
    tokenizer: Tokenizer,
    max_seq_length: int = 512,
  ):
    self.glue = find_task(name)
    spec = TaskSpec(
      kind="classification" if self.glue.label_names else "regression",
      # The diagnostic set is predicted with MNLI's model.
      name="mnli" if self.glue.name == "ax" else self.glue.name,
      label_names=self.glue.label_names,
      pair=len(self.glue.texts) > 1,
      max_seq_length=max_seq_length,
    )
    super().__init__(
      spec,
      read_splits(self.glue, data_dir),
      tokenizer=tokenizer,
      metric_names=self.glue.metrics,
      data={"data_dir": data_dir},
    )

  def features(self, split: str) -> FeatureSet:
    if self.glue.name == "ax" and split == "train":
      raise UserError(
        "GLUE's diagnostic set AX has no training data. Received: --do_train with --task_name=ax. Train mnli, and "
        "predict AX with --init_checkpoint=<its output_dir> --do_predict."
      )
    return super().features(split)

  def write_predictions(
    self, outputs: Outputs, split: str, directory: str, *, spec: TaskSpec | None = None
  ) -> None:
    """Also GLUE's own `submission/<name>.tsv` for test splits."""
    super().write_predictions(outputs, split, directory)
    if not split.startswith("test"):
      return
    predictions = self.predictions(outputs)
    if self.spec.kind == "regression":
      predictions = np.clip(predictions, 0.0, 5.0)  # STS-B's scale; GLUE refuses others.
    folder = os.path.join(directory, SUBMISSION_FOLDER)
    files.makedirs(folder)
    rows = zip(self.splits[split].ids, map(self.label_text, predictions), strict=True)
    name = self.glue.submission.get(split, self.glue.folder)
    write_tsv(os.path.join(folder, f"{name}.tsv"), [("index", "prediction"), *rows])
