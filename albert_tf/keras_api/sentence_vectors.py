"""Sentence vectors, and the losses that train them."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.keras_api.labels import as_array, finite
from albert_tf.keras_api.task_model import TaskModel
from albert_tf.modeling.encoder import Inputs, text_inputs


@keras.saving.register_keras_serializable("albert_tf")
class AlbertSentenceEncoder(TaskModel):
  r"""One vector of length 1 for each text: the mean $\sum_s m_s x_s / \sum_s m_s$, scaled.

  $m$ is the mask.

  Args:
    config: the encoder's configuration.
    task: `pooling="cls"` takes $x_0$ and not the mean; `normalize=False` does not scale.
      `from_pretrained` has both as arguments. The mean includes [CLS] and [SEP].

  Call args:
    inputs: those of `AlbertEncoder`, `[B, S]`, or `[B, N, S]` for N texts in each example; with a
      preprocessor texts `[B]`, or a tuple: text, positive and perhaps hard negative.

  Returns:
    float32 `[B, H]`, or `[B, N, H]`, which a loss of yours gets too. H is the encoder's width, 768
    of base; nothing trains shorter vectors.

  Reference: Reimers and Gurevych 2019, arXiv 1908.10084, section 3.
  """

  task_kinds = ("sentence_vectors",)
  preprocessor_kind = "sentences"
  id_ranks = (2, 3)
  checkpoint_heads = ()
  labels_in_words = "a group number (np.arange(n) for InBatchNegatives) or a similarity"
  _joins_rows = True

  def _make_head(self, **options: Any) -> Any:
    # Nothing to train. `build` makes Keras' summary complete.
    head = keras.layers.Identity(**options)
    head.build((None, self.config.hidden_size))
    return head

  def _answer(self, encoded: tf.Tensor, inputs: Inputs, **options: Any) -> tf.Tensor:
    texts = text_inputs(inputs)
    mask = texts.get("input_mask", tf.ones_like(texts["input_ids"]))  # [B, S] or [B, N, S]
    x = tf.cast(encoded, tf.float32)  # [B N, S, H]
    weights = tf.reshape(tf.cast(mask, tf.float32), tf.shape(encoded)[:2])
    vectors = x[:, 0]
    if self.task.pooling == "mean":
      total = tf.linalg.matvec(x, weights, transpose_a=True)  # [B N, H]
      # A row that only fills a batch up has no token.
      vectors = tf.math.divide_no_nan(total, tf.reduce_sum(weights, axis=1, keepdims=True))
    if self.task.normalize:
      vectors = tf.math.l2_normalize(vectors, axis=-1)
    return tf.reshape(vectors, tf.concat([tf.shape(mask)[:-1], [self.config.hidden_size]], axis=0))

  def checked_labels(self, labels: Any, inputs: Any) -> Any:
    """Group numbers, or similarities in the range of the loss."""
    labels = finite(as_array(labels))
    if self._loss_object() is cosine_regression:
      is_wrong = (labels < 0) | (labels > 1)
      if is_wrong.any():
        raise UserError(
          "cosine_regression compares a cosine with a similarity from 0 to 1. Received: "
          f"{labels[is_wrong][0]}. Scale the scores; those from 0 to 5 are divided by 5."
        )
    return labels

  def encode(self, texts: Sequence[str], *, batch_size: int = 32) -> np.ndarray:
    """The vectors of n texts, float32 `[n, H]`, in order; texts of similar length share a batch.

    An index for search needs its inner product, which is the cosine of vectors of length 1.

    Raises:
      UserError: `texts` are no list of strings, but for example one string.
    """
    columns = self.columns({"text": texts})
    if not len(columns["text"]):
      return np.zeros([0, self.config.hidden_size], np.float32)
    return self.predict(columns, batch_size=batch_size, verbose=0)


@keras.saving.register_keras_serializable("albert_tf")
class InBatchNegatives(keras.losses.Loss):
  r"""Loss $-\log \frac{\exp(\cos(a_i, p_i) / \tau)}{\sum_j \exp(\cos(a_i, c_j) / \tau)}$.

  Candidates $c_j$ are the positives and hard negatives of all replicas, which need equal numbers
  of rows. So larger batches are harder, and one pair alone has the loss 0. With
  `gradient_accumulation_steps` the candidates are those of a micro-batch: another, easier loss. It
  is not symmetric: no text is a candidate of a positive.

  Args:
    temperature: τ.

  Call args:
    y_true: `[B]` or `[B, 1]`, group numbers below 2^24. Rows of one group are not negatives of each
      other; for other rows they are one negative.
    y_pred: `[B, N, H]`: text, positive and perhaps hard negatives.

  Returns:
    float32 `[B]`.

  Example: the groups 3 1 3 have the candidates of

      row 0 (group 3): rows 0 1      its own row, and the group 1
      row 1 (group 1): rows 0 1      the group 3 counts once, with its first row
      row 2 (group 3): rows 1 2

  Reference: van den Oord et al. 2018, arXiv 1807.03748, equation 4; Henderson et al. 2017,
  arXiv 1705.00652, section 4.
  """

  def __init__(self, temperature: float = 0.05, name: str = "in_batch_negatives", **kwargs: Any):
    super().__init__(name=name, **kwargs)
    self.temperature = temperature

  def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    vectors = tf.math.l2_normalize(tf.cast(y_pred, tf.float32), axis=-1)
    groups = tf.reshape(tf.cast(y_true, tf.float32), [-1])  # [B]

    # The candidates of the global batch's G rows.
    candidates, first_row = _of_all_replicas(vectors[:, 1:])  # [G, N - 1, H]
    all_groups, _ = _of_all_replicas(groups)

    # Which rows' candidates a row is compared with, [B, G]: its own, and one of each other group.
    row_numbers = tf.range(tf.size(all_groups))
    is_positive = (tf.range(tf.size(groups)) + first_row)[:, tf.newaxis] == row_numbers
    first_of_group = tf.argmax(
      all_groups[:, tf.newaxis] == all_groups, axis=1, output_type=tf.int32
    )
    is_negative = (first_of_group == row_numbers) & (groups[:, tf.newaxis] != all_groups)
    is_candidate = (is_positive | is_negative)[:, tf.newaxis]

    # The softmax over all candidates; the logarithm of the positive's share.
    similarity = tf.einsum("bh,gnh->bng", vectors[:, 0], candidates) / self.temperature
    positive = tf.reduce_sum(tf.where(is_positive, similarity[:, 0], 0.0), axis=1)
    return tf.reduce_logsumexp(tf.where(is_candidate, similarity, -1e9), axis=[1, 2]) - positive

  def get_config(self) -> dict[str, Any]:
    return super().get_config() | {"temperature": self.temperature}


def _of_all_replicas(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """The rows of all replicas in order, and the index of this replica's first row.

  It is a sum over replicas, which has a gradient and a static shape. With two replicas:

      replica 0: a b → a b 0 0
      replica 1: c d → 0 0 c d      sum: a b c d
  """
  context = tf.distribute.get_replica_context()
  count = tf.distribute.get_strategy().num_replicas_in_sync
  if context is None or count == 1:
    return x, tf.constant(0)
  replica = context.replica_id_in_sync_group
  is_here = tf.one_hot(replica, count, dtype=x.dtype)
  placed = tf.tensordot(is_here, x, axes=0)  # [replicas, B, …]
  everything = context.all_reduce(tf.distribute.ReduceOp.SUM, placed)
  rows = tf.reshape(everything, tf.concat([[-1], tf.shape(x)[1:]], axis=0))
  return rows, replica * tf.shape(x)[0]


@keras.saving.register_keras_serializable("albert_tf")
def cosine_regression(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
  """Squared difference of the cosine of `[B, 2, H]` and a similarity from 0 to 1, `[B]`.

  Reference: arXiv 1908.10084, section 3.1.
  """
  vectors = tf.math.l2_normalize(tf.cast(y_pred, tf.float32), axis=-1)
  first, second = tf.unstack(vectors, num=2, axis=1)
  cosine = tf.reduce_sum(first * second, axis=-1)
  return tf.square(cosine - tf.reshape(tf.cast(y_true, tf.float32), [-1]))
