"""The characters of the original text that each token covers, as TensorFlow ops.

TensorFlow Serving does not link TensorFlow Text's op for offsets, and its offsets are those of the normalised text.
Tokens and text are compared by their visible characters instead. These are left after normalisation, SentencePiece's
own normalisation, decomposition, and the removal of white space. The tokens of a text together have as many visible
characters as the text, in the same order.
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

# A width is a number of visible characters.
_MARK = -1  # In place of the width: the character belongs to the one before it.
_FROM_TEXT = -1  # In place of the width: the digit-comma rule leaves this token as it is.
_QUOTES = "`'"


class Located(NamedTuple):
  """Texts as tokens with their places.

  Attributes:
    texts: [B] strings, valid UTF-8: what was not has become U+FFFD.
    ids: int32 ragged [B, (P)] tokens, without [CLS] and [SEP].
    starts, ends: int32 ragged [B, (P)] half-open range of characters (code points) of each token, without the white
      space that "▁" stands for. A lone "▁" has an empty range: from the next character's start to the end of the
      previous character, which is not after it.
    char_bytes: int64 ragged [B, (n + 1)] the byte at which each of the n characters begins, and the text's length.
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

  def __init__(self, tokenizer: AlbertTokenizer, graph: GraphTokenizer, name: str = "offsets"):
    super().__init__(name=name)
    self._graph = graph
    self._normalize_quotes = tokenizer.config.normalize_quotes
    pieces = tokenizer.pieces
    widths = [visible_width(piece) for piece in pieces]
    parts = tokenizer.digit_comma_ids
    self._part_widths = make_table(
      {
        index: [widths[part] for part in parts[index]] if index in parts else [_FROM_TEXT]
        for index in range(len(pieces))
      }
    )
    with tf.init_scope():
      self._char_widths = tf.constant(
        _character_widths(
          tokenizer.model_bytes, tokenizer.config.do_lower_case, tokenizer.config.keep_accents
        ),
        tf.int8,
      )

  def __call__(self, texts: tf.Tensor) -> Located:
    """Tokenizes [B] strings."""
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    codes, offsets = tf.strings.unicode_decode_with_offsets(texts, "UTF-8")
    widths = self._widths_of_characters(codes)
    normalized = self._graph.normalize(texts)
    ids = self._graph.raw_ids(normalized)
    begins, sizes = self._spans_of_pieces(ids, self._graph.surfaces(normalized))
    starts, ends = _characters_of(widths, begins, sizes)
    sizes_in_bytes = tf.cast(tf.strings.length(texts), tf.int64)[:, tf.newaxis]
    char_bytes = tf.concat([offsets, sizes_in_bytes], axis=1)
    return Located(texts, replace(ids, self._graph.digit_commas), starts, ends, char_bytes)

  def _widths_of_characters(self, codes: tf.RaggedTensor) -> tf.RaggedTensor:
    flat = codes.flat_values
    size = self._char_widths.shape[0]
    widths = tf.cast(tf.gather(self._char_widths, tf.minimum(flat, size - 1)), tf.int32)
    widths = codes.with_flat_values(tf.where(flat < size, widths, 1))
    if self._normalize_quotes:
      for quote in _QUOTES:
        widths = tf.where(_is_second_of_pair(codes, ord(quote)), _MARK, widths)
    return widths

  def _spans_of_pieces(
    self, ids: tf.RaggedTensor, surfaces: tf.RaggedTensor
  ) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """First visible character of each token in its text, and the number of them; int32 ragged [B, (P)] both."""
    codes = tf.strings.unicode_decode(surfaces.flat_values, "UTF-8")
    codes = replace(codes, self._graph.decomposition)
    solid = tf.cast(~_is_space(codes.flat_values), tf.int32)
    sizes = tf.reduce_sum(codes.with_flat_values(solid), axis=1)  # [all pieces]
    parts = replace(ids, self._part_widths)
    counts = tf.gather(self._part_widths.lengths, ids.flat_values)
    found = tf.where(parts.flat_values == _FROM_TEXT, tf.repeat(sizes, counts), parts.flat_values)
    sizes = parts.with_flat_values(found)
    return _exclusive_cumsum(sizes), sizes


def _exclusive_cumsum(ragged: tf.RaggedTensor) -> tf.RaggedTensor:
  """Sum of the values before each one in its row."""
  total = tf.concat([[0], tf.cumsum(ragged.flat_values)], axis=0)
  before_row = tf.repeat(tf.gather(total, ragged.row_splits[:-1]), ragged.row_lengths())
  return ragged.with_flat_values(total[:-1] - before_row)


