"""Tagging: words to pieces and back. The first piece of a word carries its tag, the others carry none."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import itertools
from typing import NamedTuple

import numpy as np

from albert_tf.errors import UserError
from albert_tf.finetuning.engine.features import FeatureSet
from albert_tf.finetuning.tasks.conll import TaggedSentence
from albert_tf.tokenization import AlbertTokenizer

_CONTEXT_SHARE = 4  # Neighbouring windows of a long sentence share up to a quarter of their pieces.


class Window(NamedTuple):
  """A stretch of a sentence's words that fits into the model, and those among them it decides.

  Attributes:
    start, end: half-open range of words; the window's text.
    first, last: half-open range of words whose tags are taken from this window.
  """

  start: int
  end: int
  first: int
  last: int


def split_windows(widths: Sequence[int], budget: int) -> list[Window]:
  """Cuts a sentence into overlapping windows in which every word is decided exactly once.

  Args:
    widths: pieces of each word, none above `budget`.
    budget: most pieces of a window.

  Returns:
    One window where all fits. Else each but the first begins with up to a quarter of its pieces as context, and
    the words two windows share are decided half by the one, half by the other.
  """
  ends = [0, *itertools.accumulate(widths)]  # Pieces before each word.
  windows: list[Window] = []
  start = 0
  while True:
    end = start
    while end < len(widths) and ends[end + 1] - ends[start] <= budget:
      end += 1
    if windows:
      before = windows[-1]
      middle = (start + before.end + 1) // 2  # Of the words both have; their end where they share none.
      windows[-1] = before._replace(last=middle)
      windows.append(Window(start, end, middle, end))
    else:
      windows.append(Window(start, end, 0, end))
    if end == len(widths):
      return windows
    following = end
    while following - 1 > windows[-1].first and ends[end] - ends[following - 1] <= budget // _CONTEXT_SHARE:
      following -= 1
    # The word that did not fit must fit now, or nothing would be gained.
    while ends[end + 1] - ends[following] > budget:
      following += 1
    start = following


class WordPlace(NamedTuple):
  """Where a word's tag is read: row of the features, position in it."""

  row: int
  position: int


@dataclasses.dataclass(frozen=True)
class TaggingFeatures:
  """Sentences as rows for the model, and the way back.

  Attributes:
    features: rows, and labels and weights by piece where the sentences have tags.
    places: for each sentence, for each of its words the place of its first piece; None for a word without pieces.
    windows: sentences that are longer than a row → in how many windows they were cut.
  """

  features: FeatureSet
  places: list[list[WordPlace | None]]
  windows: dict[int, int]

  @property
  def words_without_pieces(self) -> int:
    return sum(place is None for sentence in self.places for place in sentence)


def align(
  sentences: Sequence[TaggedSentence],
  tokenizer: AlbertTokenizer,
  *,
  label_ids: Mapping[str, int],
  max_seq_length: int,
) -> TaggingFeatures:
  """Makes the features of tagged, or of untagged, sentences.

  Words are encoded one by one. A word of which normalisation leaves nothing has no piece and no place. A word longer
  than a whole row is cut at its end. Sentences longer than a row become several rows; see `split_windows`.

  Args:
    sentences: all with tags, or all without.
    tokenizer: of the pretrained model.
    label_ids: tag → id.
    max_seq_length: no row is longer, [CLS] and [SEP] included.

  Raises:
    UserError: a tag is not in `label_ids`, or there is no room beside the special pieces.
  """
  budget = max_seq_length - 2
  if budget < 1:
    raise UserError(f"max_seq_length must leave room beside [CLS] and [SEP]. Received: {max_seq_length}.")
  vocabulary = list(dict.fromkeys(word for sentence in sentences for word in sentence.words))
  pieces = dict(zip(vocabulary, tokenizer.encode_batch(vocabulary), strict=True))
  rows: list[dict[str, np.ndarray]] = []
  labels: list[np.ndarray] = []
  weights: list[np.ndarray] = []
  places: list[list[WordPlace | None]] = []
  cut: dict[int, int] = {}
  for number, sentence in enumerate(sentences):
    ids = [pieces[word][:budget] for word in sentence.words]
    tags = None if sentence.tags is None else _tag_ids(sentence, label_ids)
    windows = split_windows([len(word) for word in ids], budget)
    if len(windows) > 1:
      cut[number] = len(windows)
    found: list[WordPlace | None] = [None] * len(ids)
    for window in windows:
      found[window.first : window.last] = _places(ids, window, len(rows))
      row = [tokenizer.cls_id, *itertools.chain(*ids[window.start : window.end]), tokenizer.sep_id]
      rows.append(_row(row))
      if tags is not None:
        labels.append(np.zeros(len(row), np.int32))
        weights.append(np.zeros(len(row), np.float32))
        for word in range(window.first, window.last):
          if (place := found[word]) is not None:
            labels[-1][place.position] = tags[word]
            weights[-1][place.position] = 1.0
    places.append(found)
  tagged = bool(labels)
  features = FeatureSet(rows, labels if tagged else None, weights=weights if tagged else None)
  return TaggingFeatures(features, places, cut)


def _places(ids: Sequence[Sequence[int]], window: Window, row: int) -> Iterator[WordPlace | None]:
  """Places of the words a window decides, in order."""
  position = 1  # After [CLS].
  for word in range(window.start, window.last):
    if word >= window.first:
      yield WordPlace(row, position) if ids[word] else None
    position += len(ids[word])


def _row(ids: list[int]) -> dict[str, np.ndarray]:
  array = np.array(ids, np.int32)
  return {"input_ids": array, "input_mask": np.ones_like(array), "segment_ids": np.zeros_like(array)}


def _tag_ids(sentence: TaggedSentence, label_ids: Mapping[str, int]) -> list[int]:
  assert sentence.tags is not None
  for word, tag in zip(sentence.words, sentence.tags, strict=True):
    if tag not in label_ids:
      raise UserError(
        f"A tag is one of {', '.join(label_ids)}. Received: {tag!r} at {word!r} in the sentence of "
        f"{sentence.where}. Mend the file, or choose the column with --tag_column."
      )
  return [label_ids[tag] for tag in sentence.tags]
