"""The tokenizers as TensorFlow ops, for SavedModels: strings to batches for the encoder.

Apart from core ops they use only SentencepieceOp, SentencepieceTokenizeOp and WordpieceTokenizeWithOffsets, which
TensorFlow Serving links. The graph contains Python's rules for characters as constants.
"""

from collections.abc import Iterable, Mapping, Sequence
import functools
import itertools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.tokenization import unicode_tables
from albert_tf.tokenization.base import MASK_PIECE, Tokenizer
from albert_tf.tokenization.config import WordPieceConfig
from albert_tf.tokenization.tokenizer import AlbertTokenizer
from albert_tf.tokenization.word_starts import SPIECE_UNDERLINE
from albert_tf.tokenization.wordpiece import MAX_WORD_CHARS, text_rules

_INVALID = 0xFFFD  # What bytes that are not UTF-8 become.
# Characters from here on stay as they are, but for tags and private ones: a table of them would take megabytes.
_LAST_TABLE = 0x30000
_TAGS = range(0xE0000, 0xE0200)
_PRIVATE = r"\x{f0000}-\x{10ffff}"  # Dropped.
_BETWEEN = "☃"  # Stays as it is.


class GraphPacker(tf.Module):
  """Strings in, `[CLS] … [SEP]` out; a subclass turns a text into ids.

  Args:
    tokenizer: gives the special ids.
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
      allow_mask: read a literal "[MASK]" as the mask token.

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
    """Texts, or pairs of texts, as a batch for the encoder.

    Args:
      texts: [B] strings.
      pairs: [B] strings, the second segments, or None. An empty one makes a single segment.
      max_length: longer rows are cut at the end; of a pair, the longer segment first.
      pad_to_max_length: S = max_length; else S = the longest row.
      allow_mask: read a literal "[MASK]" as the mask token.

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
    # Computed for all places [B, S] together: a few ops where ragged concatenation takes hundreds.
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
  """Cuts the longer one of every row (the second when equal) until both fit in `max_length` with [CLS] and [SEP].

  Equals the original's loop, which pops one token at a time. A row without a second segment has room for one more.
  """
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


# Constant tables that replace numbers.


class Table(NamedTuple):
  """Number v → its replacement, values[starts[v] : starts[v] + lengths[v]]; a larger number is not replaced."""

  values: tf.Tensor
  starts: tf.Tensor
  lengths: tf.Tensor


def make_table(replacements: Mapping[int, Sequence[int]]) -> Table:
  """The table in which each key is replaced by its values."""
  rows = [replacements.get(index, (index,)) for index in range(max(replacements, default=-1) + 1)]
  lengths = np.array([len(row) for row in rows], np.int32)
  values = np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(lengths.sum()))
  with tf.init_scope():  # One copy in a SavedModel, however many functions use it.
    return Table(*(tf.constant(array, tf.int32) for array in (values, np.cumsum(lengths) - lengths, lengths)))


def replace(numbers: tf.RaggedTensor, table: Table) -> tf.RaggedTensor:
  """Replaces each number by its row of the table; [B, (length)] to [B, (length)]."""
  size = table.lengths.shape[0]
  if not size:
    return numbers
  flat = numbers.flat_values
  known = flat < size
  row = tf.minimum(flat, size - 1)
  lengths = tf.where(known, tf.gather(table.lengths, row), 1)
  # A number without a row points to itself: -1 - its place.
  starts = tf.where(known, tf.gather(table.starts, row), -1 - tf.range(tf.size(flat)))
  positions = tf.ragged.range(starts, starts + lengths)
  index = positions.flat_values
  own = tf.gather(flat, tf.maximum(-1 - index, 0))
  values = tf.where(index < 0, own, tf.gather(table.values, tf.maximum(index, 0)))
  splits = tf.gather(positions.row_splits, numbers.row_splits)
  return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


# SentencePiece.


