"""GLUE: columns of each task's files, metrics, and files for GLUE's site."""

from collections.abc import Mapping
import dataclasses
import os

from absl import logging
import numpy as np

from albert_tf import files
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.data import read_lines
from albert_tf.finetuning.tasks.base import Outputs, write_tsv
from albert_tf.finetuning.tasks.text import TextExample, TextTask
from albert_tf.tokenization import Tokenizer

SUBMISSION_FOLDER = "submission"
_NLI_LABELS = ("entailment", "not_entailment")
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


@dataclasses.dataclass(frozen=True)
class GlueTask:
  """One task of GLUE."""

  name: str
  folder: str  # As GLUE names it, also of its submission file.
  texts: tuple[str, ...] = ("sentence1", "sentence2")  # Their columns.
  label: str = "label"  # Its column.
  label_names: tuple[str, ...] = ("0", "1")  # Empty: regression.
  metrics: tuple[str, ...] = ("accuracy",)  # The first decides.
  columns: tuple[str, ...] = ()  # Names by position where train and dev have no header.
  files: Mapping[str, str] = dataclasses.field(default_factory=lambda: _FILES)
  submission: Mapping[str, str] = dataclasses.field(default_factory=dict)  # Split → name of its file.


_COLA_METRICS = ("matthews_correlation", "accuracy")
_ALL_TASKS = (
  GlueTask(
    "cola", "CoLA", ("sentence",), metrics=_COLA_METRICS, columns=("source", "label", "mark", "sentence")
  ),
  GlueTask("sst-2", "SST-2", ("sentence",)),
  GlueTask("mrpc", "MRPC", ("#1 String", "#2 String"), "Quality", metrics=("accuracy", "f1")),
  GlueTask("sts-b", "STS-B", label="score", label_names=(), metrics=("pearson", "spearman")),
  GlueTask("qqp", "QQP", ("question1", "question2"), "is_duplicate", metrics=("accuracy", "f1")),
  GlueTask(
    "mnli",
    "MNLI",
    label="gold_label",
    label_names=("contradiction", "entailment", "neutral"),
    files=_MNLI_FILES,
    submission={"test": "MNLI-m", "test_mismatched": "MNLI-mm", "test_ax": "AX"},
  ),
  GlueTask("qnli", "QNLI", ("question", "sentence"), label_names=_NLI_LABELS),
  GlueTask("rte", "RTE", label_names=_NLI_LABELS),
  GlueTask("wnli", "WNLI"),
)
TASKS: Mapping[str, GlueTask] = {task.name: task for task in _ALL_TASKS}


def read_splits(task: GlueTask, data_dir: str) -> dict[str, list[TextExample]]:
  """Reads every split with a file in `data_dir` or in its folder of the task.

  Raises:
    UserError: there is no file, or one has another format.
  """
  folders = (data_dir, os.path.join(data_dir, task.folder), os.path.dirname(data_dir.rstrip("/")))
  found = {}
  for split, name in task.files.items():
    names = (name, _DIAGNOSTIC_FILE) if name.endswith("AX.tsv") else (name,)
    paths = [os.path.join(folder, each) for folder in folders for each in names]
    path = next(filter(files.exists, paths), None)
    if path is not None:
      found[split] = read_tsv(task, path, split)
  if not found:
    raise UserError(
      f"data_dir holds {' or '.join(task.files.values())}, itself or in {task.folder}/. Received: {data_dir!r}, which "
      "has none of them. Download GLUE, and name its folder or the task's."
    )
  return found


def read_tsv(task: GlueTask, path: str, split: str) -> list[TextExample]:
  """Reads a TSV file of GLUE, which has no quoting, and a header only for some tasks.

  Raises:
    UserError: a column is missing, or there are no rows.
  """
  rows = [line.split("\t") for line in read_lines(path) if line.strip()]
  test = split.startswith("test")
  columns = list(task.columns)
  if test or not columns:
    columns, rows = (rows or [[]])[0], rows[1:]
  wanted = [*task.texts, *([] if test else [task.label])]
  if not rows or not set(wanted) <= set(columns):
    raise UserError(
      f"{task.folder}'s {split} file needs rows, and the columns {', '.join(wanted)}. Received: {path} with "
      f"{len(rows)} rows and {', '.join(columns)}. Is it the file of another task?"
    )
  places = [columns.index(name) for name in wanted]
  # Test rows are told apart by their first column, "index" or "id"; the others have no number of their own.
  numbered = test and columns[0] in ("index", "id")
  found = []
  for number, cells in enumerate(rows):
    if len(cells) > max(places):
      texts = [cells[place] for place in places]
      label = None if test else texts.pop().strip()
      pair = texts[1] if len(texts) > 1 else None
      found.append(TextExample(cells[0] if numbered else str(number), texts[0], pair, label))
  if len(found) < len(rows):  # QQP's release has some.
    logging.warning("%s: %d rows have too few columns and are left out", path, len(rows) - len(found))
  return found


class GlueTextTask(TextTask):
  """A task of GLUE.

  Args:
    name: name of the task, such as "mrpc"; see `TASKS`.
    data_dir: the task's folder, or the folder that contains it.
    tokenizer: tokenizer of the weights.
    max_seq_length: S; 512 in the paper. 128 is enough for all tasks except RTE and QNLI.

  Raises:
    UserError: the task is unknown, or files or columns are missing.

  Reference: Wang et al. 2019, arXiv 1804.07461.
  """

  def __init__(self, name: str, *, data_dir: str, tokenizer: Tokenizer, max_seq_length: int = 512):
    if name.lower() not in TASKS:
      raise UserError(
        f"task_name must be one of {', '.join(TASKS)}, custom. Received: {name!r}. A table of your own is 'custom'."
      )
    self.glue = TASKS[name.lower()]
    spec = TaskSpec(
      kind="classification" if self.glue.label_names else "regression",
      name=self.glue.name,
      label_names=self.glue.label_names,
      pair=len(self.glue.texts) > 1,
      max_seq_length=max_seq_length,
    )
    splits = read_splits(self.glue, data_dir)
    super().__init__(spec, splits, tokenizer=tokenizer, metric_names=self.glue.metrics)

  def write_predictions(self, outputs: Outputs, split: str, directory: str) -> None:
    """Also writes `submission/<name>.tsv` for GLUE's site, for test splits."""
    super().write_predictions(outputs, split, directory)
    if not split.startswith("test"):
      return
    predictions = self.predictions(outputs)
    if self.spec.kind == "regression":
      predictions = np.clip(predictions, 0.0, 5.0)  # STS-B's scale; GLUE refuses others.
    folder = os.path.join(directory, SUBMISSION_FOLDER)
    files.makedirs(folder)
    rows = [(each.id, self.label_text(p)) for each, p in zip(self.splits[split], predictions, strict=True)]
    name = self.glue.submission.get(split, self.glue.folder)
    write_tsv(os.path.join(folder, f"{name}.tsv"), [("index", "prediction"), *rows])
