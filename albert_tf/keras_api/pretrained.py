"""Models without a downstream task: the encoder, the masked-LM model, and the pretraining model."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from albert_tf.checkpoints.checkpoint import POOLER
from albert_tf.configs import AlbertConfig
from albert_tf.keras_api.answers import served_rows
from albert_tf.keras_api.text_model import Options, TextModel
from albert_tf.modeling.dropout import Seed
from albert_tf.modeling.encoder import Encoder, Inputs, integers, text_inputs
from albert_tf.modeling.pretraining import AlbertForPreTraining as AlbertForPreTraining
from albert_tf.modeling.pretraining import MaskedLmHead


@keras.saving.register_keras_serializable("albert_tf")
class AlbertEncoder(TextModel, Encoder):
  """`Encoder` that takes ids or texts.

  `sequence_output` has Keras' mask, so that layers behind it skip padding. Weights that layers share
  are in `trainable_variables` once.

  Call args:
    inputs: texts `[B]`, or a tuple of two for pairs; or ids by name, as of `Encoder`, also under
      Hugging Face's names. Lists of texts are for the call itself; a model of Keras' own around it
      gets `tf.constant(texts)`. `inputs_embeds` and `position_ids` are refused.
    training: whether dropout is active. Default: that of the model around it, true in its `fit`;
      else false. A frozen encoder's dropout stays on: 0 in `config` switches it off.

  Returns:
    A mapping; see `Encoder`. It has no attention probabilities. `predict` keeps all layers of all
    tokens in memory: for vectors of many texts take `AlbertSentenceEncoder.encode`.

  Below a head of yours it needs a rate near 2e-5, as `AdamW(2e-5)` has. The 0.001 of "adam" is fifty
  times that: take it with a frozen encoder (not measured).

  Example:
    >>> encoder = AlbertEncoder.from_pretrained("run/")
    >>> encoder.predict(["A text."])["pooled_output"]
  """

  per_piece = True
  export_kind = "encoder"

  def call(
    self,
    inputs: Inputs,
    training: bool = False,
    seed: Seed = None,
    depths: Sequence[int] = (),
  ) -> dict[str, Any]:
    outputs = super().call(inputs, training=training, seed=seed, depths=depths)
    mask = text_inputs(inputs).get("input_mask")
    # Rows at `read_positions` have no mask of their own.
    if mask is not None and "read_positions" not in inputs:
      # As the layer `Embedding(mask_zero=True)` sets it.
      outputs["sequence_output"]._keras_mask = mask > 0
    return outputs


@keras.saving.register_keras_serializable("albert_tf")
class AlbertMaskedLM(TextModel):
  """Predicts the tokens at the masks of a text (masked LM).

  `run_pretrain.py` trains it, and draws masks; `from_pretrained` reads its runs.

  Args:
    config: the model's configuration.
    encoder_options: see `Encoder`.
    preprocessor: see `TextModel`.

  Call args:
    inputs: those of `Encoder`, and `masked_lm_positions` int32 `[B, P]`; without
      `masked_lm_positions` all positions are predicted. With a preprocessor: texts `[B]` with
      "[MASK]" in them.

  Returns:
    Logits, float32 `[B, P, V]`.

  Example:
    >>> model = AlbertMaskedLM.from_pretrained("run/")
    >>> model.predict(["The sky is [MASK]."]).argmax(-1)
  """

  preprocessor_kind = "masked_text"
  per_piece = True
  export_kind = "fill_mask"
  checkpoint_heads = ("masked_lm",)
  # Hugging Face's masked-LM models have none.
  may_be_missing = (POOLER,)

  def __init__(
    self, config: AlbertConfig, *, encoder_options: Options | None = None, **kwargs: Any
  ):
    super().__init__(config, **kwargs)
    self.encoder_options = dict(encoder_options or {})
    self.encoder = Encoder(config, **self.encoder_options, dtype=self.dtype_policy)
    self.encoder.pooler.trainable = False  # This model does not use the pooler.
    accelerated = self.encoder.accelerated
    self.masked_lm = MaskedLmHead(
      config, name="masked_lm", accelerated=accelerated, dtype=self.dtype_policy
    )
    self.build()

  def call(
    self,
    inputs: Inputs,
    training: bool = False,
    seed: Seed = None,
    depths: Sequence[int] = (),
  ) -> tf.Tensor:
    texts = text_inputs(inputs)
    # The last block and the head are computed for the masks alone.
    if "masked_lm_positions" in inputs:
      texts["read_positions"] = integers(inputs["masked_lm_positions"])
    outputs = self.encoder(texts, training=training, seed=seed, depths=depths)
    word_embeddings = self.encoder.embeddings.word_embeddings
    return self.masked_lm(outputs["sequence_output"], None, word_embeddings)

  def activation(self, output: str) -> str:
    return "softmax"

  def fill(
    self, texts: Any, *, top_k: int = 5, batch_size: int = 32
  ) -> list[list[list[tuple[str, float]]]]:
    """The best words and their probabilities, as the SavedModel gives them.

    The result has a list for each text, in it one for each "[MASK]", and in it the words: `top_k`
    single tokens, the best first. A text without "[MASK]" has an empty list.
    """
    filled = []
    for row in served_rows(self, self.columns(texts), batch_size=batch_size, top_k=top_k):
      masks = zip(row["words"], row["probabilities"], strict=True)
      candidates = [list(zip(*mask, strict=True)) for mask in masks]
      # A batch has as many places as its text with the most masks.
      filled.append(candidates[: row["num_masks"]])
    return filled

  def get_config(self) -> dict[str, Any]:
    return super().get_config() | {"encoder_options": dict(self.encoder_options)}
