"""Split long contexts into overlapping windows, and find answers in their scores; TensorFlow ops.

SQuAD fine-tuning calls these functions eagerly; SavedModels have them in the graph.
"""

from typing import NamedTuple

import tensorflow as tf

from albert_tf.tokenization.graph import TokenizerModule
from albert_tf.tokenization.graph_inputs import SHORTEST_WINDOW, Tensors, answer_mask, pack_rows
from albert_tf.tokenization.graph_offsets import Located
from albert_tf.windows.text_windows import Windows, cut_pieces, substrings

# Start and end score of the empty answer, if there is no other (original code).
NO_ANSWER_SCORE = -1e6
_CONTEXT_WEIGHT = 0.01  # Weight of a window's length against a token's context (original code).


def pack_windows(
  tokenizer: TokenizerModule,
  query: tf.RaggedTensor,
  context: tf.RaggedTensor,
  windows: Windows,
) -> Tensors:
  """`[CLS] question [SEP] window of the context [SEP]` for each window.

  Args:
    tokenizer: gives the special ids.
    query, context: int32 ragged [B, (length)].
    windows: windows of the contexts.

  Returns:
    `input_ids`, `input_mask`, `segment_ids` and `p_mask`, 1 where no answer can be, int32 [W, S]; S
    is the length of the longest window, at least `SHORTEST_WINDOW`.
  """
  # The question is repeated in each window of its context.
  text = cut_pieces(context, windows.row, windows.begin, windows.length)
  batch = pack_rows(
    tokenizer, tf.gather(query, windows.row), text, min_length=SHORTEST_WINDOW, always_two=True
  )
  return batch | {"p_mask": answer_mask(batch, windows.text_begin, windows.length)}


def max_context(windows: Windows) -> tf.Tensor:
  """Whether a window shows a token with more context than other windows.

  The first of equally good windows wins.

  Returns:
    bool [W, T], by place in the window's text.

  Example: windows of the tokens 0 to 4 and 3 to 7. Token 3 has 3 tokens to the left and 1 to the
    right in the first, and none to the left in the second: min(3, 1) > min(0, 4), so the first wins.
  """
  num_windows = tf.size(windows.row)
  length = windows.length[:, tf.newaxis]
  # Of no windows the maximum is the smallest integer.
  longest = tf.maximum(tf.reduce_max(windows.length), 0)
  left = tf.broadcast_to(tf.range(longest), [num_windows, longest])
  is_inside = left < length
  # float64, so that sums are equal exactly where Python's are.
  context = tf.cast(tf.minimum(left, length - 1 - left), tf.float64)
  score = context + _CONTEXT_WEIGHT * tf.cast(length, tf.float64)
  score = tf.where(is_inside, score, -1.0)

  # One number for each token of each context: row * width + place in the context.
  width = tf.maximum(tf.reduce_max(windows.begin), 0) + longest
  token = windows.row[:, tf.newaxis] * width + windows.begin[:, tf.newaxis] + left
  token = tf.reshape(token, [-1])
  # The last row counts the contexts. Times the windows it would be too large for int32, or memory.
  num_tokens = (tf.maximum(tf.reduce_max(windows.row), -1) + 1) * width

  # The best score of each token, then the first window that has it.
  best = tf.math.unsorted_segment_max(tf.reshape(score, [-1]), token, num_tokens)
  is_best = is_inside & (score == tf.reshape(tf.gather(best, token), tf.shape(score)))
  number = tf.where(is_best, tf.range(num_windows)[:, tf.newaxis], num_windows)
  first = tf.math.unsorted_segment_min(tf.reshape(number, [-1]), token, num_tokens)
  return is_best & (number == tf.reshape(tf.gather(first, token), tf.shape(score)))


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


class _Pairs(NamedTuple):
  """Pairs of start and end, by place in a window's text, with their scores; [W, pairs] each."""

  start: tf.Tensor
  end: tf.Tensor
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
  may_start = max_context(windows)  # [W, T]
  if "start_logits" in outputs:
    pairs = _best_pairs(windows, outputs, may_start, n_best)
  else:
    pairs = _chosen_pairs(windows, outputs)

  # A span is in the text of its window, in order, and not too long.
  possible = (pairs.start >= 0) & (pairs.end >= pairs.start)
  possible &= pairs.end < windows.length[:, tf.newaxis]
  possible &= pairs.end - pairs.start < max_answer_length
  # It belongs to the window that shows its start with most context.
  may_start = tf.pad(may_start, [[0, 0], [0, 1]])  # There is a column even if all texts are empty.
  start = tf.clip_by_value(pairs.start, 0, tf.shape(may_start)[1] - 1)
  possible &= tf.gather(may_start, start, batch_dims=1)

  begin = windows.begin[:, tf.newaxis]
  row = tf.broadcast_to(windows.row[:, tf.newaxis], tf.shape(pairs.start))
  spans = Spans(
    row=row,
    first=begin + pairs.start,
    last=begin + pairs.end,
    start_score=tf.cast(pairs.start_score, tf.float64),
    end_score=tf.cast(pairs.end_score, tf.float64),
  )
  return Spans(*(tf.boolean_mask(column, possible) for column in spans))


