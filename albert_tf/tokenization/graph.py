"""The tokenizers as TensorFlow ops: strings to ids, of which `graph_inputs.py` makes batches.

SavedModels and the Keras preprocessor use them, and fine-tuning on SQuAD and on tags.
Apart from core ops they use only SentencepieceOp, SentencepieceTokenizeOp and
WordpieceTokenizeWithOffsets, which TensorFlow Serving links. The graph contains Python's rules for
characters as constants.
"""

from collections.abc import Iterable, Mapping, Sequence
import functools
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


def graph_tokenizer(tokenizer: Tokenizer) -> "TokenizerModule":
  """The module of a tokenizer, SentencePiece or WordPiece."""
  if isinstance(tokenizer, AlbertTokenizer):
    return GraphTokenizer(tokenizer)
  return GraphWordPiece(tokenizer)


class TokenizerModule(tf.Module):
  """Strings in, ids out; a subclass turns a text into ids.

  Args:
    tokenizer: gives the special ids.
  """

  def __init__(self, tokenizer: Tokenizer):
    super().__init__()
    self.mask_id = tokenizer.mask_id
    self.cls_id = tokenizer.cls_id
    self.sep_id = tokenizer.sep_id
    self.pad_id = tokenizer.pad_id

  def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
    """int32 ids [B, (length)] of [B] strings, in which "[MASK]" is text."""
    raise NotImplementedError

  def _ids_behind_mask(
    self, texts: tf.Tensor, ids: tf.RaggedTensor, is_behind: tf.Tensor
  ) -> list[tf.RaggedTensor]:
    """The ids of texts, some of them right behind a mask (bool [B]), in columns to be joined."""
    return [ids]

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
    sections = tf.strings.split(texts, sep=MASK_PIECE)  # [B, (sections)]
    ids = self._tokenize(sections.flat_values)  # [all sections, (length)]
    # A mask stands before each section but the first of its text.
    is_behind = tf.ragged.range(sections.row_lengths()).flat_values > 0
    # A range of one zero, or of none, becomes one mask or none.
    masks = tf.ragged.range(tf.cast(is_behind, tf.int32))
    masks = masks.with_flat_values(masks.flat_values + self.mask_id)
    columns = self._ids_behind_mask(sections.flat_values, ids, is_behind)
    joined = tf.concat([masks] + columns, axis=1)
    return sections.with_flat_values(joined).merge_dims(1, 2)


# Constant tables that replace numbers.


class Table(NamedTuple):
  """A replacement of each number v below T, `values[starts[v] : starts[v] + lengths[v]]`.

  A start of -1 stands for the number itself; the last row is also that of all greater numbers.
  """

  values: tf.Tensor
  starts: tf.Tensor  # [T]
  lengths: tf.Tensor  # [T]


def make_table(replacements: Mapping[int, Sequence[int]]) -> Table:
  """The table in which each key is replaced by its values.

  Example: {1: [], 2: [8, 9]} has the values 0 8 9, the starts -1 1 1 -1 and the lengths 1 0 2 1.
  """
  size = max(replacements, default=-1) + 2
  starts = np.full(size, -1, np.int32)
  lengths = np.ones(size, np.int32)
  values = [0]  # A value to read where a number stays.
  for number, row in replacements.items():
    starts[number] = len(values)
    lengths[number] = len(row)
    values.extend(row)
  with tf.init_scope():  # One copy in a SavedModel, however many functions use it.
    return Table(tf.constant(values), tf.constant(starts), tf.constant(lengths))


def replace(
  numbers: tf.RaggedTensor, table: Table, *, unchanged: tf.Tensor | None = None
) -> tf.RaggedTensor:
  """Replaces each number by its row of the table; [B, (length)] to [B, (length)].

  Args:
    numbers: int32.
    table: of `make_table`.
    unchanged: [all numbers] what stands for a number that the table does not replace; None: itself.

  Example: the table of `make_table` and the numbers 2 7 1:
    7 has no row. It starts at -1 - 1, as its place is 1, and reads itself there.
    positions 1 2 | -2 | (none)  values 8 9 | 7 | (none)
  """
  flat = numbers.flat_values
  if unchanged is None:
    unchanged = flat
  row = tf.minimum(flat, table.starts.shape[0] - 1)
  starts = tf.gather(table.starts, row)
  starts = tf.where(starts < 0, -1 - tf.range(tf.size(flat)), starts)
  ranges = tf.ragged.range(starts, starts + tf.gather(table.lengths, row))

  positions = ranges.flat_values
  unchanged = tf.gather(unchanged, tf.maximum(-1 - positions, 0))
  replaced = tf.gather(table.values, tf.maximum(positions, 0))
  values = tf.where(positions < 0, unchanged, replaced)
  splits = tf.gather(ranges.row_splits, numbers.row_splits)
  return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


