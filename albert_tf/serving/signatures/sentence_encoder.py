"""Signatures of sentence vectors."""

import tensorflow as tf

from albert_tf.serving.signatures.base import ServingModule, Tensors


class SentenceEncoderModule(ServingModule):
  """One vector a text.

  Signatures:
    serving_default: `text` [B] strings → `vector` float32 [B, H].
    tokens: `input_ids`, `input_mask`, `segment_ids` [B, S] → the same.
  """

  def text(self, text: tf.Tensor) -> Tensors:
    return self.shared(self.tokens, self.token_inputs())(**self.pack(text))

  def tokens(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Tensors:
    return {"vector": self.run_model(input_ids, input_mask, segment_ids)}
