"""Tagging of words as a fine-tuning task: named entities, parts of speech, or a user's own tags."""

from collections import Counter
from collections.abc import Mapping, Sequence
import functools
import itertools
import os
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints.bundle import coordinator_cpu
from albert_tf.compat import keras
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.tasks.base import UNNAMED_OUTPUT, FeatureSet, FineTuningTask, Outputs, write_tsv
from albert_tf.finetuning.tasks.conll import TaggedSentence
from albert_tf.finetuning.tasks.rows import PackedRows, in_blocks
from albert_tf.serving.signatures.token_classification import (
  OUTSIDE,
  entity_kinds,
  group_entities,
  marks_entities,
)
from albert_tf.tokenization import Tokenizer
from albert_tf.tokenization.graph import graph_tokenizer
from albert_tf.windows.word_windows import make_word_windows

_SENTENCES_AT_ONCE = 512


class TaggingTask(FineTuningTask):
  """Token classification; the metric is F1 of entities if tags mark entities, else accuracy of words.

  Args:
    splits: "train", "eval", "test" → sentences; splits that are not needed may be absent.
    tokenizer: tokenizer of the pretrained model.
    max_seq_length: S.
    name: name in messages and file names.
    label_names: tags by id, of a trained model; empty: those of the training and evaluation sentences, the most
      frequent first.

  Raises:
    UserError: training or evaluation sentences have no tags.
  """

  def __init__(
    self,
    *,
    splits: Mapping[str, Sequence[TaggedSentence]],
    tokenizer: Tokenizer,
    max_seq_length: int,
    name: str = "tagging",
    label_names: Sequence[str] = (),
  ):
    self.splits = splits
    self._tokenizer = tokenizer
    names = tuple(label_names) or _tags_by_frequency(splits)
    self.spec = TaskSpec(
      kind="token_classification", name=name, label_names=names, max_seq_length=max_seq_length
    )
    self._entities = marks_entities(names)
    self.best_metric = "f1" if self._entities else "accuracy"

  @functools.cache  # noqa: B019  A task is needed until the command ends.
  def _aligned(self, split: str) -> tuple[FeatureSet, np.ndarray]:
    ids = {tag: index for index, tag in enumerate(self.spec.label_names)}
    return align(self.split(split), self._tokenizer, label_ids=ids, max_seq_length=self.spec.max_seq_length)

  def features(self, split: str) -> FeatureSet:
    return self._aligned(split)[0]

  def loss(self) -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

  def evaluate(self, outputs: Outputs, split: str = "eval") -> dict[str, float]:
    """`accuracy` of words, and `precision`, `recall`, `f1` and `f1_TYPE` of entities.

    Every word counts once. A word without tokens has the tag "O" or the most frequent tag.
    """
    gold = [sentence.tags or () for sentence in self.splits[split]]
    predicted = self.predict(outputs, split)
    right = [a == b for pair in zip(gold, predicted, strict=True) for a, b in zip(*pair, strict=True)]
    scores = {"accuracy": float(np.mean(right))}
    if self._entities:
      scores |= entity_scores(gold, predicted, names=self.spec.label_names)
    return scores

  def predict(self, outputs: Outputs, split: str) -> list[list[str]]:
    """Predicts a tag for every word of every sentence."""
    names = self.spec.label_names
    without_piece = OUTSIDE if OUTSIDE in names else names[0]
    best = [np.argmax(row, axis=-1) for row in outputs[UNNAMED_OUTPUT]]
    places = self._aligned(split)[1].tolist()
    tags = iter(without_piece if row < 0 else names[best[row][position]] for row, position in places)
    return [list(itertools.islice(tags, len(sentence.words))) for sentence in self.splits[split]]

  def write_predictions(self, outputs: Outputs, split: str, directory: str) -> None:
    """Writes `predictions_SPLIT.tsv`: in each line a word, its tag if known, and the predicted tag."""
    rows: list[Sequence[str]] = []
    for sentence, tags in zip(self.splits[split], self.predict(outputs, split), strict=True):
      rows += [*zip(sentence.words, *([sentence.tags] if sentence.tags else []), tags, strict=True), [""]]
    write_tsv(os.path.join(directory, f"predictions_{split}.tsv"), rows)


