"""The ALBERT encoder: embeddings, the projection from E to H, layers that share parameters, the pooler."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import tensorflow as tf

from albert_tf.compat import device_kind
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.modeling.dot_product_attention import attention_bias
from albert_tf.modeling.layers import ConfigModel, Dense, resolve_seed, split_seed
from albert_tf.modeling.rematerialization import Step, rematerialize
from albert_tf.modeling.sublayers import AlbertEmbeddings, AttentionSublayer, FeedForwardSublayer
from albert_tf.modeling.text_inputs import SYNONYMS, TEXT_INPUTS, integers, text_inputs

LAYER_LOOPS = ("unrolled", "while")
_GROUP = "transformer/group_{}/inner_group_{}"  # Of the variables' names.


def _without_index(block: Callable[[tf.Tensor], tf.Tensor]) -> Step:
  return lambda x, i: block(x)


class Encoder(ConfigModel):
  r"""Token ids to vectors.

  $x_0 = \text{emb} W_m + b_m$, $x_l = \text{block}_{g(l)}(x_{l-1})$, $\text{pooled} = \tanh(x_L[0] W_p + b_p)$.

  `config.sharing` and `config.num_hidden_groups` choose the owner of each layer's attention and feed-forward
  sublayer; this covers all kinds of sharing in the paper's table 4.

  Args:
    config: the model's configuration.
    remat: recompute activations in the backward pass, to save memory; about a third more computation.
    layer_loop: "unrolled" repeats the block in the graph; "while" runs it in a
      loop, which compiles faster and needs one shared block (`sharing="all"`, one group).
    lora_rank: above 0, the encoder's weights are frozen, and low-rank additions to the kernels of attention and
      feed-forward are trained; see `Dense`. Layers that share kernels share the additions.
    accelerated: use the forms of products and attention that are fastest on accelerators, not on a CPU; the values
      are the same. None: true for 16-bit types on TPUs and GPUs.

  Call args:
    inputs: mapping with `input_ids` int32 `[B, S]` and, optionally, `input_mask` (1 =
      real token; default ones) and `segment_ids` (default zeros), both `[B, S]`; and
      `read_positions` int32 `[B, Q]`: the only positions of `sequence_output` that are read,
      so that the last block is not computed for the others.
    training: whether dropout is active.
    seed: int32 `[2]`, the seed of the call; see `resolve_seed`.
    depth: number of layers, if all layers share one block; None: as in the configuration. An int32 scalar tensor, at
      most the configuration's number, makes one program with a loop for all depths.

  Returns:
    `sequence_output` `[B, S, H]` (`[B, Q, H]` with `read_positions`), `pooled_output` `[B, H]`,
    `embedding_output` `[B, S, E]`, and `encoder_input` `[B, S, H]`, $x_0$. Without `remat`, loop and
    `read_positions` also `all_encoder_layers`: a tuple with one `[B, S, H]` for each block.

  Reference: ALBERT section 3.1; the original's `AlbertModel`.
  """

  # In a pretraining checkpoint; a model around the encoder gives it one of its own.
  checkpoint_prefix = "bert"

  def __init__(
    self,
    config: AlbertConfig,
    *,
    remat: bool = False,
    layer_loop: str = "unrolled",
    accelerated: bool | None = None,
    lora_rank: int = 0,
    **kwargs: Any,
  ):
    super().__init__(config, **{"name": "encoder", **kwargs})
    self.remat = remat
    self.layer_loop = layer_loop
    if accelerated is None:
      accelerated = device_kind() != "cpu" and tf.as_dtype(self.compute_dtype).size < tf.float32.size
    self.accelerated = accelerated
    self.lora_rank = lora_rank
    policy = {"dtype": self.dtype_policy}
    sublayer = {**policy, "accelerated": accelerated, "lora_rank": lora_rank}
    self.embeddings = AlbertEmbeddings(config, name="embeddings", **policy)
    dense = {"initializer_range": config.initializer_range, "join_rows": not accelerated, **policy}
    width, self.embedding_hidden_mapping_in = config.hidden_size, None
    if config.embedding_size != width:
      self.embedding_hidden_mapping_in = Dense(
        config.embedding_size, width, name="embedding_hidden_mapping_in", **dense
      )
    self._owners = config.owners
    attention_owners, ffn_owners = map(dict.fromkeys, zip(*self._owners, strict=True))
    self.attention_sublayers = {
      _GROUP.format(g, k): AttentionSublayer(config, name=f"attention_{g}_{k}", **sublayer)
      for g, k in attention_owners
    }
    self.ffn_sublayers = {
      _GROUP.format(g, k): FeedForwardSublayer(config, name=f"ffn_{g}_{k}", **sublayer) for g, k in ffn_owners
    }
    self.pooler = Dense(width, width, activation="tanh", name="pooler", **dense)
    if layer_loop not in LAYER_LOOPS or (layer_loop == "while" and not self._one_block):
      raise UserError(
        f"layer_loop must be one of {', '.join(LAYER_LOOPS)}; a loop needs one block shared by all layers. Received: "
        f"{layer_loop!r} with {len(self.attention_sublayers)} attention and {len(self.ffn_sublayers)} feed-forward "
        'parameter sets. Use layer_loop="unrolled", or sharing="all" with one group.'
      )
    if lora_rank:
      sublayers = (*self.attention_sublayers.values(), *self.ffn_sublayers.values())
      norms = [sublayer.layer_norm for sublayer in sublayers]
      for layer in (self.embeddings, self.embedding_hidden_mapping_in, self.pooler, *norms):
        if layer is not None:
          layer.trainable = False
    self.build()

  @property
  def _one_block(self) -> bool:
    """Whether all layers share all parameters."""
    return len(self.attention_sublayers) == len(self.ffn_sublayers) == 1

  def _block(
    self,
    number: int,
    bias: tf.Tensor,
    seed: tf.Tensor | None,
    x: tf.Tensor,
    positions: tf.Tensor | None = None,
  ) -> tf.Tensor:
    """One transformer block: `[B, S, H]` → `[B, S, H]`, or `[B, Q, H]` of `positions` `[B, Q]` alone."""
    # Any number where all layers share one block.
    attention, ffn = (_GROUP.format(*owner) for owner in self._owners[number % len(self._owners)])
    attention_seed, ffn_seed = split_seed(seed, 2)
    queries = None if positions is None else tf.gather(x, positions, batch_dims=1)
    x = self.attention_sublayers[attention](x, bias, seed=attention_seed, queries=queries)
    return self.ffn_sublayers[ffn](x, seed=ffn_seed)

  def _run(
    self,
    x: tf.Tensor,
    bias: tf.Tensor,
    seeds: list[tf.Tensor | None],
    *,
    training: bool,
    count: int | tf.Tensor,
  ) -> list[tf.Tensor]:
    """Outputs of the first `count` blocks; a loop over one shared block gives only the last."""
    limit, remat = len(seeds), self.remat and training
    loop = self.layer_loop == "while" or tf.is_tensor(count)
    if not limit or not self._one_block or not (loop or remat):
      outputs = []
      for number, seed in enumerate(seeds):
        block = partial(self._block, number, bias, seed)
        x = rematerialize(_without_index(block), x) if remat else block(x)
        outputs.append(x)
      return outputs

    stacked = None if seeds[0] is None else tf.stack(seeds)

    def step(x: tf.Tensor, i: tf.Tensor | int) -> tf.Tensor:
      return self._block(0, bias, None if stacked is None else stacked[i], x)

    if remat and tf.is_tensor(count):
      return [rematerialize(step, x, count, limit=limit)]
    if remat:
      # All but the last: its gradient comes first, so keeping it costs one block's memory and saves one block's time.
      last = count - 1
      if last:
        x = rematerialize(step, x, last, loop=loop)
      return [step(x, last)]
    _, x = tf.while_loop(
      lambda i, _: i < count,
      lambda i, x: (i + 1, tf.ensure_shape(step(x, i), x.shape)),
      (tf.constant(0), x),
      maximum_iterations=limit,
    )
    return [x]

  def call(
    self,
    inputs: Mapping[str, tf.Tensor],
    training: bool = False,
    seed: tf.Tensor | None = None,
    depth: int | tf.Tensor | None = None,
  ) -> dict[str, Any]:
    text = text_inputs(inputs)
    if unknown := set(inputs) - {*TEXT_INPUTS, *SYNONYMS, "read_positions"}:
      raise UserError(f"The encoder does not take {', '.join(sorted(unknown))}. Drop or rename it.")
    input_ids, input_mask, segment_ids = (text.get(name) for name in TEXT_INPUTS)
    input_mask = tf.ones_like(input_ids) if input_mask is None else input_mask
    segment_ids = tf.zeros_like(input_ids) if segment_ids is None else segment_ids

    embedding_seed, layers_seed = split_seed(resolve_seed(seed, training=training), 2)
    embedding_output = self.embeddings(input_ids, segment_ids, seed=embedding_seed)  # [B, S, E]
    x = embedding_output
    if self.embedding_hidden_mapping_in is not None:
      x = self.embedding_hidden_mapping_in(x)  # [B, S, H]
    bias = attention_bias(input_mask)
    outputs: dict[str, Any] = {"embedding_output": embedding_output, "encoder_input": x}
    read = inputs.get("read_positions")
    if depth is None:
      depth = len(self._owners)
    elif not tf.is_tensor(depth):
      depth = self.config.at_depth(depth).num_hidden_layers
    seeds = split_seed(layers_seed, len(self._owners) if tf.is_tensor(depth) else depth)
    if read is None:
      layers = self._run(x, bias, seeds, training=bool(training), count=depth)
      x = [x, *layers][-1]
      if self.layer_loop == "unrolled" and not self.remat and not tf.is_tensor(depth):
        outputs["all_encoder_layers"] = tuple(layers)
      return {**outputs, "sequence_output": x, "pooled_output": self.pooler(x[:, 0])}
    # The last block runs only at the positions that are read; it keeps little, so it is not recomputed.
    x = [x, *self._run(x, bias, seeds[:-1], training=bool(training), count=depth - 1)][-1]
    positions = tf.pad(integers(read), [[0, 0], [1, 0]])  # [CLS], position 0, is always read: by the pooler.
    last = seeds[-1] if seeds[0] is None or not tf.is_tensor(depth) else tf.stack(seeds)[depth - 1]
    x = self._block(-1, bias, last, x, positions)  # [B, 1 + Q, H]
    return {**outputs, "sequence_output": x[:, 1:], "pooled_output": self.pooler(x[:, 0])}

  def checkpoint_items(self) -> dict[str, Any]:
    items: dict[str, Any] = {"embeddings": self.embeddings}
    if self.embedding_hidden_mapping_in is not None:
      items["encoder/embedding_hidden_mapping_in"] = self.embedding_hidden_mapping_in
    for sublayers in (self.attention_sublayers, self.ffn_sublayers):
      for group, sublayer in sublayers.items():
        items |= {f"encoder/{group}/{name}": item for name, item in sublayer.checkpoint_items().items()}
    return {**items, "pooler/dense": self.pooler}

  def get_config(self) -> dict[str, Any]:
    return {
      **super().get_config(),
      "remat": self.remat,
      "layer_loop": self.layer_loop,
      "accelerated": self.accelerated,
      "lora_rank": self.lora_rank,
    }