# SentencePiece.


class _SentencePiece(tf.saved_model.experimental.TrackableResource):
  """A SentencePiece model in TensorFlow's memory.

  It has a name there, as `tf_text.SentencepieceTokenizer`'s has not: without one it belongs to the
  kernel that made it, and `keras.utils.clear_session()` ends all kernels.

  Args:
    model: the content of the model's file.
    shared_name: one name for one model.
  """

  def __init__(self, model: bytes, *, shared_name: str):
    # Imported here: it takes a second, mostly for layers that nothing here uses.
    from tensorflow_text.python.ops import sentencepiece_tokenizer

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


class GraphTokenizer(TokenizerModule):
  """`AlbertTokenizer` as a module that can be saved, with the same ids.

  Args:
    tokenizer: gives vocabulary and settings.

  Example:
    >>> module = GraphTokenizer(AlbertTokenizer.from_pretrained(run_dir))
    >>> module.tokenize(tf.constant(["A sentence.", "Another."])).row_lengths()
  """

  def __init__(self, tokenizer: AlbertTokenizer):
    super().__init__(tokenizer)
    self._config = tokenizer.config
    self._vocab_size = tokenizer.vocab_size
    self.sentencepiece = _SentencePiece(tokenizer.model_bytes, shared_name=tokenizer.model_sha256)
    self._lower = make_table(unicode_tables.lower_rows())
    self.decomposition = make_table(unicode_tables.decomposition_rows())
    self.digit_commas = make_table(tokenizer.digit_comma_ids)
    # Number V + v: what piece v becomes where its text touches the mask before it.
    after_mask = {}
    for index, piece in enumerate(tokenizer.pieces):
      bare = piece.removeprefix(SPIECE_UNDERLINE)
      new_ids = []  # Of "▁" alone nothing is left.
      if bare:
        new_ids = [tokenizer.ids.get(bare, index)]  # "▁x" becomes "x", if that is a piece.
      after_mask[self._vocab_size + index] = new_ids
    self._after_mask = make_table(after_mask)

  def normalize(self, texts: tf.Tensor) -> tf.Tensor:
    """Applies `normalize_text` to [B] strings; bytes that are not UTF-8 become U+FFFD."""
    # The same as " ".join(text.split()).
    texts = tf.strings.regex_replace(texts, f"[{unicode_tables.space_class()}]+", " ")
    texts = tf.strings.regex_replace(texts, "^ | $", "")
    if self._config.normalize_quotes:
      texts = tf.strings.regex_replace(texts, "``|''", '"')
    # From here on as code points, which tables replace.
    codes = tf.strings.unicode_decode(texts, "UTF-8", errors="replace", replacement_char=_INVALID)
    if not self._config.keep_accents:
      # NFKD and dropping combining characters look at one character alone: they are one table.
      codes = replace(codes, self.decomposition)
    if self._config.do_lower_case:
      # Of all letters only the lower case of Σ depends on its neighbours.
      pattern, replacement = unicode_tables.final_sigma_pattern()
      texts = tf.strings.unicode_encode(codes, "UTF-8")
      texts = tf.strings.regex_replace(texts, pattern, replacement)
      codes = replace(tf.strings.unicode_decode(texts, "UTF-8"), self._lower)
    return tf.strings.unicode_encode(codes, "UTF-8")

  def _ids_behind_mask(
    self, texts: tf.Tensor, ids: tf.RaggedTensor, is_behind: tf.Tensor
  ) -> list[tf.RaggedTensor]:
    # Text that touches the mask before it gets no "▁": of "[MASK]s" the second token is "s".
    # The first character alone is looked at: no pattern matches bytes that are not UTF-8.
    first_character = tf.strings.substr(texts, 0, 1, unit="UTF8_CHAR")
    space_or_end = f"[{unicode_tables.space_class()}]?"
    touches = is_behind & ~tf.strings.regex_full_match(first_character, space_or_end)
    first = ids[:, :1]
    shift = tf.repeat(tf.where(touches, self._vocab_size, 0), first.row_lengths())
    first = replace(first.with_flat_values(first.flat_values + shift), self._after_mask)
    return [first, ids[:, 1:]]

  def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
    ids = self.sentencepiece.tokenize(self.normalize(texts), tf.int32)
    return replace(ids, self.digit_commas)