def align(
  sentences: Sequence[TaggedSentence],
  tokenizer: Tokenizer,
  *,
  label_ids: Mapping[str, int],
  max_seq_length: int,
) -> tuple[FeatureSet, np.ndarray]:
  """Makes the features of sentences, with or without tags, with the ops of a SavedModel.

  Words are encoded one by one; only the first token of a word has a tag. Sentences longer than a row become several
  rows; see `make_word_windows`.

  Args:
    sentences: sentences, all with tags or all without.
    tokenizer: tokenizer of the pretrained model.
    label_ids: tag → id.
    max_seq_length: largest length of a row, including [CLS] and [SEP].

  Returns:
    Rows, with labels and weights by token if the sentences have tags; and int32 [words of all sentences, 2]: the row
    and position that predict each word's tag, -1 for a word that normalisation removes.

  Raises:
    UserError: a tag is not in `label_ids`.
  """
  found: list[np.ndarray] = []
  begins = [0]  # The number of each block's first window.

  def windows_of(block: Sequence[TaggedSentence]) -> Mapping[str, tf.Tensor]:
    sizes = np.array([len(sentence.words) for sentence in block])
    words = tf.constant([word for sentence in block for word in sentence.words])
    words = tf.RaggedTensor.from_row_lengths(words, sizes)
    windows = make_word_windows(packer, words, max_length=max_seq_length)
    place = np.stack([windows.window.numpy() + begins[-1], windows.position.numpy()], axis=-1)  # [B, N, 2]
    place[~windows.has_token.numpy()] = -1
    found.append(place[np.arange(place.shape[1]) < sizes[:, np.newaxis]])
    begins.append(begins[-1] + len(windows.batch["input_ids"]))
    return windows.batch

  with tf.device(coordinator_cpu()):  # The tables too: a slice's first host could not give them to us.
    packer = graph_tokenizer(tokenizer)
    blocks = in_blocks(sentences, _SENTENCES_AT_ONCE, desc="Tokenizing sentences")
    rows = PackedRows.of(map(windows_of, blocks))
  places = np.concatenate(found)
  if sentences[0].tags is None:
    return FeatureSet(rows), places
  labels = [np.zeros(length, np.int32) for length in rows.lengths]
  weights = [np.zeros(length, np.float32) for length in rows.lengths]
  tags = ((tag, sentence) for sentence in sentences for tag in sentence.tags or ())
  for (row, position), (tag, sentence) in zip(places.tolist(), tags, strict=True):
    if tag not in label_ids:
      raise UserError(
        f"A tag must be one of {', '.join(label_ids)}. Received: {tag!r} in the sentence of {sentence.where}. Fix the "
        "file, or choose the column with --tag_column."
      )
    if row >= 0:
      labels[row][position], weights[row][position] = label_ids[tag], 1.0
  return FeatureSet(rows, labels, weights=weights), places


def _tags_by_frequency(splits: Mapping[str, Sequence[TaggedSentence]]) -> tuple[str, ...]:
  counts: Counter[str] = Counter()
  for sentence in itertools.chain(splits.get("train", ()), splits.get("eval", ())):
    if sentence.tags is None:
      raise UserError(
        f"Training and evaluation sentences have a tag for each word. Received: none in {sentence.where}. "
        "Choose the column with --tag_column or the key with --tag_key."
      )
    counts.update(sentence.tags)
  return tuple(sorted(counts, key=lambda tag: (-counts[tag], tag)))


def entity_scores(
  gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], *, names: Sequence[str]
) -> dict[str, float]:
  """Precision, recall and F1 of entities of all types, and `f1_TYPE` of each type, as in `conlleval`.

  An entity is right if its type, first and last word are. `group_entities` finds entities, as in a SavedModel.

  Args:
    gold, predicted: the tags of each sentence.
    names: all tags, in IOB1, IOB2, IOBES or BILOU.
  """
  theirs, ours = _entities(gold, names), _entities(predicted, names)
  right = len(theirs & ours)
  scores = {"precision": right / max(len(ours), 1), "recall": right / max(len(theirs), 1)}
  for kind in (None, *entity_kinds(names)):
    left, found = ({each for each in side if kind in (None, each[1])} for side in (theirs, ours))
    f1 = 2 * len(left & found) / max(len(left) + len(found), 1)
    scores["f1" if kind is None else f"f1_{kind}"] = f1
  return scores


def _entities(tags: Sequence[Sequence[str]], names: Sequence[str]) -> set[tuple[Any, ...]]:
  """The sentence, type, first and end word of each entity."""
  index = {name: number for number, name in enumerate(names)}
  with tf.device(coordinator_cpu()):
    ids = tf.ragged.constant([[index[tag] for tag in sentence] for sentence in tags], tf.int32)
    padded, is_read = ids.to_tensor(), tf.sequence_mask(ids.row_lengths())
    made = group_entities(names, padded, is_read, tf.ones(tf.shape(padded)))
  kinds, first, end = (made[f"entity_{name}"].numpy() for name in ("types", "first_words", "end_words"))
  return {
    (row, kinds[row, each].decode(), first[row, each], end[row, each])
    for row, each in zip(*np.nonzero(kinds != b""), strict=True)
  }
