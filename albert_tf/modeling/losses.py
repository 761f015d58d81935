"""Pretraining losses as sums and counts, which can be added over parts of a batch."""

import math
from typing import Any, NamedTuple

import tensorflow as tf


class LossSums(NamedTuple):
  """Sums over the predictions or examples of a batch, or of a part of it; float32 scalars."""

  loss: tf.Tensor
  correct: tf.Tensor
  weight: tf.Tensor  # The number of those that count.


NUM_SUMS = 6  # Of `PretrainingSums`, as a vector.


class PretrainingSums(NamedTuple):
  """The sums of both pretraining losses; as one vector where devices exchange them."""

  masked_lm: LossSums
  sentence: LossSums

  def pack(self) -> tf.Tensor:
    """All sums as one vector, float32 `[6]`."""
    return tf.stack(self.masked_lm + self.sentence)

  @classmethod
  def unpack(cls, vector: Any) -> "PretrainingSums":
    """The inverse of `pack`, of a tensor or an array."""
    return cls(masked_lm=LossSums(*vector[:3]), sentence=LossSums(*vector[3:]))


def cross_entropy_sums(
  logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor | None = None
) -> LossSums:
  r"""Sums of $w \cdot (-\log \mathrm{softmax}(\text{logits})[\text{label}])$, of right answers and of weights.

  Args:
    logits: `[…, C]`: of masked tokens `[B, P, V]`; of sentences `[B, 2]`.
    labels: int32 `[…]`; of sentences 0 = in order, 1 = swapped or, for NSP, from another document.
    weights: float32 `[…]`, 0 for padding; default ones.

  The caller divides by the global weight.

  Reference: ALBERT section 3.1.
  """
  # Rows as they come from the product: TPUs would copy `[B, P, V]`.
  logits = tf.reshape(tf.cast(logits, tf.float32), [-1, logits.shape[-1]])
  losses, correct = _cross_entropy(logits, tf.reshape(labels, [-1]))
  if weights is None:
    weights = tf.ones_like(losses)
  else:
    weights = tf.reshape(tf.cast(weights, tf.float32), [-1])
  return LossSums(
    loss=tf.reduce_sum(weights * losses),
    correct=tf.reduce_sum(weights * correct),
    weight=tf.reduce_sum(weights),
  )


@tf.custom_gradient
def _cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> Any:
  """Losses and answers (1 = no logit is above the label's) of float32 `[R, V]` and int32 `[R]`.

  Both are `[R]`. Three passes over the logits, one of them the gradient's: the largest is found once,
  for softmax and answer. A label outside the vocabulary has the loss NaN.
  """
  size = logits.shape[-1]
  # By comparison: a gather of one logit a row, and its gradient's scatter, are slow on TPUs.
  is_label = tf.equal(tf.range(size, dtype=labels.dtype), labels[:, tf.newaxis])  # [R, V]
  label_logit = tf.reduce_sum(tf.where(is_label, logits, 0.0), axis=-1, keepdims=True)
  in_vocabulary = (labels >= 0) & (labels < size)
  label_logit = tf.where(in_vocabulary[:, tf.newaxis], label_logit, math.nan)
  # The largest is taken out before the exponential, which would overflow.
  largest = tf.reduce_max(logits, axis=-1, keepdims=True)
  log_sum = largest + tf.math.log(tf.reduce_sum(tf.exp(logits - largest), axis=-1, keepdims=True))

  def gradient(d_losses: tf.Tensor, _: tf.Tensor) -> Any:
    d_losses = d_losses[:, tf.newaxis]
    # softmax - one-hot: the label's probability is lowered by 1.
    d_logits = tf.exp(logits - log_sum) * d_losses
    return tf.where(is_label, d_logits - d_losses, d_logits), None

  losses = log_sum - label_logit
  correct = tf.cast(tf.equal(label_logit, largest), tf.float32)
  return (losses[:, 0], correct[:, 0]), gradient


def mean_metrics(sums: PretrainingSums, sentence_task: str = "sentence_order") -> dict[str, float]:
  """Means over predictions and examples, by the names of metrics.jsonl; 0 where there are none.

  Args:
    sums: of the predictions and examples.
    sentence_task: "sentence_order" or "next_sentence", the name of the sentence metrics; empty: there are none.
  """
  sums_by_task = {"masked_lm": sums.masked_lm}
  if sentence_task:
    sums_by_task[sentence_task] = sums.sentence
  means = {"loss": 0.0}
  for task, task_sums in sums_by_task.items():
    weight = max(float(task_sums.weight), 1.0)  # Nothing to predict: 0 / 1, not 0 / 0.
    means[f"{task}_loss"] = float(task_sums.loss) / weight
    means[f"{task}_accuracy"] = float(task_sums.correct) / weight
    means["loss"] += means[f"{task}_loss"]
  return means
