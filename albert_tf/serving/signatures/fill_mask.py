"""Signatures of masked LM: the most likely tokens at the masks of a text."""

import functools

import numpy as np
import tensorflow as tf

from albert_tf.serving.signatures.base import (
  TOKEN_KEYS,
  Parts,
  ServingModule,
  Signatures,
  Tensors,
  ids,
)
from albert_tf.tokenization.word_starts import SPIECE_UNDERLINE as SPACE_MARK
from albert_tf.windows.text_windows import in_chunks

# Positions with logits in memory at a time: 30 MB for 30,000 tokens, and matrix products stay large.
_CHUNK = 256


class FillMaskModule(ServingModule):
  """The most likely tokens at each "[MASK]" of a text.

  Probabilities are over the whole vocabulary; answers are never special tokens.

  Signatures:
    serving_default: `text` [B] strings → `words` strings and `probabilities` float32 [B, M, K], best
      first, M the largest number of masks in a text; `num_masks` int32 [B], after which a row is padding.
      A word is a token without its "▁". Texts are cut to `max_seq_length`.
    tokens: ids and `positions` int32 [B, P] → `top_ids` int32 and `top_probabilities` float32, [B, P, K].
    mlm: the same inputs → `mlm_logits` float32 [B, P, V].

  K is `ExportSettings.top_k`.
  """

  def __init__(self, parts: Parts):
    super().__init__(parts)
    tokenizer, self._top_k = parts.tokenizer, parts.settings.top_k
    self._ordinary = np.ones(tokenizer.vocab_size, bool)
    special = [
      tokenizer.pad_id,
      tokenizer.unk_id,
      tokenizer.cls_id,
      tokenizer.sep_id,
      tokenizer.mask_id,
    ]
    self._ordinary[special] = False
    self._words = [piece.removeprefix(SPACE_MARK) or SPACE_MARK for piece in tokenizer.pieces]

  def signatures(self) -> Signatures:
    return super().signatures() | {"mlm": self.shared(self.mlm, self.token_inputs())}

  def token_inputs(self) -> tuple[tf.TensorSpec, ...]:
    return ids(*TOKEN_KEYS, "positions")

  def text(self, text: tf.Tensor) -> Tensors:
    batch = self.pack(text, allow_mask=True)
    positions = batch.pop("masked_lm_positions")
    top = self.shared(self.tokens, self.token_inputs())(**batch, positions=positions)
    num_masks = tf.reduce_sum(
      tf.cast(batch["input_ids"] == self.tokenizer.mask_id, tf.int32), axis=1
    )
    real = tf.sequence_mask(num_masks, tf.shape(top["top_ids"])[1])[:, :, tf.newaxis]  # [B, M, 1]
    return {
      "words": tf.where(real, tf.gather(tf.constant(self._words), top["top_ids"]), ""),
      "probabilities": tf.where(real, top["top_probabilities"], 0.0),
      "num_masks": num_masks,
    }

  def mlm(
    self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor, positions: tf.Tensor
  ) -> Tensors:
    return {
      "mlm_logits": self.run_model(
        input_ids, input_mask, segment_ids, masked_lm_positions=positions
      )
    }

  def tokens(
    self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor, positions: tf.Tensor
  ) -> Tensors:
    inputs = self.checked(input_ids, input_mask, segment_ids)
    encode = functools.partial(self._parts.model.encoder, training=False, depth=self._parts.depth)
    hidden = encode({**inputs, "read_positions": positions})["sequence_output"]  # [B, P, H]
    rows = {"hidden": tf.reshape(tf.cast(hidden, tf.float32), [-1, hidden.shape[-1]])}
    outputs = {
      "top_ids": tf.TensorSpec([None, self._top_k], tf.int32),
      "top_probabilities": tf.TensorSpec([None, self._top_k], tf.float32),
    }
    best = in_chunks(
      self._best, rows, outputs, size=_CHUNK
    )  # A request may have half a million positions.
    shape = tf.concat([tf.shape(positions), [self._top_k]], axis=0)
    return {name: tf.reshape(tensor, shape) for name, tensor in best.items()}

  def _best(self, rows: Tensors) -> Tensors:
    """Ids and probabilities `[n, K]` of rows `[n, H]`."""
    model = self._parts.model
    embeddings = model.encoder.embeddings.word_embeddings
    logits = model.masked_lm(rows["hidden"][tf.newaxis], None, embeddings)[0]  # [n, V]
    probabilities = tf.where(self._ordinary, tf.nn.softmax(logits), -1.0)
    top = tf.math.top_k(probabilities, k=self._top_k)
    return {"top_ids": top.indices, "top_probabilities": top.values}
