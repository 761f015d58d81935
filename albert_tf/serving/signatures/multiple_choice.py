"""Signatures of multiple choice."""

import tensorflow as tf

from albert_tf.serving.signatures.base import TOKEN_KEYS, ServingModule, Tensors, strings
from albert_tf.tokenization.graph import GraphTokenizer
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

  def text_inputs(self) -> tuple[tf.TensorSpec, ...]:
    return (*strings("context", "question"), tf.TensorSpec([None, None], tf.string, name="choices"))

  def token_inputs(self) -> tuple[tf.TensorSpec, ...]:
    return tuple(tf.TensorSpec([None, None, None], tf.int32, name=name) for name in TOKEN_KEYS)

  def text(self, context: tf.Tensor, question: tf.Tensor, choices: tf.Tensor) -> Tensors:
    assert isinstance(self.tokenizer, GraphTokenizer)
    batch = choice_batch(
      self.tokenizer,
      limit_characters(context),
      limit_characters(question),
      limit_characters(choices),
      max_length=self._parts.max_length,
      max_qa_length=self.task.max_qa_length,
      pad_to_max_length=False,
    )
    outputs = self.shared(self.tokens, self.token_inputs())(**batch)
    return {**outputs, "answer": tf.gather(choices, outputs["predictions"], batch_dims=1)}

  def tokens(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Tensors:
    message = "A question must have at least one choice."
    with tf.control_dependencies(
      [tf.debugging.assert_positive(tf.shape(input_ids)[1], message=message)]
    ):
      input_ids = tf.identity(input_ids)
    scores = self.run_model(input_ids, input_mask, segment_ids)  # [B, C]
    return {
      "probabilities": tf.nn.softmax(scores),
      "scores": scores,
      "predictions": tf.argmax(scores, axis=-1, output_type=tf.int32),
    }
