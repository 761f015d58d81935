"""BERT's WordPiece tokenizer as TensorFlow ops: a table of characters, and TensorFlow Text's op for the pieces.

What becomes of a character is asked of the Python tokenizer when the graph is made: a table gives for each code point
what replaces it, with spaces where it ends a word.
"""

from collections.abc import Iterable
import functools

import numpy as np
import tensorflow as tf

from albert_tf.tokenization import unicode_tables
from albert_tf.tokenization.config import WordPieceConfig
from albert_tf.tokenization.graph_packing import GraphPacker
from albert_tf.tokenization.graph_tables import as_table, replace, table_arrays
from albert_tf.tokenization.wordpiece import MAX_WORD_CHARS, WordPieceTokenizer, text_rules

# Characters from here on stay as they are, but for tags and private ones: a table of them would take megabytes.
_LAST_TABLE = 0x30000
_TAGS = range(0xE0000, 0xE0200)
_PRIVATE = r"\x{f0000}-\x{10ffff}"  # Dropped.
_BETWEEN = "☃"  # Stays as it is.


class WordPieceGraph(GraphPacker):
  """`WordPieceTokenizer` as a module that can be saved; the same ids as the Python one.

  One thing is left out: combining marks that are no accents (of musical notes and Hangul tones) and stand in another
  than Unicode's order stay in it.

  Args:
    tokenizer: whose vocabulary and settings it takes.

  Example:
    >>> module = WordPieceGraph(WordPieceTokenizer.from_pretrained(run_dir))
    >>> module(tf.constant(["A sentence.", "Another."]), max_length=128)["input_ids"].shape
    TensorShape([2, 5])
  """

  def __init__(self, tokenizer: WordPieceTokenizer, name: str = "tokenizer"):
    import tensorflow_text as tf_text  # Most of its import is for layers that nothing here uses.

    super().__init__(tokenizer, name)
    replacements, self._dropped = _characters(tokenizer.config)
    self._characters = as_table(*replacements)
    ids = {piece: index for index, piece in reversed(list(enumerate(tokenizer.pieces)))}  # The first counts.
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
def _characters(config: WordPieceConfig) -> tuple[tuple[np.ndarray, np.ndarray], str]:
  """The table of what becomes of each character, and a class (RE2) of those beyond it that are dropped."""
  codes = [*range(1, 0xD800), *range(0xE000, _LAST_TABLE), *_TAGS]
  codes.remove(ord(_BETWEEN))
  results = dict(zip(codes, _between_words(config, map(chr, codes)), strict=True))
  changed = {code: [ord(char) for char in result] for code, result in results.items() if result != chr(code)}
  table = {0: [], **{code: result for code, result in changed.items() if code < _LAST_TABLE}}
  dropped = unicode_tables.character_class(chr(code) for code in changed if code >= _LAST_TABLE)
  return table_arrays(table), dropped + _PRIVATE


def _between_words(config: WordPieceConfig, characters: Iterable[str]) -> list[str]:
  """What becomes of each character within a word, with spaces where it ends one."""
  normalizer, pre_tokenizer = text_rules(config)
  text = normalizer.normalize_str(_BETWEEN.join(["", *characters, ""]))
  words = (word for word, _ in pre_tokenizer.pre_tokenize_str(text))
  return " ".join(words).split(_BETWEEN)[1:-1]
