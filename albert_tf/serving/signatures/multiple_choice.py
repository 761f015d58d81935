"""The right choice for a question about a text, as signatures."""

import tensorflow as tf

from albert_tf.finetuning.tasks.choices import BLANK
from albert_tf.serving.signatures.base import (
  TOKEN_KEYS,
  Parts,
  ServingModule,
  Signatures,
  Tensors,
  at_least,
  cut,
  graph,
  strings,
)
from albert_tf.tokenization.graph import GraphTokenizer
from albert_tf.tokenization.graph_packing import head, tail

_TEXT_INPUTS = (*strings("context", "question"), tf.TensorSpec([None, None], tf.string, name="choices"))
_SPECIAL_PIECES = 3  # [CLS] context [SEP] choice [SEP]


class MultipleChoiceModule(ServingModule):
  """Scores of the choices of questions, packed as `finetuning.tasks.choices` packs them.

  Every example of a batch has the same number of choices, C.

  Signatures:
    serving_default: `context`, `question` [B] and `choices` [B, C] strings → `probabilities` and
      `scores` (logits) float32 [B, C], `predictions` int32 [B], `answer` strings [B]. "_" in the
      question is the choice's place. An empty context or question is allowed.
    examples: `inputs` [B] serialized tf.Example with `context`, `question`, and `choices`, C strings → the same.
    tokens: `input_ids`, `input_mask`, `segment_ids` [B, C, S] → the same without `answer`.

  """

  def __init__(self, parts: Parts):
    super().__init__(parts)
    assert parts.task is not None
    self._room = self._max_length - _SPECIAL_PIECES
    self._max_qa_length = min(parts.task.max_qa_length, self._room)

  def signatures(self) -> Signatures:
    return {
      "serving_default": self.shared(self.text, _TEXT_INPUTS),
      "examples": graph(self.examples, strings("inputs")),
      "tokens": self.shared(self.tokens, self.token_inputs()),
    }

  def token_inputs(self) -> tuple[tf.TensorSpec, ...]:
    return tuple(tf.TensorSpec([None, None, self._fixed_length], tf.int32, name=name) for name in TOKEN_KEYS)

  def text(self, context: tf.Tensor, question: tf.Tensor, choices: tf.Tensor) -> Tensors:
    assert isinstance(self.tokenizer, GraphTokenizer)
    count = tf.shape(choices)[1]
    normalized = (self.tokenizer.normalize(cut(each)) for each in (question, choices))
    texts = cut(choice_texts(*normalized))
    second = self.tokenizer.tokenize(tf.reshape(texts, [-1]))  # [B C, (length)]
    second = tail(second, tf.fill([second.nrows()], tf.constant(self._max_qa_length, tf.int64)))
    row = tf.repeat(tf.range(tf.shape(choices)[0]), count)
    first = tf.gather(self.tokenizer.tokenize(cut(context)), row)
    first = head(first, self._room - second.row_lengths())
    packed = at_least(self.tokenizer.pack(first, second, length=self._fixed_length, always_two=True), 1)
    # Not -1 for the last size: it is unknown where the batch is empty.
    shape = tf.concat([tf.shape(choices), tf.shape(packed["input_ids"])[1:]], axis=0)
    batch = {name: tf.reshape(tensor, shape) for name, tensor in packed.items()}
    outputs = self.shared(self.tokens, self.token_inputs())(**batch)
    return {**outputs, "answer": tf.gather(choices, outputs["predictions"], batch_dims=1)}

  def examples(self, inputs: tf.Tensor) -> Tensors:
    features = {name: tf.io.FixedLenFeature([], tf.string) for name in ("context", "question")}
    features["choices"] = tf.io.RaggedFeature(tf.string, row_splits_dtype=tf.int64)
    parsed = tf.io.parse_example(inputs, features)
    choices = parsed["choices"].to_tensor()
    message = "Every example must hold the same number of strings in choices, at least one."
    lengths = parsed["choices"].row_lengths()
    check = tf.debugging.assert_equal(lengths, tf.maximum(tf.shape(choices, tf.int64)[1], 1), message=message)
    with tf.control_dependencies([check]):
      text = self.shared(self.text, _TEXT_INPUTS)
      return text(parsed["context"], parsed["question"], tf.identity(choices))

  def tokens(self, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor) -> Tensors:
    message = "A question must have at least one choice."
    with tf.control_dependencies([tf.debugging.assert_positive(tf.shape(input_ids)[1], message=message)]):
      input_ids = tf.identity(input_ids)
    scores = self.run_model(input_ids, input_mask, segment_ids)  # [B, C]
    return {
      "probabilities": tf.nn.softmax(scores),
      "scores": scores,
      "predictions": tf.argmax(scores, axis=-1, output_type=tf.int32),
    }


def choice_texts(question: tf.Tensor, choices: tf.Tensor) -> tf.Tensor:
  """`finetuning.tasks.choices.choice_text` for every choice; normalised [B] and [B, C] to [B, C]."""
  shape = tf.shape(choices)
  parts = tf.strings.split(question, sep=BLANK)  # [B, (parts)]
  parts = tf.gather(parts, tf.repeat(tf.range(shape[0]), shape[1]))  # [B C, (parts)]
  flat = tf.reshape(choices, [-1])
  last = tf.ragged.range(parts.row_lengths()).flat_values == tf.repeat(
    parts.row_lengths() - 1, parts.row_lengths()
  )
  filled = tf.where(last, "", tf.repeat(flat, parts.row_lengths()))
  joined = tf.strings.reduce_join(parts.with_flat_values(parts.flat_values + filled), axis=-1)
  followed = tf.strings.join([joined, flat], separator=" ")
  return tf.reshape(tf.where(parts.row_lengths() > 1, joined, followed), shape)
