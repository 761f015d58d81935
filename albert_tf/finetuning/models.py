"""An encoder with one downstream head: classification, multiple choice, and both versions of SQuAD."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from albert_tf.compat import ModelBase, keras
from albert_tf.configs import AlbertConfig
from albert_tf.finetuning.heads import ClassificationHead, SpanHead, Squad2Head
from albert_tf.finetuning.task_spec import TaskSpec
from albert_tf.modeling import AlbertEncoder
from albert_tf.modeling.dropout import resolve_seed, split_seed
from albert_tf.modeling.text_inputs import integers, text_inputs

DROPOUT_SEED = "dropout_seed"  # An input of training alone, int32 `[B, 2]`; its first row seeds the call.


def _dropout_seed(
  inputs: Mapping[str, tf.Tensor], seed: tf.Tensor | None, *, training: bool
) -> tf.Tensor | None:
  """The caller's seed, else the batch's, else a fresh one; None at inference."""
  if seed is None and DROPOUT_SEED in inputs:
    seed = integers(inputs[DROPOUT_SEED][0])
  return resolve_seed(seed, training=training)


class _EncoderWithHead(ModelBase):
  """Encoder and head, built on construction.

  Args:
    config: the encoder's configuration.
    head_options: of the head.
    encoder_options: of `AlbertEncoder`.
  """

  built: bool  # Keras sets it.
  _head_name = ""  # What the head's variables begin with in the original's checkpoints.
  _reads_pooler = True  # Else the pooler is kept as it is: it gets no gradient, only a place in checkpoints.

  def __init__(
    self,
    config: AlbertConfig,
    *,
    head_options: Mapping[str, Any] | None = None,
    encoder_options: Mapping[str, Any] | None = None,
    **kwargs: Any,
  ):
    super().__init__(**kwargs, autocast=False)  # Ids would lose digits in bfloat16.
    self.config = config
    self.head_options = dict(head_options or {})
    self.encoder_options = dict(encoder_options or {})
    self.encoder = AlbertEncoder(config, **self.encoder_options, dtype=self.dtype_policy)
    self.encoder.pooler.trainable = self._reads_pooler
    self.head = self._make_head(name="head", dtype=self.dtype_policy, **self.head_options)
    self.build()

  def _make_head(self, **options: Any) -> Any:
    raise NotImplementedError

  def build(self, input_shape: Any = None) -> None:
    del input_shape  # Every size is in the configuration, so weights exist from construction on.
    if not self.built:
      self.head.build((None, None, self.config.hidden_size))
      self.built = True

  def _encode(
    self, inputs: Mapping[str, tf.Tensor], seed: tf.Tensor | None, *, training: bool
  ) -> dict[str, Any]:
    return self.encoder(text_inputs(inputs), training=training, seed=seed)

  def _pool(self, inputs: Mapping[str, tf.Tensor], seed: tf.Tensor | None, *, training: bool) -> tf.Tensor:
    """The pooled output alone, `[B, H]`: the last block is computed at [CLS] only."""
    nowhere = inputs["input_ids"][:, :0]
    outputs = self.encoder({**text_inputs(inputs), "read_positions": nowhere}, training=training, seed=seed)
    return outputs["pooled_output"]

  def checkpoint_items(self) -> dict[str, Any]:
    prefix = f"{self._head_name}/" if self._head_name else ""
    return {"bert": self.encoder, **{prefix + k: v for k, v in self.head.checkpoint_items().items()}}

  def get_config(self) -> dict[str, Any]:
    return {
      **super().get_config(),
      "config": self.config.to_dict(),
      "head_options": self.head_options,
      "encoder_options": self.encoder_options,
    }

  @classmethod
  def from_config(cls, config: dict[str, Any]) -> "_EncoderWithHead":
    return cls(**{**config, "config": AlbertConfig.from_dict(config["config"])})


@keras.saving.register_keras_serializable("albert_tf")
class AlbertForClassification(_EncoderWithHead):
  """GLUE-style classification or, with one label, regression.

  Args:
    config: the encoder's configuration.
    head_options: `num_labels`, `classifier_dropout`; see `ClassificationHead`.

  Call args:
    inputs: those of `AlbertEncoder`.

  Returns:
    Logits, float32 `[B, C]`.

  Example:
    >>> model = AlbertForClassification(config, head_options={"num_labels": 3})
    >>> model({"input_ids": ids, "input_mask": mask, "segment_ids": segments})
  """

  def _make_head(self, **options: Any) -> ClassificationHead:
    return ClassificationHead(self.config, **options)

  def call(
    self, inputs: Mapping[str, tf.Tensor], training: bool = False, seed: tf.Tensor | None = None
  ) -> tf.Tensor:
    encoder_seed, head_seed = split_seed(_dropout_seed(inputs, seed, training=training), 2)
    pooled = self._pool(inputs, encoder_seed, training=training)
    return self.head(pooled, training=training, seed=head_seed)


@keras.saving.register_keras_serializable("albert_tf")
class AlbertForMultipleChoice(_EncoderWithHead):
  """RACE-style multiple choice: one score a choice.

  Call args:
    inputs: those of `AlbertEncoder`, each `[B, C, S]`.

  Returns:
    Logits over the choices, float32 `[B, C]`.
  """

  def _make_head(self, **options: Any) -> ClassificationHead:
    return ClassificationHead(self.config, num_labels=1, **options)

  def call(
    self, inputs: Mapping[str, tf.Tensor], training: bool = False, seed: tf.Tensor | None = None
  ) -> tf.Tensor:
    encoder_seed, head_seed = split_seed(_dropout_seed(inputs, seed, training=training), 2)
    shape = tf.shape(inputs["input_ids"])
    length = inputs["input_ids"].shape[-1]
    flat = {  # [B, C, S] → [B C, S]
      key: tf.reshape(value, [-1, shape[2] if length is None else length])
      for key, value in text_inputs(inputs).items()
    }
    pooled = self._pool(flat, encoder_seed, training=training)
    scores = self.head(pooled, training=training, seed=head_seed)  # [B C, 1]
    return tf.reshape(scores, shape[:2])


@keras.saving.register_keras_serializable("albert_tf")
class AlbertForTokenClassification(_EncoderWithHead):
  """Tagging: logits of every piece, float32 `[B, S, C]`; arguments as `AlbertForClassification`."""

  _reads_pooler = False

  def _make_head(self, **options: Any) -> ClassificationHead:
    return ClassificationHead(self.config, **options)

  def call(
    self, inputs: Mapping[str, tf.Tensor], training: bool = False, seed: tf.Tensor | None = None
  ) -> tf.Tensor:
    encoder_seed, head_seed = split_seed(_dropout_seed(inputs, seed, training=training), 2)
    outputs = self._encode(inputs, encoder_seed, training=training)
    return self.head(outputs["sequence_output"], training=training, seed=head_seed)


@keras.saving.register_keras_serializable("albert_tf")
class AlbertForSpan(_EncoderWithHead):
  """SQuAD 1.1: `start_logits` and `end_logits`, float32 `[B, S]`; inputs are those of `AlbertEncoder`."""

  _head_name = "cls/squad"
  _reads_pooler = False

  def _make_head(self, **options: Any) -> SpanHead:
    return SpanHead(self.config, **options)

  def call(
    self, inputs: Mapping[str, tf.Tensor], training: bool = False, seed: tf.Tensor | None = None
  ) -> dict[str, tf.Tensor]:
    seed = _dropout_seed(inputs, seed, training=training)
    return self.head(self._encode(inputs, seed, training=training)["sequence_output"])


@keras.saving.register_keras_serializable("albert_tf")
class AlbertForSquad2(_EncoderWithHead):
  """SQuAD 2: start, end and answerability.

  Call args:
    inputs: those of `AlbertEncoder`, `p_mask` `[B, S]` and, for training, `start_positions` int32 `[B]`.

  Returns:
    See `Squad2Head`.
  """

  _reads_pooler = False

  def _make_head(self, **options: Any) -> Squad2Head:
    return Squad2Head(self.config, **options)

  def call(
    self, inputs: Mapping[str, tf.Tensor], training: bool = False, seed: tf.Tensor | None = None
  ) -> dict[str, tf.Tensor]:
    encoder_seed, head_seed = split_seed(_dropout_seed(inputs, seed, training=training), 2)
    outputs = self._encode(inputs, encoder_seed, training=training)
    starts = inputs.get("start_positions")
    return self.head(
      outputs["sequence_output"],
      inputs["p_mask"],
      start_positions=None if starts is None else integers(starts),
      training=training,
      seed=head_seed,
    )


def make_model(
  task: TaskSpec,
  config: AlbertConfig,
  *,
  head_options: Mapping[str, Any] | None = None,
  encoder_options: Mapping[str, Any] | None = None,
  **kwargs: Any,
) -> _EncoderWithHead:
  """The model of a task.

  Args:
    task: says which head, with how many labels.
    config: the encoder's configuration.
    head_options: beside `num_labels`, which `task` knows.
    encoder_options: of `AlbertEncoder`.
    **kwargs: of `keras.Model`, such as `dtype`.
  """
  options = dict(head_options or {})
  classes: dict[str, type[_EncoderWithHead]] = {
    "classification": AlbertForClassification,
    "regression": AlbertForClassification,
    "token_classification": AlbertForTokenClassification,
    "multiple_choice": AlbertForMultipleChoice,
    "question_answering": AlbertForSpan if task.squad_version == "1.1" else AlbertForSquad2,
  }
  if classes[task.kind] in (AlbertForClassification, AlbertForTokenClassification):
    options["num_labels"] = task.num_labels
  return classes[task.kind](config, head_options=options, encoder_options=encoder_options, **kwargs)
