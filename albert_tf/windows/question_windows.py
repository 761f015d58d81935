"""Split long contexts into overlapping windows, and find answers in the scores of windows; TensorFlow ops.

SQuAD fine-tuning calls these functions eagerly; SavedModels have them in the graph.
"""

from typing import NamedTuple

import tensorflow as tf

from albert_tf.tokenization.graph import GraphPacker
from albert_tf.tokenization.graph_inputs import SHORTEST_WINDOW, Tensors, answer_mask, at_least
from albert_tf.tokenization.graph_offsets import Located
from albert_tf.windows.text_windows import Windows, cut_pieces, substrings

# Start and end score of the empty answer, if there is no other (original code).
NO_ANSWER_SCORE = -1e6
_CONTEXT_WEIGHT = 0.01  # Weight of a window's length against a token's context (original code).


def pack_windows(
  packer: GraphPacker,
  query: tf.RaggedTensor,
  context: tf.RaggedTensor,
  windows: Windows,
) -> Tensors:
  """`[CLS] question [SEP] part of the context [SEP]` of each window.

  Args:
    packer: adds the special tokens.
    query, context: int32 ragged [B, (length)].
    windows: windows of the contexts.

  Returns:
    `input_ids`, `input_mask`, `segment_ids` and `p_mask`, 1 where no answer can be, int32 [W, S]; S is the
    length of the longest window, at least `SHORTEST_WINDOW`.
  """
  text = cut_pieces(context, windows.row, windows.begin, windows.length)
  batch = packer.pack(tf.gather(query, windows.row), text, always_two=True)
  batch = at_least(batch, SHORTEST_WINDOW)
  return {**batch, "p_mask": answer_mask(batch, windows.text_begin, windows.length)}


