"""Long contexts as overlapping windows, and scores of windows as answers cut from the context, inside the graph.

The windows, the spans that are tried, their order, and which are kept are those of `finetuning.tasks.squad`.
"""

from typing import NamedTuple

import tensorflow as tf

from albert_tf.serving.signatures.base import Tensors
from albert_tf.serving.signatures.windows import cut_pieces, substrings
from albert_tf.tokenization.graph_inputs import at_least
from albert_tf.tokenization.graph_offsets import Located
from albert_tf.tokenization.graph_packing import GraphPacker, head

NO_ANSWER_SCORE = -2e6  # Of the places behind the last answer.

_SPECIAL_PIECES = 3  # [CLS] question [SEP] context [SEP]
_CONTEXT_WEIGHT = 0.01  # Of a window's length beside a piece's context (original code).


class WindowSettings(NamedTuple):
  """Sizes in pieces.

  Attributes:
    max_seq_length: S of a window with its question.
    max_query_length: a question is cut to this.
    doc_stride: distance of two windows' beginnings.
    max_windows: of one context, which is cut behind them.
  """

  max_seq_length: int
  max_query_length: int
  doc_stride: int
  max_windows: int


class Windows(NamedTuple):
  """W windows of B contexts, in order.

  Attributes:
    row: int32 [W] which context.
    begin, length: int32 [W] its pieces.
    text_begin: int32 [W] where they begin in the window, after [CLS] question [SEP].
    is_cut: bool [B] whether the context is longer than its windows.
    batch: `input_ids`, `input_mask`, `segment_ids`, int32 [W, S].
  """

  row: tf.Tensor
  begin: tf.Tensor
  length: tf.Tensor
  text_begin: tf.Tensor
  is_cut: tf.Tensor
  batch: Tensors


def make_windows(
  tokenizer: GraphPacker,
  query: tf.RaggedTensor,
  context: tf.RaggedTensor,
  settings: WindowSettings,
  *,
  fixed: bool,
  min_length: int,
) -> Windows:
  """Each window begins `doc_stride` after the one before, until the context ends.

  Args:
    tokenizer: packs.
    query, context: int32 ragged [B, (length)].
    settings: sizes.
    fixed: S is `max_seq_length`; else the longest window's.
    min_length: S is no shorter.
  """
  query = head(query, tf.minimum(query.row_lengths(), settings.max_query_length))
  query_length, total = (tf.cast(ids.row_lengths(), tf.int32) for ids in (query, context))
  room = settings.max_seq_length - query_length - _SPECIAL_PIECES
  step = tf.minimum(room, settings.doc_stride)
  count = 1 + tf.maximum(0, (total - room + step - 1) // step)  # One also for an empty context.
  is_cut = count > settings.max_windows
  count = tf.minimum(count, settings.max_windows)
  row = tf.repeat(tf.range(tf.size(count)), count)
  ordinal = tf.range(tf.size(row)) - tf.repeat(tf.cumsum(count, exclusive=True), count)
  begin = ordinal * tf.gather(step, row)
  length = tf.minimum(tf.gather(total, row) - begin, tf.gather(room, row))
  text = cut_pieces(context, row, begin, length)
  batch = tokenizer.pack(
    tf.gather(query, row), text, length=settings.max_seq_length if fixed else None, always_two=True
  )
  batch = at_least(batch, min_length)
  return Windows(row, begin, length, tf.gather(query_length, row) + 2, is_cut, batch)


def max_context(windows: Windows) -> tf.Tensor:
  """Whether a window is the one that shows a piece with most context, bool [W, T] by place in its text.

  The first of equally good windows wins.
  """
  longest = tf.reduce_max(tf.concat([windows.length, [0]], axis=0))
  left = tf.broadcast_to(tf.range(longest), [tf.size(windows.row), longest])
  length = windows.length[:, tf.newaxis]
  inside = left < length
  # float64, so that sums are equal exactly where Python's are.
  score = tf.cast(tf.minimum(left, length - 1 - left), tf.float64)
  score = tf.where(inside, score + _CONTEXT_WEIGHT * tf.cast(length, tf.float64), -1.0)
  place = windows.begin[:, tf.newaxis] + left  # In the context.
  width = tf.reduce_max(tf.concat([windows.begin + windows.length, [0]], axis=0)) + longest
  key = tf.reshape(windows.row[:, tf.newaxis] * width + place, [-1])
  segments = (tf.reduce_max(tf.concat([windows.row, [-1]], axis=0)) + 1) * width
  best = tf.math.unsorted_segment_max(tf.reshape(score, [-1]), key, segments)
  chosen = inside & (score == tf.reshape(tf.gather(best, key), tf.shape(score)))
  number = tf.broadcast_to(tf.range(tf.size(windows.row))[:, tf.newaxis], tf.shape(score))
  first = tf.math.unsorted_segment_min(
    tf.reshape(tf.where(chosen, number, tf.size(windows.row)), [-1]), key, segments
  )
  return chosen & (number == tf.reshape(tf.gather(first, key), tf.shape(score)))


class Spans(NamedTuple):
  """Spans that may be answers, [N] each: by window, start and end in the order in which they were tried.

  Attributes:
    row: int32 which context.
    first, last: int32 first and last piece of it.
    score: float64.
  """

  row: tf.Tensor
  first: tf.Tensor
  last: tf.Tensor
  score: tf.Tensor


def spans_of_logits(windows: Windows, outputs: Tensors, *, n_best: int, max_answer_length: int) -> Spans:
  """SQuAD 1.1: the best starts times the best ends of each window, among the places where they may be.

  Args:
    windows: W of them.
    outputs: `start_logits`, `end_logits` [W, S].
    n_best: starts, and ends, tried in a window.
    max_answer_length: in pieces.
  """
  allowed = max_context(windows)  # [W, T]
  longest = tf.shape(allowed)[1]
  place = windows.text_begin[:, tf.newaxis] + tf.range(longest)
  inside = tf.range(longest) < windows.length[:, tf.newaxis]
  place = tf.where(inside, place, 0)
  k = tf.minimum(longest, n_best)
  start = tf.gather(outputs["start_logits"], place, batch_dims=1)
  end = tf.gather(outputs["end_logits"], place, batch_dims=1)
  lowest = start.dtype.min
  start = tf.math.top_k(tf.where(allowed, start, lowest), k=k)  # [W, k]
  end = tf.math.top_k(tf.where(inside, end, lowest), k=k)
  possible = tf.gather(allowed, start.indices, batch_dims=1)[:, :, tf.newaxis]
  possible &= tf.gather(inside, end.indices, batch_dims=1)[:, tf.newaxis]
  start_at, end_at = start.indices[:, :, tf.newaxis], end.indices[:, tf.newaxis]  # [W, k, 1], [W, 1, k]
  possible &= (end_at >= start_at) & (end_at - start_at < max_answer_length)
  score = tf.cast(start.values, tf.float64)[:, :, tf.newaxis] + tf.cast(end.values, tf.float64)[:, tf.newaxis]
  shape = tf.shape(score)
  begin = windows.begin[:, tf.newaxis, tf.newaxis]
  columns = (
    tf.broadcast_to(windows.row[:, tf.newaxis, tf.newaxis], shape),
    tf.broadcast_to(begin + start_at, shape),
    tf.broadcast_to(begin + end_at, shape),
    score,
  )
  return Spans(*(tf.boolean_mask(column, possible) for column in columns))


def spans_of_best(windows: Windows, outputs: Tensors, *, max_answer_length: int) -> Spans:
  """SQuAD 2.0: the head has already chosen starts, and ends for each; arguments as in `spans_of_logits`."""
  allowed = max_context(windows)  # [W, T]
  starts = tf.shape(outputs["start_top_index"])[1]
  of_start = tf.range(tf.shape(outputs["end_top_index"])[1]) // (
    tf.shape(outputs["end_top_index"])[1] // starts
  )
  text_begin = windows.text_begin[:, tf.newaxis]
  start = tf.gather(outputs["start_top_index"], of_start, axis=1) - text_begin  # [W, K L]
  end = outputs["end_top_index"] - text_begin
  possible = (start >= 0) & (end < windows.length[:, tf.newaxis]) & (end >= start)
  possible &= end - start < max_answer_length
  padded = tf.pad(allowed, [[0, 0], [0, 1]])  # So that there is a place even where all texts are empty.
  within = tf.clip_by_value(start, 0, tf.shape(padded)[1] - 1)
  possible &= tf.gather(padded, within, batch_dims=1)
  score = tf.cast(tf.gather(outputs["start_top_log_probs"], of_start, axis=1), tf.float64)
  score += tf.cast(outputs["end_top_log_probs"], tf.float64)
  begin = windows.begin[:, tf.newaxis]
  row = tf.broadcast_to(windows.row[:, tf.newaxis], tf.shape(score))
  return Spans(*(tf.boolean_mask(column, possible) for column in (row, begin + start, begin + end, score)))


