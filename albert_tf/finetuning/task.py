"""What a task family gives to the engine: features, loss, metrics, predictions."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from albert_tf.errors import UserError
from albert_tf.finetuning.features import FeatureSet
from albert_tf.finetuning.task_spec import TaskSpec

# Output name ("logits" where the model has one unnamed output) → array `[n, …]`, one row an example in order. Where
# batches have different lengths S and the output has an axis of S: a list of n arrays, at least as long as the row.
Outputs = Mapping[str, Sequence[np.ndarray]]


class FineTuningTask(abc.ABC):
  """A task on its data, as `fit.fine_tune` needs it.

  Attributes:
    spec: what is saved as `task.json`; decides the model (`models.make_model`). May be replaced by `evaluate`
      (a threshold found on evaluation data); the engine saves it at the end.
    best_metric: the key of `evaluate`'s result by which the best checkpoint is chosen; higher is better.
    data: what the examples are read from, by flag name, such as {"train_file": …}; recorded in run.json.
    head_options: of the head, beside the number of labels and dropout, which the engine gives.
  """

  spec: TaskSpec
  best_metric: str
  data: Mapping[str, str] = {}
  head_options: ClassVar[Mapping[str, Any]] = {}

  @abc.abstractmethod
  def train_features(self) -> FeatureSet:
    """The training examples, with labels."""

  @abc.abstractmethod
  def eval_features(self) -> FeatureSet:
    """The evaluation examples. The engine calls it once and keeps the result."""

  def test_features(self) -> FeatureSet | None:
    """The examples to predict; None where there are none. Those with labels are scored as well ("test_…")."""
    return None

  def more_splits(self) -> Mapping[str, FeatureSet]:
    """Further splits, as MNLI's: names that begin with "eval_" are evaluated too, with "test_" predicted."""
    return {}

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
  def write_predictions(self, outputs: Outputs, split: str, directory: str) -> None:
    """Writes predictions into `directory`; `split` is "eval", "test" or one of `more_splits`."""

  def plot(self, outputs: Outputs, path: str) -> bool:
    """Draws the evaluation predictions into the PNG file `path`; false where there is nothing to draw."""
    del outputs, path
    return False

  def example(self) -> Mapping[str, Any]:
    """An input for the model card, such as {"text": …}; empty: none is shown."""
    return {}

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
