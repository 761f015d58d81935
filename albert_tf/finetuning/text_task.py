"""Classification and regression of texts and pairs of texts: what GLUE and a user's own table share."""

from collections.abc import Mapping, Sequence
import dataclasses
import os
from typing import Any

from absl import logging
import numpy as np

from albert_tf import files
from albert_tf.compat import keras
from albert_tf.errors import UserError
from albert_tf.finetuning import metrics, plots
from albert_tf.finetuning.features import FeatureSet
from albert_tf.finetuning.prediction import UNNAMED_OUTPUT
from albert_tf.finetuning.task import FineTuningTask, Outputs
from albert_tf.finetuning.task_spec import TaskSpec
from albert_tf.tokenization import AlbertTokenizer, WordPieceTokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts:
  """The examples of one split as they are in the file.

  Attributes:
    ids: of each example, for predictions.
    firsts: the texts.
    seconds: the second texts, or None.
    labels: strings as in the file, or None.
    source: the file, for messages.
    line: of the first example, for messages.
  """

  ids: Sequence[str]
  firsts: Sequence[str]
  seconds: Sequence[str] | None
  labels: Sequence[str] | None
  source: str
  first_line: int = 1

  def __len__(self) -> int:
    return len(self.firsts)


class TextTask(FineTuningTask):
  """A classification or regression task on texts.

  Args:
    spec: kind "classification" or "regression".
    splits: "train", "eval", "test" and more (see `FineTuningTask.more_splits`) → texts.
    tokenizer: of the weights.
    metric_names: keys of `metrics.METRICS`; the first decides which checkpoint is the best.
    data: what the splits were read from.
  """

  def __init__(
    self,
    spec: TaskSpec,
    splits: Mapping[str, Texts],
    *,
    tokenizer: AlbertTokenizer | WordPieceTokenizer,
    metric_names: Sequence[str],
    data: Mapping[str, str] | None = None,
  ):
    self.spec = spec
    self.best_metric = metric_names[0]
    self.data = dict(data or {})
    self._splits = dict(splits)
    self._tokenizer = tokenizer
    self._metric_names = tuple(metric_names)
    self._features: dict[str, FeatureSet] = {}

  # ------------------------------------------------------------------ features

  def train_features(self) -> FeatureSet:
    return self._make_features("train")

  def eval_features(self) -> FeatureSet:
    return self._make_features("eval")

  def test_features(self) -> FeatureSet | None:
    return self._make_features("test") if "test" in self._splits else None

  def more_splits(self) -> Mapping[str, FeatureSet]:
    return {name: self._make_features(name) for name in self._splits if name.startswith(("eval_", "test_"))}

  def _make_features(self, split: str) -> FeatureSet:
    if split not in self._features:
      texts = self._splits.get(split)
      if texts is None:
        raise UserError(f"{self.spec.name} needs {split} data here. Received: none. Name its file or folder.")
      labels = self._label_array(texts)
      if labels is None and not split.startswith("test"):
        raise UserError(
          f"Training and evaluation need labels. Received: {texts.source} without. Predict it as test data instead."
        )
      self._features[split] = FeatureSet(
        text_rows(texts, self._tokenizer, max_length=self.spec.max_seq_length), labels
      )
    return self._features[split]

  def _label_array(self, texts: Texts) -> np.ndarray | None:
    if texts.labels is None:
      return None
    if self.spec.kind == "regression":
      return _numbers(texts)[:, np.newaxis]  # [n, 1], like the logits.
    index = {name: i for i, name in enumerate(self.spec.label_names)}
    unknown = sorted({label for label in texts.labels if label not in index})
    if unknown:
      at = next(i for i, label in enumerate(texts.labels) if label == unknown[0])
      raise UserError(
        f"A label must be one of {', '.join(self.spec.label_names)}. Received: "
        f"{', '.join(map(repr, unknown[:5]))}{' and more' if len(unknown) > 5 else ''} in {texts.source}, first at "
        f"line {texts.first_line + at}. Mend the file, or name the classes (--label_names)."
      )
    return np.array([index[label] for label in texts.labels], np.int32)

  # ------------------------------------------------------------------ loss and metrics

  def loss(self) -> Any:
    if self.spec.kind == "regression":
      return keras.losses.MeanSquaredError()
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

  def predictions(self, outputs: Outputs) -> np.ndarray:
    """Class numbers, or values, `[n]`."""
    logits = np.asarray(outputs[UNNAMED_OUTPUT])
    return logits[:, 0] if self.spec.kind == "regression" else logits.argmax(axis=-1)

  def gold(self, split: str) -> np.ndarray:
    """The labels of a split, `[n]`."""
    return np.asarray(self._make_features(split).labels).reshape(-1)

  def evaluate(self, outputs: Outputs, split: str = "eval") -> dict[str, float]:
    labels, predictions = self.gold(split), self.predictions(outputs)
    values = {name: metrics.METRICS[name](labels, predictions) for name in self._metric_names}
    return values | {"loss": self._mean_loss(np.asarray(outputs[UNNAMED_OUTPUT], np.float64), labels)}

  def _mean_loss(self, logits: np.ndarray, labels: np.ndarray) -> float:
    if self.spec.kind == "regression":
      return metrics.mean_squared_error(labels, logits[:, 0])
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return float(-log_probabilities[np.arange(len(labels)), labels].mean())

  # ------------------------------------------------------------------ what is written

  def write_predictions(self, outputs: Outputs, split: str, directory: str) -> None:
    """`predictions_<split>.tsv`: id, prediction, the true label where known, probability of each class."""
    texts = self._splits[split]
    predictions = self.predictions(outputs)
    lines = ["\t".join(self._header(with_label=texts.labels is not None))]
    probabilities = self._probabilities(outputs)
    for i, example in enumerate(texts.ids):
      fields = [example, self.label_text(predictions[i])]
      if texts.labels is not None:
        fields.append(texts.labels[i])
      fields += [f"{p:.6f}" for p in probabilities[i]]
      lines.append("\t".join(fields))
    with files.atomic_writer(os.path.join(directory, f"predictions_{split}.tsv"), "w") as stream:
      stream.write("\n".join(lines) + "\n")

  def _header(self, *, with_label: bool) -> list[str]:
    classes = [] if self.spec.kind == "regression" else list(self.spec.label_names)
    return ["id", "prediction", *(["label"] if with_label else []), *[f"probability_{c}" for c in classes]]

  def _probabilities(self, outputs: Outputs) -> np.ndarray:
    logits = np.asarray(outputs[UNNAMED_OUTPUT], np.float64)
    if self.spec.kind == "regression":
      return np.zeros([len(logits), 0])
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)

  def label_text(self, prediction: Any) -> str:
    """How a prediction is written."""
    if self.spec.kind == "regression":
      return f"{float(prediction):.4f}"
    return self.spec.label_names[int(prediction)]

  def plot(self, outputs: Outputs, path: str) -> bool:
    labels, predictions = self.gold("eval"), self.predictions(outputs)
    values = self.evaluate(outputs)
    score = ", ".join(f"{name.replace('_', ' ')} {values[name]:.3f}" for name in self._metric_names[:2])
    title = f"{self.spec.name}, {len(labels):,} evaluation examples\n{score}"
    if self.spec.kind == "regression":
      plots.scatter(path, labels, predictions, title=title)
    else:
      plots.confusion_matrix(path, labels, predictions, names=self.spec.label_names, title=title)
    return True


