"""Signatures of the encoder."""

import tensorflow as tf

from albert_tf.serving.signatures.base import ServingModule, Signatures, Tensors, signature, strings


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

  def signatures(self) -> Signatures:
    pairs = signature(self.text, strings("text", "text_pair"))
    return super().signatures() | {"pairs": pairs}

  def text(self, text: tf.Tensor, text_pair: tf.Tensor | None = None) -> Tensors:
    batch = self.pack(text, text_pair)
    vectors = self.functions["tokens"](**batch)
    # A client that looks at a token's vector needs to know which token it is.
    return vectors | {"input_ids": batch["input_ids"], "input_mask": batch["input_mask"]}

  def tokens(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Tensors:
    outputs = self.run_model(input_ids, input_mask, segment_ids)
    sequence = tf.cast(outputs["sequence_output"], tf.float32)
    # The mean leaves out what is not of the text.
    is_special = (input_ids == self.tokenizer.cls_id) | (input_ids == self.tokenizer.sep_id)
    weights = tf.cast((input_mask != 0) & ~is_special, tf.float32)[:, :, tf.newaxis]  # [B, S, 1]
    total = tf.reduce_sum(sequence * weights, axis=1)
    mean = tf.math.divide_no_nan(total, tf.reduce_sum(weights, axis=1))
    pooled = tf.cast(outputs["pooled_output"], tf.float32)
    return {"pooled_output": pooled, "sequence_output": sequence, "mean_output": mean}
