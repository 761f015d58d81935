"""What the engine and serving know of a task: its kind, its `TaskSpec`, and what it does for training."""

import abc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from scipy import special

from albert_tf import files
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.engine.features import FeatureSet

UNNAMED_OUTPUT = "logits"  # How `Outputs` names the output of a model that has one.

# Output name → array `[n, …]`, one row an example in order. Where batches have different lengths S and the output has
# an axis of S: a list of n arrays, at least as long as the row.
Outputs = Mapping[str, Sequence[np.ndarray]]


class FineTuningTask(abc.ABC):
  """A task on its data, as `fit.fine_tune` needs it.

  Attributes:
    spec: what is saved as `task.json`; decides the model (`models.make_model`). It stays as it is: the engine saves
      `spec.settled(metrics)`.
    best_metric: the key of `evaluate`'s result by which the best checkpoint is chosen; higher is better.
    data: what the examples are read from, by flag name, such as {"train_file": …}; recorded in run.json.
    head_options: of the head, beside the number of labels and dropout, which the engine gives.
    splits: "train", "eval", "test" and more (see `more_splits`) → the examples; those not needed may be absent.
  """

  spec: TaskSpec
  best_metric: str
  data: Mapping[str, str] = {}
  head_options: ClassVar[Mapping[str, Any]] = {}
  splits: Mapping[str, Any]

  @abc.abstractmethod
  def features(self, split: str) -> FeatureSet:
    """The examples of a split, with labels where it is scored.

    Raises:
      UserError: there is none of that name, or labels that it must have are missing.
    """

  def train_features(self) -> FeatureSet:
    """The training examples, with labels."""
    return self.features("train")

  def eval_features(self) -> FeatureSet:
    """The evaluation examples. The engine calls it once and keeps the result."""
    return self.features("eval")

  def test_features(self) -> FeatureSet | None:
    """The examples to predict; None where there are none. Those with labels are scored as well ("test_…")."""
    return self.features("test") if "test" in self.splits else None

  def more_splits(self) -> Mapping[str, FeatureSet]:
    """Further splits, as MNLI's: names that begin with "eval_" are evaluated too, with "test_" predicted."""
    return {name: self.features(name) for name in self.splits if name.startswith(("eval_", "test_"))}

  def split(self, name: str) -> Any:
    """The examples of a split.

    Raises:
      UserError: there are none.
    """
    if name not in self.splits:
      raise UserError(f"{self.spec.name} needs {name} data here. Received: none. Name its file or folder.")
    return self.splits[name]

  @abc.abstractmethod
  def loss(self) -> Any:
    """What Keras' `compile` takes as `loss`: one, or a mapping with the keys of the labels."""

  def loss_weights(self) -> Any:
    """What Keras' `compile` takes as `loss_weights`."""
    return None

  @abc.abstractmethod
  def evaluate(self, outputs: Outputs, split: str = "eval") -> dict[str, float]:
    """The task's metrics.

    Args:
      outputs: of the model for every row of the split, in order.
      split: "eval" or one of `more_splits`.
    """

  @abc.abstractmethod
  def write_predictions(
    self, outputs: Outputs, split: str, directory: str, *, spec: TaskSpec | None = None
  ) -> None:
    """Writes predictions into `directory`.

    Args:
      outputs: of the model.
      split: "eval", "test" or one of `more_splits`.
      directory: exists.
      spec: with what the model's evaluation found out; None: the task's.
    """

  def plot(self, outputs: Outputs, path: str) -> bool:
    """Draws the evaluation predictions into the PNG file `path`; false where there is nothing to draw."""
    del outputs, path
    return False

  def average(self, outputs: Sequence[Outputs]) -> Outputs:
    """The ensemble's outputs: means over models, for outputs that are scores.

    Raises:
      UserError: the outputs are no scores that may be averaged.
    """
    means: dict[str, Sequence[np.ndarray]] = {}
    for name in outputs[0]:
      columns = [model[name] for model in outputs]
      if not np.issubdtype(np.asarray(columns[0][0]).dtype, np.floating):
        raise UserError(
          f"An ensemble averages scores. Received: the output {name!r} of {self.spec.name}, which holds "
          "positions. Run without --ensemble."
        )
      rows = [np.mean(parts, axis=0) for parts in zip(*columns, strict=True)]
      means[name] = np.stack(rows) if isinstance(columns[0], np.ndarray) else rows
    return means

  def stored(self, directory: str, split: str) -> Outputs:
    """The outputs for a split that a run left in its directory with its predictions, for `ensemble`.

    Raises:
      UserError: it left none, or for other examples.
    """
    del directory, split
    raise UserError(f"{self.spec.kind} has no --ensemble_of. Received: it. Use --seeds with --ensemble.")

  def ensemble(self, outputs: Sequence[Outputs]) -> Outputs:
    """What several runs left (`stored`) as one run's outputs: means of probabilities, or of values (section 4.9)."""
    raise NotImplementedError


def cross_entropy(logits: Any, labels: Any) -> np.ndarray:
  """Of each example, float64 `[n]`: -log softmax(logits)[label] of logits `[n, C]` and labels `[n]`."""
  labels = np.asarray(labels, np.int64)
  return -special.log_softmax(np.asarray(logits, np.float64), axis=-1)[np.arange(len(labels)), labels]


def write_tsv(path: str, rows: Iterable[Sequence[str]]) -> None:
  """Writes rows of cells, the header first."""
  with files.atomic_writer(path, "w") as stream:
    stream.writelines("\t".join(cells) + "\n" for cells in rows)
