"""Losses and metrics of models that give logits, checked when a model is compiled.

Most of Keras' losses and metrics read probabilities unless they are told otherwise. On logits they
would raise no error: they would only be wrong.
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError

# Functions from logits to probabilities, by the names that configurations hold.
_ACTIVATIONS = {"sigmoid": tf.sigmoid, "softmax": tf.nn.softmax}
# Keras' losses of probabilities that have no `from_logits`: classes and functions.
_LOSSES_OF_PROBABILITIES = {
  "KLDivergence",
  "kl_divergence",
  "Dice",
  "dice",
  "Tversky",
  "tversky",
  "CategoricalGeneralizedCrossEntropy",
  "categorical_generalized_cross_entropy",
}
# Keras' metrics of probabilities: classes and functions, some of Keras 3 alone.
_METRICS_OF_PROBABILITIES = {
  "BinaryAccuracy",
  "binary_accuracy",
  "Precision",
  "Recall",
  "TruePositives",
  "TrueNegatives",
  "FalsePositives",
  "FalseNegatives",
  "PrecisionAtRecall",
  "RecallAtPrecision",
  "SensitivityAtSpecificity",
  "SpecificityAtSensitivity",
  "AUC",
  "F1Score",
  "FBetaScore",
  "BinaryIoU",
  "BinaryCrossentropy",
  "binary_crossentropy",
  "CategoricalCrossentropy",
  "categorical_crossentropy",
  "SparseCategoricalCrossentropy",
  "sparse_categorical_crossentropy",
  "KLDivergence",
  "kl_divergence",
}
# Axes of labels → what has a label.
_PLACES = {1: "text, [n]", 2: "word, [n, N]"}
# Names that Keras completes by the shapes of the labels.
_ACCURACY = ("accuracy", "acc")
_CROSSENTROPY = ("crossentropy", "ce")


def loss_object(loss: Any) -> Any:
  """A loss as Keras makes it of a string; other losses, and None, as they are."""
  if isinstance(loss, str):
    return keras.losses.get(loss)
  return loss


def check_losses(losses: Any) -> None:
  """Raises `UserError` if a loss, or one of several, reads probabilities.

  Args:
    losses: argument of Keras' `compile`: one loss, or a structure of them.
  """
  for loss in tf.nest.flatten(losses):
    if not _loss_reads_logits(loss):
      raise UserError(
        f"A loss of this model reads logits. Received: {loss!r}. Use Keras' class of a "
        "cross-entropy, with from_logits=True."
      )


def _loss_reads_logits(loss: Any) -> bool:
  if isinstance(loss, str) and loss.lower() in _CROSSENTROPY:
    return False
  loss = loss_object(loss)
  if _name(loss) in _LOSSES_OF_PROBABILITIES:
    return False
  if isinstance(loss, keras.losses.Loss):
    return bool(loss.get_config().get("from_logits", True))
  return not _name(loss).endswith("crossentropy")


def check_form(loss: Any, labels: np.ndarray, *, axes: int) -> None:
  """Raises `UserError` if labels have not the form that a loss of classes reads.

  Args:
    loss: an object or a function.
    labels: one class at each place, or a value for each class there.
    axes: number of axes of the places: 1 for texts, 2 for words.
  """
  has_one_class = labels.ndim <= axes or labels.shape[axes:] == (1,)
  name = type(loss).__name__
  place = _PLACES[axes]
  if isinstance(loss, keras.losses.SparseCategoricalCrossentropy) and not has_one_class:
    raise UserError(
      f"{name} reads one class of each {place}. Received: labels {list(labels.shape)}. Give the "
      "numbers of the classes, or compile with a CategoricalCrossentropy(from_logits=True)."
    )
  if reads_values(loss) and has_one_class:
    raise UserError(
      f"{name} reads a value for each class of each {place}. Received: labels "
      f"{list(labels.shape)}, one class of each. Compile with a "
      "SparseCategoricalCrossentropy(from_logits=True), or give "
      "keras.utils.to_categorical(labels, num_labels)."
    )


def reads_values(loss: Any) -> bool:
  """Whether a loss reads a value for each class, such as 0 0 1, and not the class, 2."""
  return isinstance(
    loss, (keras.losses.CategoricalCrossentropy, keras.losses.CategoricalFocalCrossentropy)
  )


def reads_classes(loss: Any) -> bool:
  """Whether a loss reads classes, in either form."""
  return reads_values(loss) or isinstance(loss, keras.losses.SparseCategoricalCrossentropy)


# ------------------------------------------------------------------ metrics


@keras.saving.register_keras_serializable("albert_tf")
class MetricOfLogits(keras.metrics.Metric):
  """A metric of Keras that gets probabilities of a model's logits, and only what has a label.

  Args:
    metric: the metric.
    activation: what makes probabilities, "sigmoid" or "softmax" of the last axis; "": it gets
      logits.
    has_padding: whether labels below 0 are of no class, and left out.
  """

  def __init__(
    self,
    metric: Any,
    activation: str,
    *,
    has_padding: bool = False,
    name: str | None = None,
    **kwargs: Any,
  ):
    super().__init__(name=name or metric.name, **kwargs)
    self.metric = metric
    self.activation = activation
    self.has_padding = has_padding

  def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
    if self.activation:
      y_pred = _ACTIVATIONS[self.activation](tf.cast(y_pred, tf.float32))
    if self.has_padding:
      y_true, sample_weight = self._without_padding(y_true, sample_weight)
    self.metric.update_state(y_true, y_pred, sample_weight=sample_weight)

  def _without_padding(self, y_true: Any, sample_weight: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Labels `[B, N]` or `[B, N, C]`, 0 where there was none, and weights with 0 there."""
    counts = y_true >= 0
    y_true = tf.where(counts, y_true, tf.zeros_like(y_true))
    if len(y_true.shape) == 3:
      counts = tf.reduce_all(counts, axis=-1)
    weights = tf.cast(counts, tf.float32)
    if sample_weight is not None:
      sample_weight = tf.cast(sample_weight, tf.float32)
      # One weight for each text.
      if len(sample_weight.shape) == 1:
        sample_weight = sample_weight[:, tf.newaxis]
      weights *= sample_weight
    # Keras' means are over words, its counts over all values.
    if len(y_true.shape) == 3 and not isinstance(self.metric, keras.metrics.MeanMetricWrapper):
      weights = weights[..., tf.newaxis]
    return y_true, weights

  def result(self) -> Any:
    return self.metric.result()

  def reset_state(self) -> None:
    self.metric.reset_state()

  def get_config(self) -> dict[str, Any]:
    config = super().get_config()
    config["metric"] = keras.saving.serialize_keras_object(self.metric)
    config["activation"] = self.activation
    config["has_padding"] = self.has_padding
    return config

  @classmethod
  def from_config(cls, config: dict[str, Any]) -> "MetricOfLogits":
    metric = keras.saving.deserialize_keras_object(config["metric"])
    return cls(**config | {"metric": metric})


