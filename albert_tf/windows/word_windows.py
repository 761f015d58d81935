"""Locate the words of a text, and make the windows that decide their tags; TensorFlow ops.

Fine-tuning of tagging calls `make_word_windows` eagerly; SavedModels have both in the graph.
"""

from typing import NamedTuple

import tensorflow as tf

from albert_tf.tokenization import unicode_tables
from albert_tf.tokenization.graph import TokenizerModule
from albert_tf.tokenization.graph_inputs import Tensors, pack_rows
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
  num_bytes = tf.cast(tf.strings.length(texts), tf.int64)[:, tf.newaxis]
  char_bytes = tf.concat([offsets, num_bytes], axis=1)

  # Between white space and a word, and at the text's ends, is an edge. " ab c" has the edges
  # 0 1 0 1 1 1 at its places 0 to 5: words start at 1 and 4, and end at 3 and 5.
  space = f"[{unicode_tables.space_class()}]"
  in_word = chars.with_flat_values(~tf.strings.regex_full_match(chars.flat_values, space))
  outside = tf.zeros_like(num_bytes, tf.bool)
  before = tf.concat([outside, in_word], axis=1)
  after = tf.concat([in_word, outside], axis=1)
  places = tf.cast(tf.ragged.range(before.row_lengths()), tf.int32)
  starts = tf.ragged.boolean_mask(places, ~before & after)
  ends = tf.ragged.boolean_mask(places, before & ~after)
  words = substrings(texts, char_bytes, starts.value_rowids(), starts.flat_values, ends.flat_values)
  return LocatedWords(texts, starts.with_flat_values(words), starts, ends, char_bytes)


class WordWindows(NamedTuple):
  """W windows of B texts with at most N words, in order.

  Attributes:
    batch: `input_ids`, `input_mask`, `segment_ids`, int32 [W, S].
    window, position: int32 [B, N] the window that decides a word's tag, and the position of its
      first token in it.
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
  tokenizer: TokenizerModule,
  words: tf.RaggedTensor,
  *,
  max_length: int,
  max_windows: int | None = None,
) -> WordWindows:
  """Makes overlapping windows and assigns every word to exactly one of them.

  Neighbours share a quarter of their tokens. A shared word belongs to the window with the nearer
  middle.

  Args:
    tokenizer: tokenizes the words one by one.
    words: ragged [B, (words)].
    max_length: largest S.
    max_windows: largest number for one text; None for no limit.

  Example: 10 positions have room for 8 tokens, 2 are shared, and windows begin at the tokens 0, 6,
    12. The first two share the tokens 6 and 7: as (6 - 1) // 6 = 0 and (7 - 1) // 6 = 1, a word that
    begins at 6 belongs to the first, and one at 7 to the second.
  """
  room = max_length - 2  # Without [CLS] and [SEP].
  num_shared = room // 4
  stride = room - num_shared
  tokens = tokenizer.tokenize(words.flat_values)  # [all words, (length)]
  widths = words.with_flat_values(tf.cast(tokens.row_lengths(), tf.int32)).to_tensor()  # [B, N]
  text = words.with_flat_values(tokens).merge_dims(1, 2)
  text_lengths = text.row_lengths()
  windows, is_cut = make_windows(
    tf.ones_like(text_lengths),
    text_lengths,
    max_seq_length=max_length,
    doc_stride=stride,
    max_windows=max_windows,
  )
  pieces = cut_pieces(text, windows.row, windows.begin, windows.length)
  batch = pack_rows(tokenizer, pieces)

  # The windows of each text, [B, 1].
  rows = tf.range(tf.size(text_lengths))
  first = tf.searchsorted(windows.row, rows, side="left")[:, tf.newaxis]
  last = tf.searchsorted(windows.row, rows, side="right")[:, tf.newaxis] - 1
  text_end = tf.gather(windows.begin + windows.length, last)  # Of what is read.

  # The window of each word, [B, N].
  start = tf.cumsum(widths, axis=1, exclusive=True)  # Tokens before the word.
  ordinal = (start - num_shared // 2) // stride
  window = first + tf.clip_by_value(ordinal, 0, last - first)
  has_token = widths > 0
  exists = tf.sequence_mask(words.row_lengths(), tf.shape(widths)[1])
  is_read = exists & (start + tf.cast(has_token, tf.int32) <= text_end)
  position = start - tf.gather(windows.begin, window) + 1  # After [CLS].
  position = tf.where(is_read & has_token, position, 0)
  return WordWindows(batch, window, position, is_read, has_token, is_cut)
