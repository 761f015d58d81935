"""BERT's WordPiece tokenizer as TensorFlow ops, core ops alone.

What `basic_tokenize` makes of a character is asked of `basic_tokenize` itself when the graph is made: a table gives for
each code point what becomes of it, with spaces where it ends a word. Then the longest piece that begins at each
character is looked up for all characters at once, in a trie, and every word jumps from piece to piece.
"""

from collections.abc import Iterator, Sequence
import functools
import itertools
import sys
from typing import Any, NamedTuple
import unicodedata

import numpy as np
import tensorflow as tf

from albert_tf.tokenization import unicode_tables
from albert_tf.tokenization.graph_packing import GraphPacker
from albert_tf.tokenization.graph_tables import as_table, replace, table_arrays
from albert_tf.tokenization.wordpiece import (
  CONTINUES,
  MAX_WORD_CHARS,
  WordPieceTokenizer,
  basic_tokenize,
  is_text,
)

_SPACE = ord(" ")
_NOTHING = 0  # What is left of a mark that is dropped but keeps those around it in their order.
_CODE_BITS = 21  # Of a code point.
_FIRST, _INNER = 0, 1  # Roots of the trie: of pieces that begin a word, and of those behind "##".
_NO_PIECE = -1
# No character from here on is changed but variation selectors, which are dropped as the first of them is.
_LAST_TABLE = 0x30000
_SELECTOR = "\ufe00"


class _Words(NamedTuple):
  """The n characters of all words of B texts.

  Attributes:
    codes: int32 [n] code points.
    row: int64 [n] which text.
    word: int32 [n] which of the W words.
    begins, ends: int32 [W] the word's characters.
  """

  codes: tf.Tensor
  row: tf.Tensor
  word: tf.Tensor
  begins: tf.Tensor
  ends: tf.Tensor


