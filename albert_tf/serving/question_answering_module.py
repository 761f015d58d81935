"""Answers to questions, cut from the text that holds them, as signatures."""

from collections.abc import Callable

import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.finetuning.task_spec import TaskSpec
from albert_tf.serving.examples import parse_strings
from albert_tf.serving.modules import (
  LONGEST_TEXT,
  Parts,
  ServingModule,
  Signatures,
  Tensors,
  cut,
  graph,
  strings,
)
from albert_tf.serving.question_answers import best_answers, spans_of_best, spans_of_logits
from albert_tf.serving.question_windows import WindowSettings, make_windows
from albert_tf.tokenization.graph_offsets import GraphOffsets

_AT_LEAST = 8  # Positions: more than the starts and ends that the head of SQuAD 2.0 follows.
_WINDOWS_AT_ONCE = 32


class QuestionAnsweringModule(ServingModule):
  """The parts of a context that answer a question.

  A context longer than the packing's length is read in overlapping windows, up to `max_windows` of
  them; what lies behind is not read, and `truncated` says so.

  Signatures:
    serving_default: `question`, `context` [B] strings → `answer` strings [B], "" where a model of SQuAD 2.0
      finds none; `answers` strings, `probabilities` (among these answers), `scores` float32, `starts` and
      `ends` int32 (half-open, characters of the context), [B, N], best first, padded with "" and 0;
      `truncated` bool [B]; SQuAD 2.0 also `null_scores` float32 [B]: `answer` is "" where it is at least
      the threshold of the run's task.json.
    examples: `inputs` [B] serialized tf.Example with `question` and `context` → the same.
    tokens: `input_ids`, `input_mask`, `segment_ids`, for SQuAD 2.0 `p_mask` [B, S] → the head's outputs
      for these windows.

  Args:
    parts: see `ServingModule`.
    task: of kind question_answering.
    n_best: N.
    max_windows: of a context.
  """

  def __init__(self, parts: Parts, task: TaskSpec, *, n_best: int = 20, max_windows: int = 32):
    super().__init__(parts)
    self._task = task
    self._has_null = task.squad_version == "2.0"
    self._n_best = n_best
    self.offsets = GraphOffsets(parts.tokenizer, self.tokenizer)
    length = parts.packing.max_length
    if length <= task.max_query_length + 3:
      raise UserError(
        f"max_seq_length must be more than max_query_length + 3. Received: {length}, with max_query_length="
        f"{task.max_query_length} in the run's task.json. Raise --max_seq_length."
      )
    self._windows = WindowSettings(length, task.max_query_length, task.doc_stride, max_windows)

  def signatures(self) -> Signatures:
    return {
      "serving_default": self.shared(self.text, strings("question", "context")),
      "examples": graph(self.examples, strings("inputs")),
      "tokens": self.shared(self.tokens, self.window_inputs()),
    }

  def window_inputs(self) -> tuple[tf.TensorSpec, ...]:
    return (*self.token_inputs(), *([self.ids("p_mask")] if self._has_null else []))

  def text(self, question: tf.Tensor, context: tf.Tensor) -> Tensors:
    is_cut = tf.strings.length(context, unit="UTF8_CHAR") > LONGEST_TEXT
    located = self.offsets(cut(context))
    windows = make_windows(
      self.tokenizer,
      self.tokenizer.tokenize(cut(question)),
      located.ids,
      self._windows,
      fixed=self._packing.fixed,
      at_least=_AT_LEAST,
    )
    batch = dict(windows.batch)
    if self._has_null:
      place = tf.range(tf.shape(batch["input_ids"])[1])
      last = (windows.text_begin + windows.length)[:, tf.newaxis]
      in_text = (place >= windows.text_begin[:, tf.newaxis]) & (place < last)
      batch["p_mask"] = tf.where(in_text | (place == 0), 0, 1)
    tokens = self.shared(self.tokens, self.window_inputs())
    outputs = in_chunks(lambda chunk: tokens(**chunk), batch, _WINDOWS_AT_ONCE, self._output_specs())
    longest = self._task.max_answer_length
    if not self._has_null:
      spans = spans_of_logits(windows, outputs, n_best=self._n_best, max_answer_length=longest)
      best = best_answers(spans, located, n_best=self._n_best)
      return {**best, "answer": best["answers"][:, 0], "truncated": is_cut | windows.is_cut}
    best = best_answers(
      spans_of_best(windows, outputs, max_answer_length=longest), located, n_best=self._n_best
    )
    # The least unanswerable window counts.
    nulls = tf.math.unsorted_segment_min(outputs["cls_logits"], windows.row, tf.shape(question)[0])
    is_null = nulls >= self._task.null_score_diff_threshold
    answer = tf.where(is_null, "", best["answers"][:, 0])
    return {**best, "answer": answer, "truncated": is_cut | windows.is_cut, "null_scores": nulls}

  def examples(self, inputs: tf.Tensor) -> Tensors:
    texts = parse_strings(inputs, required=["question", "context"])
    return self.shared(self.text, strings("question", "context"))(**texts)

  def tokens(
    self,
    input_ids: tf.Tensor,
    input_mask: tf.Tensor,
    segment_ids: tf.Tensor,
    p_mask: tf.Tensor | None = None,
  ) -> Tensors:
    inputs = {"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segment_ids}
    if p_mask is not None:
      inputs["p_mask"] = p_mask
    return dict(self.run_model(inputs))

  def _output_specs(self) -> dict[str, tf.TensorSpec]:
    """What `tokens` gives."""
    if not self._has_null:
      return {name: tf.TensorSpec([None, None], tf.float32) for name in ("start_logits", "end_logits")}
    specs = {
      f"{side}_top_{kind}": tf.TensorSpec([None, None], dtype)
      for side in ("start", "end")
      for kind, dtype in (("log_probs", tf.float32), ("index", tf.int32))
    }
    return {**specs, "cls_logits": tf.TensorSpec([None], tf.float32)}


def in_chunks(
  function: Callable[[Tensors], Tensors], batch: Tensors, size: int, outputs: dict[str, tf.TensorSpec]
) -> Tensors:
  """Runs a function on rows in chunks, one after the other, so that memory is bounded.

  Args:
    function: of tensors [rows, S] to tensors [rows, …].
    batch: [W, S] each.
    size: rows of a chunk, at most.
    outputs: what the function returns.
  """
  total = tf.shape(batch["input_ids"])[0]
  chunks = tf.maximum((total + size - 1) // size, 1)
  rows = (total + chunks - 1) // chunks
  stacked = {}
  for name, tensor in batch.items():
    padded = tf.pad(tensor, [[0, chunks * rows - total], [0, 0]])
    stacked[name] = tf.reshape(padded, [chunks, rows, tf.shape(tensor)[1]])
  done = tf.map_fn(function, stacked, fn_output_signature=outputs, parallel_iterations=1)
  return {
    name: tf.reshape(tensor, tf.concat([[chunks * rows], tf.shape(tensor)[2:]], axis=0))[:total]
    for name, tensor in done.items()
  }
