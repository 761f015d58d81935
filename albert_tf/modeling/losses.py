"""Pretraining losses as sums and counts, so that any split of a batch adds up."""

from typing import NamedTuple

import tensorflow as tf


class MaskedLmSums(NamedTuple):
  """Sums over the predictions of a (part of a) batch; float32 scalars."""

  loss: tf.Tensor
  correct: tf.Tensor
  weight: tf.Tensor


class SentenceOrderSums(NamedTuple):
  """Sums over the examples of a (part of a) batch; float32 scalars."""

  loss: tf.Tensor
  correct: tf.Tensor
  count: tf.Tensor


def masked_lm_sums(logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> MaskedLmSums:
  r"""$\sum w \cdot (-\log \mathrm{softmax}(\text{logits})[\text{label}])$ and its company.

  Args:
    logits: float32 `[B, P, V]`.
    labels: int32 `[B, P]`.
    weights: float32 `[B, P]`, 0 for padding.

  Reference: ALBERT section 3.1; the division by the global weight is the caller's.
  """
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=tf.cast(logits, tf.float32))
  # Rows as they come from the product: TPUs would copy `[B, P, V]`.
  rows = tf.reshape(logits, [-1, logits.shape[-1]])
  best = tf.reshape(tf.argmax(rows, axis=-1, output_type=labels.dtype), tf.shape(labels))
  correct = tf.cast(tf.equal(best, labels), tf.float32)
  weights = tf.cast(weights, tf.float32)
  return MaskedLmSums(
    loss=tf.reduce_sum(weights * losses),
    correct=tf.reduce_sum(weights * correct),
    weight=tf.reduce_sum(weights),
  )


def sentence_order_sums(
  logits: tf.Tensor, labels: tf.Tensor, example_weights: tf.Tensor | None = None
) -> SentenceOrderSums:
  """Cross-entropy sum of the sentence labels: 0 = in order, 1 = swapped, or from another document (NSP).

  Args:
    logits: float32 `[B, 2]`.
    labels: int32 `[B]`.
    example_weights: float32 `[B]`, 0 for an example that only fills a batch; default ones.

  Reference: ALBERT section 3.1, "Inter-sentence coherence loss".
  """
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=tf.cast(logits, tf.float32))
  weights = tf.ones_like(losses) if example_weights is None else tf.cast(example_weights, tf.float32)
  correct = tf.cast(tf.equal(tf.argmax(logits, axis=-1, output_type=labels.dtype), labels), tf.float32)
  return SentenceOrderSums(
    loss=tf.reduce_sum(weights * losses),
    correct=tf.reduce_sum(weights * correct),
    count=tf.reduce_sum(weights),
  )


def mean_metrics(
  masked_lm: MaskedLmSums, sentence: SentenceOrderSums, sentence_task: str = "sentence_order"
) -> dict[str, float]:
  """Means over predictions and examples, by the names of metrics.jsonl; 0 where there are none.

  Args:
    sentence_task: "sentence_order" or "next_sentence", which names what was learned of the sentences; empty for
      nothing, and then no metric of it.
  """
  weight, count = max(float(masked_lm.weight), 1.0), max(float(sentence.count), 1.0)
  masked_lm_loss, sentence_loss = float(masked_lm.loss) / weight, float(sentence.loss) / count
  means = {
    "loss": masked_lm_loss + (sentence_loss if sentence_task else 0.0),
    "masked_lm_loss": masked_lm_loss,
    "masked_lm_accuracy": float(masked_lm.correct) / weight,
  }
  if sentence_task:
    means[f"{sentence_task}_loss"] = sentence_loss
    means[f"{sentence_task}_accuracy"] = float(sentence.correct) / count
  return means
