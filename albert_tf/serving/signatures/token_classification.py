"""Signatures of tagging: a tag for every word of a text, and entities.

Fine-tuning scores entities with `group_entities`, so that scores are those of what is served.
"""

from collections.abc import Iterable, Sequence
import re
from typing import Any

import tensorflow as tf

from albert_tf.serving.signatures.base import (
  TOKEN_KEYS,
  ServingModule,
  Signatures,
  Tensors,
  ids,
  run_on_windows,
  strings,
)
from albert_tf.tokenization.graph_inputs import LONGEST_TEXT, limit_characters
from albert_tf.windows.text_windows import substrings
from albert_tf.windows.word_windows import locate_words, make_word_windows

OUTSIDE = "O"
# IOB, IOBES and BILOU: B begins an entity, I and O are as in IOB, E and L end one, S and U do both.
_ENTITY_TAG = re.compile(r"[BIESLU]-.+")
_BEGINNING = ("B", "S", "U")
_ENDING = ("E", "L", "S", "U")


class TokenClassificationModule(ServingModule):
  """Tags of words.

  A word's first token carries its tag; words are tokenized one by one, as in training. A text
  longer than `max_seq_length` is read in up to `max_windows` overlapping windows. Words after them
  have the tag "", and `truncated` is true.

  Signatures:
    serving_default: `text` [B] strings, split into words at white space → `words` and `tags`
      strings, `probabilities` float32 of these tags, `starts` and `ends` int32 (half-open,
      characters of the text), [B, N], N the largest number of words; `num_words` int32 [B], after
      which a row is padding ("" and 0); `truncated` bool [B]. If all tags are "O" or of entities
      (B-X, I-X and the like) also `entities` strings, `entity_types` strings, `entity_starts`,
      `entity_ends` int32 (characters), `entity_first_words`, `entity_end_words` int32 (half-open),
      `entity_probabilities` float32 (the mean of its words'), [B, E]; `num_entities` int32 [B].
    words: `words` [B, N] strings; "" is padding → the same without `entities` and positions in
      characters.
    tokens: `input_ids`, `input_mask`, `segment_ids` [B, S] → `tag_probabilities` float32 [B, S, C].
  """

  def signatures(self, depth: int | None = None) -> Signatures:
    @self.signature(ids(*TOKEN_KEYS))
    def tokens(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Tensors:
      logits = self.run_model(input_ids, input_mask, segment_ids, depth=depth)
      return {"tag_probabilities": tf.nn.softmax(logits)}

    @self.signature(strings("words", rank=2))
    def words(words: tf.Tensor) -> Tensors:
      return self._tagged_words(tokens, words)

    @self.signature(strings("text"))
    def text(text: tf.Tensor) -> Tensors:
      return self._tagged_text(words, text)

    return {"serving_default": text, "words": words, "tokens": tokens}

  def _tagged_text(self, words: Any, text: tf.Tensor) -> Tensors:
    """The tagged words and entities of texts, from what the signature `words` gives."""
    located = locate_words(limit_characters(text))
    tagged = words(located.words.to_tensor())
    tagged["starts"] = located.starts.to_tensor()  # [B, N]
    tagged["ends"] = located.ends.to_tensor()
    tagged["truncated"] |= tf.strings.length(text, unit="UTF8_CHAR") > LONGEST_TEXT
    if not marks_entities(self.task.label_names):
      return tagged

    # From words to characters: an entity begins with its first word and ends with its last.
    is_entity = tf.sequence_mask(tagged["num_entities"], tf.shape(tagged["entity_types"])[1])
    last_word = tf.maximum(tagged["entity_end_words"] - 1, 0)
    start = tf.gather(tagged["starts"], tagged["entity_first_words"], batch_dims=1)
    start = tf.where(is_entity, start, 0)
    end = tf.where(is_entity, tf.gather(tagged["ends"], last_word, batch_dims=1), 0)
    row = tf.broadcast_to(tf.range(tf.shape(start)[0])[:, tf.newaxis], tf.shape(start))
    tagged["entity_starts"] = start
    tagged["entity_ends"] = end
    tagged["entities"] = substrings(located.texts, located.char_bytes, row, start, end)
    return tagged

  def _tagged_words(self, tokens: Any, words: tf.Tensor) -> Tensors:
    """The tagged words `[B, N]`, from what the signature `tokens` gives for their windows."""
    names = self.task.label_names
    ragged = tf.ragged.boolean_mask(words, words != "")
    windows = make_word_windows(
      self.tokenizer,
      ragged.with_flat_values(limit_characters(ragged.flat_values)),
      max_length=self.max_length,
      max_windows=self.served.settings.max_windows,
    )

    # The probabilities at each word's first token, in the window that decides its tag.
    outputs = run_on_windows(tokens, windows.batch)
    position = tf.stack([windows.window, windows.position], axis=-1)
    probabilities = tf.gather_nd(outputs["tag_probabilities"], position)  # [B, N, C]

    # A word without a token, such as a lone accent, is outside of all entities.
    tag_without_token = names.index(OUTSIDE) if OUTSIDE in names else 0
    tag = tf.argmax(probabilities, axis=-1, output_type=tf.int32)
    tag = tf.where(windows.has_token, tag, tag_without_token)
    certain = tf.reduce_max(probabilities, axis=-1)
    certain = tf.where(windows.is_read & windows.has_token, certain, 0.0)
    tagged = {
      "words": ragged.to_tensor(),
      "tags": tf.where(windows.is_read, tf.gather(tf.constant(names), tag), ""),
      "probabilities": certain,
      "num_words": tf.cast(ragged.row_lengths(), tf.int32),
      "truncated": windows.is_cut,
    }
    if marks_entities(names):
      tagged |= group_entities(names, tag, windows.is_read, certain)
    return tagged


def marks_entities(tags: Iterable[str]) -> bool:
  """Whether tags are "O" and B-X, I-X (and E-, S- or L-, U-), which mark entities."""
  tags = set(tags) - {OUTSIDE}
  return bool(tags) and all(_ENTITY_TAG.fullmatch(tag) for tag in tags)


def entity_kinds(tags: Iterable[str]) -> list[str]:
  """The types of entities that tags such as B-PER mark."""
  return sorted({tag[2:] for tag in tags if tag != OUTSIDE})


def group_entities(
  names: Sequence[str], tag: tf.Tensor, is_read: tf.Tensor, certain: tf.Tensor
) -> Tensors:
  """Groups tagged words into entities, as `conlleval` does.

  Args:
    names: the tags, by id.
    tag: int32 [B, N].
    is_read: bool [B, N], whether a word has a tag.
    certain: float32 [B, N] probabilities of the tags.

  Returns:
    `entity_types`, `entity_first_words`, `entity_end_words`, `entity_probabilities` [B, E] and
    `num_entities` [B].

  Example: the tags B-X I-X O I-Y B-Y have the kinds 0 0 -1 1 1. The first words of entities are the
    words 0, 3 and 4, and the words inside of entities have the numbers 0 0 1 2.
  """
  kinds = entity_kinds(names)
  kind_of_tag = [-1 if name == OUTSIDE else kinds.index(name[2:]) for name in names]
  begins = tf.gather(tf.constant([name.startswith(_BEGINNING) for name in names]), tag)
  ends = tf.gather(tf.constant([name.startswith(_ENDING) for name in names]), tag)
  kind = tf.where(is_read, tf.gather(tf.constant(kind_of_tag), tag), -1)
  is_inside = kind >= 0

  # An entity begins where a tag says so, behind one that has ended, and where the kind changes.
  changes = _previous(kind, -1) != kind
  is_first = is_inside & (begins | _previous(ends, False) | changes)
  word = tf.broadcast_to(tf.range(tf.shape(tag)[1]), tf.shape(tag))
  first = tf.ragged.boolean_mask(word, is_first)  # [B, (E)]
  entity_kind = first.with_flat_values(tf.boolean_mask(kind, is_first))

  # The entities of all rows have one sequence of numbers, in the order of their words.
  number = tf.cumsum(tf.cast(tf.boolean_mask(is_first, is_inside), tf.int32)) - 1

  def sum_by_entity(values: tf.Tensor) -> tf.RaggedTensor:
    total = tf.math.unsorted_segment_sum(
      tf.boolean_mask(values, is_inside), number, tf.size(first.flat_values)
    )
    return first.with_flat_values(total)

  size = sum_by_entity(tf.ones_like(tag))
  probability = sum_by_entity(certain) / tf.cast(size, tf.float32)
  return {
    "entity_types": tf.gather(tf.constant(kinds), entity_kind).to_tensor(),
    "entity_first_words": first.to_tensor(),
    "entity_end_words": (first + size).to_tensor(),
    "entity_probabilities": probability.to_tensor(),
    "num_entities": tf.cast(first.row_lengths(), tf.int32),
  }


def _previous(values: tf.Tensor, first: int | bool) -> tf.Tensor:
  """The value of the word before, `[B, N]`; `first` at a row's first word."""
  return tf.pad(values, [[0, 0], [1, 0]], constant_values=first)[:, :-1]