def _characters_of(
  widths: tf.RaggedTensor, begins: tf.RaggedTensor, sizes: tf.RaggedTensor
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
  """Ranges of the original characters that tokens cover: starts and ends, int32 ragged [B, (P)].

  Args:
    widths: int32 ragged [B, (n)] number of visible characters of each original character, or `_MARK`.
    begins, sizes: int32 ragged [B, (P)] first visible character and number of them, for each token.
  """
  flat = widths.flat_values
  solid = tf.maximum(flat, 0)
  count = tf.size(flat)
  source = tf.concat([tf.repeat(tf.range(count), solid), [count]], axis=0)  # Original of each visible one.
  total = tf.concat([[0], tf.cumsum(solid)], axis=0)
  row_begin, row_end = tf.gather(total, widths.row_splits[:-1]), tf.gather(total, widths.row_splits[1:])
  # A character ends where the next one that is not a mark begins.
  is_base = flat != _MARK
  bases = tf.concat([tf.cast(tf.where(is_base)[:, 0], tf.int32), [count]], axis=0)
  end = tf.gather(bases, tf.cumsum(tf.cast(is_base, tf.int32)))  # [all characters]
  end = tf.minimum(end, tf.cast(tf.repeat(widths.row_splits[1:], widths.row_lengths()), tf.int32))
  end = tf.concat([end, [count]], axis=0)

  lengths = begins.row_lengths()
  first, last = tf.repeat(row_begin, lengths), tf.repeat(row_end, lengths)
  row = tf.cast(tf.repeat(widths.row_splits[:-1], lengths), tf.int32)
  # If text and tokens should differ in number, ranges stay inside the text.
  a = tf.minimum(first + begins.flat_values, last)
  b = tf.minimum(a + sizes.flat_values, last)
  inside = tf.cast(tf.repeat(widths.row_lengths(), lengths), tf.int32)
  start = tf.minimum(tf.gather(source, a) - row, inside)
  before = tf.gather(end, tf.gather(source, tf.maximum(b - 1, 0))) - row
  stop = tf.where(b > first, before, start)
  return begins.with_flat_values(start), begins.with_flat_values(stop)


def _is_second_of_pair(codes: tf.RaggedTensor, quote: int) -> tf.RaggedTensor:
  """Whether each character is the second of a pair of quotes, counted from where their run begins."""
  is_quote = codes.flat_values == quote
  index = tf.range(tf.size(codes.flat_values))
  row = tf.cast(codes.value_rowids(), tf.int32)
  continues = tf.concat([[False], is_quote[:-1] & (row[1:] == row[:-1])], axis=0)[: tf.size(index)]
  run_starts = tf.where(is_quote & ~continues)[:, 0]
  run = tf.maximum(tf.cumsum(tf.cast(is_quote & ~continues, tf.int32)) - 1, 0)
  run_starts = tf.concat([tf.cast(run_starts, tf.int32), [0]], axis=0)
  return codes.with_flat_values(is_quote & ((index - tf.gather(run_starts, run)) % 2 == 1))


def _is_space(codes: tf.Tensor) -> tf.Tensor:
  """White space of any code point, and "▁"."""
  spaces = [ord(char) for char in assigned_characters() if char.isspace() or char == SPIECE_UNDERLINE]
  return tf.reduce_any(codes[:, tf.newaxis] == tf.constant(spaces, tf.int32), axis=1)


@functools.lru_cache(maxsize=4)
def _character_widths(model: bytes, do_lower_case: bool, keep_accents: bool) -> np.ndarray:
  """int8 [code points] the width of each character, `_MARK` for a combining one; 1 for any beyond the array."""
  processor = load_processor(model, source="the tokenizer's model")
  chars = assigned_characters()
  normalize = functools.partial(normalize_text, do_lower_case=do_lower_case)
  again = processor.normalize([normalize(char, keep_accents=keep_accents) for char in chars])
  widths = np.ones(ord(chars[-1]) + 1, np.int8)
  for char, normal in zip(chars, again, strict=True):
    is_mark = not char.isspace() and not normalize(char)
    widths[ord(char)] = _MARK if is_mark else visible_width(normal)
  return widths[: int(np.flatnonzero(widths != 1)[-1]) + 2]
