"""Packs strings into batches for a model, in fine-tuning and exports; one function for each kind of input."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from albert_tf.tokenization.graph import GraphPacker, GraphTokenizer, head, tail

Tensors = dict[str, tf.Tensor]
BLANK = "_"  # RACE's mark for the place in a question where the choice belongs.
_PAIR_SPECIALS = 3  # [CLS] a [SEP] b [SEP]
SHORTEST_WINDOW = 8  # Positions: more than the starts and ends that the head of SQuAD 2.0 follows.

# Characters that are read of a text. SentencePiece takes a time that grows with the square of a run of unknown
# characters: 5 s for a megabyte of them, less than one for these.
LONGEST_TEXT = 1 << 17


def holds_text(inputs: Any) -> bool:
  """Whether inputs are strings: the first input of a list, or any input of a mapping."""
  if isinstance(inputs, Mapping):
    return any(map(holds_text, inputs.values()))
  if isinstance(inputs, (list, tuple)):
    return bool(inputs) and holds_text(inputs[0])
  dtype = getattr(inputs, "dtype", None)
  if dtype is None:
    return isinstance(inputs, (str, bytes))
  return dtype in (tf.string, "string") or getattr(dtype, "kind", "") in ("O", "S", "U")


def at_least(batch: Tensors, length: int) -> Tensors:
  """Pads rows to at least `length` positions; an empty batch needs one, too."""
  missing = tf.maximum(length - tf.shape(batch["input_ids"])[1], 0)
  return {name: tf.pad(tensor, [[0, 0], [0, missing]]) for name, tensor in batch.items()}


def cut(texts: tf.Tensor) -> tf.Tensor:
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
  packed = tokenizer(
    text, text_pair, max_length=max_length, pad_to_max_length=pad_to_max_length, allow_mask=allow_mask
  )
  batch = at_least(packed, 1)
  if not allow_mask:
    return batch
  places = tf.where(batch["input_ids"] == tokenizer.mask_id)
  rows = tf.shape(batch["input_ids"], tf.int64)[0]
  positions = tf.RaggedTensor.from_value_rowids(places[:, 1], places[:, 0], nrows=rows)
  return {**batch, "masked_lm_positions": tf.cast(positions.to_tensor(), tf.int32)}


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
    context, question: `[B]`; either may be empty. The choice replaces "_" in the question, or follows it.
    choices: `[B, C]`.
    max_length: S at most.
    max_qa_length: number of last tokens of question and choice to keep.
    pad_to_max_length: S is `max_length`.
  """
  room = max_length - _PAIR_SPECIALS
  count = tf.shape(choices)[1]
  texts = cut(choice_texts(tokenizer.normalize(question), tokenizer.normalize(choices)))
  second = tokenizer.tokenize(tf.reshape(texts, [-1]))  # [B C, (length)]
  second = tail(second, tf.fill([second.nrows()], tf.constant(min(max_qa_length, room), tf.int64)))
  passages, of_question = tf.unique(context)  # Questions of one passage follow each other.
  first = tf.gather(tokenizer.tokenize(passages), tf.repeat(of_question, count))
  first = head(first, room - second.row_lengths())
  length = max_length if pad_to_max_length else None
  packed = at_least(tokenizer.pack(first, second, length=length, always_two=True), 1)
  # Not -1 for the last size: it is unknown where the batch is empty.
  shape = tf.concat([tf.shape(choices), tf.shape(packed["input_ids"])[1:]], axis=0)
  return {name: tf.reshape(tensor, shape) for name, tensor in packed.items()}


def choice_texts(question: tf.Tensor, choices: tf.Tensor) -> tf.Tensor:
  """Question and choice as one text; the choice replaces every "_", or follows. Normalised [B], [B, C] → [B, C]."""
  shape = tf.shape(choices)
  parts = tf.strings.split(question, sep=BLANK)  # [B, (parts)]
  parts = tf.gather(parts, tf.repeat(tf.range(shape[0]), shape[1]))  # [B C, (parts)]
  flat = tf.reshape(choices, [-1])
  last = tf.ragged.range(parts.row_lengths()).flat_values == tf.repeat(
    parts.row_lengths() - 1, parts.row_lengths()
  )
  filled = tf.where(last, "", tf.repeat(flat, parts.row_lengths()))
  joined = tf.strings.reduce_join(parts.with_flat_values(parts.flat_values + filled), axis=-1)
  followed = tf.strings.join([joined, flat], separator=" ")
  return tf.reshape(tf.where(parts.row_lengths() > 1, joined, followed), shape)


def word_batch(
  tokenizer: GraphPacker,
  words: tf.Tensor,
  *,
  max_length: int,
  pad_to_max_length: bool,
) -> Tensors:
  """Packs texts of words `[B, N]`, encoded word by word as in training, into a row each; long rows are cut.

  `word_positions` `[B, N]` are the words' first tokens, which predict their tags; 0 for none.
  """
  ragged = _without_fill(words)
  budget = max_length - 2
  pieces = tokenizer.tokenize(ragged.flat_values)  # [all words, (length)]
  pieces = head(pieces, tf.minimum(pieces.row_lengths(), budget))
  widths = ragged.with_flat_values(pieces.row_lengths()).to_tensor()  # [B, N]
  place = tf.cumsum(widths, axis=1, exclusive=True)
  # The last word that does not fit whole is cut away, so that no tag is of half a word.
  fits = place + widths <= budget
  kept = tf.reduce_sum(tf.where(fits, widths, 0), axis=1)
  ids = head(ragged.with_flat_values(pieces).merge_dims(1, 2), kept)
  batch = at_least(tokenizer.pack(ids, length=max_length if pad_to_max_length else None), 1)
  positions = tf.cast(tf.where(fits & (widths > 0), place + 1, 0), tf.int32)
  count = tf.shape(words)[1] - tf.shape(positions)[1]
  return {**batch, "word_positions": tf.pad(positions, [[0, 0], [0, count]])}


def _without_fill(words: tf.Tensor) -> tf.RaggedTensor:
  """`[B, N]` up to each row's last word; empty words before it stay, as their tags do."""
  places = tf.where(words != "", tf.range(1, tf.shape(words)[1] + 1), 0)
  lengths = tf.reduce_max(tf.pad(places, [[0, 0], [0, 1]]), axis=1)
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
  """Packs `[CLS] question [SEP] context [SEP]`, cut to one window, and `p_mask` `[B, S]`, 1 where no answer can be."""
  query = head(tokenizer.tokenize(question), tf.constant(max_query_length, tf.int64))
  text = head(tokenizer.tokenize(context), max_length - _PAIR_SPECIALS - query.row_lengths())
  length = max_length if pad_to_max_length else None
  batch = at_least(tokenizer.pack(query, text, length=length, always_two=True), SHORTEST_WINDOW)
  return {**batch, "p_mask": answer_mask(batch, query.row_lengths() + 2, text.row_lengths())}


def answer_mask(batch: Tensors, text_begin: tf.Tensor, text_length: tf.Tensor) -> tf.Tensor:
  """int32 `[B, S]`: 0 at [CLS] and in the text, which begins at `text_begin` `[B]`; else 1."""
  place = tf.range(tf.shape(batch["input_ids"])[1], dtype=text_begin.dtype)
  in_text = (place >= text_begin[:, tf.newaxis]) & (place < (text_begin + text_length)[:, tf.newaxis])
  return tf.where(in_text | (place == 0), 0, 1)