class _SentencePiece(tf.saved_model.experimental.TrackableResource):
  """A SentencePiece model in TensorFlow's memory.

  It has a name there, as `tf_text.SentencepieceTokenizer`'s has not: without one it belongs to the kernel that made
  it, and `keras.utils.clear_session()` ends all kernels.

  Args:
    model: the content of the model's file.
    shared_name: one name for one model.
  """

  def __init__(self, model: bytes, *, shared_name: str):
    from tensorflow_text.python.ops import sentencepiece_tokenizer  # A second; most of it is for layers.

    super().__init__()
    self._ops = sentencepiece_tokenizer.gen_sentencepiece_tokenizer
    self._model = model
    self._shared_name = shared_name
    _ = self.resource_handle  # Reading it makes the resource, outside of any graph.

  def _create_resource(self) -> tf.Tensor:
    return self._ops.sentencepiece_op(model=self._model, shared_name=self._shared_name)

  def tokenize(self, texts: tf.Tensor, out_type: tf.DType) -> tf.RaggedTensor:
    """Ids, or pieces as strings, of [B] strings: ragged [B, (length)]."""
    values, splits = self._ops.sentencepiece_tokenize_op(
      self.resource_handle,
      texts,
      nbest_size=0,  # No sampling.
      alpha=1.0,
      add_bos=False,
      add_eos=False,
      reverse=False,
      out_type=out_type,
    )
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


class GraphTokenizer(GraphPacker):
  """`AlbertTokenizer` as a module that can be saved, with the same ids.

  Args:
    tokenizer: gives vocabulary and settings.

  Example:
    >>> module = GraphTokenizer(AlbertTokenizer.from_pretrained(run_dir))
    >>> module(tf.constant(["A sentence.", "Another."]), max_length=128)["input_ids"].shape
    TensorShape([2, 5])
  """

  def __init__(self, tokenizer: AlbertTokenizer, name: str = "tokenizer"):
    super().__init__(tokenizer, name)
    self._config = tokenizer.config
    self._sentencepiece = _SentencePiece(tokenizer.model_bytes, shared_name=tokenizer.model_sha256)
    self.digit_commas = make_table(tokenizer.digit_comma_ids)
    self._vocab_size = tokenizer.vocab_size
    # Row V + v: piece v where text touches the mask before it: "▁x" becomes "x" if that is a piece, "▁" nothing.
    bare = [piece.removeprefix(SPIECE_UNDERLINE) for piece in tokenizer.pieces]
    rows = ([tokenizer.ids.get(text, i)] if text else [] for i, text in enumerate(bare))
    self._after_mask = make_table(dict(enumerate(rows, self._vocab_size)))
    self.decomposition = make_table(unicode_tables.decomposition_rows())
    self._lower = make_table(unicode_tables.lower_rows())

  def normalize(self, texts: tf.Tensor) -> tf.Tensor:
    """Applies `normalize_text` to strings of any shape; bytes that are not UTF-8 become U+FFFD."""
    if texts.shape.rank != 1:
      return tf.reshape(self.normalize(tf.reshape(texts, [-1])), tf.shape(texts))
    texts = tf.strings.regex_replace(texts, f"[{unicode_tables.space_class()}]+", " ")
    texts = tf.strings.regex_replace(texts, "^ | $", "")
    if self._config.normalize_quotes:
      texts = tf.strings.regex_replace(texts, "``|''", '"')
    codes = tf.strings.unicode_decode(texts, "UTF-8", errors="replace", replacement_char=_INVALID)
    if not self._config.keep_accents:
      # NFKD and dropping combining characters look at one character alone, so together they are a table.
      codes = replace(codes, self.decomposition)
    if self._config.do_lower_case:
      pattern, replacement = unicode_tables.final_sigma_pattern()
      texts = tf.strings.regex_replace(tf.strings.unicode_encode(codes, "UTF-8"), pattern, replacement)
      codes = replace(tf.strings.unicode_decode(texts, "UTF-8"), self._lower)
    return tf.strings.unicode_encode(codes, "UTF-8")

  def _behind_mask(
    self, texts: tf.Tensor, ids: tf.RaggedTensor, is_behind: tf.Tensor
  ) -> tuple[tf.RaggedTensor, ...]:
    # Text that touches the mask before it gets no "▁".
    touches = is_behind & ~tf.strings.regex_full_match(texts, f"(?s)(?:[{unicode_tables.space_class()}].*)?")
    first = ids[:, :1]
    shift = tf.repeat(tf.where(touches, self._vocab_size, 0), first.row_lengths())
    first = replace(first.with_flat_values(first.flat_values + shift), self._after_mask)
    return first, ids[:, 1:]

  def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
    return replace(self.raw_ids(self.normalize(texts)), self.digit_commas)

  def raw_ids(self, normalized: tf.Tensor) -> tf.RaggedTensor:
    """Ids of normalised texts, before the digit-comma rule."""
    return self._sentencepiece.tokenize(normalized, tf.int32)

  def surfaces(self, normalized: tf.Tensor) -> tf.RaggedTensor:
    """The strings of `raw_ids`: pieces, and text that no piece covers, unchanged."""
    return self._sentencepiece.tokenize(normalized, tf.string)