def metrics_of_logits(
  metrics: Any, losses: Any, activation: Callable[[str], str], *, has_padding: bool = False
) -> Any:
  """Metrics of Keras' `compile`; those of Keras get what they read, see `MetricOfLogits`.

  A caller's own metrics, and those of outputs without logits, stay as they are.

  Args:
    metrics: names, functions or metrics, in a structure; a mapping is by name of output.
    losses: argument of `compile`.
    activation: name of an output → what makes probabilities of its logits; "" for other outputs.
      The only output has no name.
    has_padding: see `MetricOfLogits`.
  """
  if isinstance(metrics, Mapping):
    of_outputs = {}
    for output, of_output in metrics.items():
      loss = losses.get(output) if isinstance(losses, Mapping) else losses
      of_outputs[output] = _converted(of_output, loss, activation(output), has_padding)
    return of_outputs
  return _converted(metrics, losses, activation(""), has_padding)


def _converted(metrics: Any, loss: Any, activation: str, has_padding: bool) -> Any:
  """The metrics of one output."""
  if not activation:
    return metrics
  # Other losses may read labels below 0.
  has_padding &= reads_classes(loss)

  def converted(metric: Any) -> Any:
    name = metric if isinstance(metric, str) else None
    found = _metric_of_name(metric, activation, loss) if name else metric
    function = activation
    if _name(found) not in _METRICS_OF_PROBABILITIES or _metric_reads_logits(found):
      function = ""
    if not _name(found) or not (function or has_padding):
      return metric
    if not isinstance(found, keras.metrics.Metric):
      found = keras.metrics.MeanMetricWrapper(found, name=name or _name(found))
    return MetricOfLogits(found, function, has_padding=has_padding, name=name)

  return tf.nest.map_structure(converted, metrics)


def _metric_of_name(name: str, activation: str, loss: Any) -> Any:
  """The metric that a name means, of a model with this loss."""
  if name.lower() in _ACCURACY:
    kind = "Accuracy"
  elif name.lower() in _CROSSENTROPY:
    kind = "Crossentropy"
  else:
    return keras.metrics.get(name)
  prefix = "SparseCategorical"
  if activation == "sigmoid":
    prefix = "Binary"
  elif reads_values(loss):
    prefix = "Categorical"
  return getattr(keras.metrics, prefix + kind)()


def _metric_reads_logits(metric: Any) -> bool:
  """Whether its caller has said so: `from_logits`, or the threshold 0, which Keras recommends."""
  if not isinstance(metric, keras.metrics.Metric):
    return False
  config = metric.get_config()
  thresholds = config.get("thresholds", config.get("threshold"))
  return bool(config.get("from_logits")) or (
    thresholds is not None and np.array_equal(np.ravel(thresholds), [0])
  )


def _name(thing: Any) -> str:
  """The name of a function of Keras, or of an object's class; "" if it is not Keras' own."""
  if not hasattr(thing, "__name__"):
    thing = type(thing)
  if thing.__module__.split(".")[0] != "keras":
    return ""
  return thing.__name__
