"""Documents of raw sentences to arrays of ids and words, once for all passes."""

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence
import dataclasses
import itertools
from typing import Any, NamedTuple

import numpy as np

from albert_tf.tokenization import AlbertTokenizer, Tokenizer
from albert_tf.tokenization.word_starts import SPIECE_UNDERLINE

KNOWN_CHARACTERS = 1 << 20  # Size of the cache of words, about 40 MB.
_CHARACTERS_AT_ONCE = 1 << 18  # Text tokenized together; its words take 30 times as much memory.


@dataclasses.dataclass(frozen=True)
class TokenizedDocument:
  """One document as ids.

  Args:
    ids: int32 [T] token ids of all sentences, one after the other.
    word_positions: int64 [W] the tokens that start a word.
    sentence_offsets: where each sentence begins in `ids`; the last entry is T.
  """

  ids: np.ndarray
  word_positions: np.ndarray
  sentence_offsets: list[int]

  @property
  def num_sentences(self) -> int:
    return len(self.sentence_offsets) - 1


class _Encoded(NamedTuple):
  """Many texts as ids: int32 [T] of all, one after the other; int64 [N] how many each has."""

  ids: np.ndarray
  sizes: np.ndarray


class BlockTokenizer:
  """Tokenizes many documents together.

  SentencePiece segments each space-separated word on its own when no piece holds a space mark after
  its first character (checked here), so each distinct word is segmented once and the sentences are
  put together with NumPy: two to four times as fast as segmenting every sentence.

  Args:
    tokenizer: the vocabulary.
    whole_word: which tokens start a word, one of `WORD_RULES`.
  """

  def __init__(self, tokenizer: Tokenizer, whole_word: str = "original"):
    self._tokenizer = tokenizer
    self._word_starts = tokenizer.word_starts(whole_word)
    self._words = _KnownWords(tokenizer)
    self._goes_by_words = _is_word_by_word(tokenizer)

  def __call__(
    self, documents: Sequence[Sequence[str]], *, max_sentence_tokens: int | None = None
  ) -> list[TokenizedDocument]:
    """Tokenizes `documents`.

    Args:
      documents: raw sentences of each document.
      max_sentence_tokens: a longer sentence is cut into equal parts at word starts.

    Returns:
      The documents, without the sentences that have no token; so they may be empty.
    """
    encoded: list[_Encoded] = []
    all_sentences = itertools.chain.from_iterable(documents)
    for sentences in portions(all_sentences, _CHARACTERS_AT_ONCE):
      if self._goes_by_words:
        encoded.append(self._encode_by_words(sentences))
      else:
        encoded.append(_encode(self._tokenizer, sentences))
    ids = np.concatenate([portion.ids for portion in encoded])
    sizes = np.concatenate([portion.sizes for portion in encoded])

    # Divide the ids among the documents again. Sentences without a token leave no trace.
    tokenized = []
    first_sentence = 0
    first_token = 0
    for document in documents:
      document_sizes = sizes[first_sentence : first_sentence + len(document)]
      end = first_token + int(document_sizes.sum())
      document_ids = ids[first_token:end]
      word_positions = np.flatnonzero(self._word_starts[document_ids])
      offsets = _offsets(document_sizes[document_sizes > 0])
      if max_sentence_tokens is not None:
        offsets = _cut_long_sentences(offsets, word_positions, max_sentence_tokens)
      tokenized.append(TokenizedDocument(document_ids, word_positions, offsets.tolist()))
      first_sentence += len(document)
      first_token = end
    return tokenized

  def _encode_by_words(self, sentences: list[str]) -> _Encoded:
    # The words of all sentences together.
    words = [sentence.split() for sentence in sentences]
    encoded_words = self._words.encode(itertools.chain.from_iterable(words))
    # Sizes of words to sizes of sentences: how far the ids go behind the last word of each.
    ends_of_words = _offsets(encoded_words.sizes)
    ends_of_sentences = ends_of_words[np.cumsum(_lengths(words))]
    return _Encoded(encoded_words.ids, np.diff(ends_of_sentences, prepend=0))


