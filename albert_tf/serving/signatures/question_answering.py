"""Signatures of extractive question answering."""

from typing import Any

import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.serving.signatures.base import (
  TOKEN_KEYS,
  ServedModel,
  ServingModule,
  Signatures,
  Tensors,
  ids,
  run_on_windows,
  strings,
)
from albert_tf.tokenization.graph_inputs import LONGEST_TEXT, head, limit_characters
from albert_tf.tokenization.graph_offsets import GraphOffsets
from albert_tf.windows.question_windows import best_answers, find_spans, pack_windows
from albert_tf.windows.text_windows import make_windows


class QuestionAnsweringModule(ServingModule):
  """The spans of a context that answer a question.

  A context longer than `max_seq_length` is read in up to `max_windows` overlapping windows.
  `truncated` tells whether the context is longer than that.

  Signatures:
    serving_default: `question`, `context` [B] strings → `answer` strings [B], "" where a model of
      SQuAD 2.0 finds none; `answers` strings, `probabilities` (among these answers), `scores`
      float32, `starts` and `ends` int32 (half-open, characters of the context), [B, N], best first,
      padded with "" and 0; `truncated` bool [B]; SQuAD 2.0 also `null_scores` float32 [B]: `answer`
      is "" where it is at least `null_score_diff_threshold` of the run's task.json.
    tokens: `input_ids`, `input_mask`, `segment_ids`, for SQuAD 2.0 `p_mask` [B, S] → the head's
      outputs for these windows.

  N is `ExportSettings.n_best`.
  """

  def __init__(self, served: ServedModel):
    super().__init__(served)
    self.has_null = self.task.squad_version == "2.0"
    self.offsets = GraphOffsets(served.model.preprocessor.tokenizer, self.tokenizer)
    # [CLS] question [SEP] text [SEP]: at least one token of the text.
    if self.max_length <= self.task.max_query_length + 3:
      raise UserError(
        "max_seq_length must be more than max_query_length + 3. "
        f"Received: {self.max_length}, with max_query_length={self.task.max_query_length} "
        "in the run's task.json. Raise --max_seq_length."
      )

  def signatures(self, depth: int | None = None) -> Signatures:
    token_keys = (*TOKEN_KEYS, "p_mask") if self.has_null else TOKEN_KEYS

    @self.signature(ids(*token_keys))
    def tokens(
      input_ids: tf.Tensor,
      input_mask: tf.Tensor,
      segment_ids: tf.Tensor,
      p_mask: tf.Tensor | None = None,
    ) -> Tensors:
      more_inputs = {} if p_mask is None else {"p_mask": p_mask}
      return dict(self.run_model(input_ids, input_mask, segment_ids, depth=depth, **more_inputs))

    @self.signature(strings("question", "context"))
    def text(question: tf.Tensor, context: tf.Tensor) -> Tensors:
      return self._answers(tokens, question, context)

    return {"serving_default": text, "tokens": tokens}

  def _answers(self, tokens: Any, question: tf.Tensor, context: tf.Tensor) -> Tensors:
    """The answers of texts, from what the signature `tokens` gives for their windows."""
    # Windows of the context, each behind the question.
    is_cut = tf.strings.length(context, unit="UTF8_CHAR") > LONGEST_TEXT
    located = self.offsets(limit_characters(context))
    query = self.tokenizer.tokenize(limit_characters(question))
    query = head(query, self.task.max_query_length)
    windows, has_more = make_windows(
      query.row_lengths() + 2,  # [CLS] question [SEP]
      located.ids.row_lengths(),
      max_seq_length=self.max_length,
      doc_stride=self.task.doc_stride,
      max_windows=self.served.settings.max_windows,
    )
    batch = pack_windows(self.tokenizer, query, located.ids, windows)
    if not self.has_null:
      del batch["p_mask"]

    outputs = run_on_windows(tokens, batch)

    # The best answers over all windows of a context.
    n_best = self.served.settings.n_best
    spans = find_spans(
      windows, outputs, n_best=n_best, max_answer_length=self.task.max_answer_length
    )
    answers = best_answers(spans, located, n_best=n_best)
    scores = tf.cast(answers.pop("start_scores") + answers.pop("end_scores"), tf.float32)
    answers["scores"] = scores
    answers["probabilities"] = tf.where(answers["answers"] != "", tf.nn.softmax(scores), 0.0)
    answers["answer"] = answers["answers"][:, 0]
    answers["truncated"] = is_cut | has_more
    if self.has_null:
      # The least unanswerable window counts.
      null_scores = tf.math.unsorted_segment_min(
        outputs["cls_logits"], windows.row, tf.shape(question)[0]
      )
      is_null = null_scores >= self.task.null_score_diff_threshold
      answers["answer"] = tf.where(is_null, "", answers["answer"])
      answers["null_scores"] = null_scores
    return answers
