"""Signatures of masked LM: the most likely tokens at the masks of a text."""

from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.serving.signatures.base import (
  TOKEN_KEYS,
  ServedModel,
  ServingModule,
  Signatures,
  Tensors,
  assert_below,
  depths_of,
  ids,
  strings,
)
from albert_tf.tokenization.word_starts import SPIECE_UNDERLINE as SPACE_MARK
from albert_tf.windows.text_windows import in_chunks

# Positions with logits in memory at a time: 30 MB for 30,000 tokens, and matrix products stay large.
_CHUNK = 256


class FillMaskModule(ServingModule):
  """The most likely tokens at each "[MASK]" of a text.

  Probabilities are over the whole vocabulary; answers are never special tokens.

  Signatures:
    serving_default: `text` [B] strings → `words` strings and `probabilities` float32 [B, M, K],
      best first, M the largest number of masks in a text; `num_masks` int32 [B], after which a row
      is padding. A word is a token without its "▁". Texts are cut to `max_seq_length`.
    tokens: ids and `positions` int32 [B, P] → `top_ids` int32 and `top_probabilities` float32,
      [B, P, K].
    mlm: the same inputs → `mlm_logits` float32 [B, P, V].

  K is `ExportSettings.top_k`.
  """

  def __init__(self, served: ServedModel):
    super().__init__(served)
    # Special tokens count in the softmax, but they are no words.
    tokenizer = served.model.preprocessor.tokenizer
    self.is_word = np.ones(tokenizer.vocab_size, bool)
    self.is_word[tokenizer.special_ids] = False
    num_words = int(self.is_word.sum())
    if served.settings.top_k > num_words:
      raise UserError(
        f"top_k must be at most {num_words:,}, the tokens of the vocabulary without the special "
        f"ones. Received: {served.settings.top_k}. Give a smaller top_k."
      )

  def signatures(self, depth: int | None = None) -> Signatures:
    @self.signature(ids(*TOKEN_KEYS, "positions"))
    def mlm(
      input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor, positions: tf.Tensor
    ) -> Tensors:
      logits = self.run_model(
        input_ids, input_mask, segment_ids, masked_lm_positions=positions, depth=depth
      )
      return {"mlm_logits": logits}

    @self.signature(ids(*TOKEN_KEYS, "positions"))
    def tokens(
      input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor, positions: tf.Tensor
    ) -> Tensors:
      inputs = self.checked(input_ids, input_mask, segment_ids)
      return self._best_tokens(inputs, positions, depth)

    @self.signature(strings("text"))
    def text(text: tf.Tensor) -> Tensors:
      return self._best_words(tokens, text)

    return {"serving_default": text, "tokens": tokens, "mlm": mlm}

  def _best_words(self, tokens: Any, text: tf.Tensor) -> Tensors:
    """The best words of texts, from what the signature `tokens` gives."""
    batch = self.pack(text, allow_mask=True)
    batch["positions"] = batch.pop("masked_lm_positions")
    top = tokens(**batch)
    is_mask = batch["input_ids"] == self.tokenizer.mask_id
    num_masks = tf.reduce_sum(tf.cast(is_mask, tf.int32), axis=1)
    # A text with fewer masks than the longest row has padding behind its own.
    is_answer = tf.sequence_mask(num_masks, tf.shape(top["top_ids"])[1])[:, :, tf.newaxis]
    pieces = self.served.model.preprocessor.tokenizer.pieces
    # A lone "▁" stays, as nothing would be left of it.
    words = tf.constant([piece.removeprefix(SPACE_MARK) or SPACE_MARK for piece in pieces])
    return {
      "words": tf.where(is_answer, tf.gather(words, top["top_ids"]), ""),
      "probabilities": tf.where(is_answer, top["top_probabilities"], 0.0),
      "num_masks": num_masks,
    }

  def _best_tokens(self, inputs: Tensors, positions: tf.Tensor, depth: int | None) -> Tensors:
    """`top_ids` and `top_probabilities` `[B, P, K]` at positions `[B, P]`."""
    # Of these there may be more than positions in a row.
    check = assert_below(tf.shape(inputs["input_ids"])[1], positions, "positions")
    with tf.control_dependencies([check]):
      positions = tf.identity(positions)
    inputs = inputs | {"read_positions": positions}
    outputs = self.served.model.encoder(inputs, training=False, depths=depths_of(depth))
    hidden = tf.cast(outputs["sequence_output"], tf.float32)  # [B, P, H]

    # A request may have half a million positions: they pass the head in chunks.
    top_k = self.served.settings.top_k
    best = in_chunks(
      self._best,
      {"hidden": tf.reshape(hidden, [-1, hidden.shape[-1]])},
      {
        "top_ids": tf.TensorSpec([None, top_k], tf.int32),
        "top_probabilities": tf.TensorSpec([None, top_k], tf.float32),
      },
      size=_CHUNK,
    )
    shape = tf.concat([tf.shape(positions), [top_k]], axis=0)
    return {name: tf.reshape(tensor, shape) for name, tensor in best.items()}

  def _best(self, rows: Tensors) -> Tensors:
    """Ids and probabilities `[n, K]` of rows `[n, H]`."""
    model = self.served.model
    embeddings = model.encoder.embeddings.word_embeddings
    logits = model.masked_lm(rows["hidden"][tf.newaxis], None, embeddings)[0]  # [n, V]
    probabilities = tf.where(self.is_word, tf.nn.softmax(logits), -1.0)
    top = tf.math.top_k(probabilities, k=self.served.settings.top_k)
    return {"top_ids": top.indices, "top_probabilities": top.values}
