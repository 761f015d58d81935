"""Positions of answers, given as strings, in the rows of questions and contexts."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.tokenization import AlbertTokenizer
from albert_tf.tokenization.graph import graph_tokenizer
from albert_tf.tokenization.graph_offsets import GraphOffsets

_CONTEXTS_AT_ONCE = 256


def answer_positions(
  rows: Mapping[str, np.ndarray],
  contexts: Any,
  answers: Any,
  *,
  tokenizer: AlbertTokenizer,
  may_lack: bool,
) -> tuple[np.ndarray, np.ndarray]:
  """First and last position of each answer, int32 `[B]`; 0, that of [CLS], for an empty answer.

  Args:
    rows: `segment_ids` `[B, S]`; the context is the second segment.
    contexts, answers: strings `[B]`; the first occurrence in the context counts.
    tokenizer: made the rows.
    may_lack: whether an answer may be empty.

  Raises:
    UserError: an answer is no part of its context, or is not in its row.
  """
  texts, parts = _strings(contexts), _strings(answers)
  if len(texts) != len(parts):
    raise UserError(
      f"Each question has one answer. Received: {len(texts)} contexts, {len(parts)} answers."
    )
  begins = np.array([text.find(part) for text, part in zip(texts, parts, strict=True)], np.int32)
  ends = begins + np.array(list(map(len, parts)), np.int32)
  offsets = GraphOffsets(tokenizer, graph_tokenizer(tokenizer))
  first, last = np.zeros([2, len(texts)], np.int32)  # Tokens of the context.
  for start in range(0, len(texts), _CONTEXTS_AT_ONCE):
    block = slice(start, start + _CONTEXTS_AT_ONCE)
    located = offsets(tf.constant(texts[block]))
    # The first token that ends after the answer's first character; the last that begins before its end.
    is_before = located.ends <= begins[block, np.newaxis]
    is_until_end = located.starts < ends[block, np.newaxis]
    first[block] = tf.reduce_sum(tf.cast(is_before, tf.int32), axis=1)
    last[block] = tf.reduce_sum(tf.cast(is_until_end, tf.int32), axis=1) - 1
  last = np.maximum(first, last)
  lengths = rows["segment_ids"].sum(axis=1) - 1  # Without [SEP].
  is_empty = begins == ends
  is_wrong = np.where(is_empty, not may_lack, (begins < 0) | (last >= lengths))
  if is_wrong.any():
    row = int(is_wrong.argmax())
    raise UserError(
      "An answer is a part of its context, letter by letter, and in the first max_length tokens; for SQuAD 2.0 it may "
      f"be empty. Received in row {row}: {parts[row]!r:.60}, for {texts[row]!r:.60}. Correct the row, raise "
      "max_length, or train with run_squad.py, which reads long contexts in windows."
    )
  shift = rows["segment_ids"].argmax(axis=1).astype(np.int32)
  return np.where(is_empty, 0, first + shift), np.where(is_empty, 0, last + shift)


def _strings(column: Any) -> list[str]:
  return [text.decode() if isinstance(text, bytes) else text for text in np.asarray(column, object)]
