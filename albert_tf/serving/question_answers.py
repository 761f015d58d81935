"""From the scores of windows to answers cut from the original text, inside the graph.

The rules are those of `finetuning.squad.decoding`: which spans are tried, in which order, and which are kept.
"""

from typing import NamedTuple

import tensorflow as tf

from albert_tf.serving.modules import Tensors
from albert_tf.serving.question_windows import Windows, max_context
from albert_tf.tokenization.graph_offsets import Located

NO_ANSWER_SCORE = -2e6  # Of the places behind the last answer.


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
  char_rows = tf.cast(tf.gather(located.char_bytes.row_splits, row), tf.int32)
  begin, stop = (tf.gather(located.char_bytes.flat_values, char_rows + place) for place in (start, end))
  text = tf.strings.substr(
    tf.gather(located.texts, row), tf.cast(begin, tf.int32), tf.cast(stop - begin, tf.int32)
  )
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
