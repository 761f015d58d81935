"""Heads of question answering on SQuAD, with the original's variables, and their losses.

Logits are always float32. `AlbertQuestionAnswering` in `tasks.py` is made of them.
"""

from typing import Any

import keras
import tensorflow as tf

from albert_tf.configs import AlbertConfig
from albert_tf.modeling.dropout import Seed, dropout, resolve_seed
from albert_tf.modeling.layers import ConfigLayer, RowsHead

# Subtracted from the logit of a position that cannot be an answer (original code).
NEVER = 1e30


class SpanHead(RowsHead):
  r"""Start and end logits of SQuAD 1.1, independent for each position: $x W^T + b$, `W` `[2, H]`.

  Call args:
    sequence_output: `[B, S, H]`.

  Returns:
    `start_logits` and `end_logits`, float32 `[B, S]`; no position is masked.

  Reference: arXiv 1810.04805, section 4.2; the original's `run_squad_v1`.
  """

  def __init__(self, config: AlbertConfig, **kwargs: Any):
    super().__init__(config, rows=2, **kwargs)
    self.output_shape = (None, None)  # Of each output.

  def call(self, sequence_output: tf.Tensor) -> dict[str, tf.Tensor]:
    start, end = tf.unstack(super().call(sequence_output), num=2, axis=-1)
    return {"start_logits": start, "end_logits": end}