def _best_pairs(windows: Windows, outputs: Tensors, may_start: tf.Tensor, n_best: int) -> _Pairs:
  """SQuAD 1.1: each of the k best starts of a window with each of its k best ends; [W, k²]."""
  longest = tf.shape(may_start)[1]
  is_inside = tf.range(longest) < windows.length[:, tf.newaxis]
  # From positions in the window to places in its text.
  position = windows.text_begin[:, tf.newaxis] + tf.range(longest)
  position = tf.where(is_inside, position, 0)
  k = tf.minimum(longest, n_best)

  def best(name: str, allowed: tf.Tensor) -> tf.Tensor:
    logits = tf.gather(outputs[name], position, batch_dims=1)
    return tf.math.top_k(tf.where(allowed, logits, logits.dtype.min), k=k)

  starts = best("start_logits", may_start)
  ends = best("end_logits", is_inside)
  # k = 2: the starts a a b b with the ends c d c d.
  return _Pairs(
    start=tf.repeat(starts.indices, k, axis=1),
    end=tf.tile(ends.indices, [1, k]),
    start_score=tf.repeat(starts.values, k, axis=1),
    end_score=tf.tile(ends.values, [1, k]),
  )


def _chosen_pairs(windows: Windows, outputs: Tensors) -> _Pairs:
  """SQuAD 2.0: the K starts, and L ends for each, that the head chose; [W, K L]."""
  num_starts = tf.shape(outputs["start_top_index"])[1]
  num_pairs = tf.shape(outputs["end_top_index"])[1]
  start_of_pair = tf.range(num_pairs) // (num_pairs // num_starts)  # K = 2, L = 3: 0 0 0 1 1 1.
  text_begin = windows.text_begin[:, tf.newaxis]
  return _Pairs(
    start=tf.gather(outputs["start_top_index"], start_of_pair, axis=1) - text_begin,
    end=outputs["end_top_index"] - text_begin,
    start_score=tf.gather(outputs["start_top_log_probs"], start_of_pair, axis=1),
    end_score=outputs["end_top_log_probs"],
  )


def best_answers(spans: Spans, located: Located, *, n_best: int) -> Tensors:
  """The best spans with different texts.

  Returns:
    [B, N = `n_best`] each, best first, then padding: `answers` strings, `start_scores` and
    `end_scores` float64 (padding `NO_ANSWER_SCORE`), `starts` and `ends` int32, in characters.
  """
  # By text, then by score, then as tried: both sorts are stable.
  order = tf.argsort(spans.start_score + spans.end_score, direction="DESCENDING", stable=True)
  order = tf.gather(order, tf.argsort(tf.gather(spans.row, order), stable=True))
  spans = Spans(*(tf.gather(column, order) for column in spans))

  # From tokens to characters.
  first_of_text = tf.cast(tf.gather(located.ids.row_splits, spans.row), tf.int32)
  start = tf.gather(located.starts.flat_values, first_of_text + spans.first)
  end = tf.gather(located.ends.flat_values, first_of_text + spans.last)
  end = tf.maximum(start, end)  # The range of a lone "▁" may end before it begins.
  answers = substrings(located.texts, located.char_bytes, spans.row, start, end)

  # Keep the first of equal answers to a question.
  key = tf.strings.join([tf.strings.as_string(spans.row), answers], separator=" ")
  _, key_number = tf.unique(key)
  rank = tf.range(tf.size(spans.row))
  first_rank = tf.math.unsorted_segment_min(rank, key_number, tf.size(spans.row))
  is_first = tf.gather(first_rank, key_number) == rank
  is_kept = is_first & (answers != "")

  # A row for each text, also for one without answers.
  rows = tf.cast(tf.boolean_mask(spans.row, is_kept), tf.int64)
  num_texts = tf.size(located.texts, tf.int64)

  def padded(column: tf.Tensor, padding: str | float) -> tf.Tensor:
    values = tf.boolean_mask(column, is_kept)
    ragged = tf.RaggedTensor.from_value_rowids(values, rows, nrows=num_texts, validate=False)
    return ragged.to_tensor(tf.constant(padding, column.dtype), shape=[None, n_best])

  return {
    "answers": padded(answers, ""),
    "start_scores": padded(spans.start_score, NO_ANSWER_SCORE),
    "end_scores": padded(spans.end_score, NO_ANSWER_SCORE),
    "starts": padded(start, 0),
    "ends": padded(end, 0),
  }