class _KnownWords:
  """Words of this and of earlier blocks, numbered, with the ids of each."""

  def __init__(self, tokenizer: Tokenizer):
    self._tokenizer = tokenizer
    self._forget()

  def _forget(self) -> None:
    # A word that is looked up for the first time gets the next number.
    self._numbers: dict[str, int] = collections.defaultdict(itertools.count().__next__)
    self._num_characters = 0
    self._encoded = _Encoded(np.zeros(0, np.int32), np.zeros(0, np.int64))

  def encode(self, words: Iterable[str]) -> _Encoded:
    """The ids of many words, each of which is tokenized when it is new."""
    if self._num_characters > KNOWN_CHARACTERS:
      self._forget()
    # New words are at the end of the dictionary, in the order of their numbers.
    num_known = len(self._numbers)
    numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64)
    new_words = list(itertools.islice(self._numbers, num_known, None))
    try:
      encoded = _encode(self._tokenizer, new_words)
    except BaseException:
      self._forget()  # Else a caller that tries again would find numbers without ids.
      raise
    self._encoded = _Encoded(
      ids=np.concatenate([self._encoded.ids, encoded.ids]),
      sizes=np.concatenate([self._encoded.sizes, encoded.sizes]),
    )
    self._num_characters += sum(map(len, new_words))

    begins = _offsets(self._encoded.sizes)[numbers]
    sizes = self._encoded.sizes[numbers]
    return _Encoded(self._encoded.ids[ranges(begins, sizes)], sizes)


def ranges(begins: np.ndarray, sizes: np.ndarray) -> np.ndarray:
  """int64: begins[i], begins[i] + 1, … of `sizes[i]` numbers, for one i after the other.

  Example:
    >>> ranges(np.array([7, 2]), np.array([2, 3]))
    array([7, 8, 2, 3, 4])
  """
  # 0 1 | 2 3 4 of the result, shifted by 7 - 0 and 2 - 2.
  result_begins = np.cumsum(sizes) - sizes
  return np.repeat(begins - result_begins, sizes) + np.arange(sizes.sum())


def _offsets(sizes: np.ndarray) -> np.ndarray:
  """int64 [N + 1]: where each of N begins, and the end of the last. Sizes 4 3 6 give 0 4 7 13."""
  return np.concatenate([[0], np.cumsum(sizes)])


def _lengths(rows: Sequence[Sequence[object]]) -> np.ndarray:
  return np.fromiter(map(len, rows), np.int64, len(rows))


def portions(
  items: Iterable[Any], limit: int, size_of: Callable[[Any], int] = len
) -> Iterator[list[Any]]:
  """Yields some items at a time, `limit` large together, and at the end the others, perhaps none."""
  portion: list[Any] = []
  size = 0
  for item in items:
    portion.append(item)
    size += size_of(item)
    if size >= limit:
      yield portion
      portion = []
      size = 0
  yield portion


def _encode(tokenizer: Tokenizer, texts: list[str]) -> _Encoded:
  rows = tokenizer.encode_batch(texts)
  sizes = _lengths(rows)
  ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(sizes.sum()))
  return _Encoded(ids, sizes)


def _is_word_by_word(tokenizer: Tokenizer) -> bool:
  """Whether the ids of a text are those of its words, one after the other."""
  if not isinstance(tokenizer, AlbertTokenizer):
    return False
  # A piece that goes over a space would join two words.
  if any(SPIECE_UNDERLINE in piece[1:] for piece in tokenizer.pieces):
    return False
  return tokenizer.encode("a b") == tokenizer.encode("a") + tokenizer.encode("b")


def _cut_long_sentences(offsets: np.ndarray, words: np.ndarray, limit: int) -> np.ndarray:
  """Sentence offsets with more of them, so that few sentences are longer than `limit` tokens.

  Example:
    Offsets 0 10, words at 0 3 4 8, limit 4: three parts would be cut at 3 and 6. The word starts
    up to there are 3 and 4, so the offsets become 0 3 4 10. The last part is a little too long.

  Args:
    offsets: int64 [N + 1] where each sentence begins; the last entry is their end.
    words: int64 [W] where each word begins.
    limit: tokens.
  """
  cuts = [offsets]
  for sentence, size in enumerate(np.diff(offsets).tolist()):
    if size <= limit:
      continue
    # Equal parts, each cut moved back to the beginning of its word. A word longer than a part is
    # not cut.
    begin = offsets[sentence]
    num_parts = -(-size // limit)
    ideal_cuts = begin + np.arange(1, num_parts) * size // num_parts
    last_words = words.searchsorted(ideal_cuts, side="right") - 1
    word_cuts = words[last_words[last_words >= 0]]
    cuts.append(word_cuts[word_cuts > begin])
  return np.unique(np.concatenate(cuts))