class WordPieceGraph(GraphPacker):
  """`WordPieceTokenizer` as a module that can be saved; the same ids as the Python one.

  Args:
    tokenizer: whose vocabulary and settings it takes.

  Example:
    >>> module = WordPieceGraph(WordPieceTokenizer.from_pretrained(run_dir))
    >>> module(tf.constant(["A sentence.", "Another."]), max_length=128)["input_ids"].shape
    TensorShape([2, 5])
  """

  def __init__(self, tokenizer: WordPieceTokenizer, name: str = "tokenizer"):
    super().__init__(tokenizer, name)
    self._config = tokenizer.config
    self._unk_id = tokenizer.unk_id
    characters, order = _character_arrays(tokenizer.config.do_lower_case, tokenizer.config.keep_accents)
    self._characters = as_table(*characters)
    with tf.init_scope():
      self._order = tf.constant(order, tf.uint8)
      self._edges, self._children, self._piece = map(tf.constant, _trie(tokenizer.pieces))

  def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
    words = self._words(texts)
    length, piece = self._longest_pieces(words)
    is_piece, is_known = _jump(words, length)
    # A word with a part that fits no piece is one unknown piece, at its first character.
    known = tf.gather(is_known, words.word)
    index = tf.range(tf.size(words.codes))
    is_first = index == tf.gather(words.begins, words.word)
    chosen = tf.where(known, is_piece, is_first)
    ids = tf.boolean_mask(tf.where(known, piece, self._unk_id), chosen)
    rows = tf.boolean_mask(words.row, chosen)
    return tf.RaggedTensor.from_value_rowids(ids, rows, nrows=tf.size(texts, tf.int64), validate=False)

  def _words(self, texts: tf.Tensor) -> _Words:
    """What `basic_tokenize` does."""
    codes = self._characters_of(texts)
    flat = codes.flat_values
    solid = flat > _SPACE
    number = tf.boolean_mask(
      tf.cumsum(tf.cast(flat == _SPACE, tf.int32)), solid
    )  # Spaces before each character.
    is_first = number != tf.concat([[-1], number[:-1]], axis=0)[: tf.size(number)]
    begins = tf.cast(tf.where(is_first)[:, 0], tf.int32)
    return _Words(
      codes=tf.boolean_mask(flat, solid),
      row=tf.boolean_mask(codes.value_rowids(), solid),
      word=tf.cumsum(tf.cast(is_first, tf.int32)) - 1,
      begins=begins,
      ends=tf.concat([begins, [tf.size(number)]], axis=0)[1:],
    )

  def _characters_of(self, texts: tf.Tensor) -> tf.RaggedTensor:
    """Code points of the words' characters with spaces between words, and before each text's first."""
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")
    texts = tf.strings.regex_replace(texts, f"[{_dropped_class()}]", "")
    if not self._config.keep_accents:
      texts = tf.strings.regex_replace(texts, f"[{_selector_class()}]", _SELECTOR)
    if self._config.do_lower_case:
      texts = tf.strings.regex_replace(texts, *unicode_tables.final_sigma_pattern())
    texts = tf.strings.join([" ", texts])
    codes = replace(tf.strings.unicode_decode(texts, "UTF-8"), self._characters)
    return codes if self._config.keep_accents else self._in_canonical_order(codes)

  def _in_canonical_order(self, codes: tf.RaggedTensor) -> tf.RaggedTensor:
    """Marks that are kept, in Unicode's order; few texts have two of them in a row."""
    flat = codes.flat_values
    size = self._order.shape[0]
    order = tf.where(flat < size, tf.cast(tf.gather(self._order, tf.minimum(flat, size - 1)), tf.int32), 0)

    def ordered() -> tf.Tensor:
      run = tf.cumsum(
        tf.cast(order == 0, tf.int32)
      )  # Other characters stay where they are: each begins a run.
      return tf.gather(flat, tf.argsort(run * 256 + order, stable=True))

    return codes.with_flat_values(tf.cond(tf.reduce_any(order > 0), ordered, lambda: flat))

  def _longest_pieces(self, words: _Words) -> tuple[tf.Tensor, tf.Tensor]:
    """Of each character, how long the longest piece is that begins there, 0 for none, and its id; int32 [n]."""
    count = tf.size(words.codes)
    index = tf.range(count)
    end = tf.gather(words.ends, words.word)
    begin = tf.gather(words.begins, words.word)
    codes = tf.cast(words.codes, tf.int64)

    def step(depth: tf.Tensor, at: tf.Tensor, node: tf.Tensor, *best: tf.Tensor) -> tuple[tf.Tensor, ...]:
      edge = tf.bitwise.left_shift(tf.cast(node, tf.int64), tf.constant(_CODE_BITS, tf.int64))
      edge += tf.gather(codes, at + depth)
      slot = tf.searchsorted(self._edges, edge)  # The last edge is behind all.
      found = tf.gather(self._edges, slot) == edge
      at, node = tf.boolean_mask(at, found), tf.gather(self._children, tf.boolean_mask(slot, found))
      piece = tf.gather(self._piece, node)
      is_piece = piece != _NO_PIECE
      where = tf.boolean_mask(at, is_piece)[:, tf.newaxis]
      length, longest = best
      length = tf.tensor_scatter_nd_update(length, where, tf.fill([tf.size(where)], depth + 1))
      longest = tf.tensor_scatter_nd_update(longest, where, tf.boolean_mask(piece, is_piece))
      goes_on = at + depth + 1 < tf.gather(end, at)
      return depth + 1, tf.boolean_mask(at, goes_on), tf.boolean_mask(node, goes_on), length, longest

    looked_up = end - begin <= MAX_WORD_CHARS
    node = tf.where(index == begin, _FIRST, _INNER)
    start = (tf.boolean_mask(index, looked_up), tf.boolean_mask(node, looked_up))
    *_, length, longest = tf.while_loop(
      lambda _, at, *others: tf.size(at) > 0,
      step,
      (tf.constant(0), *start, tf.zeros_like(index), tf.fill([count], _NO_PIECE)),
      shape_invariants=(tf.TensorShape([]), *[tf.TensorShape([None])] * 4),
      parallel_iterations=1,
    )
    return length, longest


