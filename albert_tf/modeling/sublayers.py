"""What an encoder applies: embeddings of width E, self-attention, position-wise feed-forward.

Attention and feed-forward end with a LayerNorm each; an encoder's `Block` is one of both.
"""

from typing import Any

import tensorflow as tf

from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.modeling.dropout import Seed, dropout, split_seed
from albert_tf.modeling.layers import ConfigLayer, normal_initializer
from albert_tf.modeling.text_layout import TextLayout


class AlbertEmbeddings(ConfigLayer):
  r"""$\mathrm{dropout}(\mathrm{LN}(W[\text{ids}] + T[\text{segments}] + P[0..S-1]))$, `[B, S, E]`.

  Raises:
    UserError: the sequence is longer than the position table.

  Reference: ALBERT section 3.1, "Factorized embedding parameterization".
  """

  def __init__(self, config: AlbertConfig, **kwargs: Any):
    super().__init__(config, **kwargs, autocast=False)  # Ids would lose digits in bfloat16.
    self.output_shape = (None, None, config.embedding_size)
    self.layer_norm = self._layer_norm(config.embedding_size)

  def build(self, input_shape: Any = None) -> None:
    config = self.config
    self.word_embeddings = self._table("word_embeddings", config.vocab_size)
    self.token_type_embeddings = self._table("token_type_embeddings", config.type_vocab_size)
    self.position_embeddings = self._table("position_embeddings", config.max_position_embeddings)
    super().build()

  def _table(self, name: str, rows: int) -> Any:
    return self.add_weight(
      name=name,
      shape=(rows, self.config.embedding_size),
      initializer=normal_initializer(self.config.initializer_range),
    )

  def call(self, input_ids: tf.Tensor, segment_ids: tf.Tensor, seed: Seed = None) -> tf.Tensor:
    length = input_ids.shape[1]
    limit = self.config.max_position_embeddings
    if length is not None and length > limit:
      raise UserError(
        f"A sequence must not be longer than max_position_embeddings={limit}. "
        f"Received: {length} tokens. "
        "Cut the input, or train with a larger max_position_embeddings."
      )
    words = self._cast(self.word_embeddings)  # [V, E]
    segments = self._cast(self.token_type_embeddings)  # [2, E]
    positions = self._cast(self.position_embeddings)
    x = tf.gather(words, input_ids)
    # Two rows: a product is always cheap, and its gradient has no scatter.
    segment_one_hot = tf.one_hot(segment_ids, segments.shape[0], dtype=segments.dtype)
    x += tf.tensordot(segment_one_hot, segments, 1)
    x += positions[tf.newaxis, : tf.shape(input_ids)[1]]
    x = tf.cast(self.layer_norm(x), self.compute_dtype)
    return dropout(x, self.config.hidden_dropout_prob, seed)

  def _cast(self, table: Any) -> tf.Tensor:
    return tf.cast(tf.convert_to_tensor(table), self.compute_dtype)


class AttentionSublayer(ConfigLayer):
  r"""Multi-head self-attention.

  $\mathrm{LN}_1(x + \mathrm{dropout}(\mathrm{concat}_n(\mathrm{head}_n) W_o + b_o))$

  It contains its LayerNorm (post-norm), which is shared together with the attention.

  Call args:
    x: `[B, S, H]`, or as the layout packs it.
    layout: where the tokens of the texts are in `x`; it computes the attention.
    seed: see `dropout`.
    queries: `[B, Q, H]`, the rows of `x` to compute; default: all.

  Returns:
    An array like `queries`, by default like `x`.

  Reference: arXiv 1706.03762, section 3.2.2; checkpoint names `attention_1`, `LayerNorm`.
  """

  def __init__(self, config: AlbertConfig, **kwargs: Any):
    super().__init__(config, **kwargs)
    width = config.hidden_size
    self.query = self._dense(width, width, "query")
    self.key = self._dense(width, width, "key")
    self.value = self._dense(width, width, "value")
    self.output_dense = self._dense(width, width, "output_dense")
    self.layer_norm = self._layer_norm(width)

  def call(
    self,
    x: tf.Tensor,
    layout: TextLayout,
    seed: Seed = None,
    queries: tf.Tensor | None = None,
  ) -> tf.Tensor:
    if queries is None:
      queries = x
    heads = self.config.num_attention_heads
    attention_seed, output_seed = split_seed(seed, 2)
    context = layout.attend(
      self.query.to_heads(queries, heads),
      self.key.to_heads(x, heads),
      self.value.to_heads(x, heads),
      dropout_rate=self.config.attention_probs_dropout_prob,
      seed=attention_seed,
    )
    output = self.output_dense.from_heads(context)  # […, N, D] -> […, H]
    output = dropout(output, self.config.hidden_dropout_prob, output_seed)
    return tf.cast(self.layer_norm(output + tf.cast(queries, output.dtype)), self.compute_dtype)


class FeedForwardSublayer(ConfigLayer):
  r"""Position-wise feed-forward: $\mathrm{LN}_2(x + \mathrm{dropout}(f(x W_1 + b_1) W_2 + b_2))$.

  It contains its LayerNorm (post-norm), which is shared together with the feed-forward.

  Reference: arXiv 1706.03762, equation 2; checkpoint names `ffn_1`, `LayerNorm_1`.
  """

  def __init__(self, config: AlbertConfig, **kwargs: Any):
    super().__init__(config, **kwargs)
    width = config.hidden_size
    inner_width = config.intermediate_size
    self.intermediate = self._dense(
      width, inner_width, "intermediate", activation=config.hidden_act
    )
    self.output_dense = self._dense(inner_width, width, "output_dense")
    self.layer_norm = self._layer_norm(width)

  def call(self, x: tf.Tensor, seed: Seed = None) -> tf.Tensor:
    output = self.output_dense(self.intermediate(x))  # [B, S, F] -> [B, S, H]
    output = dropout(output, self.config.hidden_dropout_prob, seed)
    return tf.cast(self.layer_norm(output + tf.cast(x, output.dtype)), self.compute_dtype)
