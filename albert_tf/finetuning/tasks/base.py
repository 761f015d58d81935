"""The interface of a fine-tuning task: examples as rows, a loss, metrics and predictions.

`run.py` knows a task only by this interface; the other files of this folder implement it.
`docs/architecture.md` describes how to add a kind of task.
"""

import abc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from albert_tf import files
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.keras_api.examples import Examples
from albert_tf.keras_api.task_model import TaskModel
from albert_tf.keras_api.tasks import CLASS_OF_KIND
from albert_tf.tokenization import Tokenizer

UNNAMED_OUTPUT = "logits"  # How `Outputs` names the output of a model that has one.

# Output name → array `[n, …]`, one row an example in order; see `TextModel.predict`.
Outputs = Mapping[str, Any]

# TSV has no quoting: a tab in a text would be the end of its cell. These are the escapes of jq's @tsv.
_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


class FineTuningTask(abc.ABC):
  """Base class of tasks with their data, for `run.fine_tune`.

  A run trains on "train", evaluates "eval" (which chooses the best weights) and every "eval_…", and
  predicts "test" and every "test_…"; test splits with labels are also evaluated.
  `write_predictions` stores the outputs in the run directory; `stored` and `ensemble` combine those
  of several runs.

  Attributes:
    spec: the description of the task, which decides the model. A run saves
      `spec.with_thresholds(metrics)` as `task.json`.
    best_metric: name of the metric that chooses the best checkpoint; higher is better.
    tokenizer: that of the weights, with which the data are read.
    head_options: arguments of the head, except number of labels and dropout, which the run sets.
    training_options: further values on which the weights depend, for the run's identity.
    loss_weights: argument of Keras' `compile`.
    splits: name → examples as they were read; splits that are not needed may be absent.
    sources: name → the file or folder of a split, where it is known, for results.json.
    has_one_set_of_predictions: whether the predictions of a split replace those of the others.
  """

  spec: TaskSpec
  best_metric: str
  tokenizer: Tokenizer
  head_options: Mapping[str, Any] = {}
  training_options: Mapping[str, Any] = {}
  loss_weights: Mapping[str, float] | None = None
  splits: Mapping[str, Any]
  sources: Mapping[str, str] = {}
  has_one_set_of_predictions: bool = False

  @property
  def model_class(self) -> type[TaskModel]:
    """The class of its model."""
    return CLASS_OF_KIND[self.spec.kind]

  @abc.abstractmethod
  def features(self, split: str) -> Examples:
    """The examples of a split as the model reads them: ids, with labels if it is evaluated."""

  def split(self, name: str) -> Any:
    """The examples of a split as they were read; raises `UserError` if there are none."""
    if not self.splits.get(name):
      raise UserError(
        f"{self.spec.name} needs {name} data here. Received: none. Name its file or folder."
      )
    return self.splits[name]

  @abc.abstractmethod
  def loss(self) -> Any:
    """The `loss` of Keras' `compile`: one loss, or a mapping with the keys of the labels."""

  @abc.abstractmethod
  def evaluate(self, outputs: Outputs, split: str = "eval") -> dict[str, float]:
    """The task's metrics of the model's outputs for all rows of a split, in order."""

  @abc.abstractmethod
  def write_predictions(self, outputs: Outputs, split: str, directory: str) -> None:
    """Writes predictions of a split into an existing directory."""

  # The next two are for tasks that can be in an ensemble.

  def stored(self, directory: str, split: str) -> Outputs:
    """The outputs for a split that `write_predictions` stored in a directory.

    Raises:
      UserError: there are none, or they are for other examples.
    """
    raise UserError(
      f"Tasks of the kind {self.spec.kind} have no ensembles. Received: --ensemble_of with "
      f"{directory}. Use one run."
    )

  def ensemble(self, outputs: Sequence[Outputs]) -> Outputs:
    """Combines the `stored` outputs of several runs: means of probabilities, or of values (section 4.9)."""
    raise NotImplementedError


def write_tsv(path: str, rows: Iterable[Sequence[str]]) -> None:
  r"""Writes rows of cells, a line each; a tab, line end or backslash in a cell is \t, \n, \r or \\."""
  lines = []
  for row in rows:
    cells = [cell.translate(_ESCAPES) for cell in row]
    lines.append("\t".join(cells) + "\n")
  files.write_text(path, "".join(lines))
