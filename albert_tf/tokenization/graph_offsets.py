"""The characters of the original text that each token covers, as TensorFlow ops.

Question answering reads answers from the original text with them.

TensorFlow Serving does not link TensorFlow Text's op for offsets, and its offsets are those of the
normalised text. Tokens and text are compared by their visible characters instead. These are left
after normalisation, SentencePiece's own normalisation, decomposition, and the removal of white space.
The tokens of a text together have as many visible characters as the text, in the same order.
"""

import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.tokenization.graph import GraphTokenizer, make_table, replace
from albert_tf.tokenization.normalization import normalize_text, visible_width
from albert_tf.tokenization.tokenizer import AlbertTokenizer, load_processor
from albert_tf.tokenization.unicode_tables import assigned_characters
from albert_tf.tokenization.word_starts import SPIECE_UNDERLINE

# A width is a number of visible characters. This stands where there is no width:
_JOINS_PREVIOUS = -1  # A combining mark: it belongs to the character before it.
_A_MARK = "\u0301"  # One of them.


class Located(NamedTuple):
  """Texts as tokens with their places.

  Attributes:
    texts: [B] strings, valid UTF-8: what was not has become U+FFFD.
    ids: int32 ragged [B, (P)] tokens, without [CLS] and [SEP].
    starts, ends: int32 ragged [B, (P)] half-open range of characters (code points) of each token,
      without the white space that "▁" stands for. A lone "▁" has an empty range: from the next
      character's start to the end of the previous character, which is not after it.
    char_bytes: int64 ragged [B, (n + 1)] the byte at which each of the n characters begins, and the
      text's length.
  """

  texts: tf.Tensor
  ids: tf.RaggedTensor
  starts: tf.RaggedTensor
  ends: tf.RaggedTensor
  char_bytes: tf.RaggedTensor


class GraphOffsets(tf.Module):
  """Texts as tokens with their places, as a module that can be saved.

  Args:
    tokenizer: the tokenizer in Python, for its settings and tokens.
    graph: the same tokenizer as TensorFlow ops.
  """

  def __init__(self, tokenizer: AlbertTokenizer, graph: GraphTokenizer):
    super().__init__()
    self._graph = graph
    self._normalize_quotes = tokenizer.config.normalize_quotes
    # What the digit-comma rule makes of a token has the widths of the new tokens.
    widths = {}
    for index, new_ids in tokenizer.digit_comma_ids.items():
      widths[index] = [visible_width(tokenizer.pieces[new_id]) for new_id in new_ids]
    self._token_widths = make_table(widths)
    char_widths = _character_widths(
      tokenizer.model_bytes, tokenizer.config.do_lower_case, tokenizer.config.keep_accents
    )
    with tf.init_scope():  # One copy in a SavedModel, however many functions use it.
      self._char_widths = tf.constant(char_widths, tf.int8)

  def __call__(self, texts: tf.Tensor) -> Located:
    """Tokenizes [B] strings."""
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    codes, offsets = tf.strings.unicode_decode_with_offsets(texts, "UTF-8")
    num_bytes = tf.cast(tf.strings.length(texts), tf.int64)[:, tf.newaxis]
    char_bytes = tf.concat([offsets, num_bytes], axis=1)

    if self._normalize_quotes:
      # `` and '' become one double quote: the second has no character of its own.
      marked = tf.strings.regex_replace(texts, "``|''", '"' + _A_MARK)
      codes = tf.strings.unicode_decode(marked, "UTF-8")

    normalized = self._graph.normalize(texts)
    # Tokens before the digit-comma rule; text that no piece covers is a surface, unchanged.
    ids = self._graph.sentencepiece.tokenize(normalized, tf.int32)
    surfaces = self._graph.sentencepiece.tokenize(normalized, tf.string)
    widths = self._widths_of_tokens(ids, surfaces)
    starts, ends = _character_ranges(self._widths_of_characters(codes), widths)
    return Located(texts, replace(ids, self._graph.digit_commas), starts, ends, char_bytes)

  def _widths_of_characters(self, codes: tf.RaggedTensor) -> tf.RaggedTensor:
    """The width of each character, or `_JOINS_PREVIOUS`; int32 ragged [B, (n)]."""
    # The table ends with a width of 1, as all characters behind it have.
    row = tf.minimum(codes.flat_values, self._char_widths.shape[0] - 1)
    return codes.with_flat_values(tf.cast(tf.gather(self._char_widths, row), tf.int32))

  def _widths_of_tokens(self, ids: tf.RaggedTensor, surfaces: tf.RaggedTensor) -> tf.RaggedTensor:
    """The width of each token after the digit-comma rule; int32 ragged [B, (P)].

    Args:
      ids, surfaces: ragged [B, (length)] tokens before that rule, and their text.
    """
    codes = tf.strings.unicode_decode(surfaces.flat_values, "UTF-8")
    # With accents kept, a token has é as one character: decomposed, both sides count alike.
    codes = replace(codes, self._graph.decomposition)
    is_visible = tf.cast(~_is_space(codes.flat_values), tf.int32)
    surface_widths = tf.reduce_sum(codes.with_flat_values(is_visible), axis=1)  # [all tokens]
    # A token that the rule leaves alone is as wide as its text.
    return replace(ids, self._token_widths, unchanged=surface_widths)


