"""ALBERT with its pretraining heads."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from albert_tf.compat import keras
from albert_tf.configs import AlbertConfig
from albert_tf.modeling.encoder import Encoder
from albert_tf.modeling.layers import ConfigModel
from albert_tf.modeling.pretraining_heads import MaskedLmHead, SentenceOrderHead
from albert_tf.modeling.text_inputs import integers, text_inputs
from albert_tf.modeling.variables import named_variables

_OF_THE_SENTENCE_LOSS = ("bert/pooler/", "cls/seq_relationship/")  # Nothing else reads the pooled output.


@keras.saving.register_keras_serializable("albert_tf")
class AlbertForPreTraining(ConfigModel):
  """Encoder, masked-LM head tied to the word embeddings, and sentence-order head.

  Args:
    config: the model's configuration.
    encoder_options: see `Encoder`.
    read_positions_only: compute the last block only where a head reads it, at [CLS] and the masked
      positions: the same logits and gradients for about (1 - P/S) / L less work.

  Call args:
    inputs: those of `Encoder`, and `masked_lm_positions` int32 `[B, P]`.
    training, seed: see `Encoder`.

  Returns:
    The encoder's outputs, `mlm_logits` float32 `[B, P, V]`, `sop_logits` float32 `[B, 2]`. With
    `read_positions_only`, `sequence_output` is that of the masked positions, `[B, P, H]`.

  Example:
    >>> model = AlbertForPreTraining(AlbertConfig.from_name("base"))
    >>> model({"input_ids": ids, "masked_lm_positions": positions})["mlm_logits"]
  """

  def __init__(
    self,
    config: AlbertConfig,
    *,
    encoder_options: Mapping[str, Any] | None = None,
    read_positions_only: bool = False,
    **kwargs: Any,
  ):
    super().__init__(config, **kwargs)
    self.encoder_options = dict(encoder_options or {})
    self.read_positions_only = read_positions_only
    policy = {"dtype": self.dtype_policy}
    self.encoder = Encoder(config, **self.encoder_options, **policy)
    self.masked_lm = MaskedLmHead(config, name="masked_lm", accelerated=self.encoder.accelerated, **policy)
    self.sentence_order = SentenceOrderHead(config, name="sentence_order", **policy)
    self.build()

  def build(self, input_shape: Any = None) -> None:
    del input_shape  # Every size is in the configuration, so weights exist from construction on.
    if self.built:
      return
    self.masked_lm.build((None, None, self.config.hidden_size))
    self.sentence_order.build((None, self.config.hidden_size))
    self.built = True

  def call(
    self, inputs: Mapping[str, tf.Tensor], training: bool = False, seed: tf.Tensor | None = None
  ) -> dict[str, Any]:
    encoder_inputs = text_inputs(inputs)
    positions = integers(inputs["masked_lm_positions"])
    if self.read_positions_only:
      encoder_inputs["read_positions"] = positions
      positions = None
    outputs = self.encoder(encoder_inputs, training=training, seed=seed)
    mlm_logits = self.masked_lm(
      outputs["sequence_output"], positions, self.encoder.embeddings.word_embeddings
    )
    sop_logits = self.sentence_order(outputs["pooled_output"])
    return {**outputs, "mlm_logits": mlm_logits, "sop_logits": sop_logits}

  def checkpoint_items(self) -> dict[str, Any]:
    return {
      "bert": self.encoder,
      "cls/predictions": self.masked_lm,
      "cls/seq_relationship": self.sentence_order,
    }

  def get_config(self) -> dict[str, Any]:
    return {
      **super().get_config(),
      "encoder_options": self.encoder_options,
      "read_positions_only": self.read_positions_only,
    }


def trained_variables(model: AlbertForPreTraining, *, sentence_loss: bool) -> dict[str, tf.Variable]:
  """The variables that the loss reaches, as `named_variables`: without a sentence loss all but pooler and its head.

  Those two keep their values then, and stay in checkpoints, which fine-tuning and converters read as any other.
  """
  return {
    name: variable
    for name, variable in named_variables(model).items()
    if sentence_loss or not name.startswith(_OF_THE_SENTENCE_LOSS)
  }