# WordPiece.

# Beyond, only tags and private characters change: BERT drops them. A table would take megabytes.
_TABLE_END = 0x30000
_SURROGATES = range(0xD800, 0xE000)  # No characters.
_TAGS = range(0xE0000, 0xE0200)
_PRIVATE = r"\x{f0000}-\x{10ffff}"  # Dropped.
_SEPARATOR = "☃"  # BERT's rules leave it as it is.


class GraphWordPiece(TokenizerModule):
  """`WordPieceTokenizer` as a module that can be saved, with the same ids.

  One difference: combining marks of musical notes and Hangul tones are not put into Unicode's
  order.
  """

  def __init__(self, tokenizer: Tokenizer):
    import tensorflow_text as tf_text  # Most of its import is for layers that nothing here uses.

    super().__init__(tokenizer)
    replacements, self._dropped = _character_rules(tokenizer.config)
    self._replacements = make_table(replacements)
    ids = tokenizer.ids
    with tf.init_scope():
      self._vocabulary = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(list(ids), list(ids.values()), value_dtype=tf.int64),
        default_value=tokenizer.unk_id,
      )
      self._wordpiece = tf_text.WordpieceTokenizer(
        self._vocabulary,
        token_out_type=tf.int64,
        max_bytes_per_word=4 * MAX_WORD_CHARS,  # A character has at most 4 bytes.
      )

  def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
    words = self._words(texts)
    # TensorFlow Text limits bytes, the original characters.
    too_long = tf.strings.length(words.flat_values, unit="UTF8_CHAR") > MAX_WORD_CHARS
    words = words.with_flat_values(tf.where(too_long, "[UNK]", words.flat_values))
    return tf.cast(self._wordpiece.tokenize(words).merge_dims(1, 2), tf.int32)

  def _words(self, texts: tf.Tensor) -> tf.RaggedTensor:
    """Words and punctuation marks of [B] strings: ragged [B, (words)]."""
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")
    # The table has a row for each replaced character, and the pattern the dropped ones beyond it.
    texts = tf.strings.regex_replace(texts, f"[{self._dropped}]", "")
    codes = replace(tf.strings.unicode_decode(texts, "UTF-8"), self._replacements)
    words = tf.strings.split(tf.strings.unicode_encode(codes, "UTF-8"), sep=" ")
    return tf.ragged.boolean_mask(words, words != "")


@functools.cache
def _character_rules(config: WordPieceConfig) -> tuple[dict[int, list[int]], str]:
  """BERT's text rules for each character.

  Returns:
    The table of replaced characters, and an RE2 class of dropped characters beyond the table.
  """
  codes = [
    code for code in range(1, _TABLE_END) if code not in _SURROGATES and code != ord(_SEPARATOR)
  ]
  codes.extend(_TAGS)
  table: dict[int, list[int]] = {0: []}
  dropped = []
  for code, text in zip(codes, _between_words(config, map(chr, codes)), strict=True):
    if text == chr(code):
      continue
    if code < _TABLE_END:
      table[code] = [ord(char) for char in text]
    else:
      dropped.append(chr(code))
  return table, unicode_tables.character_class(dropped) + _PRIVATE


def _between_words(config: WordPieceConfig, characters: Iterable[str]) -> list[str]:
  """The replacement of each character within a word, with spaces if it ends a word.

  All are asked at once: "Aé," as ☃A☃é☃,☃ becomes the words ☃a☃e☃ , ☃, so the comma is " , ".
  """
  normalizer, pre_tokenizer = text_rules(config)
  text = _SEPARATOR + _SEPARATOR.join(characters) + _SEPARATOR
  words = pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(text))
  return " ".join(word for word, _ in words).split(_SEPARATOR)[1:-1]
