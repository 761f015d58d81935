"""Packs strings into batches for a model; one function for each kind of input.

The Keras preprocessor and the signatures of SavedModels use them.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from albert_tf.tokenization.graph import GraphPacker, GraphTokenizer, head, tail

Tensors = dict[str, tf.Tensor]
BLANK = "_"  # RACE's mark for the place in a question where the choice belongs.
_PAIR_SPECIALS = 3  # [CLS] a [SEP] b [SEP]
SHORTEST_WINDOW = 8  # Positions: more than the starts and ends that the head of SQuAD 2.0 follows.

# Characters that are read of a text. SentencePiece takes a time that grows with the square of a run
# of unknown characters: 5 s for a megabyte of them, less than one for these.
LONGEST_TEXT = 1 << 17


def holds_text(inputs: Any) -> bool:
  """Whether inputs are strings: the first input of a list, or any input of a mapping."""
  if isinstance(inputs, Mapping):
    return any(map(holds_text, inputs.values()))
  if isinstance(inputs, (list, tuple)):
    return len(inputs) > 0 and holds_text(inputs[0])
  dtype = getattr(inputs, "dtype", None)
  if dtype is None:
    return isinstance(inputs, (str, bytes))
  if dtype in (tf.string, "string"):
    return True
  return getattr(dtype, "kind", "") in ("O", "S", "U")  # NumPy's objects, bytes and strings.


def limit_characters(texts: tf.Tensor) -> tf.Tensor:
  """The first `LONGEST_TEXT` characters of each string, valid UTF-8 or not."""
  return tf.strings.substr(texts, 0, LONGEST_TEXT, unit="UTF8_CHAR")


def text_batch(
  tokenizer: GraphPacker,
  text: tf.Tensor,
  text_pair: tf.Tensor | None = None,
  *,
  max_length: int,
  pad_to_max_length: bool,
  allow_mask: bool = False,
) -> Tensors:
  """Packs texts `[B]`, or pairs of texts; see `GraphTokenizer.__call__`.

  If "[MASK]" is allowed, `masked_lm_positions` `[B, M]` are added, padded with 0.
  """
  batch = tokenizer(
    text,
    text_pair,
    max_length=max_length,
    pad_to_max_length=pad_to_max_length,
    allow_mask=allow_mask,
  )
  if not allow_mask:
    return batch
  masks = tf.where(batch["input_ids"] == tokenizer.mask_id)  # [masks, (row, position)]
  num_rows = tf.shape(batch["input_ids"], tf.int64)[0]
  positions = tf.RaggedTensor.from_value_rowids(masks[:, 1], masks[:, 0], nrows=num_rows)
  return batch | {"masked_lm_positions": tf.cast(positions.to_tensor(), tf.int32)}


def choice_batch(
  tokenizer: GraphTokenizer,
  context: tf.Tensor,
  question: tf.Tensor,
  choices: tf.Tensor,
  *,
  max_length: int,
  max_qa_length: int,
  pad_to_max_length: bool,
) -> Tensors:
  """Packs `[CLS] context [SEP] question and choice [SEP]` for every choice, `[B, C, S]`.

  Args:
    tokenizer: the tokenizer as a module.
    context, question: `[B]`; either may be empty. The choice replaces "_" in the question, or
      follows it.
    choices: `[B, C]`.
    max_length: S at most.
    max_qa_length: number of last tokens of question and choice to keep.
    pad_to_max_length: S is `max_length`.
  """
  room = max_length - _PAIR_SPECIALS
  # Question and choice: their end is kept, where the choice is.
  texts = choice_texts(tokenizer.normalize(question), tokenizer.normalize(choices))
  second = tokenizer.tokenize(tf.reshape(limit_characters(texts), [-1]))  # [B C, (length)]
  longest = tf.constant(min(max_qa_length, room), tf.int64)
  second = tail(second, tf.fill([second.nrows()], longest))

  # The context fills what is left. A passage is tokenized once for all its questions, which follow
  # each other.
  passages, passage_of_question = tf.unique(context)
  num_choices = tf.shape(choices)[1]
  first = tf.gather(tokenizer.tokenize(passages), tf.repeat(passage_of_question, num_choices))
  first = head(first, room - second.row_lengths())

  length = max_length if pad_to_max_length else None
  packed = tokenizer.pack(first, second, length=length, always_two=True)
  # Not -1 for the last size: it is unknown where the batch is empty.
  shape = tf.concat([tf.shape(choices), tf.shape(packed["input_ids"])[1:]], axis=0)
  return {name: tf.reshape(tensor, shape) for name, tensor in packed.items()}


def choice_texts(question: tf.Tensor, choices: tf.Tensor) -> tf.Tensor:
  """Question and choice as one text; the choice replaces every "_", or follows.

  Args:
    question, choices: [B] and [B, C] normalised strings.

  Returns:
    [B, C] strings.

  Example: "he _ and _" has the sections "he ", " and " and ""; the choice ran is put behind all but
  the last: "he ran and ran". "why?" has one section: "why? ran".
  """
  num_choices = tf.shape(choices)[1]
  sections = tf.strings.split(question, sep=BLANK)  # [B, (sections)]
  sections = tf.gather(sections, tf.repeat(tf.range(tf.shape(choices)[0]), num_choices))
  num_sections = sections.row_lengths()  # [B C]
  choice = tf.reshape(choices, [-1])

  number = tf.ragged.range(num_sections).flat_values
  is_last = number == tf.repeat(num_sections - 1, num_sections)
  filling = tf.where(is_last, "", tf.repeat(choice, num_sections))
  filled = sections.with_flat_values(sections.flat_values + filling)
  filled = tf.strings.reduce_join(filled, axis=-1)
  followed = tf.strings.join([filled, choice], separator=" ")
  return tf.reshape(tf.where(num_sections > 1, filled, followed), tf.shape(choices))


def word_batch(
  tokenizer: GraphPacker,
  words: tf.Tensor,
  *,
  max_length: int,
  pad_to_max_length: bool,
) -> Tensors:
  """Packs texts of words `[B, N]`, encoded word by word as in training, into a row each.

  Long rows are cut.
  `word_positions` `[B, N]` are the words' first tokens, which predict their tags; 0 for none.

  Example: words of 2, 1 and 3 tokens in `max_length` 7, which has room for 5 tokens. The third word
  would end at 6, so it is cut away: the row is [CLS] 3 tokens [SEP], and the positions are 1 3 0.
  """
  ragged = _without_fill(words)
  room = max_length - 2  # Without [CLS] and [SEP].
  pieces = tokenizer.tokenize(ragged.flat_values)  # [all words, (length)]
  pieces = head(pieces, tf.minimum(pieces.row_lengths(), room))

  # The last word that does not fit as a whole is cut away, so that no tag is of half a word.
  widths = ragged.with_flat_values(pieces.row_lengths()).to_tensor()  # [B, N]
  start = tf.cumsum(widths, axis=1, exclusive=True)
  fits = start + widths <= room
  num_kept = tf.reduce_sum(tf.where(fits, widths, 0), axis=1)
  ids = head(ragged.with_flat_values(pieces).merge_dims(1, 2), num_kept)
  length = max_length if pad_to_max_length else None
  batch = tokenizer.pack(ids, length=length)

  positions = tf.cast(tf.where(fits & (widths > 0), start + 1, 0), tf.int32)  # After [CLS].
  num_missing = tf.shape(words)[1] - tf.shape(positions)[1]  # Empty words at the end of all rows.
  return batch | {"word_positions": tf.pad(positions, [[0, 0], [0, num_missing]])}


def _without_fill(words: tf.Tensor) -> tf.RaggedTensor:
  """`[B, N]` up to each row's last word; empty words before it stay, as their tags do."""
  ends = tf.where(words != "", tf.range(1, tf.shape(words)[1] + 1), 0)
  lengths = tf.reduce_max(
    tf.pad(ends, [[0, 0], [0, 1]]), axis=1
  )  # There is a column even for N = 0.
  return tf.RaggedTensor.from_tensor(words, lengths)


