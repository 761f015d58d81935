"""Tagging of words as a fine-tuning task: named entities, parts of speech, or a user's own tags."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import itertools
import os
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from albert_tf.compat import on_coordinator
from albert_tf.configs.task import TaskSpec
from albert_tf.errors import UserError
from albert_tf.finetuning.data import warn_of_capitals
from albert_tf.finetuning.tasks.base import (
  UNNAMED_OUTPUT,
  FineTuningTask,
  Outputs,
  write_tsv,
)
from albert_tf.finetuning.tasks.conll import TaggedSentence
from albert_tf.keras_api.examples import Examples, blocks_of
from albert_tf.serving.signatures.token_classification import (
  OUTSIDE,
  entity_kinds,
  group_entities,
  marks_entities,
)
from albert_tf.tokenization import Tokenizer
from albert_tf.tokenization.graph import graph_tokenizer
from albert_tf.windows.word_windows import make_word_windows

_NO_PLACE = -1  # The row and position of a word without tokens.


class TaggingTask(FineTuningTask):
  """Token classification; the metric is F1 of entities if tags mark entities, else accuracy of words.

  Args:
    splits: "train", "eval", "test" → sentences; splits that are not needed may be absent.
    tokenizer: tokenizer of the pretrained model.
    max_seq_length: S.
    name: name in messages and file names.
    label_names: tags by id, of a trained model; empty: those of the training and evaluation
      sentences, the most frequent first.

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
    self.tokenizer = tokenizer
    # A trained model keeps its tags, whatever tags the new data have.
    names = tuple(label_names) or _tags_by_frequency(splits)
    self.spec = TaskSpec(
      kind="token_classification", name=name, label_names=names, max_seq_length=max_seq_length
    )
    self.best_metric = "f1" if marks_entities(names) else "accuracy"

  def features(self, split: str) -> Examples:
    features, _ = self._aligned(split)
    return features

  @functools.cache  # noqa: B019  A task is needed until the command ends.
  def _aligned(self, split: str) -> tuple[Examples, np.ndarray]:
    label_ids = {tag: index for index, tag in enumerate(self.spec.label_names)}
    return align(
      self.split(split),
      self.tokenizer,
      label_ids=label_ids,
      max_seq_length=self.spec.max_seq_length,
    )

  def loss(self) -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

  def evaluate(self, outputs: Outputs, split: str = "eval") -> dict[str, float]:
    """`accuracy` of words, and `precision`, `recall`, `f1` and `f1_TYPE` of entities.

    Every word counts once. A word without tokens has the tag "O" or the most frequent tag.
    """
    gold = [sentence.tags for sentence in self.splits[split]]
    predicted = self.predict(outputs, split)
    words = zip(itertools.chain(*gold), itertools.chain(*predicted), strict=True)
    scores = {"accuracy": float(np.mean([tag == answer for tag, answer in words]))}
    if marks_entities(self.spec.label_names):
      scores |= entity_scores(gold, predicted, names=self.spec.label_names)
    return scores

  def predict(self, outputs: Outputs, split: str) -> list[list[str]]:
    """Predicts a tag for every word of every sentence."""
    names = self.spec.label_names
    tag_without_tokens = OUTSIDE if OUTSIDE in names else names[0]

    # The tags of all words, one sentence after the other.
    tag_ids = [np.argmax(row, axis=-1) for row in outputs[UNNAMED_OUTPUT]]
    _, places = self._aligned(split)
    tags = []
    for row, position in places.tolist():
      has_tokens = row != _NO_PLACE
      tags.append(names[tag_ids[row][position]] if has_tokens else tag_without_tokens)

    # The same tags, sentence by sentence.
    remaining = iter(tags)
    return [
      list(itertools.islice(remaining, len(sentence.words))) for sentence in self.splits[split]
    ]

  def write_predictions(self, outputs: Outputs, split: str, directory: str) -> None:
    """Writes `predictions_SPLIT.tsv`: in each line a word, its tag if known, and the predicted tag."""
    rows: list[Sequence[str]] = []
    for sentence, predicted in zip(self.splits[split], self.predict(outputs, split), strict=True):
      # The sentence may have no tags of its own.
      columns = filter(None, (sentence.words, sentence.tags, predicted))
      rows.extend(zip(*columns, strict=True))
      rows.append([""])  # A blank line ends a sentence.
    write_tsv(os.path.join(directory, f"predictions_{split}.tsv"), rows)


def _tags_by_frequency(splits: Mapping[str, Sequence[TaggedSentence]]) -> tuple[str, ...]:
  counts: Counter[str] = Counter()
  # Evaluation too: a rare tag may occur only there, and must have an id to be scored.
  for sentence in itertools.chain(splits.get("train", ()), splits.get("eval", ())):
    if not sentence.tags:
      raise UserError(
        "Training and evaluation sentences have a tag for each word. Received: none in "
        f"{sentence.where}. Write them into the last column, or under the key tags."
      )
    counts.update(sentence.tags)
  warn_of_capitals(counts, source="training and evaluation data")
  # Equally frequent tags by name, so that every run numbers them alike.
  return tuple(sorted(counts, key=lambda tag: (-counts[tag], tag)))


# ------------------------------------------------------------------ words as rows of tokens


