"""ALBERT with its pretraining heads: masked LM and sentence order.

Pretraining trains this model; fine-tuning reads its checkpoints.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from albert_tf.configs import HEADS, AlbertConfig
from albert_tf.modeling.config_model import ConfigModel
from albert_tf.modeling.dropout import Seed
from albert_tf.modeling.encoder import Encoder, integers, text_inputs
from albert_tf.modeling.layers import ConfigLayer, RowsHead
from albert_tf.modeling.variables import named_variables

# Nothing but the sentence loss reads the pooled output.
_OF_THE_SENTENCE_LOSS = ("bert/pooler/", "cls/seq_relationship/")


def _product_in_float32(rows: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
  """The product `rows` `table`^T of `[R, E]` and `[V, E]`, with a float32 result.

  Gradients have the inputs' type. A TPU multiplies 16-bit values and adds in float32. With a 16-bit
  result it would round the sums before the softmax. Gradients do not need this, because their terms
  are already rounded to 16 bits.
  """
  if rows.dtype.size >= tf.float32.size:
    return tf.matmul(rows, table, transpose_b=True)

  @tf.custom_gradient
  def product(rows: tf.Tensor, table: tf.Tensor) -> tuple[tf.Tensor, Any]:
    def gradient(d_logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
      d_logits = tf.cast(d_logits, rows.dtype)
      return tf.matmul(d_logits, table), tf.matmul(d_logits, rows, transpose_a=True)

    logits = tf.matmul(tf.cast(rows, tf.float32), tf.cast(table, tf.float32), transpose_b=True)
    return logits, gradient

  return product(rows, table)


class MaskedLmHead(ConfigLayer):
  r"""Vocabulary logits $\mathrm{LN}(f(h W_t + b_t)) W^T + b$, where `W` are the word embeddings.

  Call args:
    sequence_output: `[B, S, H]`; `[B, P, H]` where `positions` is None.
    positions: int32 `[B, P]`, the positions to predict; None: all.
    word_embeddings: the tied table `[V, E]`.

  Returns:
    float32 `[B, P, V]`.

  Reference: arXiv 1810.04805, section 3.1, task 1; the original's `get_masked_lm_output`.
  """

  def __init__(self, config: AlbertConfig, **kwargs: Any):
    super().__init__(config, **kwargs)
    self.output_shape = (None, None, config.vocab_size)
    self.transform = self._dense(
      config.hidden_size, config.embedding_size, "transform", activation=config.hidden_act
    )
    self.layer_norm = self._layer_norm(config.embedding_size)

  def build(self, input_shape: Any = None) -> None:
    self.output_bias = self.add_weight(
      name="output_bias", shape=(self.config.vocab_size,), initializer="zeros"
    )
    super().build()

  def call(
    self, sequence_output: tf.Tensor, positions: tf.Tensor | None, word_embeddings: Any
  ) -> tf.Tensor:
    h = sequence_output
    if positions is not None:
      h = tf.gather(h, positions, batch_dims=1)
    shape = tf.shape(h)[:2]  # [B, P, H]
    h = tf.cast(self.layer_norm(self.transform(h)), self.compute_dtype)  # [B, P, E]
    rows = tf.reshape(h, [-1, self.config.embedding_size])
    # The embeddings' own table, `[V, E]`: the weights are tied.
    table = tf.cast(tf.convert_to_tensor(word_embeddings), self.compute_dtype)
    logits = _product_in_float32(rows, table)
    logits = tf.nn.bias_add(logits, tf.cast(self.output_bias, tf.float32))
    return tf.reshape(logits, tf.concat([shape, [self.config.vocab_size]], axis=0))


@keras.saving.register_keras_serializable("albert_tf")
class AlbertForPreTraining(ConfigModel):
  """Encoder, masked-LM head tied to the word embeddings, and sentence-order head.

  It takes ids alone, and `run_pretrain.py` trains it, not `fit`. From its runs `from_pretrained` of
  `AlbertMaskedLM` and the other classes takes their parts.

  Args:
    config: the model's configuration.
    encoder_options: see `Encoder`.
    read_positions_only: compute the last block only at [CLS] and the masked positions, which heads
      read. Logits and gradients are the same, with about (1 - P/S) / L less computation.

  Call args:
    inputs: those of `Encoder`, and `masked_lm_positions` int32 `[B, P]`.
    training, seed, depths: see `Encoder`. The heads read the last depth.
    drawn: int32 scalar, the number in `depths` of one more depth that the heads read.

  Returns:
    The encoder's outputs, `mlm_logits` float32 `[B, P, V]`, `sop_logits` float32 `[B, 2]`; with `drawn` also
    `drawn_mlm_logits` and `drawn_sop_logits`, alike. With `read_positions_only`, `sequence_output` is that of
    the masked positions, `[B, P, H]`.

  Example: how probable is it that a text follows another? Column 1 of `sop_logits` means swapped.
    >>> from albert_tf.checkpoints.checkpoint import load_weights, read_checkpoint
    >>> checkpoint = read_checkpoint("albert_base_v2")
    >>> model = AlbertForPreTraining(checkpoint.config)
    >>> load_weights(model, checkpoint)  # An error names a head that is missing.
    >>> rows = AlbertPreprocessor.from_pretrained("albert_base_v2")((first_texts, second_texts))
    >>> rows["masked_lm_positions"] = tf.zeros([len(first_texts), 1], tf.int32)
    >>> tf.nn.softmax(model(rows)["sop_logits"])[:, 0]
  """

  checkpoint_heads = HEADS

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
    self.masked_lm = MaskedLmHead(
      config, name="masked_lm", accelerated=self.encoder.accelerated, **policy
    )
    self.sentence_order = RowsHead(config, rows=2, name="sentence_order", **policy)
    self.build()

  def call(
    self,
    inputs: Mapping[str, tf.Tensor],
    training: bool = False,
    seed: Seed = None,
    depths: Sequence[int] = (),
    drawn: tf.Tensor | None = None,
  ) -> dict[str, Any]:
    encoder_inputs = text_inputs(inputs)
    positions = integers(inputs["masked_lm_positions"])
    if self.read_positions_only:
      # The encoder then gives only these rows: the head need not gather them.
      encoder_inputs["read_positions"] = positions
      positions = None
    outputs = self.encoder(encoder_inputs, training=training, seed=seed, depths=depths)
    outputs["mlm_logits"], outputs["sop_logits"] = self._logits(outputs, positions)
    if drawn is not None:
      # All heads are applied once more, to the outputs of one depth.
      read = {
        name: tf.stack([of_depth[name] for of_depth in outputs["of_depths"]])[drawn]
        for name in ("sequence_output", "pooled_output")
      }
      outputs["drawn_mlm_logits"], outputs["drawn_sop_logits"] = self._logits(read, positions)
    return outputs

  def _logits(
    self, read: Mapping[str, tf.Tensor], positions: tf.Tensor | None
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """The logits of masked tokens `[B, P, V]` and of the sentences' order `[B, 2]`."""
    masked_lm = self.masked_lm(
      read["sequence_output"], positions, self.encoder.embeddings.word_embeddings
    )
    return masked_lm, self.sentence_order(read["pooled_output"])

  def get_config(self) -> dict[str, Any]:
    config = super().get_config()
    config["encoder_options"] = self.encoder_options
    config["read_positions_only"] = self.read_positions_only
    return config


def trained_variables(
  model: AlbertForPreTraining, *, sentence_loss: bool
) -> dict[str, tf.Variable]:
  """The trained variables, as `named_variables`.

  Without a sentence loss, pooler and sentence head are left out. These keep their values, and
  checkpoints contain them for fine-tuning and conversion.
  """
  return {
    name: variable
    for name, variable in named_variables(model).items()
    if sentence_loss or not name.startswith(_OF_THE_SENTENCE_LOSS)
  }
