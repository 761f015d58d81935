"""The two sublayers of a transformer block: multi-head self-attention and the position-wise feed-forward."""

from typing import Any

import tensorflow as tf

from albert_tf.compat import keras
from albert_tf.configs import AlbertConfig
from albert_tf.modeling.dot_product_attention import lean_attention, plain_attention
from albert_tf.modeling.layers import ConfigLayer, LayerNorm, dropout, split_seed


@keras.saving.register_keras_serializable("albert_tf")
class AttentionSublayer(ConfigLayer):
  r"""$\mathrm{LN}_1(x + \mathrm{dropout}(\mathrm{concat}_n(\mathrm{head}_n) W_o + b_o))$.

  Post-norm, with the norm inside: it is shared together with the attention.

  Call args:
    x: `[B, S, H]`.
    bias: see `attention_bias`.
    seed: see `dropout`.
    queries: `[B, Q, H]`, the rows of `x` whose result is read; default all of them.

  Returns:
    `[B, Q, H]`.

  Reference: arXiv 1706.03762, section 3.2.2; checkpoint names `attention_1`, `LayerNorm`.
  """

  def __init__(self, config: AlbertConfig, **kwargs: Any):
    super().__init__(config, **kwargs)
    self.query, self.key, self.value, self.output_dense = (
      self._dense(config.hidden_size, name) for name in ("query", "key", "value", "output_dense")
    )
    self.layer_norm = LayerNorm(epsilon=config.layer_norm_eps, name="layer_norm")

  def build(self, input_shape: Any) -> None:
    del input_shape  # Every size is in the configuration.
    for layer in (self.query, self.key, self.value, self.output_dense, self.layer_norm):
      layer.build((None, None, self.config.hidden_size))
    self.built = True

  def call(
    self,
    x: tf.Tensor,
    bias: tf.Tensor,
    seed: tf.Tensor | None = None,
    queries: tf.Tensor | None = None,
  ) -> tf.Tensor:
    queries = x if queries is None else queries
    heads = self.config.num_attention_heads
    attention_seed, output_seed = split_seed(seed, 2)
    attention = lean_attention if self.accelerated else plain_attention
    context = attention(
      self.query.to_heads(queries, heads),
      self.key.to_heads(x, heads),
      self.value.to_heads(x, heads),
      tf.cast(bias, tf.float32),  # Keras casts a layer's inputs to its compute type.
      dropout_rate=self.config.attention_probs_dropout_prob,
      seed=attention_seed,
    )
    output = dropout(self.output_dense.from_heads(context), self.config.hidden_dropout_prob, output_seed)
    return tf.cast(self.layer_norm(output + tf.cast(queries, output.dtype)), self.compute_dtype)

  def checkpoint_items(self) -> dict[str, Any]:
    return {
      "attention_1/self/query": self.query,
      "attention_1/self/key": self.key,
      "attention_1/self/value": self.value,
      "attention_1/output/dense": self.output_dense,
      "LayerNorm": self.layer_norm,
    }


@keras.saving.register_keras_serializable("albert_tf")
class FeedForwardSublayer(ConfigLayer):
  r"""$\mathrm{LN}_2(x + \mathrm{dropout}(f(x W_1 + b_1) W_2 + b_2))$.

  Post-norm, with the norm inside: it is shared together with the feed-forward.

  Reference: arXiv 1706.03762, equation 2; checkpoint names `ffn_1`, `LayerNorm_1`.
  """

  def __init__(self, config: AlbertConfig, **kwargs: Any):
    super().__init__(config, **kwargs)
    self.intermediate = self._dense(config.intermediate_size, "intermediate", activation=config.hidden_act)
    self.output_dense = self._dense(config.hidden_size, "output_dense")
    self.layer_norm = LayerNorm(epsilon=config.layer_norm_eps, name="layer_norm")

  def build(self, input_shape: Any) -> None:
    del input_shape  # Every size is in the configuration.
    self.intermediate.build((None, None, self.config.hidden_size))
    self.output_dense.build((None, None, self.config.intermediate_size))
    self.layer_norm.build((None, None, self.config.hidden_size))
    self.built = True

  def call(self, x: tf.Tensor, seed: tf.Tensor | None = None) -> tf.Tensor:
    output = self.output_dense(self.intermediate(x))  # [B, S, F] -> [B, S, H]
    output = dropout(output, self.config.hidden_dropout_prob, seed)
    return tf.cast(self.layer_norm(output + tf.cast(x, output.dtype)), self.compute_dtype)

  def checkpoint_items(self) -> dict[str, Any]:
    return {
      "ffn_1/intermediate/dense": self.intermediate,
      "ffn_1/intermediate/output/dense": self.output_dense,
      "LayerNorm_1": self.layer_norm,
    }
