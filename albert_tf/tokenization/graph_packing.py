"""Raw strings as batches for the encoder, whatever the kind of vocabulary: what all tokenizers do in a graph."""

import tensorflow as tf

from albert_tf.tokenization.loading import Tokenizer
from albert_tf.tokenization.tokenizer import MASK_PIECE


class GraphPacker(tf.Module):
  """Strings in, `[CLS] … [SEP]` out; how a text becomes ids is the subclass's.

  Args:
    tokenizer: whose special ids it takes.
  """

  def __init__(self, tokenizer: Tokenizer, name: str = "tokenizer"):
    super().__init__(name=name)
    self.mask_id = tokenizer.mask_id
    self.cls_id = tokenizer.cls_id
    self.sep_id = tokenizer.sep_id
    self.pad_id = tokenizer.pad_id

  def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
    """int32 ids [B, (length)] of [B] strings, in which "[MASK]" is text."""
    raise NotImplementedError

  def _behind_mask(
    self, texts: tf.Tensor, ids: tf.RaggedTensor, is_behind: tf.Tensor
  ) -> tuple[tf.RaggedTensor, ...]:
    """The ids of texts of which some stand right behind a mask (bool [B]), in columns that are joined."""
    return (ids,)

  def tokenize(self, texts: tf.Tensor, *, allow_mask: bool = False) -> tf.RaggedTensor:
    """Ids of texts without [CLS] and [SEP].

    Args:
      texts: [B] strings.
      allow_mask: read a literal "[MASK]" as the mask piece.

    Returns:
      int32 ragged [B, (length)].
    """
    if not allow_mask:
      return self._tokenize(texts)
    parts = tf.strings.split(texts, sep=MASK_PIECE)  # [B, (parts)]
    part_ids = self._tokenize(parts.flat_values)  # [all parts, (length)]
    is_later = tf.ragged.range(parts.row_lengths()).flat_values > 0  # A mask stands before all but the first.
    later = tf.cast(is_later, tf.int32)
    masks = tf.RaggedTensor.from_row_lengths(tf.fill([tf.reduce_sum(later)], self.mask_id), later)
    masks = masks.with_row_splits_dtype(part_ids.row_splits.dtype)
    joined = tf.concat([masks, *self._behind_mask(parts.flat_values, part_ids, is_later)], axis=1)
    return parts.with_flat_values(joined).merge_dims(1, 2)

  def __call__(
    self,
    texts: tf.Tensor,
    pairs: tf.Tensor | None = None,
    *,
    max_length: int = 512,
    pad_to_max_length: bool = False,
    allow_mask: bool = False,
  ) -> dict[str, tf.Tensor]:
    """Texts, or pairs of texts, as a batch for the encoder; equal to the Python tokenizer's.

    Args:
      texts: [B] strings.
      pairs: [B] strings, the second segments, or None. An empty one makes a single segment.
      max_length: longer rows are cut at the end; of a pair, the longer segment first.
      pad_to_max_length: S = max_length; else S = the longest row.
      allow_mask: read a literal "[MASK]" as the mask piece.

    Returns:
      int32 tensors `input_ids`, `input_mask`, `segment_ids`, each [B, S].
    """
    length = max_length if pad_to_max_length else None
    first = self.tokenize(texts, allow_mask=allow_mask)
    if pairs is None:
      return self.pack(head(first, max_length - 2), length=length)
    second = self.tokenize(pairs, allow_mask=allow_mask)
    return self.pack(*_truncate(first, second, max_length), length=length)

  def pack(
    self,
    first: tf.RaggedTensor,
    second: tf.RaggedTensor | None = None,
    *,
    length: int | tf.Tensor | None = None,
    always_two: bool = False,
  ) -> dict[str, tf.Tensor]:
    """`[CLS] first [SEP] second [SEP]` for every row.

    Args:
      first, second: int32 ragged [B, (length)], short enough already.
      length: S; None: the longest row's.
      always_two: an empty second segment has its [SEP], too; else it makes a single segment.

    Returns:
      int32 tensors `input_ids`, `input_mask`, `segment_ids`, each [B, S].
    """
    # Computed for every place [B, S] at once: a few ops where ragged concatenation takes hundreds.
    flat, size, start = (
      first.flat_values,
      first.row_lengths()[:, tf.newaxis],
      first.row_starts()[:, tf.newaxis],
    )
    total = size + 2  # [B, 1]
    if second is not None:
      other = second.row_lengths()[:, tf.newaxis]
      total += tf.where((other > 0) | always_two, other + 1, 0)
      start_other = second.row_starts()[:, tf.newaxis] + tf.size(flat, total.dtype)
      flat = tf.concat([flat, second.flat_values], axis=0)
    specials = tf.size(flat, total.dtype)
    flat = tf.concat([flat, [self.cls_id, self.sep_id, self.pad_id]], axis=0)
    longest = tf.reduce_max(tf.concat([[[0]], total], axis=0)) if length is None else length
    place = tf.range(tf.cast(longest, total.dtype))[tf.newaxis]  # [1, S]
    is_sep = (place == size + 1) | (place == total - 1)
    index = start + place - 1
    if second is not None:
      index = tf.where(place > size, start_other + place - size - 2, index)
    index = tf.where(is_sep, specials + 1, tf.where(place == 0, specials, index))
    is_real = place < total
    return {
      "input_ids": tf.gather(flat, tf.where(is_real, index, specials + 2)),
      "input_mask": tf.cast(is_real, tf.int32),
      "segment_ids": tf.cast(is_real & (place > size + 1), tf.int32),
    }


def _truncate(
  first: tf.RaggedTensor, second: tf.RaggedTensor, max_length: int
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
  """`packing.truncate_pair` for every row; a row without a second segment has room for one token more."""
  size, other = first.row_lengths(), second.row_lengths()
  budget = tf.where(
    other > 0, tf.constant(max_length - 3, size.dtype), tf.constant(max_length - 2, size.dtype)
  )
  keep = tf.minimum(size, tf.maximum(budget - other, (budget + 1) // 2))
  keep = tf.where(size + other > budget, keep, size)
  keep = tf.where(other > 0, keep, tf.minimum(size, budget))
  return head(first, keep), head(second, tf.minimum(other, budget - keep))


def head(ids: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
  """The first lengths[b] values of row b, or all of them if it has fewer."""
  starts = ids.row_starts()
  return _rows(ids, starts, starts + tf.minimum(tf.cast(lengths, starts.dtype), ids.row_lengths()))


def tail(ids: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
  """The last lengths[b] values of row b, or all of them if it has fewer."""
  limits = ids.row_limits()
  return _rows(ids, limits - tf.minimum(tf.cast(lengths, limits.dtype), ids.row_lengths()), limits)


def _rows(ids: tf.RaggedTensor, starts: tf.Tensor, limits: tf.Tensor) -> tf.RaggedTensor:
  """The flat values from starts[b] to limits[b] as row b."""
  places = tf.ragged.range(starts, limits)
  return places.with_flat_values(tf.gather(ids.flat_values, places.flat_values))
