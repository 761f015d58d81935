"""The most likely words for the blanks of a text, as signatures."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.serving.signatures.base import (
  Parts,
  ServingModule,
  Signatures,
  Tensors,
  graph,
)
from albert_tf.tokenization.word_starts import SPIECE_UNDERLINE as SPACE_MARK

# Positions whose logits are in memory at a time: 30 MB of 30,000 pieces, and the head's products stay large.
_CHUNK = 256


class FillMaskModule(ServingModule):
  """The most likely pieces where a text has "[MASK]".

  Probabilities are those of the whole vocabulary; special pieces are never offered.

  Signatures:
    serving_default: `text` [B] strings → `words` strings and `probabilities` float32 [B, M, K], best
      first, for M masks at most in a text; `num_masks` int32 [B], behind which a row is padding.
      A word is the piece without its "▁". A longer text is cut at the packing's length.
    tokens: ids and `positions` int32 [B, P] → `top_ids` int32 and `top_probabilities` float32, [B, P, K].
    mlm: the same inputs → `mlm_logits` float32 [B, P, V].
    sop: `input_ids`, `input_mask`, `segment_ids` → `sop_log_probs` float32 [B, 2]: the two segments are in
      order, or swapped; of a model with that head.

  K is `ExportSettings.top_k`.
  """

  def __init__(self, parts: Parts):
    super().__init__(parts)
    tokenizer, top_k = parts.tokenizer, parts.settings.top_k
    model = parts.model  # In functions, so that the Keras model is not tracked.
    self._encode: Callable[[Tensors], Tensors] = lambda inputs: model.encoder(inputs, training=False)
    self._head: Callable[[tf.Tensor], tf.Tensor] = lambda rows: model.masked_lm(  # [n, H] → [n, V]
      rows[tf.newaxis], None, model.encoder.embeddings.word_embeddings
    )[0]
    self._has_sentence_order = hasattr(model, "sentence_order")
    self._top_k = top_k
    self._ordinary = np.ones(tokenizer.vocab_size, bool)
    special = [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
    self._ordinary[special] = False
    if not 1 <= top_k <= self._ordinary.sum():
      raise UserError(
        f"top_k must be between 1 and the number of ordinary pieces. Received: {top_k}, with "
        f"{tokenizer.vocab_size} pieces of which {len(set(special))} are special."
      )
    self._words = [piece.removeprefix(SPACE_MARK) or SPACE_MARK for piece in tokenizer.pieces]

  def signatures(self) -> Signatures:
    found = super().signatures() | {"mlm": graph(self.mlm, self.token_inputs())}
    return found | ({"sop": graph(self.sop, super().token_inputs())} if self._has_sentence_order else {})

  def token_inputs(self) -> tuple[tf.TensorSpec, ...]:
    return (*super().token_inputs(), tf.TensorSpec([None, None], tf.int32, name="positions"))

  def text(self, text: tf.Tensor) -> Tensors:
    batch = self.pack(text, allow_mask=True)
    is_mask = batch["input_ids"] == self.tokenizer.mask_id  # [B, S]
    places = tf.RaggedTensor.from_value_rowids(
      tf.where(is_mask)[:, 1], tf.where(is_mask)[:, 0], nrows=tf.shape(text, tf.int64)[0]
    )
    tokens = self.shared(self.tokens, self.token_inputs())
    top = tokens(**batch, positions=tf.cast(places.to_tensor(), tf.int32))
    num_masks = tf.reduce_sum(tf.cast(is_mask, tf.int32), axis=1)
    real = tf.sequence_mask(num_masks, tf.shape(top["top_ids"])[1])[:, :, tf.newaxis]  # [B, M, 1]
    return {
      "words": tf.where(real, tf.gather(tf.constant(self._words), top["top_ids"]), ""),
      "probabilities": tf.where(real, top["top_probabilities"], 0.0),
      "num_masks": num_masks,
    }

  def mlm(
    self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor, positions: tf.Tensor
  ) -> Tensors:
    outputs = self.run_model(input_ids, input_mask, segment_ids, masked_lm_positions=positions)
    return {"mlm_logits": outputs["mlm_logits"] if self._has_sentence_order else outputs}

  def sop(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Tensors:
    none = input_ids[:, :0]
    outputs = self.run_model(input_ids, input_mask, segment_ids, masked_lm_positions=none)
    return {"sop_log_probs": tf.nn.log_softmax(tf.cast(outputs["sop_logits"], tf.float32))}

  def tokens(
    self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor, positions: tf.Tensor
  ) -> Tensors:
    inputs = self.checked(input_ids, input_mask, segment_ids)
    hidden = self._encode({**inputs, "read_positions": positions})["sequence_output"]  # [B, P, H]
    size = hidden.shape[-1]
    ids, probabilities = self._best(tf.reshape(tf.cast(hidden, tf.float32), [-1, size]))
    shape = tf.concat([tf.shape(positions), [self._top_k]], axis=0)
    return {"top_ids": tf.reshape(ids, shape), "top_probabilities": tf.reshape(probabilities, shape)}

  def _best(self, hidden: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Ids and probabilities `[n, K]` of rows `[n, H]`, a chunk at a time: a request may ask for half a million."""
    chunks = tf.maximum(1, -(-tf.shape(hidden)[0] // _CHUNK))

    def array(dtype: tf.DType) -> tf.TensorArray:
      return tf.TensorArray(dtype, size=chunks, infer_shape=False, element_shape=[None, self._top_k])

    def step(i: tf.Tensor, ids: tf.TensorArray, found: tf.TensorArray) -> tuple[Any, ...]:
      logits = self._head(hidden[i * _CHUNK : (i + 1) * _CHUNK])
      probabilities = tf.where(self._ordinary, tf.nn.softmax(logits), -1.0)  # [n, V]
      top = tf.math.top_k(probabilities, k=self._top_k)
      return i + 1, ids.write(i, top.indices), found.write(i, top.values)

    _, ids, probabilities = tf.while_loop(
      lambda i, *_: i < chunks,
      step,
      (tf.constant(0), array(tf.int32), array(tf.float32)),
      parallel_iterations=1,
    )
    return ids.concat(), probabilities.concat()
