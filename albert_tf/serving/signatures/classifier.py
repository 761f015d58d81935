"""Signatures of classification, multi-label classification, regression and sentence vectors."""

from typing import Any

import tensorflow as tf

from albert_tf.serving.signatures.base import (
  TOKEN_KEYS,
  ServingModule,
  Signatures,
  Tensors,
  ids,
  strings,
)


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

  A model that was trained at several depths has one more signature.
    early_exit: the strings, and `threshold` float32 [B] or [1] → the same answers, and `layers`
      int32 [B]. Without `threshold` it is the task's. See `TaskModel.predict_early`.
  """

  def signatures(self, depth: int | None = None) -> Signatures:
    @self.signature(ids(*TOKEN_KEYS))
    def tokens(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Tensors:
      return self._answers(self.run_model(input_ids, input_mask, segment_ids, depth=depth))

    text_inputs = strings("text", "text_pair") if self.task.pair else strings("text")

    @self.signature(text_inputs)
    def text(text: tf.Tensor, text_pair: tf.Tensor | None = None) -> Tensors:
      return tokens(**self.pack(text, text_pair))

    functions = {"serving_default": text, "tokens": tokens}
    exit_depths = self.served.model.exit_depths(depth)
    if len(exit_depths) > 1:
      functions["early_exit"] = self._early_exit(exit_depths)
    return functions

  def _early_exit(self, depths: list[int]) -> Any:
    """The signature of answers that stop early."""
    # The default of the argument is that of the input, for servers too.
    stored = tf.constant([self.task.exit_threshold])
    threshold_input = tf.TensorSpec([None], tf.float32, name="threshold")

    def early(batch: Tensors, threshold: tf.Tensor) -> Tensors:
      message = "threshold must be from 0 to 1; 1 means all layers."
      is_valid = tf.reduce_all((threshold >= 0) & (threshold <= 1))
      with tf.control_dependencies([tf.debugging.assert_equal(is_valid, True, message=message)]):
        inputs = self.checked(*[batch[key] for key in TOKEN_KEYS])
      outputs, layers = self.served.model.early_outputs(inputs, threshold, depths=depths)
      return self._answers(outputs) | {"layers": layers}

    if self.task.pair:

      @self.signature((*strings("text", "text_pair"), threshold_input))
      def of_pairs(text: tf.Tensor, text_pair: tf.Tensor, threshold: tf.Tensor = stored) -> Tensors:
        return early(self.pack(text, text_pair), threshold)

      return of_pairs

    @self.signature((*strings("text"), threshold_input))
    def of_texts(text: tf.Tensor, threshold: tf.Tensor = stored) -> Tensors:
      return early(self.pack(text), threshold)

    return of_texts

  def _answers(self, outputs: tf.Tensor) -> Tensors:
    """From the outputs of the model to those of the signatures."""
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