# WordPiece.


class WordPieceGraph(GraphPacker):
  """`WordPieceTokenizer` as a module that can be saved, with the same ids.

  One difference: combining marks of musical notes and Hangul tones are not put into Unicode's order.
  """

  def __init__(self, tokenizer: Tokenizer, name: str = "tokenizer"):
    import tensorflow_text as tf_text  # Most of its import is for layers that nothing here uses.

    super().__init__(tokenizer, name)
    replacements, self._dropped = _characters(tokenizer.config)
    self._characters = make_table(replacements)
    ids = tokenizer.ids
    with tf.init_scope():
      self._vocabulary = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(list(ids), list(ids.values()), value_dtype=tf.int64),
        default_value=tokenizer.unk_id,
      )
      self._wordpiece = tf_text.WordpieceTokenizer(
        self._vocabulary, token_out_type=tf.int64, max_bytes_per_word=4 * MAX_WORD_CHARS
      )

  def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
    words = self._words(texts)
    too_long = tf.strings.length(words.flat_values, unit="UTF8_CHAR") > MAX_WORD_CHARS
    words = words.with_flat_values(tf.where(too_long, "[UNK]", words.flat_values))
    return tf.cast(self._wordpiece.tokenize(words).merge_dims(1, 2), tf.int32)

  def _words(self, texts: tf.Tensor) -> tf.RaggedTensor:
    """Words and punctuation marks of [B] strings: ragged [B, (words)]."""
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")
    texts = tf.strings.regex_replace(texts, f"[{self._dropped}]", "")
    codes = replace(tf.strings.unicode_decode(texts, "UTF-8"), self._characters)
    words = tf.strings.split(tf.strings.unicode_encode(codes, "UTF-8"), sep=" ")
    return tf.ragged.boolean_mask(words, words != "")


@functools.cache
def _characters(config: WordPieceConfig) -> tuple[dict[int, list[int]], str]:
  """The table of replaced characters, and an RE2 class of dropped characters that are not in the table."""
  codes = [*range(1, 0xD800), *range(0xE000, _LAST_TABLE), *_TAGS]
  codes.remove(ord(_BETWEEN))
  results = dict(zip(codes, _between_words(config, map(chr, codes)), strict=True))
  changed = {code: [ord(char) for char in result] for code, result in results.items() if result != chr(code)}
  table = {0: [], **{code: result for code, result in changed.items() if code < _LAST_TABLE}}
  dropped = unicode_tables.character_class(chr(code) for code in changed if code >= _LAST_TABLE)
  return table, dropped + _PRIVATE


def _between_words(config: WordPieceConfig, characters: Iterable[str]) -> list[str]:
  """The replacement of each character within a word, with spaces if it ends a word."""
  normalizer, pre_tokenizer = text_rules(config)
  text = normalizer.normalize_str(_BETWEEN.join(["", *characters, ""]))
  words = (word for word, _ in pre_tokenizer.pre_tokenize_str(text))
  return " ".join(words).split(_BETWEEN)[1:-1]


def graph_tokenizer(tokenizer: Tokenizer) -> GraphPacker:
  """The module of a tokenizer, SentencePiece or WordPiece."""
  return GraphTokenizer(tokenizer) if isinstance(tokenizer, AlbertTokenizer) else WordPieceGraph(tokenizer)
