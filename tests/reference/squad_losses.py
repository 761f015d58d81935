"""The losses of SQuAD as the original's code adds them up."""

import tensorflow as tf


def span_loss(
  start_logits: tf.Tensor, end_logits: tf.Tensor, start_positions: tf.Tensor, end_positions: tf.Tensor
) -> tf.Tensor:
  """SQuAD 1.1: mean over the batch of half the start and half the end cross-entropy.

  Args:
    start_logits, end_logits: float32 `[B, S]` (log-probabilities are logits too).
    start_positions, end_positions: int32 `[B]`.

  Returns:
    float32 scalar.
  """
  start = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=start_positions, logits=start_logits)
  end = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=end_positions, logits=end_logits)
  return 0.5 * (tf.reduce_mean(start) + tf.reduce_mean(end))


def squad2_loss(
  outputs: dict[str, tf.Tensor],
  start_positions: tf.Tensor,
  end_positions: tf.Tensor,
  is_impossible: tf.Tensor,
) -> tf.Tensor:
  """SQuAD 2: `span_loss` plus half the sigmoid cross-entropy of answerability.

  Args:
    outputs: of `Squad2Head` with gold starts.
    start_positions, end_positions: int32 `[B]`; 0 ([CLS]) for a window without the answer.
    is_impossible: `[B]`, 1 for such a window.

  Returns:
    float32 scalar.
  """
  answerability = tf.nn.sigmoid_cross_entropy_with_logits(
    labels=tf.cast(is_impossible, tf.float32), logits=outputs["cls_logits"]
  )
  span = span_loss(outputs["start_log_probs"], outputs["end_log_probs"], start_positions, end_positions)
  return span + 0.5 * tf.reduce_mean(answerability)
