"""Signatures of the encoder."""

import tensorflow as tf

from albert_tf.serving.signatures.base import (
  TOKEN_KEYS,
  ServingModule,
  Signatures,
  Tensors,
  ids,
  strings,
)


class EncoderModule(ServingModule):
  """Vectors of a text.

  Signatures:
    serving_default: `text` [B] strings → the outputs of `tokens`, and `input_ids`, `input_mask`
      [B, S].
    pairs: `text`, `text_pair` [B] → the same; an empty `text_pair` makes a single segment.
    tokens: `input_ids`, `input_mask`, `segment_ids` [B, S] → `pooled_output` [B, H],
      `sequence_output` [B, S, H], and `mean_output` [B, H], the mean of `sequence_output` over the
      tokens of the text, without [CLS], [SEP] and padding; zeros for a text without tokens.
  """

  def signatures(self, depth: int | None = None) -> Signatures:
    @self.signature(ids(*TOKEN_KEYS))
    def tokens(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Tensors:
      outputs = self.run_model(input_ids, input_mask, segment_ids, depth=depth)
      return self._vectors(outputs, input_ids, input_mask)

    def vectors_of(batch: Tensors) -> Tensors:
      # A client that looks at a token's vector needs to know which token it is.
      shown = {"input_ids": batch["input_ids"], "input_mask": batch["input_mask"]}
      return tokens(**batch) | shown

    @self.signature(strings("text"))
    def text(text: tf.Tensor) -> Tensors:
      return vectors_of(self.pack(text))

    @self.signature(strings("text", "text_pair"))
    def pairs(text: tf.Tensor, text_pair: tf.Tensor) -> Tensors:
      return vectors_of(self.pack(text, text_pair))

    return {"serving_default": text, "tokens": tokens, "pairs": pairs}

  def _vectors(self, outputs: Tensors, input_ids: tf.Tensor, input_mask: tf.Tensor) -> Tensors:
    sequence = tf.cast(outputs["sequence_output"], tf.float32)
    # The mean leaves out what is not of the text.
    is_special = (input_ids == self.tokenizer.cls_id) | (input_ids == self.tokenizer.sep_id)
    weights = tf.cast((input_mask != 0) & ~is_special, tf.float32)[:, :, tf.newaxis]  # [B, S, 1]
    total = tf.reduce_sum(sequence * weights, axis=1)
    mean = tf.math.divide_no_nan(total, tf.reduce_sum(weights, axis=1))
    pooled = tf.cast(outputs["pooled_output"], tf.float32)
    return {"pooled_output": pooled, "sequence_output": sequence, "mean_output": mean}
