"""Shared code of tasks with one row of scores for each example: classes, values, choices."""

import abc
from collections.abc import Mapping, Sequence
import functools
import hashlib
import io
import json
import os
from typing import Any

from absl import logging
import numpy as np
from scipy import special

from albert_tf import files
from albert_tf.compat import keras
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.base import UNNAMED_OUTPUT, FeatureSet, FineTuningTask, Outputs, write_tsv
from albert_tf.finetuning.tasks.rows import PackedRows
from albert_tf.settings import is_finite


class ScoresTask(FineTuningTask):
  """A task with a model that outputs logits `[n, C]` or values `[n, 1]`.

  Args:
    spec: description of the task.
    splits: "train", "eval", "test", "eval_…", "test_…" → examples with an `id` and a `label` (None if unknown).
    names: labels of the C classes or choices; empty: labels are values.
  """

  def __init__(self, spec: TaskSpec, splits: Mapping[str, Sequence[Any]], *, names: Sequence[str]):
    self.spec, self.splits, self.names = spec, dict(splits), tuple(names)
    self._places = {name: number for number, name in enumerate(self.names)}

  @abc.abstractmethod
  def rows(self, examples: Sequence[Any]) -> PackedRows:
    """The model's input features of the examples."""

  @abc.abstractmethod
  def metrics(self, labels: np.ndarray, predictions: np.ndarray, examples: Sequence[Any]) -> dict[str, float]:
    """The task's metrics."""

  @functools.cache  # noqa: B019  A task is needed until the command ends.
  def features(self, split: str) -> FeatureSet:
    examples = self.split(split)
    unknown = split.startswith("test") and any(example.label is None for example in examples)
    labels = None if unknown else self.gold(split)
    if labels is not None and not self.names:
      labels = labels[:, np.newaxis]  # [n, 1], like the logits.
    found = FeatureSet(self.rows(examples), labels)
    full = (found.lengths >= self.spec.max_seq_length).sum()
    logging.info("%s: %d examples, %d fill or exceed --max_seq_length", split, len(found), full)
    return found

  @functools.cache  # noqa: B019
  def gold(self, split: str) -> np.ndarray:
    """The labels of a split as class numbers or values, `[n]`.

    Raises:
      UserError: a label is missing, or is no class or number.
    """
    values = []
    for example in self.split(split):
      try:
        values.append(self.target(example.label))
      except (KeyError, TypeError, ValueError) as error:
        rule = f"one of {', '.join(self.names)}" if self.names else "finite numbers"
        raise UserError(
          f"Labels of {split} data must be {rule}. Received: {error} in the example with the id {example.id}. Fix the "
          "file, or name another column."
        ) from error
    return np.array(values)

  def target(self, label: Any) -> Any:
    """Converts a label to a class number or value."""
    return np.int32(self._places[label]) if self.names else np.float32(finite_number(label))

  def loss(self) -> Any:
    if not self.names:
      return keras.losses.MeanSquaredError()
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

  def predictions(self, outputs: Outputs) -> np.ndarray:
    """Predicted class numbers or values, `[n]`."""
    logits = np.asarray(outputs[UNNAMED_OUTPUT])
    return logits.argmax(axis=-1) if self.names else logits[:, 0]

  def label_text(self, prediction: Any) -> str:
    """The text of a prediction."""
    return self.names[int(prediction)] if self.names else f"{float(prediction):.4f}"

  def evaluate(self, outputs: Outputs, split: str = "eval") -> dict[str, float]:
    """The task's `metrics` and the mean `loss`."""
    labels, predictions = self.gold(split), self.predictions(outputs)
    if self.names:
      log_probs = special.log_softmax(np.asarray(outputs[UNNAMED_OUTPUT], np.float64), axis=-1)
      losses = -log_probs[np.arange(len(labels)), labels]
    else:
      losses = (labels.astype(np.float64) - predictions) ** 2
    return self.metrics(labels, predictions, self.split(split)) | {"loss": float(losses.mean())}

  def probabilities(self, scores: np.ndarray) -> Any:
    """Probabilities of the classes, `[n, C]`."""
    return special.softmax(scores, axis=-1)

  def write_predictions(self, outputs: Outputs, split: str, directory: str) -> None:
    """Writes `predictions_<split>.tsv`: id, prediction, label if known, probability of each class.

    It also writes `scores_<split>.npz`, for `ensemble`: `scores` float32 `[n, C]`, and `examples`, their fingerprint.
    """
    scores = np.asarray(outputs[UNNAMED_OUTPUT], np.float32)
    rows = [["id", "prediction", "label", *(f"probability_{name}" for name in self.names)]]
    probabilities = self.probabilities(scores.astype(np.float64))[:, : len(self.names)]
    texts = map(self.label_text, self.predictions(outputs))
    for example, text, row in zip(self.splits[split], texts, probabilities, strict=True):
      rows.append([example.id, text, written(example.label), *(f"{value:.6f}" for value in row)])
    write_tsv(os.path.join(directory, f"predictions_{split}.tsv"), rows)
    with files.atomic_writer(os.path.join(directory, f"scores_{split}.npz")) as stream:
      np.savez(stream, scores=scores, examples=np.array(_digest(self.splits[split])))

  def stored(self, directory: str, split: str) -> Outputs:
    path = os.path.join(directory, f"scores_{split}.npz")
    if not files.exists(path):
      raise UserError(
        f"A member of an ensemble must have stored scores. Received: {directory} without "
        f"{os.path.basename(path)}. Let it make them with --do_eval or --do_predict instead of --do_train."
      )
    with np.load(io.BytesIO(files.read_bytes(path))) as stored:
      scores, found = stored["scores"], str(stored["examples"])
    if found != _digest(self.split(split)):
      raise UserError(
        f"All runs of an ensemble answer the same examples. Received: {path}, of other texts, labels or order."
      )
    return {UNNAMED_OUTPUT: scores}

  def ensemble(self, outputs: Sequence[Outputs]) -> Outputs:
    r"""Combines scores: means of values; for classes $\log \frac{1}{M} \sum_m \mathrm{softmax}(s_m)$."""
    scores = np.stack([np.asarray(each[UNNAMED_OUTPUT], np.float64) for each in outputs])  # [M, n, C]
    mean: Any = scores.mean(axis=0)
    if self.names:
      mean = special.logsumexp(special.log_softmax(scores, axis=-1), axis=0) - np.log(len(scores))
    return {UNNAMED_OUTPUT: mean}


def finite_number(label: Any) -> float:
  """A label as a number; raises `ValueError` if it is none, or not finite in 32 bits."""
  number = float(label)
  if not is_finite(number):
    raise ValueError(f"{label}, not a finite number of 32 bits,")
  return number


def written(label: str | tuple[str, ...] | None) -> str:
  """A label as text, several labels as a JSON list; empty if unknown."""
  return json.dumps(label, ensure_ascii=False) if isinstance(label, tuple) else label or ""


def _digest(examples: Sequence[Any]) -> str:
  """A fingerprint of a split's examples."""
  return hashlib.sha256("\0".join(map(repr, examples)).encode()).hexdigest()
