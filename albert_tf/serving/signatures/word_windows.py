"""Words of a text with their places, and long texts as overlapping windows of whole words; TensorFlow ops.

Fine-tuning calls these functions eagerly, and a SavedModel has them in its graph.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from albert_tf.serving.signatures.base import Tensors
from albert_tf.serving.signatures.windows import cut_pieces, substrings
from albert_tf.tokenization import unicode_tables
from albert_tf.tokenization.graph import GraphPacker, head
from albert_tf.tokenization.graph_inputs import at_least

_CONTEXT_SHARE = 4  # Neighbouring windows of a long text share up to a quarter of their pieces.
_NO_LIMIT = 2**31 - 1


class LocatedWords(NamedTuple):
  """The words of texts, split at white space.

  Attributes:
    texts: [B] strings, valid UTF-8: what was not has become U+FFFD.
    words: ragged [B, (N)].
    starts, ends: int32 ragged [B, (N)] half-open range of characters (code points) of each word.
    char_bytes: int64 ragged [B, (n + 1)] the byte at which each of the n characters begins, and the end.
  """

  texts: tf.Tensor
  words: tf.RaggedTensor
  starts: tf.RaggedTensor
  ends: tf.RaggedTensor
  char_bytes: tf.RaggedTensor


def locate_words(texts: tf.Tensor) -> LocatedWords:
  """The words of texts [B], split at white space, with their places."""
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
  """W windows of B texts of N words at most, in order.

  Attributes:
    batch: `input_ids`, `input_mask`, `segment_ids`, int32 [W, S].
    window, position: int32 [B, N] where a word's tag is read: the window that decides it, and its first piece there.
    is_read: bool [B, N] whether there is such a word and a window reaches it.
    has_token: bool [B, N] whether normalisation leaves anything of it.
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
  max_windows: int = _NO_LIMIT,
  fixed: bool = False,
) -> WordWindows:
  """Overlapping windows in which every word is decided exactly once.

  Each window but the first begins with up to a quarter of its pieces as context; the words that two windows share are
  decided half by the one, half by the other.

  Args:
    tokenizer: encodes the words one by one, and packs.
    words: ragged [B, (words)].
    max_length: S at most.
    max_windows: of one text, which is cut behind them.
    fixed: S is `max_length`; else the longest window's.
  """
  budget = max_length - 2
  pieces = tokenizer.tokenize(words.flat_values)  # [all words, (length)]
  pieces = head(pieces, tf.minimum(pieces.row_lengths(), budget))
  counts = tf.cast(words.row_lengths(), tf.int32)
  widths = words.with_flat_values(tf.cast(pieces.row_lengths(), tf.int32)).to_tensor()  # [B, N]
  ends = tf.pad(tf.cumsum(widths, axis=1), [[0, 0], [1, 0]])  # [B, N + 1] pieces before each word.
  start, end, last, number, is_cut = _split(ends, counts, budget=budget, max_windows=max_windows)

  is_window = tf.sequence_mask(number, tf.shape(start)[1])  # [B, at most `max_windows`]
  row = tf.cast(tf.where(is_window)[:, 0], tf.int32)
  begin = tf.boolean_mask(tf.gather(ends, start, batch_dims=1), is_window)
  length = tf.boolean_mask(tf.gather(ends, end, batch_dims=1), is_window) - begin
  text = cut_pieces(words.with_flat_values(pieces).merge_dims(1, 2), row, begin, length)
  batch = at_least(tokenizer.pack(text, length=max_length if fixed else None), 1)

  ends_here = tf.stack([row, tf.boolean_mask(last, is_window)], axis=1)
  passed = tf.scatter_nd(ends_here, tf.ones_like(row), tf.shape(ends))  # Windows that decide up to here.
  of_word = tf.cumsum(passed, axis=1)[:, :-1]  # [B, N] the window of the text that decides it.
  is_read = (of_word < number[:, tf.newaxis]) & tf.sequence_mask(counts, tf.shape(widths)[1])
  of_word = tf.where(is_read, of_word, 0)
  first_piece = tf.gather(ends, tf.gather(start, of_word, batch_dims=1), batch_dims=1)
  window = tf.cumsum(number, exclusive=True)[:, tf.newaxis] + of_word
  has_token = widths > 0
  position = tf.where(is_read & has_token, ends[:, :-1] - first_piece + 1, 0)  # After [CLS].
  return WordWindows(batch, window, position, is_read, has_token, is_cut)


def _split(
  ends: tf.Tensor, counts: tf.Tensor, *, budget: int, max_windows: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
  """The windows of all rows at once.

  Args:
    ends: int32 [B, N + 1] pieces before each word, and of all.
    counts: int32 [B] words.
    budget: pieces of a window, at most; no word has more.
    max_windows: of one row.

  Returns:
    `start`, `end` and `last` int32 [B, I] of each window, words: its text, and the end of those it decides; how many
    of these windows there are, int32 [B]; and whether words are left behind them, bool [B].
  """

  def at(index: tf.Tensor) -> tf.Tensor:
    return tf.gather(ends, index, batch_dims=1)

  def search(values: tf.Tensor, side: str) -> tf.Tensor:
    return tf.searchsorted(ends, values[:, tf.newaxis], side=side)[:, 0]

  def window(i: tf.Tensor, start: tf.Tensor, first: tf.Tensor, open_: tf.Tensor, found: list[Any]) -> Any:
    end = tf.minimum(search(at(start) + budget, "right") - 1, counts)
    # The next one's context; the word that did not fit must fit there.
    following = tf.minimum(end, tf.maximum(first + 1, search(at(end) - budget // _CONTEXT_SHARE, "left")))
    following = tf.maximum(following, search(at(tf.minimum(end + 1, counts)) - budget, "left"))
    middle = (following + end + 1) // 2  # Of the words both have; their end where they share none.
    is_end = (end == counts) | (i + 1 == max_windows)
    values = (start, end, tf.where(is_end, end, middle), tf.cast(open_, tf.int32))
    found = [array.write(i, value) for array, value in zip(found, values, strict=True)]
    still = open_ & (end < counts)
    return i + 1, tf.where(still, following, start), tf.where(still, middle, first), still, found

  zeros = tf.zeros_like(counts)
  arrays = [tf.TensorArray(tf.int32, size=0, dynamic_size=True, element_shape=[None]) for _ in range(4)]
  *_, is_cut, found = tf.while_loop(
    lambda i, start, first, open_, found: (i == 0) | (tf.reduce_any(open_) & (i < max_windows)),
    window,
    (tf.constant(0), zeros, zeros, tf.ones_like(counts, tf.bool), arrays),
    maximum_iterations=max_windows,
  )
  start, end, last, is_window = (tf.transpose(array.stack()) for array in found)
  return start, end, last, tf.reduce_sum(is_window, axis=1), is_cut