def question_batch(
  tokenizer: GraphPacker,
  question: tf.Tensor,
  context: tf.Tensor,
  *,
  max_length: int,
  max_query_length: int,
  pad_to_max_length: bool,
) -> Tensors:
  """Packs `[CLS] question [SEP] context [SEP]`, cut to one window.

  `p_mask` `[B, S]` is 1 where no answer can be.
  """
  query = head(tokenizer.tokenize(question), tf.constant(max_query_length, tf.int64))
  text = head(tokenizer.tokenize(context), max_length - _PAIR_SPECIALS - query.row_lengths())
  length = None
  if pad_to_max_length:
    length = max(max_length, SHORTEST_WINDOW)
  batch = tokenizer.pack(query, text, length=length, min_length=SHORTEST_WINDOW, always_two=True)
  text_begin = query.row_lengths() + 2  # After [CLS] question [SEP].
  return batch | {"p_mask": answer_mask(batch, text_begin, text.row_lengths())}


def answer_mask(batch: Tensors, text_begin: tf.Tensor, text_length: tf.Tensor) -> tf.Tensor:
  """int32 `[B, S]`: 0 at [CLS] and in the text, which begins at `text_begin` `[B]`; else 1."""
  position = tf.range(tf.shape(batch["input_ids"])[1], dtype=text_begin.dtype)
  text_end = text_begin + text_length
  in_text = (position >= text_begin[:, tf.newaxis]) & (position < text_end[:, tf.newaxis])
  is_cls = position == 0
  return tf.where(in_text | is_cls, 0, 1)
