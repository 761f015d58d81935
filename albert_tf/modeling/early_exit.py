"""Answers that stop when they are sure: a finished text leaves the batch between two layers.

ALBERT applies one block again and again, so one head reads the output of any layer. `keras_api` and the
signature `early_exit` of SavedModels answer with it.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from albert_tf.modeling.encoder import Encoder

# (what heads read of R texts, their mask [R, S]) → the head's output [R, …].
Head = Callable[[dict[str, tf.Tensor], tf.Tensor], tf.Tensor]


class EarlyOutputs(NamedTuple):
  """The head's outputs `[B, …]` in the order of the input, and the layers that each text took.

  `layers` is int32 `[B]`.
  """

  outputs: Any
  layers: Any


class ExitRule(abc.ABC):
  """How a kind of output is sure, and how far it is from that of all layers."""

  @abc.abstractmethod
  def confidence(self, outputs: tf.Tensor, before: tf.Tensor | None) -> tf.Tensor:
    """Confidence in [0, 1], `[R]`, of outputs `[R, …]`.

    Args:
      before: the outputs of the same texts at the depth before; None at the first depth.
    """

  @abc.abstractmethod
  def distance(self, outputs: tf.Tensor, deepest: tf.Tensor) -> tf.Tensor:
    """How far outputs are from the deepest ones, `[R]`; 0 where they are equal."""


class ClassRule(ExitRule):
  """Logits of classes that exclude each other: the largest probability; KL(deepest ‖ outputs)."""

  def confidence(self, outputs: tf.Tensor, before: tf.Tensor | None) -> tf.Tensor:
    return tf.reduce_max(tf.nn.softmax(outputs), axis=-1)

  def distance(self, outputs: tf.Tensor, deepest: tf.Tensor) -> tf.Tensor:
    log_ratio = tf.nn.log_softmax(deepest) - tf.nn.log_softmax(outputs)
    return tf.reduce_sum(tf.nn.softmax(deepest) * log_ratio, axis=-1)


class LabelRule(ExitRule):
  """Logits of labels that do not exclude each other: the least certain decision; the sum of KLs."""

  def confidence(self, outputs: tf.Tensor, before: tf.Tensor | None) -> tf.Tensor:
    return tf.reduce_min(tf.sigmoid(tf.abs(outputs)), axis=-1)

  def distance(self, outputs: tf.Tensor, deepest: tf.Tensor) -> tf.Tensor:
    # The cross-entropy less the entropy.
    probabilities = tf.sigmoid(deepest)
    cross_entropy = tf.nn.sigmoid_cross_entropy_with_logits(probabilities, outputs)
    entropy = tf.nn.sigmoid_cross_entropy_with_logits(probabilities, deepest)
    return tf.reduce_sum(cross_entropy - entropy, axis=-1)


class ValueRule(ExitRule):
  r"""A value: $1 / (1 + |v - v'|)$ with the value at the depth before; the squared difference.

  A value has no probability. It is sure when more layers hardly change it: after a change of 0.1
  the confidence is 0.91.
  """

  def confidence(self, outputs: tf.Tensor, before: tf.Tensor | None) -> tf.Tensor:
    if before is None:
      return tf.zeros(tf.shape(outputs)[:1])
    return 1.0 / (1.0 + tf.abs(outputs[:, 0] - before[:, 0]))

  def distance(self, outputs: tf.Tensor, deepest: tf.Tensor) -> tf.Tensor:
    return tf.square(outputs[:, 0] - deepest[:, 0])


class VectorRule(ExitRule):
  """Vectors `[R, H]`, or `[R, N, H]` of N texts each: the cosine with those at the depth before.

  The confidence is `[R, N]` then. The distance is 1 less the mean cosine of the N texts.
  """

  def confidence(self, outputs: tf.Tensor, before: tf.Tensor | None) -> tf.Tensor:
    if before is None:
      return tf.zeros(tf.shape(outputs)[:-1])
    return tf.clip_by_value(_cosines(outputs, before), 0.0, 1.0)

  def distance(self, outputs: tf.Tensor, deepest: tf.Tensor) -> tf.Tensor:
    cosines = _cosines(outputs, deepest)
    return 1.0 - tf.reduce_mean(tf.reshape(cosines, [tf.shape(cosines)[0], -1]), axis=1)


def _cosines(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
  products = tf.math.l2_normalize(a, axis=-1) * tf.math.l2_normalize(b, axis=-1)
  return tf.reduce_sum(products, axis=-1)


# Kind of task → its rule. Other kinds answer with a place in a text, and have none.
EXIT_RULES: dict[str, ExitRule] = {
  "classification": ClassRule(),
  "multi_label": LabelRule(),
  "regression": ValueRule(),
  "sentence_vectors": VectorRule(),
}


def answer_early(
  encoder: Encoder,
  inputs: dict[str, tf.Tensor],
  *,
  depths: Sequence[int],
  head: Head,
  rule: ExitRule,
  threshold: tf.Tensor,
  reads_cls_alone: bool = False,
) -> EarlyOutputs:
  """Each text's output at the first of `depths` where its confidence is above the threshold, else at the last.

  Example, with depths 4, 8 and 12 and a threshold of 0.9:

      confidence of   text 0   text 1   text 2
      after 4 layers    0.95     0.60     0.70   text 0 leaves; two rows go on
      after 8 layers             0.70     0.92   text 2 leaves
      after 12 layers            0.80            the last depth: text 1 leaves

  Finished in the order 0, 2, 1; the layers are 4, 12, 8.

  Args:
    encoder: its layers share one block.
    inputs: as `Encoder` takes them, `[B, S]`.
    depths: numbers of layers, ascending; the heads were trained at these.
    head: reads the outputs of R texts.
    rule: decides which of them are finished.
    threshold: float32 `[B]`; 1 means all layers, as no confidence is above it.
    reads_cls_alone: whether the head reads no other token, so that the very last block need not
      compute them.

  Returns:
    See `EarlyOutputs`. No operation of control flow: with no row left, layers compute nothing.
  """
  _, x, layout = encoder.embed(inputs)
  rows = tf.range(tf.shape(layout.mask)[0])  # Which texts of the input are still here.
  num_done = 0
  before = None
  finished_rows = []
  finished_outputs = []
  finished_layers = []
  for number, depth in enumerate(depths):
    is_last = number == len(depths) - 1
    seeds = [None] * (depth - num_done)
    if is_last and reads_cls_alone:
      cls_alone = tf.zeros_like(layout.mask[:, :1])
      read = encoder.run_last(x, layout, seeds, cls_alone, first=num_done)
    else:
      x = encoder.run_blocks(x, layout, seeds, first=num_done)[-1]
      read = encoder.read(x, layout)
    num_done = depth
    outputs = head(read, layout.mask)

    # The texts that are finished here.
    if is_last:
      is_finished = tf.ones_like(rows, tf.bool)
    else:
      is_finished = rule.confidence(outputs, before) > threshold
    finished_rows.append(tf.boolean_mask(rows, is_finished))
    finished_outputs.append(tf.boolean_mask(outputs, is_finished))
    finished_layers.append(tf.fill(tf.shape(finished_rows[-1]), depth))

    # The others go on.
    if not is_last:
      others = tf.where(~is_finished)[:, 0]
      x, layout = layout.only(x, others)
      rows = tf.gather(rows, others)
      threshold = tf.gather(threshold, others)
      before = tf.gather(outputs, others)

  # Back in the order of the input: row i finished at place[i].
  place = tf.math.invert_permutation(tf.concat(finished_rows, axis=0))
  return EarlyOutputs(
    outputs=tf.gather(tf.concat(finished_outputs, axis=0), place),
    layers=tf.gather(tf.concat(finished_layers, axis=0), place),
  )
