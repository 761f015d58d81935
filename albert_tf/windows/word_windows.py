"""Locate the words of a text, and make the windows that decide their tags."""

from typing import NamedTuple

import tensorflow as tf

from albert_tf.tokenization import unicode_tables
from albert_tf.tokenization.graph import GraphPacker
from albert_tf.tokenization.graph_inputs import Tensors, at_least
from albert_tf.windows.text_windows import cut_pieces, make_windows, substrings


class LocatedWords(NamedTuple):
  """The words of texts, split at white space.

  Attributes:
    texts: [B] strings, valid UTF-8; invalid bytes are U+FFFD.
    words: ragged [B, (N)].
    starts, ends: int32 ragged [B, (N)] half-open range of characters (code points) of each word.
    char_bytes: int64 ragged [B, (n + 1)] byte offset of each of the n characters, and of the end.
  """

  texts: tf.Tensor
  words: tf.RaggedTensor
  starts: tf.RaggedTensor
  ends: tf.RaggedTensor
  char_bytes: tf.RaggedTensor


def locate_words(texts: tf.Tensor) -> LocatedWords:
  """Splits texts [B] at white space into words with their positions."""
  texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
  chars, offsets = tf.strings.unicode_split_with_offsets(texts, "UTF-8")
  solid = ~tf.strings.regex_full_match(chars.flat_values, f"[{unicode_tables.space_class()}]")
  number = tf.ragged.range(chars.row_lengths()).flat_values
  before = tf.concat([[False], solid], axis=0)[:-1] & (number > 0)
  is_last = number == tf.repeat(chars.row_lengths(), chars.row_lengths()) - 1
  behind = tf.concat([solid, [False]], axis=0)[1:] & ~is_last

  def places(chosen: tf.Tensor, shift: int) -> tf.RaggedTensor:
    where = chars.with_flat_values(tf.cast(number, tf.int32) + shift)
    return tf.ragged.boolean_mask(where, chars.with_flat_values(chosen))

  starts, ends = places(solid & ~before, 0), places(solid & ~behind, 1)
  sizes = tf.cast(tf.strings.length(texts), tf.int64)[:, tf.newaxis]
  char_bytes = tf.concat([offsets, sizes], axis=1)
  words = starts.with_flat_values(
    substrings(texts, char_bytes, starts.value_rowids(), starts.flat_values, ends.flat_values)
  )
  return LocatedWords(texts, words, starts, ends, char_bytes)


class WordWindows(NamedTuple):
  """W windows of B texts with at most N words, in order.

  Attributes:
    batch: `input_ids`, `input_mask`, `segment_ids`, int32 [W, S].
    window, position: int32 [B, N] the window that decides a word's tag, and the position of its first token in it.
    is_read: bool [B, N] whether the word exists and is in a window.
    has_token: bool [B, N] whether the word has a token after normalisation.
    is_cut: bool [B] whether the text is longer than its windows.
  """

  batch: Tensors
  window: tf.Tensor
  position: tf.Tensor
  is_read: tf.Tensor
  has_token: tf.Tensor
  is_cut: tf.Tensor


def make_word_windows(
  tokenizer: GraphPacker,
  words: tf.RaggedTensor,
  *,
  max_length: int,
  max_windows: int | None = None,
) -> WordWindows:
  """Makes overlapping windows and assigns every word to exactly one of them.

  Neighbours share a quarter of their tokens. A shared word belongs to the window with the nearer middle.

  Args:
    tokenizer: tokenizes the words one by one, and packs windows.
    words: ragged [B, (words)].
    max_length: largest S.
    max_windows: largest number for one text; None for no limit.
  """
  room = max_length - 2
  shared = room // 4
  tokens = tokenizer.tokenize(words.flat_values)  # [all words, (length)]
  widths = words.with_flat_values(tf.cast(tokens.row_lengths(), tf.int32)).to_tensor()  # [B, N]
  text = words.with_flat_values(tokens).merge_dims(1, 2)
  total = text.row_lengths()
  windows, is_cut = make_windows(
    tf.ones_like(total), total, max_seq_length=max_length, doc_stride=room - shared, max_windows=max_windows
  )
  parts = cut_pieces(text, windows.row, windows.begin, windows.length)
  batch = at_least(tokenizer.pack(parts), 1)

  rows = tf.range(tf.size(total))
  first, last = (tf.searchsorted(windows.row, rows, side=side) for side in ("left", "right"))
  start = tf.cumsum(widths, axis=1, exclusive=True)  # [B, N] tokens before each word.
  ordinal = tf.clip_by_value((start - shared // 2) // (room - shared), 0, (last - first - 1)[:, tf.newaxis])
  window = first[:, tf.newaxis] + ordinal
  has_token = widths > 0
  end = tf.gather(windows.begin + windows.length, last - 1)[:, tf.newaxis]  # Of the last window.
  is_read = (start + tf.cast(has_token, tf.int32) <= end) & tf.sequence_mask(
    words.row_lengths(), tf.shape(widths)[1]
  )
  position = tf.where(is_read & has_token, start - tf.gather(windows.begin, window) + 1, 0)  # After [CLS].
  return WordWindows(batch, window, position, is_read, has_token, is_cut)
