"""Packs strings into batches for a model: one function for each kind of input, and `pack_rows` for all.

The Keras preprocessor and the signatures of SavedModels use them.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from albert_tf.tokenization.graph import GraphTokenizer, TokenizerModule

Tensors = dict[str, tf.Tensor]
BLANK = "_"  # RACE's mark for the place in a question where the choice belongs.
_PAIR_SPECIALS = 3  # [CLS] a [SEP] b [SEP]
SHORTEST_WINDOW = 8  # Positions: more than the starts and ends that the head of SQuAD 2.0 follows.

# Characters that are read of a text. SentencePiece takes a time that grows with the square of a run
# of unknown characters: about two seconds for these, a hundred for a million.
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
  tokenizer: TokenizerModule,
  text: tf.Tensor,
  text_pair: tf.Tensor | None = None,
  *,
  max_length: int,
  length: int | None = None,
  allow_mask: bool = False,
) -> Tensors:
  """Packs texts, or pairs of texts.

  Args:
    tokenizer: the tokenizer as a module.
    text: `[B]`.
    text_pair: `[B]`, the second segments, or None. An empty one makes a single segment.
    max_length: longer rows are cut at the end; of a pair, the longer segment first.
    length: S; None: the longest row's.
    allow_mask: read a literal "[MASK]" as the mask token. Then `masked_lm_positions` `[B, M]` are
      added, padded with 0.
  """
  first = tokenizer.tokenize(text, allow_mask=allow_mask)
  second = None
  if text_pair is None:
    first = head(first, max_length - 2)  # Without [CLS] and [SEP].
  else:
    second = tokenizer.tokenize(text_pair, allow_mask=allow_mask)
    first, second = _truncate(first, second, max_length)
  batch = pack_rows(tokenizer, first, second, length=length)
  if not allow_mask:
    return batch
  masks = tf.where(batch["input_ids"] == tokenizer.mask_id)  # [masks, (row, position)]
  num_rows = tf.shape(batch["input_ids"], tf.int64)[0]
  positions = tf.RaggedTensor.from_value_rowids(masks[:, 1], masks[:, 0], nrows=num_rows)
  return batch | {"masked_lm_positions": tf.cast(positions.to_tensor(), tf.int32)}


def _truncate(
  first: tf.RaggedTensor, second: tf.RaggedTensor, max_length: int
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
  """Cuts the longer one of every row, or the second of equal ones, until both fit in `max_length`.

  Equals the original's loop, which pops one token at a time.

  Example: 8 and 4 tokens in 10 places have a budget of 7, without [CLS] and two [SEP]. The first
  keeps max(7 - 4, 8 // 2) = 4, the second the other 3: 8:4, 7:4, 6:4, 5:4, 4:4, 4:3.
  """
  second_size = second.row_lengths()
  # A row without a second segment has one [SEP], and so room for one more.
  budget = max_length - 2 - tf.cast(second_size > 0, second_size.dtype)
  # `head` keeps a shorter first segment as it is.
  first = head(first, tf.maximum(budget - second_size, (budget + 1) // 2))
  return first, head(second, budget - first.row_lengths())


def choice_batch(
  tokenizer: GraphTokenizer,
  context: tf.Tensor,
  question: tf.Tensor,
  choices: tf.Tensor,
  *,
  max_length: int,
  max_qa_length: int,
  length: int | None = None,
) -> Tensors:
  """Packs `[CLS] context [SEP] question and choice [SEP]` for every choice, `[B, C, S]`.

  Args:
    tokenizer: the tokenizer as a module.
    context, question: `[B]`; either may be empty. The choice replaces "_" in the question, or
      follows it.
    choices: `[B, C]`.
    max_length: longer contexts are cut.
    max_qa_length: number of last tokens of question and choice to keep.
    length: S; None: the longest row's.
  """
  room = max_length - _PAIR_SPECIALS
  # Question and choice: their end is kept, where the choice is.
  num_choices = tf.shape(choices)[1]
  texts = choice_texts(
    tf.repeat(tokenizer.normalize(question), num_choices),
    tokenizer.normalize(tf.reshape(choices, [-1])),
  )
  second = tokenizer.tokenize(limit_characters(texts))  # [B C, (length)]
  second = tail(second, min(max_qa_length, room))

  # The context fills what is left. A passage is tokenized once for all its questions, which follow
  # each other.
  passages, passage_of_question = tf.unique(context)
  first = tf.gather(tokenizer.tokenize(passages), tf.repeat(passage_of_question, num_choices))
  first = head(first, room - second.row_lengths())

  packed = pack_rows(tokenizer, first, second, length=length, always_two=True)
  # Not -1 for the last size: it is unknown where the batch is empty.
  shape = tf.concat([tf.shape(choices), tf.shape(packed["input_ids"])[1:]], axis=0)
  return {name: tf.reshape(tensor, shape) for name, tensor in packed.items()}


def choice_texts(question: tf.Tensor, choice: tf.Tensor) -> tf.Tensor:
  """Question and choice as one text; the choice replaces every "_", or follows.

  All are [N] strings, those given are normalised.

  Example: "he _ and _" has the sections "he ", " and " and ""; the choice ran is put behind all but
  the last: "he ran and ran". "why?" has one section: "why? ran".
  """
  sections = tf.strings.split(question, sep=BLANK)  # [N, (sections)]
  num_sections = sections.row_lengths()
  number = tf.ragged.range(num_sections).flat_values
  is_last = number == tf.repeat(num_sections - 1, num_sections)
  filling = tf.where(is_last, "", tf.repeat(choice, num_sections))
  filled = sections.with_flat_values(sections.flat_values + filling)
  filled = tf.strings.reduce_join(filled, axis=-1)
  followed = tf.strings.join([question, choice], separator=" ")
  return tf.where(num_sections > 1, filled, followed)


def word_batch(
  tokenizer: TokenizerModule,
  words: tf.Tensor,
  *,
  max_length: int,
  length: int | None,
) -> Tensors:
  """Packs texts of words `[B, N]`, encoded word by word as in training, into a row each.

  Long rows are cut.
  `word_positions` `[B, N]` are the words' first tokens, which predict their tags; 0 for none.

  Example: words of 2, 1 and 3 tokens in `max_length` 7, which has room for 5 tokens. The third word
  would end at 6, so it is cut away: the row is [CLS] 3 tokens [SEP], and the positions are 1 3 0.
  """
  room = max_length - 2  # Without [CLS] and [SEP].
  pieces = tokenizer.tokenize(tf.reshape(words, [-1]))  # [B N, (length)]
  pieces = head(pieces, room)

  # The last word that does not fit as a whole is cut away, so that no tag is of half a word.
  widths = tf.reshape(pieces.row_lengths(), tf.shape(words))  # [B, N]
  start = tf.cumsum(widths, axis=1, exclusive=True)
  fits = start + widths <= room
  num_kept = tf.reduce_sum(tf.where(fits, widths, 0), axis=1)
  num_rows, num_words = tf.unstack(tf.shape(words, tf.int64))
  pieces = tf.RaggedTensor.from_uniform_row_length(pieces, num_words, nrows=num_rows)
  ids = head(pieces.merge_dims(1, 2), num_kept)
  batch = pack_rows(tokenizer, ids, length=length)
  positions = tf.where(fits & (widths > 0), start + 1, 0)  # After [CLS].
  return batch | {"word_positions": tf.cast(positions, tf.int32)}


def question_batch(
  tokenizer: TokenizerModule,
  question: tf.Tensor,
  context: tf.Tensor,
  *,
  max_length: int,
  max_query_length: int,
  length: int | None,
) -> Tensors:
  """Packs `[CLS] question [SEP] context [SEP]`, cut to one window.

  `p_mask` `[B, S]` is 1 where no answer can be.
  """
  query = head(tokenizer.tokenize(question), max_query_length)
  text = head(tokenizer.tokenize(context), max_length - _PAIR_SPECIALS - query.row_lengths())
  if length is not None:
    length = max(length, SHORTEST_WINDOW)
  batch = pack_rows(
    tokenizer, query, text, length=length, min_length=SHORTEST_WINDOW, always_two=True
  )
  text_begin = query.row_lengths() + 2  # After [CLS] question [SEP].
  return batch | {"p_mask": answer_mask(batch, text_begin, text.row_lengths())}


def answer_mask(batch: Tensors, text_begin: tf.Tensor, text_length: tf.Tensor) -> tf.Tensor:
  """int32 `[B, S]`: 0 at [CLS] and in the text, which begins at `text_begin` `[B]`; else 1."""
  position = tf.range(tf.shape(batch["input_ids"])[1], dtype=text_begin.dtype)
  text_end = text_begin + text_length
  in_text = (position >= text_begin[:, tf.newaxis]) & (position < text_end[:, tf.newaxis])
  is_cls = position == 0
  return tf.where(in_text | is_cls, 0, 1)


# Rows of ids.


def pack_rows(
  tokenizer: TokenizerModule,
  first: tf.RaggedTensor,
  second: tf.RaggedTensor | None = None,
  *,
  length: int | tf.Tensor | None = None,
  min_length: int = 1,
  always_two: bool = False,
) -> Tensors:
  """`[CLS] first [SEP] second [SEP]` for every row.

  Args:
    tokenizer: gives the special ids.
    first, second: int32 ragged [B, (length)], short enough already.
    length: S; None: the longest row's, at least `min_length`; an empty batch needs one, too.
    always_two: an empty second segment has its [SEP], too; else it makes a single segment.

  Returns:
    int32 tensors `input_ids`, `input_mask`, `segment_ids`, each [B, S].

  Example: first 7 8, second 9, and S = 7:
    position     0     1 2 3     4 5     6
    input_ids    [CLS] 7 8 [SEP] 9 [SEP] <pad>
    segment_ids  0     0 0 0     1 1     0
  """
  # Computed for all positions [B, S] together: a few ops where ragged concatenation takes hundreds.
  first_size = first.row_lengths()[:, tf.newaxis]  # [B, 1], as all numbers of a row here.
  total = first_size + 2
  values = first.flat_values
  if second is not None:
    second_size = second.row_lengths()[:, tf.newaxis]
    total += tf.where((second_size > 0) | always_two, second_size + 1, 0)
    second_start = second.row_starts()[:, tf.newaxis] + tf.size(values, total.dtype)
    values = tf.concat([values, second.flat_values], axis=0)
  if length is None:
    length = tf.reduce_max(tf.concat([[[min_length]], total], axis=0))

  # The special tokens stand behind those of the texts, so that one gather reads all.
  cls_index = tf.size(values, total.dtype)
  sep_index = cls_index + 1
  pad_index = cls_index + 2
  values = tf.concat([values, [tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id]], axis=0)

  # Which value stands at each position.
  position = tf.range(tf.cast(length, total.dtype))[tf.newaxis]  # [1, S]
  index = first.row_starts()[:, tf.newaxis] + position - 1
  if second is not None:
    index = tf.where(position > first_size, second_start + position - first_size - 2, index)
  is_sep = (position == first_size + 1) | (position == total - 1)
  index = tf.where(position == 0, cls_index, index)
  index = tf.where(is_sep, sep_index, index)
  is_real = position < total
  return {
    "input_ids": tf.gather(values, tf.where(is_real, index, pad_index)),
    "input_mask": tf.cast(is_real, tf.int32),
    "segment_ids": tf.cast(is_real & (position > first_size + 1), tf.int32),
  }


def head(ids: tf.RaggedTensor, lengths: tf.Tensor | int) -> tf.RaggedTensor:
  """The first lengths[b] values of row b, or all of them if it has fewer; a number is for all rows."""
  starts = ids.row_starts()
  lengths = tf.minimum(tf.cast(lengths, starts.dtype), ids.row_lengths())
  return _rows(ids, starts, starts + lengths)


def tail(ids: tf.RaggedTensor, lengths: tf.Tensor | int) -> tf.RaggedTensor:
  """The last lengths[b] values of row b, or all of them if it has fewer; a number is for all rows."""
  limits = ids.row_limits()
  lengths = tf.minimum(tf.cast(lengths, limits.dtype), ids.row_lengths())
  return _rows(ids, limits - lengths, limits)


def _rows(ids: tf.RaggedTensor, starts: tf.Tensor, limits: tf.Tensor) -> tf.RaggedTensor:
  """The flat values from starts[b] to limits[b] as row b."""
  positions = tf.ragged.range(starts, limits)
  return positions.with_flat_values(tf.gather(ids.flat_values, positions.flat_values))
