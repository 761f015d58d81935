"""Signatures of classification, multi-label classification and regression."""

import tensorflow as tf

from albert_tf.serving.signatures.base import ServingModule, Tensors, strings


class ClassifierModule(ServingModule):
  """The class, the labels or the value of a text or of a pair of texts.

  Signatures of a classifier:
    serving_default: `text` [B] strings, for a task of pairs `text_pair` [B] too → `probabilities` [B, C],
      `label_names` strings [B, C] (the same in every row), `predictions` int32 [B], `label` strings [B].
    tokens: `input_ids`, `input_mask`, `segment_ids` [B, S] → the same.

  Multi-label signatures: the same inputs → `probabilities` [B, C], each of its own sigmoid, `label_names`, and
  `above_threshold` bool [B, C].

  Signatures of a regression: the same inputs → `value` [B].
  """

  def text_inputs(self) -> tuple[tf.TensorSpec, ...]:
    return strings("text", "text_pair") if self.task.pair else strings("text")

  def text(self, text: tf.Tensor, text_pair: tf.Tensor | None = None) -> Tensors:
    return self.shared(self.tokens, self.token_inputs())(**self.pack(text, text_pair))

  def tokens(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Tensors:
    logits = self.run_model(input_ids, input_mask, segment_ids)  # [B, C]
    if self.task.kind == "regression":
      return {"value": logits[:, 0]}
    names = tf.constant(self.task.label_names)
    named = {"label_names": tf.tile(names[tf.newaxis], [tf.shape(logits)[0], 1])}
    if self.task.kind == "multi_label":
      each = tf.sigmoid(logits)
      return {
        "probabilities": each,
        **named,
        "above_threshold": each >= (self.task.thresholds or 0.5),
      }
    best = tf.argmax(logits, axis=-1, output_type=tf.int32)
    return {
      "probabilities": tf.nn.softmax(logits),
      **named,
      "predictions": best,
      "label": tf.gather(names, best),
    }
