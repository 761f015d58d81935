"""The tokenizer as TensorFlow ops: raw strings in, a batch for the encoder out, inside a SavedModel.

Beside core ops it uses only SentencepieceOp and SentencepieceTokenizeOp, which TensorFlow Serving links. What
Python decides about characters is in constants, made when the graph is.
"""

import copy
import functools

import numpy as np
import tensorflow as tf

from albert_tf.tokenization import unicode_tables
from albert_tf.tokenization.graph_packing import GraphPacker
from albert_tf.tokenization.graph_tables import as_table, make_table, replace, table_arrays
from albert_tf.tokenization.graph_wordpiece import WordPieceGraph
from albert_tf.tokenization.loading import Tokenizer
from albert_tf.tokenization.tokenizer import AlbertTokenizer
from albert_tf.tokenization.wordpiece import WordPieceTokenizer

_INVALID = 0xFFFD  # What bytes that are not UTF-8 become.


def graph_tokenizer(tokenizer: Tokenizer) -> GraphPacker:
  """The tokenizer as a module, whichever kind it is."""
  if isinstance(tokenizer, WordPieceTokenizer):
    return WordPieceGraph(tokenizer)
  return GraphTokenizer(tokenizer)


@functools.cache
def _unicode_arrays() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
  """Of decomposition and of lower-casing; the same for every tokenizer."""
  return table_arrays(unicode_tables.decomposition_rows()), table_arrays(unicode_tables.lower_rows())


class GraphTokenizer(GraphPacker):
  """`AlbertTokenizer` as a module that can be saved; the same ids as the Python one.

  Args:
    tokenizer: whose vocabulary and settings it takes.

  Example:
    >>> module = GraphTokenizer(AlbertTokenizer.from_pretrained(run_dir))
    >>> module(tf.constant(["A sentence.", "Another."]), max_length=128)["input_ids"].shape
    TensorShape([2, 5])
  """

  def __init__(self, tokenizer: AlbertTokenizer, name: str = "tokenizer"):
    import tensorflow_text as tf_text  # Most of its import is for layers that nothing here uses.

    super().__init__(tokenizer, name)
    self._config = tokenizer.config
    self._sentencepiece = tf_text.SentencepieceTokenizer(model=tokenizer.model_bytes, out_type=tf.int32)
    self._digit_commas = make_table(tokenizer.digit_comma_ids)
    self._vocab_size = tokenizer.vocab_size
    # Row V + v: piece v where text touches the mask before it, without its "▁".
    bare = tokenizer.without_space_mark
    self._after_mask = make_table({self._vocab_size + i: bare.get(i, [i]) for i in range(self._vocab_size)})
    self._decomposition, self._lower = (as_table(*arrays) for arrays in _unicode_arrays())

  def normalize(self, texts: tf.Tensor) -> tf.Tensor:
    """What `normalize_text` does, on any shape of strings; bytes that are not UTF-8 become U+FFFD."""
    if texts.shape.rank != 1:
      return tf.reshape(self.normalize(tf.reshape(texts, [-1])), tf.shape(texts))
    if self._config.remove_space:
      texts = tf.strings.regex_replace(texts, f"[{unicode_tables.space_class()}]+", " ")
      texts = tf.strings.regex_replace(texts, "^ | $", "")
    if self._config.normalize_quotes:
      texts = tf.strings.regex_replace(texts, "``|''", '"')
    codes = tf.strings.unicode_decode(texts, "UTF-8", errors="replace", replacement_char=_INVALID)
    if not self._config.keep_accents:
      # NFKD and dropping combining characters look at one character alone, so together they are a table.
      codes = self.decompose(codes)
    if self._config.do_lower_case:
      pattern, replacement = unicode_tables.final_sigma_pattern()
      texts = tf.strings.regex_replace(tf.strings.unicode_encode(codes, "UTF-8"), pattern, replacement)
      codes = replace(tf.strings.unicode_decode(texts, "UTF-8"), self._lower)
    return tf.strings.unicode_encode(codes, "UTF-8")

  def decompose(self, codes: tf.RaggedTensor) -> tf.RaggedTensor:
    """NFKD of ragged code points [B, (length)], without combining characters."""
    return replace(codes, self._decomposition)

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
    return self.split_digit_commas(self.raw_ids(self.normalize(texts)))

  def split_digit_commas(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
    """The digit-comma rule, on what `raw_ids` returns."""
    return replace(ids, self._digit_commas)

  def raw_ids(self, normalized: tf.Tensor) -> tf.RaggedTensor:
    """Ids of normalised texts, before the digit-comma rule."""
    return self._sentencepiece.tokenize(normalized)

  def surfaces(self, normalized: tf.Tensor) -> tf.RaggedTensor:
    """The strings of which `raw_ids` are the ids: pieces, and what no piece covers as it is."""
    as_strings = copy.copy(self._sentencepiece)  # The same model in the graph.
    as_strings.out_type = tf.string
    return as_strings.tokenize(normalized)
