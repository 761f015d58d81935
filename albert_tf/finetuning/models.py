"""An encoder with one downstream head: classification, multiple choice, and both versions of SQuAD."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from albert_tf.compat import ModelBase, keras
from albert_tf.configs import AlbertConfig
from albert_tf.finetuning.heads import ClassificationHead, SpanHead, Squad2Head
from albert_tf.finetuning.tasks.base import TaskSpec
from albert_tf.interop import ANY_HEAD, load_weights, read_checkpoint
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
  _head: type  # What `head_options` are of.
  _fixed_head_options: Mapping[str, Any] = MappingProxyType({})
  _head_name = ""  # What the head's variables begin with in the original's checkpoints.
  _head_dropout = True
  _reads_pooler = False  # Else the pooler is kept as it is: it gets no gradient, only a place in checkpoints.

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
    options = {**self._fixed_head_options, **self.head_options}
    self.head = self._head(config, name="head", dtype=self.dtype_policy, **options)
    self.build()

  @classmethod
  def from_pretrained(
    cls, path: str, *, encoder_options: Mapping[str, Any] | None = None, **head_options: Any
  ) -> Any:
    """The model with the weights of a checkpoint; a head that is not in it keeps its random ones.

    Args:
      path: a run directory, an original checkpoint, a TF-Hub module or a Hugging Face folder.
      encoder_options: of `AlbertEncoder`.
      **head_options: of the head, such as `num_labels`.

    Example:
      >>> model = AlbertForClassification.from_pretrained("run/", num_labels=2)
    """
    checkpoint = read_checkpoint(path)
    model = cls(checkpoint.config, head_options=head_options, encoder_options=encoder_options)
    load_weights(model, checkpoint, allow_missing=ANY_HEAD, allow_unused=ANY_HEAD)
    return model

  def build(self, input_shape: Any = None) -> None:
    del input_shape  # Every size is in the configuration, so weights exist from construction on.
    if not self.built:
      self.head.build((None, None, self.config.hidden_size))
      self.built = True

  def call(
    self, inputs: Mapping[str, tf.Tensor], training: bool = False, seed: tf.Tensor | None = None
  ) -> Any:
    seed = _dropout_seed(inputs, seed, training=training)
    encoder_seed, head_seed = split_seed(seed, 2) if self._head_dropout else (seed, None)
    encoded = self._encode(inputs, encoder_seed, training=training)
    return self._answer(encoded, inputs, training=training, seed=head_seed)

  def _encode(self, inputs: Mapping[str, tf.Tensor], seed: tf.Tensor | None, *, training: bool) -> tf.Tensor:
    """What the head reads: `[B, S, H]`, or the pooled output `[B, H]`, with the last block computed at [CLS] only."""
    texts = text_inputs(inputs)
    if not self._reads_pooler:
      return self.encoder(texts, training=training, seed=seed)["sequence_output"]
    nowhere = {"read_positions": texts["input_ids"][:, :0]}
    return self.encoder({**texts, **nowhere}, training=training, seed=seed)["pooled_output"]

  def _answer(self, encoded: tf.Tensor, inputs: Mapping[str, tf.Tensor], **options: Any) -> Any:
    """The head's outputs; `inputs` are the model's."""
    return self.head(encoded, **options)

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

  _head = ClassificationHead
  _reads_pooler = True


@keras.saving.register_keras_serializable("albert_tf")
class AlbertForMultipleChoice(_EncoderWithHead):
  """RACE-style multiple choice: one score a choice.

  Call args:
    inputs: those of `AlbertEncoder`, each `[B, C, S]`.

  Returns:
    Logits over the choices, float32 `[B, C]`.
  """

  _head = ClassificationHead
  _fixed_head_options = MappingProxyType({"num_labels": 1})
  _reads_pooler = True

  def _encode(self, inputs: Mapping[str, tf.Tensor], seed: tf.Tensor | None, *, training: bool) -> tf.Tensor:
    dynamic, length = tf.shape(inputs["input_ids"])[2], inputs["input_ids"].shape[-1]
    flat = {  # [B, C, S] → [B C, S]
      key: tf.reshape(value, [-1, dynamic if length is None else length])
      for key, value in text_inputs(inputs).items()
    }
    return super()._encode(flat, seed, training=training)

  def _answer(self, encoded: tf.Tensor, inputs: Mapping[str, tf.Tensor], **options: Any) -> tf.Tensor:
    return tf.reshape(self.head(encoded, **options), tf.shape(inputs["input_ids"])[:2])  # [B C, 1] → [B, C]


@keras.saving.register_keras_serializable("albert_tf")
class AlbertForTokenClassification(_EncoderWithHead):
  """Tagging: logits of every piece, float32 `[B, S, C]`; arguments as `AlbertForClassification`."""

  _head = ClassificationHead


@keras.saving.register_keras_serializable("albert_tf")
class AlbertForSpan(_EncoderWithHead):
  """SQuAD 1.1: `start_logits` and `end_logits`, float32 `[B, S]`; inputs are those of `AlbertEncoder`."""

  _head = SpanHead
  _head_name = "cls/squad"
  _head_dropout = False

  def _answer(self, encoded: tf.Tensor, inputs: Mapping[str, tf.Tensor], **options: Any) -> Any:
    return self.head(encoded)


@keras.saving.register_keras_serializable("albert_tf")
class AlbertForSquad2(_EncoderWithHead):
  """SQuAD 2: start, end and answerability.

  Call args:
    inputs: those of `AlbertEncoder`, `p_mask` `[B, S]` and, for training, `start_positions` int32 `[B]`.

  Returns:
    See `Squad2Head`.
  """

  _head = Squad2Head

  def _answer(self, encoded: tf.Tensor, inputs: Mapping[str, tf.Tensor], **options: Any) -> Any:
    starts = inputs.get("start_positions")
    starts = None if starts is None else integers(starts)
    return self.head(encoded, inputs["p_mask"], start_positions=starts, **options)


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
  model: type[_EncoderWithHead] = globals()[task.model]
  if model in (AlbertForClassification, AlbertForTokenClassification):
    options["num_labels"] = task.num_labels
  return model(config, head_options=options, encoder_options=encoder_options, **kwargs)
