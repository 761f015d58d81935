"""The interface of a fine-tuning task: examples as rows, a loss, metrics and predictions.

The engine knows a task only by this interface; the other files of this folder implement it.
`docs/architecture.md` describes how to add a kind of task.
"""

import abc
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
import hashlib
from typing import Any

import numpy as np

from albert_tf import files
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError

UNNAMED_OUTPUT = "logits"  # How `Outputs` names the output of a model that has one.

# Output name → array `[n, …]`, one row an example in order. Where batches have different lengths S
# and the output has an axis of S: a list of n arrays, at least as long as the row.
Outputs = Mapping[str, Sequence[Any]]

# TSV has no quoting: a tab in a text would be the end of its cell. These are the escapes of jq's @tsv.
_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})

Column = np.ndarray | Sequence[np.ndarray]  # One array, or one array a row where lengths differ.


@dataclasses.dataclass(frozen=True)
class FeatureSet:
  """The examples of one split, ready to be batched.

  Attributes:
    rows: a mapping for each example: int32 arrays whose LAST axis is its length s (`input_ids`,
      `input_mask`, `segment_ids`; multiple choice `[C, s]`), and scalars (`start_positions`).
    labels: labels for the loss: an array `[n, …]`, a list of n arrays `[s]` (tags), or, for a model
      with named outputs, a mapping of output names to one of these. None: no labels.
    pad_values: name → padding value of a row, by default 0.
    weights: a weight for each example `[n]` or token, n arrays `[s]`; None: 1. A batch's loss is
      the weighted mean over all replicas.
  """

  rows: Sequence[Mapping[str, np.ndarray]]
  labels: Column | Mapping[str, Column] | None = None
  pad_values: Mapping[str, int] = dataclasses.field(default_factory=dict)
  weights: Column | None = None

  def __len__(self) -> int:
    return len(self.rows)

  @functools.cached_property
  def lengths(self) -> np.ndarray:
    """int64 `[n]`: the length of each row."""
    return np.array([np.shape(row["input_ids"])[-1] for row in self.rows], np.int64)

  def fingerprint(self) -> str:
    """A hash of all data that training or evaluation uses."""
    columns: dict[str, Any] = {"labels": self.labels}
    if isinstance(self.labels, Mapping):
      columns = dict(self.labels)
    columns["weights"] = self.weights
    targets = [
      (name, array) for name, column in columns.items() if column is not None for array in column
    ]
    # Rows are made on access: all of them at once could take gigabytes.
    inputs = (pair for row in self.rows for pair in row.items())
    return fingerprint(targets) + fingerprint(inputs)


def fingerprint(arrays: Iterable[tuple[str, np.ndarray]]) -> str:
  """A hash of named arrays: their values, types, shapes and order."""
  digest = hashlib.sha256()
  for name, value in arrays:
    array = np.ascontiguousarray(value)
    digest.update(f"{name} {array.dtype.str}{array.shape}".encode())
    digest.update(array.tobytes())
  return digest.hexdigest()


class FineTuningTask(abc.ABC):
  """Base class of tasks with their data, for `fit.fine_tune`.

  A run trains on "train", evaluates "eval" (which chooses the best weights) and every "eval_…", and
  predicts "test" and every "test_…"; test splits with labels are also evaluated.
  `write_predictions` stores the outputs in the run directory; `stored` and `ensemble` combine those
  of several runs.

  Attributes:
    spec: the description of the task, which decides the model. The engine saves
      `spec.with_thresholds(metrics)` as `task.json`.
    best_metric: name of the metric that chooses the best checkpoint; higher is better.
    head_options: arguments of the head, except number of labels and dropout, which the engine sets.
    training_options: further values on which the weights depend, for the run's identity.
    loss_weights: argument of Keras' `compile`.
    splits: name → examples; splits that are not needed may be absent.
    sources: name → the file or folder of a split, where it is known, for results.json.
    has_one_set_of_predictions: whether the predictions of a split replace those of the others.
  """

  spec: TaskSpec
  best_metric: str
  head_options: Mapping[str, Any] = {}
  training_options: Mapping[str, Any] = {}
  loss_weights: Mapping[str, float] | None = None
  splits: Mapping[str, Any]
  sources: Mapping[str, str] = {}
  has_one_set_of_predictions: bool = False

  @abc.abstractmethod
  def features(self, split: str) -> FeatureSet:
    """The features of a split, with labels if it is evaluated."""

  def split(self, name: str) -> Any:
    """The examples of a split; raises `UserError` if there are none."""
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