def best_answers(spans: Spans, located: Located, *, n_best: int) -> Tensors:
  """The best spans with different texts.

  Args:
    spans: of all contexts.
    located: the B contexts.
    n_best: N.

  Returns:
    [B, N] each, best first, then padding: `answers` strings, `scores` float32 (padding `NO_ANSWER_SCORE`),
    `probabilities` float32, among a row's answers (padding 0), `starts` and `ends` int32, in characters.
  """
  order = tf.argsort(spans.score, direction="DESCENDING", stable=True)
  order = tf.gather(order, tf.argsort(tf.gather(spans.row, order), stable=True))
  row, first, last, score = (tf.gather(column, order) for column in spans)
  piece_rows = tf.cast(tf.gather(located.ids.row_splits, row), tf.int32)
  start = tf.gather(located.starts.flat_values, piece_rows + first)
  end = tf.maximum(start, tf.gather(located.ends.flat_values, piece_rows + last))
  text = substrings(located.texts, located.char_bytes, row, start, end)
  # The first of equal texts of a row stays.
  key = tf.strings.join([tf.strings.as_string(row), text], separator=" ")
  _, number = tf.unique(key)
  index = tf.range(tf.size(row))
  is_first = tf.gather(tf.math.unsorted_segment_min(index, number, tf.size(row)), number) == index
  kept = is_first & (text != "")
  batch = tf.shape(located.texts)[0]
  columns = {"answers": text, "scores": tf.cast(score, tf.float32), "starts": start, "ends": end}
  row = tf.boolean_mask(row, kept)
  padding = {"answers": "", "scores": NO_ANSWER_SCORE, "starts": 0, "ends": 0}
  outputs = {}
  for name, column in columns.items():
    ragged = tf.RaggedTensor.from_value_rowids(
      tf.boolean_mask(column, kept), tf.cast(row, tf.int64), nrows=tf.cast(batch, tf.int64), validate=False
    )
    outputs[name] = ragged.to_tensor(padding[name], shape=[None, n_best])
  real = outputs["answers"] != ""
  outputs["probabilities"] = tf.where(real, tf.nn.softmax(outputs["scores"]), 0.0)
  return outputs
