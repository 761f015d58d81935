"""Signatures of the encoder."""

import tensorflow as tf

from albert_tf.serving.signatures.base import ServingModule, Signatures, Tensors, strings


class EncoderModule(ServingModule):
  """Vectors of a text.

  Signatures:
    serving_default: `text` [B] strings → the outputs of `tokens`, and `input_ids`, `input_mask` [B, S].
    pairs: `text`, `text_pair` [B] → the same; an empty `text_pair` makes a single segment.
    tokens: `input_ids`, `input_mask`, `segment_ids` [B, S] → `pooled_output` [B, H], `sequence_output`
      [B, S, H], and `mean_output` [B, H], the mean of `sequence_output` over the tokens of the text,
      without [CLS], [SEP] and padding; zeros for a text without tokens.
  """

  def signatures(self) -> Signatures:
    return super().signatures() | {"pairs": self.shared(self.pairs, strings("text", "text_pair"))}

  def text(self, text: tf.Tensor, text_pair: tf.Tensor | None = None) -> Tensors:
    batch = self.pack(text, text_pair)
    shown = {name: batch[name] for name in ("input_ids", "input_mask")}
    return {**self.shared(self.tokens, self.token_inputs())(**batch), **shown}

  def pairs(self, text: tf.Tensor, text_pair: tf.Tensor) -> Tensors:
    return self.text(text, text_pair)

  def tokens(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Tensors:
    outputs = self.run_model(input_ids, input_mask, segment_ids)
    sequence = tf.cast(outputs["sequence_output"], tf.float32)
    special = (input_ids == self.tokenizer.cls_id) | (input_ids == self.tokenizer.sep_id)
    weights = tf.cast((input_mask != 0) & ~special, tf.float32)[:, :, tf.newaxis]  # [B, S, 1]
    mean = tf.math.divide_no_nan(
      tf.reduce_sum(sequence * weights, axis=1), tf.reduce_sum(weights, axis=1)
    )
    pooled = tf.cast(outputs["pooled_output"], tf.float32)
    return {"pooled_output": pooled, "sequence_output": sequence, "mean_output": mean}