class Squad2Head(ConfigLayer):
  r"""Head of SQuAD 2.0: start, end given the start, and answerability.

  $s_t = x_t w_s + b_s$; $e_{t|u} = \mathrm{LN}(\tanh([x_t, x_u] W_0 + b_0)) w_1 + b_1$; both minus
  1e30 where `p_mask` is 1, then log-softmax over positions.
  $\text{unanswerable} = \mathrm{dropout}(\tanh([z, x_0] V_0 + c_0)) v_1$ with
  $z = \sum_t \mathrm{softmax}(s)_t x_t$.

  The end is given the gold start in training, and each of the best starts at inference.

  Args:
    config: the encoder's configuration.
    start_n_top: number of starts tried at inference.
    end_n_top: number of ends tried for each start.
    classifier_dropout: dropout rate before the answerability logit.

  Call args:
    sequence_output: `[B, S, H]`.
    p_mask: `[B, S]`, 1 where an answer cannot be (question, [SEP], padding), 0 at [CLS] and in the
      text.
    start_positions: int32 `[B]`, the gold starts; None at inference.
    training, seed: see `AlbertEncoder`.

  Returns:
    `cls_logits` `[B]`, high for unanswerable questions; with `start_positions` also
    `start_log_probs` and `end_log_probs` `[B, S]`; without, `start_top_log_probs`,
    `start_top_index` `[B, K]` and `end_top_log_probs`, `end_top_index` `[B, K L]`, the L ends of
    the first start first.

  Reference: arXiv 1906.08237 (XLNet), appendix; the original's `run_squad_v2`.
  """

  def __init__(
    self,
    config: AlbertConfig,
    *,
    start_n_top: int = 5,
    end_n_top: int = 5,
    classifier_dropout: float = 0.1,
    **kwargs: Any,
  ):
    super().__init__(config, **kwargs)
    self.output_shape = (None,)  # Of `cls_logits`.
    self.start_n_top = start_n_top
    self.end_n_top = end_n_top
    self.classifier_dropout = classifier_dropout
    width = config.hidden_size
    self.start_dense = self._dense(width, 1, "start_dense")
    self.end_dense_0 = self._dense(2 * width, width, "end_dense_0", activation="tanh")
    self.end_norm = self._layer_norm(width, "end_norm")
    self.end_dense_1 = self._dense(width, 1, "end_dense_1")
    self.answer_dense_0 = self._dense(2 * width, width, "answer_dense_0", activation="tanh")
    self.answer_dense_1 = self._dense(width, 1, "answer_dense_1", use_bias=False)

  def call(
    self,
    sequence_output: tf.Tensor,
    p_mask: tf.Tensor,
    start_positions: tf.Tensor | None = None,
    training: bool = False,
    seed: Seed = None,
  ) -> dict[str, tf.Tensor]:
    x = sequence_output
    start_logits = _masked(tf.squeeze(self.start_dense(x), -1), p_mask)  # [B, S]
    start_log_probs = tf.nn.log_softmax(start_logits)
    seed = resolve_seed(seed, training=training)
    outputs = {"cls_logits": self._answerability(x, start_logits, seed)}

    # In training the end is given the gold start.
    if start_positions is not None:
      end_log_probs = self._end_log_probs(x, start_positions[:, tf.newaxis], p_mask)
      outputs["start_log_probs"] = start_log_probs
      outputs["end_log_probs"] = end_log_probs[:, 0]
      return outputs

    # At inference each of the best starts has best ends of its own.
    starts = tf.math.top_k(start_log_probs, k=self.start_n_top)  # [B, K]
    end_log_probs = self._end_log_probs(x, starts.indices, p_mask)
    ends = tf.math.top_k(end_log_probs, k=self.end_n_top)  # [B, K, L]
    outputs["start_top_log_probs"] = starts.values
    outputs["start_top_index"] = starts.indices
    shape = [-1, self.start_n_top * self.end_n_top]
    outputs["end_top_log_probs"] = tf.reshape(ends.values, shape)  # [B, K L]
    outputs["end_top_index"] = tf.reshape(ends.indices, shape)
    return outputs

  def _end_log_probs(self, x: tf.Tensor, starts: tf.Tensor, p_mask: tf.Tensor) -> tf.Tensor:
    """Log-probabilities of the end for each start: `[B, S, H]`, int32 `[B, K]` → `[B, K, S]`."""
    # Every start is paired with every position, which may be its end.
    at_start = tf.gather(x, starts, batch_dims=1)[:, :, tf.newaxis]  # [B, K, 1, H]
    at_start = tf.tile(at_start, [1, 1, tf.shape(x)[1], 1])
    at_end = tf.tile(x[:, tf.newaxis], [1, tf.shape(starts)[1], 1, 1])
    pairs = tf.concat([at_end, at_start], axis=-1)  # [B, K, S, 2H]
    logits = self.end_dense_1(self.end_norm(self.end_dense_0(pairs)))
    return tf.nn.log_softmax(_masked(tf.squeeze(logits, -1), p_mask[:, tf.newaxis]))

  def _answerability(self, x: tf.Tensor, start_logits: tf.Tensor, seed: Seed) -> tf.Tensor:
    """The logit `[B]` that a question has no answer, from [CLS] and where answers may start."""
    weights = tf.cast(tf.nn.softmax(start_logits), x.dtype)
    summary = tf.linalg.matvec(x, weights, transpose_a=True)  # [B, H]
    hidden = self.answer_dense_0(tf.concat([summary, x[:, 0]], axis=-1))
    logits = self.answer_dense_1(dropout(hidden, self.classifier_dropout, seed))
    return tf.cast(tf.squeeze(logits, -1), tf.float32)


def _masked(logits: tf.Tensor, p_mask: tf.Tensor) -> tf.Tensor:
  """float32 logits; positions with `p_mask` 1 get minus 1e30."""
  p_mask = tf.cast(p_mask, tf.float32)
  return tf.cast(logits, tf.float32) * (1.0 - p_mask) - NEVER * p_mask


def squad_losses(version: str) -> dict[str, Any]:
  """The loss of each output of `SpanHead` (1.1) or, in training, of `Squad2Head` (2.0)."""
  position = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  if version == "1.1":
    return {"start_logits": position, "end_logits": position}
  return {"start_log_probs": position, "end_log_probs": position, "cls_logits": answerability_loss}


@keras.saving.register_keras_serializable("albert_tf")
def answerability_loss(is_impossible: tf.Tensor, cls_logits: tf.Tensor) -> tf.Tensor:
  """Sigmoid cross-entropy of each example, `[B]`; Keras' own loss would average over the batch."""
  labels = tf.cast(tf.reshape(is_impossible, [-1]), tf.float32)
  logits = tf.reshape(cls_logits, [-1])
  return tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
