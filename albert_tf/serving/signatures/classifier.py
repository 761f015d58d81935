"""Signatures of classification, multi-label classification, regression and sentence vectors."""

import tensorflow as tf

from albert_tf.serving.signatures.base import ServingModule, Signatures, Tensors, signature, strings


class ClassifierModule(ServingModule):
  """What a text or a pair of texts is as a whole: its class, its labels, its value or its vector.

  Signatures of a classifier:
    serving_default: `text` [B] strings, for a task of pairs `text_pair` [B] too → `probabilities`
      [B, C], `label_names` strings [B, C] (the same in every row), `predictions` int32 [B], `label`
      strings [B].
    tokens: `input_ids`, `input_mask`, `segment_ids` [B, S] → the same.

  Multi-label signatures: the same inputs → `probabilities` [B, C], each of its own sigmoid,
  `label_names`, and `above_threshold` bool [B, C].

  Signatures of a regression: the same inputs → `value` [B].

  Signatures of sentence vectors: the same inputs → `vector` float32 [B, H].
  """

  def signatures(self) -> Signatures:
    table = super().signatures()
    if self.task.pair:
      table["serving_default"] = signature(self.text, strings("text", "text_pair"))
    return table

  def text(self, text: tf.Tensor, text_pair: tf.Tensor | None = None) -> Tensors:
    return self.functions["tokens"](**self.pack(text, text_pair))

  def tokens(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Tensors:
    outputs = self.run_model(input_ids, input_mask, segment_ids)
    if self.task.kind == "sentence_vectors":
      return {"vector": outputs}  # [B, H]
    if self.task.kind == "regression":
      return {"value": outputs[:, 0]}  # Of [B, 1].

    logits = outputs  # [B, C]
    # In every row, so that TensorFlow Serving can answer row by row.
    names = tf.constant(self.task.label_names)
    label_names = tf.tile(names[tf.newaxis], [tf.shape(logits)[0], 1])
    if self.task.kind == "multi_label":
      probabilities = tf.sigmoid(logits)
      return {
        "probabilities": probabilities,
        "label_names": label_names,
        "above_threshold": probabilities >= (self.task.thresholds or 0.5),
      }
    best = tf.argmax(logits, axis=-1, output_type=tf.int32)
    return {
      "probabilities": tf.nn.softmax(logits),
      "label_names": label_names,
      "predictions": best,
      "label": tf.gather(names, best),
    }
