"""A tag for every word of a text, as signatures."""

import tensorflow as tf

from albert_tf.serving.signatures.base import (
  Parts,
  ServingModule,
  Signatures,
  Tensors,
  at_least,
  cut,
  graph,
  parse_strings,
  strings,
)
from albert_tf.tokenization import unicode_tables
from albert_tf.tokenization.graph_packing import head

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
    self._budget = self._max_length - 2

  def signatures(self) -> Signatures:
    return {
      "serving_default": graph(self.text, strings("text")),
      "words": self.shared(self.words, _WORD_INPUTS),
      "examples": graph(self.examples, strings("inputs")),
      "tokens": self.shared(self.tokens, self.token_inputs()),
    }

  def text(self, text: tf.Tensor) -> Tensors:
    spaced = tf.strings.regex_replace(cut(text), f"[{unicode_tables.space_class()}]+", " ")
    spaced = tf.strings.regex_replace(spaced, "^ | $", "")
    words = tf.strings.split(spaced, sep=" ")
    return self.shared(self.words, _WORD_INPUTS)(tf.ragged.boolean_mask(words, words != "").to_tensor())

  def words(self, words: tf.Tensor) -> Tensors:
    return self._tag(tf.ragged.boolean_mask(words, words != ""))

  def examples(self, inputs: tf.Tensor) -> Tensors:
    return self.text(**parse_strings(inputs, required=["text"]))

  def tokens(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Tensors:
    return {"tag_probabilities": tf.nn.softmax(self.run_model(input_ids, input_mask, segment_ids))}

  def _tag(self, words: tf.RaggedTensor) -> Tensors:
    """Tags of ragged [B, (words)]."""
    pieces = self.tokenizer.tokenize(cut(words.flat_values))  # [all words, (length)]
    pieces = head(pieces, tf.minimum(pieces.row_lengths(), self._budget))
    widths = words.with_flat_values(pieces.row_lengths())
    place = tf.cumsum(widths.to_tensor(), axis=1, exclusive=True)  # [B, N] of the first piece, without [CLS]
    ids = words.with_flat_values(pieces).merge_dims(1, 2)
    # The last word that does not fit whole is cut away, so that no tag is of half a word.
    fits = place + widths.to_tensor() <= self._budget
    kept = tf.reduce_sum(tf.where(fits, widths.to_tensor(), 0), axis=1)
    batch = at_least(self.tokenizer.pack(head(ids, kept), length=self._fixed_length), 1)
    probabilities = self.shared(self.tokens, self.token_inputs())(**batch)["tag_probabilities"]  # [B, S, C]
    at = tf.gather(probabilities, tf.where(fits, place + 1, 0), batch_dims=1)  # [B, N, C]
    has_piece = widths.to_tensor() > 0
    without = _OUTSIDE if _OUTSIDE in self._names else self._names[0]
    tags = tf.where(has_piece, tf.gather(tf.constant(self._names), tf.argmax(at, axis=-1)), without)
    real = tf.sequence_mask(words.row_lengths(), tf.shape(place)[1]) & fits
    return {
      "words": words.to_tensor(),
      "tags": tf.where(real, tags, ""),
      "probabilities": tf.where(real & has_piece, tf.reduce_max(at, axis=-1), 0.0),
      "num_words": tf.cast(words.row_lengths(), tf.int32),
    }
