"""Signatures of multiple choice."""

import tensorflow as tf

from albert_tf.serving.signatures.base import (
  TOKEN_KEYS,
  ServingModule,
  Signatures,
  Tensors,
  ids,
  strings,
)
from albert_tf.tokenization.graph_inputs import choice_batch, limit_characters


class MultipleChoiceModule(ServingModule):
  """Scores of the choices of questions.

  Every example of a batch has the same number of choices, C.

  Signatures:
    serving_default: `context`, `question` [B] and `choices` [B, C] strings → `probabilities` and
      `scores` (logits) float32 [B, C], `predictions` int32 [B], `answer` strings [B]. The choice
      replaces "_" in the question. An empty context or question is allowed.
    tokens: `input_ids`, `input_mask`, `segment_ids` [B, C, S] → the same without `answer`.
  """

  def signatures(self, depth: int | None = None) -> Signatures:
    @self.signature(ids(*TOKEN_KEYS, rank=3))
    def tokens(input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Tensors:
      # The rule in words, before TensorFlow's message about an empty axis.
      has_choices = tf.debugging.assert_positive(
        tf.shape(input_ids)[1], message="A question must have at least one choice."
      )
      with tf.control_dependencies([has_choices]):
        input_ids = tf.identity(input_ids)
      scores = self.run_model(input_ids, input_mask, segment_ids, depth=depth)  # [B, C]
      return {
        "probabilities": tf.nn.softmax(scores),
        "scores": scores,
        "predictions": tf.argmax(scores, axis=-1, output_type=tf.int32),
      }

    @self.signature(strings("context", "question") + strings("choices", rank=2))
    def text(context: tf.Tensor, question: tf.Tensor, choices: tf.Tensor) -> Tensors:
      batch = choice_batch(
        self.tokenizer,
        limit_characters(context),
        limit_characters(question),
        limit_characters(choices),
        max_length=self.max_length,
        max_qa_length=self.task.max_qa_length,
      )
      outputs = tokens(**batch)
      return outputs | {"answer": tf.gather(choices, outputs["predictions"], batch_dims=1)}

    return {"serving_default": text, "tokens": tokens}
