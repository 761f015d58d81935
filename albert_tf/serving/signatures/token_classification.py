"""A tag for every word of a text, as signatures."""

import tensorflow as tf

from albert_tf.serving.signatures.base import (
  Parts,
  ServingModule,
  Signatures,
  Tensors,
  cut,
  graph,
  parse_strings,
  strings,
)
from albert_tf.tokenization.graph_inputs import pack_words, split_words

_OUTSIDE = "O"
_WORD_INPUTS = (tf.TensorSpec([None, None], tf.string, name="words"),)


class TokenClassificationModule(ServingModule):
  """Tags of words. A word's first piece carries its tag; words are encoded one by one, as in training.

  Signatures:
    serving_default: `text` [B] strings, split into words at white space → `words` and `tags` strings,
      `probabilities` float32 of those tags, [B, N] for N words at most in a text; `num_words` int32 [B],
      behind which a row is padding ("" and 0). Words beyond the packing's length have the tag "".
    words: `words` [B, N] strings; "" is padding → the same.
    examples: `inputs` [B] serialized tf.Example with `text` → the same.
    tokens: `input_ids`, `input_mask`, `segment_ids` [B, S] → `tag_probabilities` float32 [B, S, C].
  """

  def __init__(self, parts: Parts):
    super().__init__(parts)
    assert parts.task is not None
    self._names = parts.task.label_names

  def signatures(self) -> Signatures:
    return {
      "serving_default": graph(self.text, strings("text")),
      "words": self.shared(self.words, _WORD_INPUTS),
      "examples": graph(self.examples, strings("inputs")),
      "tokens": self.shared(self.tokens, self.token_inputs()),
    }

  def text(self, text: tf.Tensor) -> Tensors:
    return self.shared(self.words, _WORD_INPUTS)(split_words(cut(text)).to_tensor())

  def words(self, words: tf.Tensor) -> Tensors:
    return self._tag(tf.ragged.boolean_mask(words, words != ""))

  def examples(self, inputs: tf.Tensor) -> Tensors:
    return self.text(**parse_strings(inputs, required=["text"]))

  def tokens(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Tensors:
    return {"tag_probabilities": tf.nn.softmax(self.run_model(input_ids, input_mask, segment_ids))}

  def _tag(self, words: tf.RaggedTensor) -> Tensors:
    """Tags of ragged [B, (words)]."""
    batch, places = pack_words(
      self.tokenizer,
      words.with_flat_values(cut(words.flat_values)),
      max_length=self._max_length,
      pad_to_max_length=self._fixed_length is not None,
    )
    probabilities = self.shared(self.tokens, self.token_inputs())(**batch)["tag_probabilities"]  # [B, S, C]
    at = tf.gather(probabilities, places.position, batch_dims=1)  # [B, N, C]
    without = _OUTSIDE if _OUTSIDE in self._names else self._names[0]
    tags = tf.where(places.has_token, tf.gather(tf.constant(self._names), tf.argmax(at, axis=-1)), without)
    real = tf.sequence_mask(words.row_lengths(), tf.shape(places.position)[1]) & places.fits
    return {
      "words": words.to_tensor(),
      "tags": tf.where(real, tags, ""),
      "probabilities": tf.where(real & places.has_token, tf.reduce_max(at, axis=-1), 0.0),
      "num_words": tf.cast(words.row_lengths(), tf.int32),
    }