def _character_ranges(
  char_widths: tf.RaggedTensor, token_widths: tf.RaggedTensor
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
  """Ranges of the original characters that tokens cover: starts and ends, int32 ragged [B, (P)].

  Args:
    char_widths: int32 ragged [B, (n)] width of each original character, or `_JOINS_PREVIOUS`.
    token_widths: int32 ragged [B, (P)] width of each token.

  Example: "é ½" as e, a combining accent, a space and ½, which becomes the three characters 1⁄2.
    char_widths   1 -1 0 3          visible characters e 1 ⁄ 2, from the characters 0 3 3 3
    token_widths  1 1 2             for "▁e" "▁1" "⁄2": visible characters 0:1, 1:2, 2:4
    starts, ends  0 3 3 and 2 4 4   "▁e" has the accent, and both other tokens come from ½
  """
  num_chars = tf.size(char_widths.flat_values)
  visible = tf.maximum(char_widths.flat_values, 0)  # A mark adds no visible character.
  # The character that each visible one comes from; the last entry is behind the end of all texts.
  source = tf.concat([tf.repeat(tf.range(num_chars), visible), [num_chars]], axis=0)
  char_ends = tf.concat([_ends_of_characters(char_widths), [num_chars]], axis=0)

  # For each token: where the characters, and the visible characters, of its text begin and end.
  text = token_widths.value_rowids()
  text_begin = tf.cast(tf.gather(char_widths.row_starts(), text), tf.int32)
  text_end = tf.cast(tf.gather(char_widths.row_limits(), text), tf.int32)
  visible_before = tf.concat([[0], tf.cumsum(visible)], axis=0)
  first_visible = tf.gather(visible_before, text_begin)
  last_visible = tf.gather(visible_before, text_end)

  # If text and tokens should differ in number, ranges stay inside the text.
  begin = tf.minimum(first_visible + _sum_before(token_widths), last_visible)
  end = tf.minimum(begin + token_widths.flat_values, last_visible)
  start_char = tf.minimum(tf.gather(source, begin), text_end)
  last_char = tf.gather(source, tf.maximum(end - 1, 0))
  end_char = tf.where(end > first_visible, tf.gather(char_ends, last_char), start_char)
  starts = token_widths.with_flat_values(start_char - text_begin)
  ends = token_widths.with_flat_values(end_char - text_begin)
  return starts, ends


def _ends_of_characters(char_widths: tf.RaggedTensor) -> tf.Tensor:
  """Where each character ends, with the marks that follow it; int32 [all characters].

  Example: widths 1 -1 0 3 give the ends 2 2 3 4: the characters but the mark begin at 0, 2 and 3.
  """
  is_base = char_widths.flat_values != _JOINS_PREVIOUS
  bases = tf.cast(tf.where(is_base)[:, 0], tf.int32)
  bases = tf.concat([bases, [tf.size(is_base)]], axis=0)
  next_base = tf.gather(bases, tf.cumsum(tf.cast(is_base, tf.int32)))
  text_end = tf.gather(char_widths.row_limits(), char_widths.value_rowids())
  return tf.minimum(next_base, tf.cast(text_end, tf.int32))


def _sum_before(ragged: tf.RaggedTensor) -> tf.Tensor:
  """Sum of the values before each one in its row; [all values]."""
  before = tf.cumsum(ragged.flat_values, exclusive=True)
  return before - tf.gather(before, tf.gather(ragged.row_starts(), ragged.value_rowids()))


def _is_space(codes: tf.Tensor) -> tf.Tensor:
  """White space of any code point, and "▁"."""
  spaces = [ord(char) for char in assigned_characters() if char.isspace()]
  spaces.append(ord(SPIECE_UNDERLINE))
  return tf.reduce_any(codes[:, tf.newaxis] == tf.constant(spaces, tf.int32), axis=1)


@functools.lru_cache(maxsize=4)
def _character_widths(model: bytes, do_lower_case: bool, keep_accents: bool) -> np.ndarray:
  """The width of each character, or `_JOINS_PREVIOUS`; int8 [code points], and 1 for any beyond."""
  processor = load_processor(model, source="the tokenizer's model")
  chars = assigned_characters()
  normalize = functools.partial(normalize_text, do_lower_case=do_lower_case)
  # What SentencePiece sees, and then makes of it with its own rules.
  normalized = processor.normalize([normalize(char, keep_accents=keep_accents) for char in chars])
  widths = np.ones(ord(chars[-1]) + 2, np.int8)
  for char, normal in zip(chars, normalized, strict=True):
    # White space is normalised to nothing, too, but separates characters.
    is_mark = not char.isspace() and not normalize(char)
    widths[ord(char)] = visible_width(normal)
    if is_mark:
      widths[ord(char)] = _JOINS_PREVIOUS
  # Most code points are beyond the last one with another width. One 1 stays, for all of them.
  last = np.flatnonzero(widths != 1)[-1]
  return widths[: last + 2]
