"""SQuAD's losses as the original's code adds them up, and a NumPy twin of the ensemble of runs."""

import numpy as np
import tensorflow as tf


def span_loss(start_logits, end_logits, start_positions, end_positions):
  """SQuAD 1.1: mean over the batch of half the start and half the end cross-entropy, a float32 scalar.

  Args:
    start_logits, end_logits: float32 `[B, S]` (log-probabilities are logits too).
    start_positions, end_positions: int32 `[B]`.
  """
  start = tf.nn.sparse_softmax_cross_entropy_with_logits(
    labels=start_positions, logits=start_logits
  )
  end = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=end_positions, logits=end_logits)
  return 0.5 * (tf.reduce_mean(start) + tf.reduce_mean(end))


def squad2_loss(outputs, start_positions, end_positions, is_impossible):
  """SQuAD 2: `span_loss` plus half the sigmoid cross-entropy of answerability, a float32 scalar.

  Args:
    outputs: of `Squad2Head` with gold starts.
    start_positions, end_positions: int32 `[B]`; 0 ([CLS]) for a window without the answer.
    is_impossible: `[B]`, 1 for such a window.
  """
  answerability = tf.nn.sigmoid_cross_entropy_with_logits(
    labels=tf.cast(is_impossible, tf.float32), logits=outputs["cls_logits"]
  )
  logits = outputs["start_log_probs"], outputs["end_log_probs"]
  span = span_loss(*logits, start_positions, end_positions)
  return span + 0.5 * tf.reduce_mean(answerability)


def merged(n_best, null_odds):
  """Texts, best first, with their mean probability; and the mean probability that there is no answer.

  Args:
    n_best: of each run, the question's entries of nbest_predictions.json.
    null_odds: of each run, its value in null_odds.json.
  """
  texts = sorted({entry["text"] for entries in n_best for entry in entries} - {""})
  table = np.zeros([len(n_best), len(texts)])
  for row, entries in zip(table, n_best, strict=True):
    for entry in entries:
      if entry["text"]:
        row[texts.index(entry["text"])] = entry["probability"]
  means = table.mean(axis=0)
  order = np.argsort(-means, kind="stable")
  impossible = (1 / (1 + np.exp(-np.array(null_odds)))).mean()
  return [texts[i] for i in order], means[order], impossible
