"""Shared code of tasks with a label for each example, whose model gives it scores."""

import abc
from collections.abc import Mapping, Sequence
import dataclasses
import functools
import hashlib
import io
import json
import os
from typing import Any

from absl import logging
import keras
import numpy as np
from scipy import special

from albert_tf import files
from albert_tf.compat import on_coordinator
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.data import finite_number
from albert_tf.finetuning.tasks.base import (
  UNNAMED_OUTPUT,
  FineTuningTask,
  Outputs,
  write_tsv,
)
from albert_tf.keras_api.examples import Examples, blocks_of
from albert_tf.keras_api.preprocessor import AlbertPreprocessor
from albert_tf.tokenization import Tokenizer


class ScoresTask(FineTuningTask):
  """A task with a model that outputs logits `[n, C]` of classes, or values `[n, 1]`.

  Args:
    spec: description of the task.
    splits: "train", "eval", "test", "eval_…", "test_…" → examples with an `id` and a `label` (None
      if unknown).
    names: labels of the C classes or choices; empty: labels are values.
    tokenizer: tokenizer of the weights.

  Attributes:
    input_kind: the kind of `AlbertPreprocessor` that makes the rows.
    inputs: each of its inputs, and the field of an example that it is made of.
  """

  input_kind: str
  inputs: Mapping[str, str]
  # The weight of each class in the training loss, in the order of `names`; empty: all are equal.
  class_weights: Sequence[float] = ()

  def __init__(
    self,
    spec: TaskSpec,
    splits: Mapping[str, Sequence[Any]],
    *,
    names: Sequence[str],
    tokenizer: Tokenizer,
  ):
    self.spec = spec
    self.splits = dict(splits)
    self.names = tuple(names)
    self._class_numbers = {name: number for number, name in enumerate(names)}
    self._tokenizer = tokenizer

  def rows(self, examples: Sequence[Any]) -> Examples:
    """The model's input features of the examples, made with the ops of a SavedModel."""
    columns = {}
    for name, field in self.inputs.items():
      column = [getattr(example, field) for example in examples]
      # Single texts have no second one.
      if set(column) != {None}:
        columns[name] = column
    with on_coordinator():
      preprocessor = AlbertPreprocessor(
        self._tokenizer,
        kind=self.input_kind,
        max_length=self.spec.max_seq_length,
        max_qa_length=self.spec.max_qa_length,
      )
      return Examples.of_blocks(
        preprocessor.pack({name: column[block] for name, column in columns.items()})
        for block in blocks_of(len(examples), desc="Tokenizing")
      )

  @functools.cache  # noqa: B019  A task is needed until the command ends.
  def features(self, split: str) -> Examples:
    examples = self.split(split)
    labels: np.ndarray | None = None
    # Test data may lack labels, all or some: then they are only predicted.
    num_without = sum(example.label is None for example in examples)
    if 0 < num_without < len(examples) and split.startswith("test"):
      logging.warning(
        "%s: %d of %d rows have no label. Test data are scored if all have one; these are only "
        "predicted",
        self.sources.get(split, split),
        num_without,
        len(examples),
      )
    if not num_without or not split.startswith("test"):
      labels = self.gold(split)
      if not self.names:
        labels = labels[:, np.newaxis]  # [n, 1], like the logits.
    weights: np.ndarray | None = None
    if self.class_weights and split == "train":
      weights = np.array(self.class_weights, np.float32)[labels]
    features = dataclasses.replace(
      self.rows(examples), labels=labels, weights=weights, divides_by_weights=True
    )
    num_full = (features.lengths >= self.spec.max_seq_length).sum()
    logging.info(
      "%s: %d examples, %d fill or exceed --max_seq_length", split, len(features), num_full
    )
    return features

  @functools.cache  # noqa: B019
  def gold(self, split: str) -> np.ndarray:
    """The labels of a split as class numbers or values, `[n]`.

    Raises:
      UserError: a label is missing, or is no class or number.
    """
    of_file = f" of {self.sources[split]}" if self.sources.get(split) else ""
    values = []
    for example in self.split(split):
      try:
        values.append(self.target(example.label))
      except (KeyError, TypeError, ValueError) as error:
        rule = f"one of {', '.join(self.names)}" if self.names else "finite numbers"
        raise UserError(
          f"Labels of {split} data must be {rule}. Received: {error} in the example with the id "
          f"{example.id}{of_file}. Fix the file, or name another column."
        ) from error
    return np.array(values)

  def target(self, label: Any) -> Any:
    """Converts a label to a class number or value."""
    if self.names:
      return np.int32(self._class_numbers[label])
    return np.float32(finite_number(label))

  @abc.abstractmethod
  def metrics(
    self, labels: np.ndarray, predictions: np.ndarray, examples: Sequence[Any]
  ) -> dict[str, float]:
    """The task's metrics."""

  def loss(self) -> Any:
    if self.names:
      return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return keras.losses.MeanSquaredError()

  def predictions(self, outputs: Outputs) -> np.ndarray:
    """Predicted class numbers or values, `[n]`."""
    logits = np.asarray(outputs[UNNAMED_OUTPUT])
    if self.names:
      return logits.argmax(axis=-1)
    return logits[:, 0]

  def probabilities(self, scores: np.ndarray) -> Any:
    """Probabilities of the classes, `[n, C]`."""
    return special.softmax(scores, axis=-1)

  def losses(self, labels: np.ndarray, scores: np.ndarray) -> Any:
    """The losses, float64: the model's own loss is a mean of batches in its precision."""
    if self.names:
      return -special.log_softmax(scores, axis=-1)[np.arange(len(labels)), labels]
    return (labels - scores[:, 0]) ** 2

  def evaluate(self, outputs: Outputs, split: str = "eval") -> dict[str, float]:
    """The task's `metrics` and the mean `loss`."""
    labels = self.gold(split)
    scores = np.asarray(outputs[UNNAMED_OUTPUT], np.float64)
    values = self.metrics(labels, self.predictions(outputs), self.split(split))
    return values | {"loss": float(self.losses(labels, scores).mean())}

  def label_text(self, prediction: Any) -> str:
    """The text of a prediction."""
    if self.names:
      return self.names[int(prediction)]
    return f"{float(prediction):.4f}"

  def write_predictions(self, outputs: Outputs, split: str, directory: str) -> None:
    """Writes `predictions_<split>.tsv`: id, prediction, label if known, probability of each class.

    It also writes `scores_<split>.npz`, for `ensemble`: `scores` float32 `[n, C]`, and `examples`,
    a fingerprint of the examples that they are for.
    """
    examples = self.splits[split]
    scores = np.asarray(outputs[UNNAMED_OUTPUT], np.float32)
    # Values have no probabilities: there are no names, and no columns.
    probabilities = self.probabilities(scores.astype(np.float64))[:, : len(self.names)]
    rows = [["id", "prediction", "label"] + [f"probability_{name}" for name in self.names]]
    columns = (examples, self.predictions(outputs), probabilities)
    for example, prediction, of_classes in zip(*columns, strict=True):
      row = [example.id, self.label_text(prediction), label_cell(example.label)]
      rows.append(row + [f"{probability:.6f}" for probability in of_classes])
    write_tsv(os.path.join(directory, f"predictions_{split}.tsv"), rows)
    with files.atomic_writer(os.path.join(directory, f"scores_{split}.npz")) as stream:
      np.savez(stream, scores=scores, examples=np.array(_fingerprint(examples)))

  # ------------------------------------------------------------------ ensembles

  def stored(self, directory: str, split: str) -> Outputs:
    path = os.path.join(directory, f"scores_{split}.npz")
    if not files.exists(path):
      raise UserError(
        f"A member of an ensemble must have stored scores. Received: {directory} without "
        f"{os.path.basename(path)}. Let it make them with --do_eval or --do_predict instead of "
        "--do_train."
      )
    with np.load(io.BytesIO(files.read_bytes(path))) as arrays:
      scores = arrays["scores"]
      fingerprint = str(arrays["examples"])
    if fingerprint != _fingerprint(self.split(split)):
      raise UserError(
        f"All runs of an ensemble answer the same examples. Received: {path}, of other texts, "
        "labels or order."
      )
    return {UNNAMED_OUTPUT: scores}

  def ensemble(self, outputs: Sequence[Outputs]) -> Outputs:
    r"""Combines scores: means of values; for classes $\log \frac{1}{M} \sum_m \mathrm{softmax}(s_m)$."""
    of_runs = [np.asarray(run[UNNAMED_OUTPUT], np.float64) for run in outputs]
    scores = np.stack(of_runs)  # [M, n, C]
    if not self.names:
      return {UNNAMED_OUTPUT: scores.mean(axis=0)}
    # In logarithms: a probability of 1e-50 keeps its digits.
    log_sums: Any = special.logsumexp(special.log_softmax(scores, axis=-1), axis=0)
    return {UNNAMED_OUTPUT: log_sums - np.log(len(scores))}


def label_cell(label: str | tuple[str, ...] | None) -> str:
  """A label as text, several labels as a JSON list; empty if unknown."""
  if isinstance(label, tuple):
    return json.dumps(label, ensure_ascii=False)
  return label or ""


def _fingerprint(examples: Sequence[Any]) -> str:
  """A fingerprint of a split's examples; another name of an example's class would change it."""
  return hashlib.sha256("\0".join(map(repr, examples)).encode()).hexdigest()