def _jump(words: _Words, length: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """From each word's beginning to its end, by the longest piece each time.

  Returns:
    (bool [n] where jumps began, bool [W] whether the word's end was reached).
  """

  def step(at: tf.Tensor, word: tf.Tensor, seen: tf.Tensor, known: tf.Tensor) -> tuple[tf.Tensor, ...]:
    width = tf.gather(length, at)
    stuck = tf.boolean_mask(word, width == 0)[:, tf.newaxis]
    known = tf.tensor_scatter_nd_update(known, stuck, tf.fill([tf.size(stuck)], False))
    seen = tf.tensor_scatter_nd_update(seen, at[:, tf.newaxis], tf.fill([tf.size(at)], True))
    goes_on = (width > 0) & (at + width < tf.gather(words.ends, word))
    return tf.boolean_mask(at + width, goes_on), tf.boolean_mask(word, goes_on), seen, known

  start = (words.begins, tf.range(tf.size(words.begins)))
  flags = (tf.zeros_like(words.codes, tf.bool), tf.ones_like(words.begins, tf.bool))
  *_, seen, known = tf.while_loop(
    lambda at, *others: tf.size(at) > 0,
    step,
    (*start, *flags),
    shape_invariants=(tf.TensorShape([None]),) * 4,
    parallel_iterations=1,
  )
  return seen, known


def _trie(pieces: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Sorted int64 edges, node and code point in one number; int32 node to which each leads; int32 id at each node."""
  edges: dict[int, int] = {}
  ids = [_NO_PIECE, _NO_PIECE]
  for index, piece in enumerate(pieces):
    node, text = (_INNER, piece.removeprefix(CONTINUES)) if piece.startswith(CONTINUES) else (_FIRST, piece)
    for char in text:
      node = edges.setdefault(node << _CODE_BITS | ord(char), len(ids))
      if node == len(ids):
        ids.append(_NO_PIECE)
    if text and ids[node] == _NO_PIECE:  # Of a repeated piece the first counts.
      ids[node] = index
  keys = sorted(edges)
  children = np.array([*(edges[key] for key in keys), 0], np.int32)
  return np.array([*keys, np.iinfo(np.int64).max], np.int64), children, np.array(ids, np.int32)


def _characters(first: int = 0) -> Iterator[str]:
  return (chr(code) for code in range(first, sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF)


def _between(char: str, **settings: Any) -> str:
  """What becomes of a character within a word, with spaces where it ends one."""
  return " ".join(basic_tokenize(f"a{char}b", **settings))[1:-1]


@functools.cache
def _dropped_class() -> str:
  """Characters that are no text, whatever the settings."""
  return unicode_tables.character_class(
    char
    for char in _characters()
    if not is_text(char) and not _between(char, do_lower_case=False, keep_accents=True)
  )


@functools.cache
def _selector_class() -> str:
  """Marks too far behind for a table."""
  return unicode_tables.character_class(
    char for char in _characters(_LAST_TABLE) if unicodedata.category(char) == "Mn"
  )


@functools.cache
def _character_arrays(
  do_lower_case: bool, keep_accents: bool
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
  """The table of what becomes of each character; uint8 combining class of the marks that are kept, else 0."""
  rows: dict[int, list[int]] = {}
  order = np.zeros(_LAST_TABLE, np.uint8)
  for char in itertools.takewhile(lambda char: ord(char) < _LAST_TABLE, _characters()):
    result = _between(char, do_lower_case=do_lower_case, keep_accents=keep_accents)
    is_mark = unicodedata.category(char) == "Mn"
    if not keep_accents and is_mark and not unicodedata.combining(char):
      rows[ord(char)] = [_NOTHING]
    elif result != char:
      rows[ord(char)] = list(map(ord, result))
    if not is_mark:
      order[ord(char)] = unicodedata.combining(char)
  return table_arrays(rows), order[: int(np.flatnonzero(order)[-1]) + 1]