def max_context(windows: Windows) -> tf.Tensor:
  """Whether a window shows a token with more context than other windows, bool [W, T] by place in its text.

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
  number = tf.where(chosen, tf.range(tf.size(windows.row))[:, tf.newaxis], tf.size(windows.row))
  first = tf.math.unsorted_segment_min(tf.reshape(number, [-1]), key, segments)
  return chosen & (number == tf.reshape(tf.gather(first, key), tf.shape(score)))


class Spans(NamedTuple):
  """Spans that may be answers, [N] each, ordered by window, start and end as tried.

  Attributes:
    row: int32 index of the context.
    first, last: int32 first and last token in the context.
    start_score, end_score: float64; their sum is the score of the span.
  """

  row: tf.Tensor
  first: tf.Tensor
  last: tf.Tensor
  start_score: tf.Tensor
  end_score: tf.Tensor


def find_spans(windows: Windows, outputs: Tensors, *, n_best: int, max_answer_length: int) -> Spans:
  """Finds the spans that may be answers in the model's outputs.

  Args:
    windows: W windows.
    outputs: SQuAD 1.1: `start_logits`, `end_logits` [W, S]; 2.0: outputs of `Squad2Head`.
    n_best: 1.1: number of starts, and of ends, tried in each window.
    max_answer_length: in tokens.
  """
  allowed = max_context(windows)  # [W, T]
  if "start_logits" in outputs:
    start, end, start_score, end_score = _best_pairs(windows, outputs, allowed, n_best)
  else:
    start, end, start_score, end_score = _chosen_pairs(windows, outputs)
  possible = (start >= 0) & (end >= start) & (end < windows.length[:, tf.newaxis])
  possible &= end - start < max_answer_length
  padded = tf.pad(allowed, [[0, 0], [0, 1]])  # So that there is a column even if all texts are empty.
  within = tf.clip_by_value(start, 0, tf.shape(padded)[1] - 1)
  possible &= tf.gather(padded, within, batch_dims=1)
  begin = windows.begin[:, tf.newaxis]
  row = tf.broadcast_to(windows.row[:, tf.newaxis], tf.shape(start))
  scores = [tf.cast(score, tf.float64) for score in (start_score, end_score)]
  columns = (row, begin + start, begin + end, *scores)
  return Spans(*(tf.boolean_mask(column, possible) for column in columns))


def _best_pairs(windows: Windows, outputs: Tensors, allowed: tf.Tensor, n_best: int) -> tuple[tf.Tensor, ...]:
  """SQuAD 1.1: pairs of the best starts and ends of each window, by place in its text, with scores; [W, k²]."""
  longest = tf.shape(allowed)[1]
  inside = tf.range(longest) < windows.length[:, tf.newaxis]
  place = tf.where(inside, windows.text_begin[:, tf.newaxis] + tf.range(longest), 0)
  k = tf.minimum(longest, n_best)
  best = []
  for name, chosen in (("start_logits", allowed), ("end_logits", inside)):
    logits = tf.gather(outputs[name], place, batch_dims=1)
    best.append(tf.math.top_k(tf.where(chosen, logits, logits.dtype.min), k=k))  # [W, k]
  start, end = best
  pairs = [tf.repeat(each, k, axis=1) for each in (start.indices, start.values)]
  pairs += [tf.tile(each, [1, k]) for each in (end.indices, end.values)]
  return pairs[0], pairs[2], pairs[1], pairs[3]


def _chosen_pairs(windows: Windows, outputs: Tensors) -> tuple[tf.Tensor, ...]:
  """SQuAD 2.0: the K starts, and L ends for each, that the head chose; as `_best_pairs`, [W, K L]."""
  starts, pairs = (tf.shape(outputs[f"{side}_top_index"])[1] for side in ("start", "end"))
  of_start = tf.range(pairs) // (pairs // starts)
  text_begin = windows.text_begin[:, tf.newaxis]
  return (
    tf.gather(outputs["start_top_index"], of_start, axis=1) - text_begin,
    outputs["end_top_index"] - text_begin,
    tf.gather(outputs["start_top_log_probs"], of_start, axis=1),
    outputs["end_top_log_probs"],
  )


def best_answers(spans: Spans, located: Located, *, n_best: int) -> Tensors:
  """The best spans with different texts.

  Returns:
    [B, N = `n_best`] each, best first, then padding: `answers` strings, `start_scores` and `end_scores` float64
    (padding `NO_ANSWER_SCORE`), `starts` and `ends` int32, in characters.
  """
  order = tf.argsort(spans.start_score + spans.end_score, direction="DESCENDING", stable=True)
  order = tf.gather(order, tf.argsort(tf.gather(spans.row, order), stable=True))
  row, first, last, *scores = (tf.gather(column, order) for column in spans)
  piece_rows = tf.cast(tf.gather(located.ids.row_splits, row), tf.int32)
  start = tf.gather(located.starts.flat_values, piece_rows + first)
  end = tf.maximum(start, tf.gather(located.ends.flat_values, piece_rows + last))
  text = substrings(located.texts, located.char_bytes, row, start, end)
  # Keep the first of equal texts of a row.
  _, number = tf.unique(tf.strings.join([tf.strings.as_string(row), text], separator=" "))
  index = tf.range(tf.size(row))
  is_first = tf.gather(tf.math.unsorted_segment_min(index, number, tf.size(row)), number) == index
  kept = is_first & (text != "")
  columns = {
    "answers": (text, ""),
    "start_scores": (scores[0], NO_ANSWER_SCORE),
    "end_scores": (scores[1], NO_ANSWER_SCORE),
    "starts": (start, 0),
    "ends": (end, 0),
  }
  rows = tf.cast(tf.boolean_mask(row, kept), tf.int64)
  count = tf.size(located.texts, tf.int64)
  return {
    name: tf.RaggedTensor.from_value_rowids(
      tf.boolean_mask(column, kept), rows, nrows=count, validate=False
    ).to_tensor(tf.constant(padding, column.dtype), shape=[None, n_best])
    for name, (column, padding) in columns.items()
  }
