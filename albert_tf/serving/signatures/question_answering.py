"""Signatures of extractive question answering."""

import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.serving.signatures.base import (
  TOKEN_KEYS,
  Parts,
  ServingModule,
  Tensors,
  ids,
  strings,
)
from albert_tf.tokenization import AlbertTokenizer
from albert_tf.tokenization.graph import GraphTokenizer, head
from albert_tf.tokenization.graph_inputs import LONGEST_TEXT, limit_characters
from albert_tf.tokenization.graph_offsets import GraphOffsets
from albert_tf.windows.question_windows import best_answers, find_spans, pack_windows
from albert_tf.windows.text_windows import in_chunks, make_windows


class QuestionAnsweringModule(ServingModule):
  """The parts of a context that answer a question.

  A context longer than `max_seq_length` is read in up to `max_windows` overlapping windows. `truncated` tells
  whether the context is longer than that.

  Signatures:
    serving_default: `question`, `context` [B] strings → `answer` strings [B], "" where a model of SQuAD 2.0
      finds none; `answers` strings, `probabilities` (among these answers), `scores` float32, `starts` and
      `ends` int32 (half-open, characters of the context), [B, N], best first, padded with "" and 0;
      `truncated` bool [B]; SQuAD 2.0 also `null_scores` float32 [B]: `answer` is "" where it is at least
      `null_score_diff_threshold` of the run's task.json.
    tokens: `input_ids`, `input_mask`, `segment_ids`, for SQuAD 2.0 `p_mask` [B, S] → the head's outputs
      for these windows.

  N is `ExportSettings.n_best`.
  """

  def __init__(self, parts: Parts):
    super().__init__(parts)
    assert isinstance(parts.tokenizer, AlbertTokenizer)
    assert isinstance(self.tokenizer, GraphTokenizer)
    self._has_null = self.task.squad_version == "2.0"
    self.offsets = GraphOffsets(parts.tokenizer, self.tokenizer)
    if parts.max_length <= self.task.max_query_length + 3:
      raise UserError(
        f"max_seq_length must be more than max_query_length + 3. Received: {parts.max_length}, with "
        f"max_query_length={self.task.max_query_length} in the run's task.json. Raise --max_seq_length."
      )

  def text_inputs(self) -> tuple[tf.TensorSpec, ...]:
    return strings("question", "context")

  def token_inputs(self) -> tuple[tf.TensorSpec, ...]:
    return ids(*TOKEN_KEYS, *(["p_mask"] if self._has_null else []))

  def text(self, question: tf.Tensor, context: tf.Tensor) -> Tensors:
    is_cut = tf.strings.length(context, unit="UTF8_CHAR") > LONGEST_TEXT
    located = self.offsets(limit_characters(context))
    query = self.tokenizer.tokenize(limit_characters(question))
    query = head(query, tf.minimum(query.row_lengths(), self.task.max_query_length))
    windows, has_more = make_windows(
      query.row_lengths() + 2,  # [CLS] question [SEP]
      located.ids.row_lengths(),
      max_seq_length=self._parts.max_length,
      doc_stride=self.task.doc_stride,
      max_windows=self._parts.settings.max_windows,
    )
    batch = pack_windows(self.tokenizer, query, located.ids, windows)
    if not self._has_null:
      del batch["p_mask"]
    tokens = self.shared(self.tokens, self.token_inputs())
    specs = tf.nest.map_structure(
      lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype),
      tokens.get_concrete_function().structured_outputs,
    )
    outputs = in_chunks(lambda chunk: tokens(**chunk), batch, specs)
    n_best, longest = self._parts.settings.n_best, self.task.max_answer_length
    spans = find_spans(windows, outputs, n_best=n_best, max_answer_length=longest)
    best = best_answers(spans, located, n_best=n_best)
    scores = tf.cast(best.pop("start_scores") + best.pop("end_scores"), tf.float32)
    chances = tf.where(best["answers"] != "", tf.nn.softmax(scores), 0.0)
    best |= {"scores": scores, "probabilities": chances}
    best |= {"answer": best["answers"][:, 0], "truncated": is_cut | has_more}
    if self._has_null:  # The least unanswerable window counts.
      nulls = tf.math.unsorted_segment_min(
        outputs["cls_logits"], windows.row, tf.shape(question)[0]
      )
      is_null = nulls >= self.task.null_score_diff_threshold
      best |= {"answer": tf.where(is_null, "", best["answer"]), "null_scores": nulls}
    return best

  def tokens(
    self,
    input_ids: tf.Tensor,
    input_mask: tf.Tensor,
    segment_ids: tf.Tensor,
    p_mask: tf.Tensor | None = None,
  ) -> Tensors:
    more = {} if p_mask is None else {"p_mask": p_mask}
    return dict(self.run_model(input_ids, input_mask, segment_ids, **more))
