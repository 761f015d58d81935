"""What tasks share whose model gives each example one row of scores: classes of texts, values, choices."""

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
import hashlib
import io
import os
from typing import Any

import numpy as np
from scipy import special

from albert_tf import files
from albert_tf.compat import keras
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.base import UNNAMED_OUTPUT, FineTuningTask, Outputs, write_tsv


class ScoresTask(FineTuningTask):
  """A task whose model's output is logits `[n, C]`, or values `[n, 1]`.

  Attributes:
    names: of the C classes; empty: values.
  """

  names: Sequence[str]

  @abc.abstractmethod
  def gold(self, split: str) -> np.ndarray:
    """The labels of a split, `[n]`."""

  @abc.abstractmethod
  def columns(self, split: str) -> Mapping[str, Sequence[str]]:
    """What the predictions file says of the examples: "id", and what follows the prediction, such as "label"."""

  @abc.abstractmethod
  def examples(self, split: str) -> Iterable[str]:
    """What tells a split's examples from others."""

  def loss(self) -> Any:
    if not self.names:
      return keras.losses.MeanSquaredError()
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

  def predictions(self, outputs: Outputs) -> np.ndarray:
    """Class numbers, or values, `[n]`."""
    logits = np.asarray(outputs[UNNAMED_OUTPUT])
    return logits.argmax(axis=-1) if self.names else logits[:, 0]

  def label_text(self, prediction: Any) -> str:
    """How a prediction is written."""
    return self.names[int(prediction)] if self.names else f"{float(prediction):.4f}"

  def write_predictions(
    self, outputs: Outputs, split: str, directory: str, *, spec: TaskSpec | None = None
  ) -> None:
    """`predictions_<split>.tsv`: id, prediction, the label where known, probability of each class.

    Beside it `scores_<split>.npz`, for `ensemble`: `scores` float32 `[n, C]`, and in `examples` whose they are.
    """
    write_tsv(os.path.join(directory, f"predictions_{split}.tsv"), self._prediction_rows(outputs, split))
    with files.atomic_writer(_scores_file(directory, split)) as stream:
      scores = np.asarray(outputs[UNNAMED_OUTPUT], np.float32)
      np.savez(stream, scores=scores, examples=np.array(_digest(self.examples(split))))

  def _prediction_rows(self, outputs: Outputs, split: str) -> Iterator[list[str]]:
    columns = dict(self.columns(split))
    ids = columns.pop("id")
    yield ["id", "prediction", *columns, *(f"probability_{name}" for name in self.names)]
    probabilities = special.softmax(np.asarray(outputs[UNNAMED_OUTPUT], np.float64), axis=-1)
    predictions = map(self.label_text, self.predictions(outputs))
    written = ([f"{value:.6f}" for value in row[: len(self.names)]] for row in probabilities)
    for example, prediction, *cells, row in zip(ids, predictions, *columns.values(), written, strict=True):
      yield [example, prediction, *cells, *row]

  def stored(self, directory: str, split: str) -> Outputs:
    self.split(split)
    path = _scores_file(directory, split)
    if not files.exists(path):
      command = "--do_predict" if split.startswith("test") else "--do_eval"
      raise UserError(
        f"A run must have left its scores to be one of an ensemble. Received: {directory} without "
        f"{os.path.basename(path)}. Let it make them: the same command with {command} instead of --do_train."
      )
    with np.load(io.BytesIO(files.read_bytes(path))) as stored:
      scores, found = stored["scores"], str(stored["examples"])
    if found != _digest(self.examples(split)):
      raise UserError(
        f"All runs of an ensemble answer the same examples. Received: {path}, of other texts, labels or order. Let "
        "that run evaluate or predict these data, in an --output_dir of its own."
      )
    return {UNNAMED_OUTPUT: scores}

  def ensemble(self, outputs: Sequence[Outputs]) -> Outputs:
    r"""Means of values; of classes $\log \frac{1}{M} \sum_m \mathrm{softmax}(s_m)$, which are scores again."""
    scores = np.stack([np.asarray(each[UNNAMED_OUTPUT], np.float64) for each in outputs])  # [M, n, C]
    mean: Any = scores.mean(axis=0)
    if self.names:
      mean = special.logsumexp(special.log_softmax(scores, axis=-1), axis=0) - np.log(len(scores))
    return {UNNAMED_OUTPUT: mean}


def _scores_file(directory: str, split: str) -> str:
  return os.path.join(directory, f"scores_{split}.npz")


def _digest(examples: Iterable[str]) -> str:
  total = hashlib.sha256()
  for example in examples:
    total.update(example.encode() + b"\0")
  return total.hexdigest()
