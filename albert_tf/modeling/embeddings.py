"""Piece, segment and position embeddings of width E."""

from typing import Any

import tensorflow as tf

from albert_tf.compat import keras
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.modeling.layers import ConfigLayer, LayerNorm, dropout


@keras.saving.register_keras_serializable("albert_tf")
class AlbertEmbeddings(ConfigLayer):
  r"""$\mathrm{dropout}(\mathrm{LN}(W[\text{ids}] + T[\text{segments}] + P[0..S-1]))$, `[B, S, E]`.

  Raises:
    UserError: the sequence is longer than the position table.

  Reference: ALBERT section 3.1, "Factorized embedding parameterization".
  """

  def __init__(self, config: AlbertConfig, **kwargs: Any):
    super().__init__(config, **kwargs, autocast=False)  # Ids would lose digits in bfloat16.
    self.layer_norm = LayerNorm(epsilon=config.layer_norm_eps, name="layer_norm")

  def build(self, input_shape: Any) -> None:
    del input_shape  # Every size is in the configuration.
    config = self.config

    def table(name: str, rows: int) -> Any:
      initializer = keras.initializers.TruncatedNormal(stddev=config.initializer_range)
      return self.add_weight(name=name, shape=(rows, config.embedding_size), initializer=initializer)

    self.word_embeddings = table("word_embeddings", config.vocab_size)
    self.token_type_embeddings = table("token_type_embeddings", config.type_vocab_size)
    self.position_embeddings = table("position_embeddings", config.max_position_embeddings)
    self.layer_norm.build((None, None, config.embedding_size))
    self.built = True

  def call(self, input_ids: tf.Tensor, segment_ids: tf.Tensor, seed: tf.Tensor | None = None) -> tf.Tensor:
    length, limit = input_ids.shape[1], self.config.max_position_embeddings
    if length is not None and length > limit:
      raise UserError(
        f"A sequence must not be longer than max_position_embeddings={limit}. Received: {length} pieces. "
        "Cut the input, or train with a larger max_position_embeddings."
      )
    words, segments, positions = (
      tf.cast(tf.convert_to_tensor(table), self.compute_dtype)
      for table in (self.word_embeddings, self.token_type_embeddings, self.position_embeddings)
    )
    x = tf.gather(words, input_ids)
    # Two rows: a product is always cheap.
    x += tf.tensordot(tf.one_hot(segment_ids, segments.shape[0], dtype=segments.dtype), segments, 1)
    x += positions[tf.newaxis, : tf.shape(input_ids)[1]]
    x = tf.cast(self.layer_norm(x), self.compute_dtype)
    return dropout(x, self.config.hidden_dropout_prob, seed)

  @property
  def output_shape(self) -> tuple[int | None, ...]:
    """For Keras' summary."""
    return None, None, self.config.embedding_size

  def checkpoint_items(self) -> dict[str, Any]:
    return {
      "word_embeddings": self.word_embeddings,
      "token_type_embeddings": self.token_type_embeddings,
      "position_embeddings": self.position_embeddings,
      "LayerNorm": self.layer_norm,
    }