def align(
  sentences: Sequence[TaggedSentence],
  tokenizer: Tokenizer,
  *,
  label_ids: Mapping[str, int],
  max_seq_length: int,
) -> tuple[Examples, np.ndarray]:
  """Makes the features of sentences, with or without tags, with the ops of a SavedModel.

  Words are encoded one by one; only the first token of a word has a tag. Sentences longer than a
  row become several rows; see `make_word_windows`.

      # words      "Peter"          "sings"
      # row 0      [CLS]  _pet  er  _sings  [SEP]
      # places     (0, 1)           (0, 3)            Labels and weights are 0 elsewhere.

  Args:
    sentences: sentences, all with tags or all without.
    tokenizer: tokenizer of the pretrained model.
    label_ids: tag → id.
    max_seq_length: largest length of a row, including [CLS] and [SEP].

  Returns:
    Rows, with labels and weights by token if the sentences have tags; and int32 [words of all
    sentences, 2]: the row and position that predict each word's tag, -1 for a word that
    normalisation removes.

  Raises:
    UserError: a tag is not in `label_ids`.
  """
  places_of_blocks: list[np.ndarray] = []

  def batches() -> Iterator[Mapping[str, tf.Tensor]]:
    """Yields the windows of some sentences at a time, and notes the places of their words."""
    num_windows = 0  # In the batches before.
    for block in blocks_of(len(sentences), desc="Tokenizing sentences"):
      words = [sentence.words for sentence in sentences[block]]
      ragged = tf.ragged.constant(words, tf.string)
      windows = make_word_windows(graph, ragged, max_length=max_seq_length)
      rows = windows.window.numpy() + num_windows
      places = np.stack([rows, windows.position.numpy()], axis=-1)  # [b, N, 2]
      # A word that normalisation removes, such as a lone accent, is in no row.
      places[~windows.has_token.numpy()] = _NO_PLACE
      is_word = tf.sequence_mask(ragged.row_lengths()).numpy()  # Not padding, [b, N].
      places_of_blocks.append(places[is_word])
      num_windows += len(windows.batch["input_ids"])
      yield windows.batch

  with on_coordinator():
    graph = graph_tokenizer(tokenizer)
    rows = Examples.of_blocks(batches())
  places = np.concatenate(places_of_blocks)
  if not all(sentence.tags for sentence in sentences):
    return rows, places
  return _with_labels(rows, sentences, places, label_ids), places


def _with_labels(
  rows: Examples,
  sentences: Sequence[TaggedSentence],
  places: np.ndarray,
  label_ids: Mapping[str, int],
) -> Examples:
  """The rows with the tag of each word, and weight 1, at the word's place."""
  # Tokens without a tag of their own have label and weight 0.
  labels = [np.zeros(length, np.int32) for length in rows.lengths]
  weights = [np.zeros(length, np.float32) for length in rows.lengths]
  words = ((sentence, tag) for sentence in sentences for tag in sentence.tags)
  for (sentence, tag), (row, position) in zip(words, places.tolist(), strict=True):
    if tag not in label_ids:
      raise UserError(
        f"A tag must be one of {', '.join(label_ids)}. Received: {tag!r} in the sentence of "
        f"{sentence.where}. Fix the file."
      )
    if row != _NO_PLACE:
      labels[row][position] = label_ids[tag]
      weights[row][position] = 1
  lengths = rows.lengths
  with on_coordinator():
    return dataclasses.replace(
      rows,
      labels=tf.RaggedTensor.from_row_lengths(np.concatenate(labels), lengths),
      weights=tf.RaggedTensor.from_row_lengths(np.concatenate(weights), lengths),
      divides_by_weights=True,
    )


# ------------------------------------------------------------------ scores of entities


class Entity(NamedTuple):
  """The words `first` to before `end` of a sentence."""

  sentence: int
  kind: str
  first: int
  end: int


def entity_scores(
  gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], *, names: Sequence[str]
) -> dict[str, float]:
  """Precision, recall and F1 of entities of all types, and `f1_TYPE` of each type, as in `conlleval`.

  An entity is right if its type, first and last word are. `group_entities` finds entities, as in a
  SavedModel.

  Args:
    gold, predicted: the tags of each sentence.
    names: all tags, in IOB1, IOB2, IOBES or BILOU.
  """
  right = _entities(gold, names)
  answers = _entities(predicted, names)
  num_common = len(right & answers)
  scores = {
    "precision": num_common / max(len(answers), 1),
    "recall": num_common / max(len(right), 1),
    "f1": _f1(right, answers),
  }
  for kind in entity_kinds(names):
    right_of_kind = {entity for entity in right if entity.kind == kind}
    answers_of_kind = {entity for entity in answers if entity.kind == kind}
    scores[f"f1_{kind}"] = _f1(right_of_kind, answers_of_kind)
  return scores


def _f1(right: set[Entity], answers: set[Entity]) -> float:
  return 2 * len(right & answers) / max(len(right) + len(answers), 1)


def _entities(tags: Sequence[Sequence[str]], names: Sequence[str]) -> set[Entity]:
  """The entities that the tags of each sentence mark."""
  index = {name: number for number, name in enumerate(names)}
  # The op of a SavedModel, so that scores are those of what is served.
  with on_coordinator():
    ids = tf.ragged.constant([[index[tag] for tag in sentence] for sentence in tags], tf.int32)
    padded = ids.to_tensor()
    is_read = tf.sequence_mask(ids.row_lengths())
    certain = tf.ones(tf.shape(padded))  # Probabilities, which play no role here.
    grouped = group_entities(names, padded, is_read, certain)
  kinds = grouped["entity_types"].numpy()  # [B, E], padded with "".
  first = grouped["entity_first_words"].numpy()
  end = grouped["entity_end_words"].numpy()
  return {
    Entity(row, kinds[row, i].decode(), first[row, i], end[row, i])
    for row, i in np.argwhere(kinds != b"").tolist()
  }
