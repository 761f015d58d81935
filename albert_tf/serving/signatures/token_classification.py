"""Signatures of tagging: a tag for every word of a text, and entities."""

from collections.abc import Iterable, Sequence
import re

import tensorflow as tf

from albert_tf.serving.signatures.base import ServingModule, Signatures, Tensors
from albert_tf.tokenization.graph_inputs import LONGEST_TEXT, limit_characters
from albert_tf.windows.text_windows import in_chunks, substrings
from albert_tf.windows.word_windows import locate_words, make_word_windows

OUTSIDE = "O"
_ENTITY_TAG = re.compile(r"[BIESLU]-.+")
_BILOU = {"L": "E", "U": "S"}  # Other letters for the same scheme; seqeval knows E and S.
_WORD_INPUTS = (tf.TensorSpec([None, None], tf.string, name="words"),)


class TokenClassificationModule(ServingModule):
  """Tags of words. A word's first token carries its tag; words are tokenized one by one, as in training.

  A text longer than `max_seq_length` is read in up to `max_windows` overlapping windows. Words after them have the
  tag "", and `truncated` is true.

  Signatures:
    serving_default: `text` [B] strings, split into words at white space → `words` and `tags` strings, `probabilities`
      float32 of these tags, `starts` and `ends` int32 (half-open, characters of the text), [B, N], N the largest number
      of words; `num_words` int32 [B], after which a row is padding ("" and 0); `truncated` bool [B]. If all tags are
      "O" or of entities (B-X, I-X and the like) also `entities` strings, `entity_types` strings, `entity_starts`,
      `entity_ends` int32 (characters), `entity_first_words`, `entity_end_words` int32 (half-open),
      `entity_probabilities` float32 (the mean of its words'), [B, E]; `num_entities` int32 [B].
    words: `words` [B, N] strings; "" is padding → the same without `entities` and positions in characters.
    tokens: `input_ids`, `input_mask`, `segment_ids` [B, S] → `tag_probabilities` float32 [B, S, C].
  """

  def signatures(self) -> Signatures:
    return super().signatures() | {"words": self.shared(self.words, _WORD_INPUTS)}

  def text(self, text: tf.Tensor) -> Tensors:
    located = locate_words(limit_characters(text))
    tagged = dict(self.shared(self.words, _WORD_INPUTS)(located.words.to_tensor()))
    starts, ends = located.starts.to_tensor(), located.ends.to_tensor()  # [B, N]
    tagged |= {"starts": starts, "ends": ends}
    tagged["truncated"] |= tf.strings.length(text, unit="UTF8_CHAR") > LONGEST_TEXT
    if not marks_entities(self.task.label_names):
      return tagged
    real = tf.sequence_mask(tagged["num_entities"], tf.shape(tagged["entity_types"])[1])
    first = tagged["entity_first_words"]
    last = tf.maximum(tagged["entity_end_words"] - 1, 0)
    start = tf.where(real, tf.gather(starts, first, batch_dims=1), 0)
    end = tf.where(real, tf.gather(ends, last, batch_dims=1), 0)
    row = tf.broadcast_to(tf.range(tf.shape(start)[0])[:, tf.newaxis], tf.shape(start))
    found = substrings(located.texts, located.char_bytes, row, start, end)
    return tagged | {"entity_starts": start, "entity_ends": end, "entities": found}

  def words(self, words: tf.Tensor) -> Tensors:
    names = self.task.label_names
    ragged = tf.ragged.boolean_mask(words, words != "")
    windows = make_word_windows(
      self.tokenizer,
      ragged.with_flat_values(limit_characters(ragged.flat_values)),
      max_length=self._parts.max_length,
      max_windows=self._parts.settings.max_windows,
    )
    tokens = self.shared(self.tokens, self.token_inputs())
    outputs = {"tag_probabilities": tf.TensorSpec([None, None, len(names)], tf.float32)}
    probabilities = in_chunks(lambda chunk: tokens(**chunk), windows.batch, outputs)[
      "tag_probabilities"
    ]
    at = tf.gather_nd(
      probabilities, tf.stack([windows.window, windows.position], axis=-1)
    )  # [B, N, C]
    without = names.index(OUTSIDE) if OUTSIDE in names else 0
    tag = tf.where(windows.has_token, tf.argmax(at, axis=-1, output_type=tf.int32), without)
    certain = tf.where(windows.is_read & windows.has_token, tf.reduce_max(at, axis=-1), 0.0)
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

  def tokens(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Tensors:
    return {"tag_probabilities": tf.nn.softmax(self.run_model(input_ids, input_mask, segment_ids))}


def marks_entities(tags: Iterable[str]) -> bool:
  """Whether tags are "O" and B-X, I-X (and E-, S- or L-, U-), which mark entities."""
  tags = set(tags) - {OUTSIDE}
  return bool(tags) and all(_ENTITY_TAG.fullmatch(tag) for tag in tags)


def entity_kinds(tags: Iterable[str]) -> list[str]:
  """The types of entities that tags such as B-PER mark."""
  return sorted({tag[2:] for tag in tags if tag != OUTSIDE})


def iobes(tag: str) -> str:
  """Converts a BILOU tag to IOBES."""
  return _BILOU.get(tag[0], tag[0]) + tag[1:] if tag[1:2] == "-" else tag


def group_entities(
  names: Sequence[str], tag: tf.Tensor, is_read: tf.Tensor, certain: tf.Tensor
) -> Tensors:
  """Groups tagged words into entities, as `conlleval` and the scores of fine-tuning do.

  Args:
    names: the tags, by id.
    tag: int32 [B, N].
    is_read: bool [B, N], whether a word has a tag.
    certain: float32 [B, N] probabilities of the tags.

  Returns:
    `entity_types`, `entity_first_words`, `entity_end_words`, `entity_probabilities` [B, E] and `num_entities` [B].
  """
  kinds = entity_kinds(names)
  letters = [
    iobes(name)[0] for name in names
  ]  # B and S always begin an entity, E and S always end one.
  begins, ends = (
    tf.gather(tf.constant([each in two for each in letters]), tag) for two in ("BS", "ES")
  )
  kind = tf.gather(
    tf.constant([-1 if name == OUTSIDE else kinds.index(name[2:]) for name in names]), tag
  )
  kind = tf.where(is_read, kind, -1)
  inside = kind >= 0
  before = lambda value, fill: tf.pad(value, [[0, 0], [1, 0]], constant_values=fill)[:, :-1]  # noqa: E731
  is_first = inside & (begins | before(ends, False) | (before(kind, -1) != kind))
  number = tf.cumsum(tf.cast(is_first, tf.int32), axis=1)  # Number of a word's entity: 1, 2, …
  count = tf.reduce_sum(tf.cast(is_first, tf.int32), axis=1)
  most = tf.reduce_max(tf.concat([count, [0]], axis=0))
  shape = tf.shape(tag)
  row = tf.broadcast_to(tf.range(shape[0])[:, tf.newaxis], shape)
  segment = tf.boolean_mask(row * most + number - 1, inside)

  def of_words(values: tf.Tensor) -> tf.Tensor:
    total = tf.math.unsorted_segment_sum(tf.boolean_mask(values, inside), segment, shape[0] * most)
    return tf.reshape(total, [shape[0], most])

  place = tf.broadcast_to(tf.range(shape[1]), shape)
  first = of_words(tf.where(is_first, place, 0))
  size = of_words(tf.ones_like(tag))
  numbers = of_words(tf.where(is_first, kind + 1, 0))
  return {
    "entity_types": tf.gather(tf.constant(["", *kinds]), numbers),
    "entity_first_words": first,
    "entity_end_words": first + size,
    "entity_probabilities": of_words(certain) / tf.cast(tf.maximum(size, 1), tf.float32),
    "num_entities": count,
  }