def text_rows(
  texts: Texts, tokenizer: AlbertTokenizer | WordPieceTokenizer, *, max_length: int
) -> list[dict[str, np.ndarray]]:
  """[CLS] a [SEP] b [SEP] of each example, int32 `input_ids`, `input_mask`, `segment_ids`, unpadded.

  The longer text is cut at its end until both fit; an empty second text makes a single segment.
  """
  packed = tokenizer(
    list(texts.firsts), None if texts.seconds is None else list(texts.seconds), max_length=max_length
  )
  lengths = packed["input_mask"].sum(axis=1)
  full = int((lengths == max_length).sum())
  if full:
    logging.info(
      "%s: %d of %d examples fill or exceed %d pieces", texts.source, full, len(lengths), max_length
    )
  return [
    {name: array[i, :length].copy() for name, array in packed.items()} for i, length in enumerate(lengths)
  ]


def _numbers(texts: Texts) -> np.ndarray:
  values = np.empty(len(texts), np.float32)
  for i, label in enumerate(texts.labels or ()):
    try:
      values[i] = float(label)
    except ValueError:
      values[i] = np.nan
    if not np.isfinite(values[i]):
      raise UserError(
        f"A regression task's labels are numbers. Received: {label!r} at line {texts.first_line + i} of {texts.source}."
      )
  return values
