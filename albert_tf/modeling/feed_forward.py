"""The position-wise feed-forward sublayer."""

from typing import Any

import tensorflow as tf

from albert_tf.compat import keras
from albert_tf.configs import AlbertConfig
from albert_tf.modeling.layers import ConfigLayer, LayerNorm, dropout


@keras.saving.register_keras_serializable("albert_tf")
class FeedForwardSublayer(ConfigLayer):
  r"""$\mathrm{LN}_2(x + \mathrm{dropout}(f(x W_1 + b_1) W_2 + b_2))$.

  Post-norm, with the norm inside: it is shared together with the feed-forward.

  Args:
    config: the model's configuration.

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

  def compute_output_shape(self, input_shape: Any, *_: Any) -> Any:
    return input_shape

  def checkpoint_items(self) -> dict[str, Any]:
    return {
      "ffn_1/intermediate/dense": self.intermediate,
      "ffn_1/intermediate/output/dense": self.output_dense,
      "LayerNorm_1": self.layer_norm,
    }
