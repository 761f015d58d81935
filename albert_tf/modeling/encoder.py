"""The ALBERT encoder: embeddings, the projection from E to H, shared layers, the pooler.

`AlbertForPreTraining` and all models of `keras_api` are made around it.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any, NamedTuple

import tensorflow as tf

from albert_tf.compat import device_kind
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.modeling.dot_product_attention import KeyMask, attention_bias
from albert_tf.modeling.fused_attention import can_fuse
from albert_tf.modeling.layers import ConfigModel, Dense, Seed, resolve_seed, split_seed
from albert_tf.modeling.rematerialization import Step, rematerialize
from albert_tf.modeling.sublayers import AlbertEmbeddings, AttentionSublayer, FeedForwardSublayer
from albert_tf.modeling.text_inputs import SYNONYMS, TEXT_INPUTS, integers, text_inputs

LAYER_LOOPS = ("unrolled", "while")


@dataclasses.dataclass(frozen=True)
class Block:
  """One transformer block. Blocks that share weights hold the same sublayers."""

  attention: AttentionSublayer
  feed_forward: FeedForwardSublayer

  def __call__(
    self,
    x: tf.Tensor,
    keys: KeyMask,
    seed: Seed,
    positions: tf.Tensor | None = None,
  ) -> tf.Tensor:
    """`[B, S, H]` → `[B, S, H]`, or `[B, Q, H]` of `positions` `[B, Q]` alone."""
    attention_seed, feed_forward_seed = split_seed(seed, 2)
    queries = None
    if positions is not None:
      queries = tf.gather(x, positions, batch_dims=1)  # [B, Q, H]
    x = self.attention(x, keys.bias, seed=attention_seed, queries=queries, key_lengths=keys.lengths)
    return self.feed_forward(x, seed=feed_forward_seed)


class EmbeddedTexts(NamedTuple):
  """The input of the first block."""

  embedding_output: tf.Tensor  # [B, S, E]
  x: tf.Tensor  # [B, S, H]
  mask: tf.Tensor  # int32 [B, S]; 1 = real token.
  keys: KeyMask


def _numbered_step(block: Block, keys: KeyMask, seeds: Sequence[Seed]) -> Step:
  """The block as a function of x and the number of its seed, which may be a tensor."""
  if seeds[0] is None:
    return lambda x, i: block(x, keys, None)
  stacked_seeds = tf.stack(seeds)
  return lambda x, i: block(x, keys, stacked_seeds[i])


def _sublayer_name(owner: tuple[int, int]) -> str:
  """Its key, such as "transformer/group_0/inner_group_0"; `name_map` has it too."""
  group, inner = owner
  return f"transformer/group_{group}/inner_group_{inner}"


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
    accelerated: use the forms of products and attention that are fastest on accelerators, not on a CPU; the values
      are the same. None: true for 16-bit types on TPUs and GPUs.
    padding_at_end: whether every input mask is ones, then zeros, as tokenizers and records make them. GPUs can
      then use `fused_attention`. A mask with a hole makes NaN there.

  Call args:
    inputs: mapping with `input_ids` int32 `[B, S]` and, optionally, `input_mask` (1 =
      real token; default ones) and `segment_ids` (default zeros), both `[B, S]`; and
      `read_positions` int32 `[B, Q]`: the only positions of `sequence_output` that are read,
      so that the last block is not computed for the others.
    training: whether dropout is active.
    seed: int32 `[2]`, the seed of the call; see `resolve_seed`.
    depth: number of layers, of `inner_group_num` blocks each; None: as in the configuration.
      Another number needs one block that all layers share.
    also_read: smaller numbers of layers, ascending, whose outputs are read too: one forward pass
      gives them all. They need one shared block.

  Returns:
    `sequence_output` `[B, S, H]` (`[B, Q, H]` with `read_positions`), `pooled_output` `[B, H]`,
    `embedding_output` `[B, S, E]`, and `encoder_input` `[B, S, H]`, $x_0$. With `also_read` also
    `shallower`: for each of these depths the same `sequence_output` and `pooled_output`. Without `remat`, loop,
    `read_positions` and `also_read` also `all_encoder_layers`: a tuple with one `[B, S, H]` for each block.

  Reference: ALBERT section 3.1; the original's `AlbertModel`.
  """

  output_shape: tuple[int | None, ...] = ()  # For `summary`, as in `Dense`.

  def __init__(
    self,
    config: AlbertConfig,
    *,
    remat: bool = False,
    layer_loop: str = "unrolled",
    accelerated: bool | None = None,
    padding_at_end: bool = False,
    **kwargs: Any,
  ):
    super().__init__(config, **{"name": "encoder"} | kwargs)
    if layer_loop not in LAYER_LOOPS or (layer_loop == "while" and not config.has_one_block):
      raise UserError(
        f"layer_loop must be one of {', '.join(LAYER_LOOPS)}; a loop needs one block shared by all layers. "
        f"Received: {layer_loop!r} with {config.sharing_in_words}. "
        'Use layer_loop="unrolled", or sharing="all" with one group.'
      )
    self.remat = remat
    self.layer_loop = layer_loop
    self.output_shape = (None, None, config.hidden_size)  # Of `sequence_output`.
    # A saved model may be loaded on another kind of device, which then chooses anew.
    self._requested_accelerated = accelerated
    if accelerated is None:
      has_16_bit_products = tf.as_dtype(self.compute_dtype).size < tf.float32.size
      accelerated = device_kind() != "cpu" and has_16_bit_products
    self.accelerated = accelerated
    self.padding_at_end = padding_at_end

    # The layers, in the order of the equation. A map from E to H exists only where they differ.
    policy = {"dtype": self.dtype_policy}
    dense = policy | {
      "initializer_range": config.initializer_range,
      "join_rows": not accelerated,
    }
    width = config.hidden_size
    self.embeddings = AlbertEmbeddings(config, name="embeddings", **policy)
    self.embedding_hidden_mapping_in = None
    if config.embedding_size != width:
      self.embedding_hidden_mapping_in = Dense(
        config.embedding_size, width, name="embedding_hidden_mapping_in", **dense
      )
    self._make_blocks(policy | {"accelerated": accelerated})
    self.pooler = Dense(width, width, activation="tanh", name="pooler", **dense)
    self.pooler.output_shape = (None, width)
    self.build(None)  # With an argument, else Keras 3 shows no shape of it in `summary`.

  def _make_blocks(self, options: Mapping[str, Any]) -> None:
    """Makes each sublayer once, and the list of blocks that use them."""
    # Each owner once, in order: one attention for twelve layers has one owner, (0, 0).
    attention_owners = dict.fromkeys(attention for attention, _ in self.config.owners)
    ffn_owners = dict.fromkeys(ffn for _, ffn in self.config.owners)
    self.attention_sublayers = {
      _sublayer_name(owner): AttentionSublayer(
        self.config, name=f"attention_{owner[0]}_{owner[1]}", **options
      )
      for owner in attention_owners
    }
    self.ffn_sublayers = {
      _sublayer_name(owner): FeedForwardSublayer(
        self.config, name=f"ffn_{owner[0]}_{owner[1]}", **options
      )
      for owner in ffn_owners
    }
    # In the order in which they are applied: `inner_group_num` blocks for each layer.
    self.blocks = [
      Block(
        self.attention_sublayers[_sublayer_name(attention)], self.ffn_sublayers[_sublayer_name(ffn)]
      )
      for attention, ffn in self.config.owners
    ]

  def run_blocks(
    self, x: tf.Tensor, keys: KeyMask, seeds: Sequence[Seed], training: bool
  ) -> list[tf.Tensor]:
    """Applies as many blocks as there are `seeds`, from the first.

    Returns:
      The output of each block where they are unrolled, else only that of the last.
    """
    if not seeds:  # The only block is left to the caller.
      return [x]
    if self.remat and training:
      return [self.run_rematerialized(x, keys, seeds)]
    if self.layer_loop == "while":
      return [self.run_looped(x, keys, seeds)]
    return self.run_unrolled(x, keys, seeds)

  def run_unrolled(self, x: tf.Tensor, keys: KeyMask, seeds: Sequence[Seed]) -> list[tf.Tensor]:
    """The output of each block."""
    outputs = []
    for number, seed in enumerate(seeds):
      x = self.block(number)(x, keys, seed)
      outputs.append(x)
    return outputs

  def run_looped(self, x: tf.Tensor, keys: KeyMask, seeds: Sequence[Seed]) -> tf.Tensor:
    """The output of the shared block's last application, in a loop of the graph."""
    step = _numbered_step(self.block(0), keys, seeds)
    _, x = tf.while_loop(
      lambda i, _: i < len(seeds),
      lambda i, x: (i + 1, tf.ensure_shape(step(x, i), x.shape)),
      (tf.constant(0), x),
      maximum_iterations=len(seeds),
    )
    return x

  def run_rematerialized(self, x: tf.Tensor, keys: KeyMask, seeds: Sequence[Seed]) -> tf.Tensor:
    """The output of the last block; the backward pass computes activations again."""
    if not self.config.has_one_block:
      for number, seed in enumerate(seeds):
        x = rematerialize(_numbered_step(self.block(number), keys, [seed]), x)
      return x

    step = _numbered_step(self.block(0), keys, seeds)
    # All but the last: its gradient comes first, so keeping it costs one block's memory and saves
    # one block's time.
    last = len(seeds) - 1
    if last > 0:
      x = rematerialize(step, x, last, loop=self.layer_loop == "while")
    return step(x, last)

  def block(self, number: int) -> Block:
    """The block at a place. A model with one shared block may have any number of layers."""
    if self.config.has_one_block:
      return self.blocks[0]
    return self.blocks[number]

  def embed(self, inputs: Mapping[str, tf.Tensor], seed: Seed = None) -> EmbeddedTexts:
    """From ids to the input of the first block; `inputs` are those of `call`, `seed` the embeddings'."""
    # With their defaults: one segment, and nothing padded.
    text = text_inputs(inputs)
    unknown = set(inputs).difference(TEXT_INPUTS, SYNONYMS, ["read_positions"])
    if unknown:
      raise UserError(f"The encoder does not take {', '.join(sorted(unknown))}. Drop or rename it.")
    input_ids = text["input_ids"]
    input_mask = text.get("input_mask", tf.ones_like(input_ids))
    segment_ids = text.get("segment_ids", tf.zeros_like(input_ids))
    embedding_output = self.embeddings(input_ids, segment_ids, seed=seed)  # [B, S, E]
    x = embedding_output
    if self.embedding_hidden_mapping_in is not None:
      x = self.embedding_hidden_mapping_in(x)  # [B, S, H]
    keys = KeyMask(attention_bias(input_mask))
    has_dropout = seed is not None and self.config.attention_probs_dropout_prob > 0
    if can_fuse(
      self.config,
      input_ids,
      self.compute_dtype,
      padding_at_end=self.padding_at_end,
      has_dropout=has_dropout,
    ):
      lengths = tf.reduce_sum(input_mask, axis=-1)
      keys = keys._replace(lengths=lengths)
      # The kernel would read the wrong keys of a mask with holes: NaN ends such a training.
      has_holes = tf.reduce_any(
        tf.sequence_mask(lengths, input_ids.shape[1], tf.int32) != input_mask
      )
      x += tf.cast(tf.where(has_holes, math.nan, 0.0), x.dtype)
    return EmbeddedTexts(embedding_output, x, input_mask, keys)

  def call(
    self,
    inputs: Mapping[str, tf.Tensor],
    training: bool = False,
    seed: Seed = None,
    depth: int | None = None,
    also_read: Sequence[int] = (),
  ) -> dict[str, Any]:
    training = bool(training)
    num_blocks = len(self.config.at_depth(depth).owners)

    # One seed for each block. Without dropout all are None.
    embedding_seed, layers_seed = split_seed(resolve_seed(seed, training=training), 2)
    seeds = split_seed(layers_seed, num_blocks)

    start = self.embed(inputs, embedding_seed)
    x = start.x
    keys = start.keys
    outputs: dict[str, Any] = {"embedding_output": start.embedding_output, "encoder_input": x}
    positions = None
    if "read_positions" in inputs:
      # The pooler reads position 0, [CLS]: positions [[3, 5]] become [[0, 3, 5]].
      positions = tf.pad(integers(inputs["read_positions"]), [[0, 0], [1, 0]])

    # The depths that are read on the way.
    if also_read:
      self.check_also_read(also_read, num_blocks)
      outputs["shallower"] = []
      num_done = 0
      for shallower_depth in also_read:
        x = self.run_blocks(x, keys, seeds[num_done:shallower_depth], training)[-1]
        outputs["shallower"].append(self.read_rows(x, positions))
        num_done = shallower_depth
      seeds = seeds[num_done:]

    if positions is None:
      layers = self.run_blocks(x, keys, seeds, training)
      if self.layer_loop == "unrolled" and not self.remat and not also_read:
        outputs["all_encoder_layers"] = tuple(layers)
      return outputs | self.read_rows(layers[-1])

    # The heads read [CLS] and a few positions, so the last block computes only these: with 20 of
    # 512 positions this saves most of a block. It keeps little, and is not rematerialized.
    x = self.run_blocks(x, keys, seeds[:-1], training)[-1]
    x = self.block(-1)(x, keys, seeds[-1], positions)  # [B, 1 + Q, H]
    return outputs | {"sequence_output": x[:, 1:], "pooled_output": self.pooler(x[:, 0])}

  def check_also_read(self, depths: Sequence[int], num_layers: int) -> None:
    """Raises a `UserError` unless `depths` ascend below `num_layers`, over one shared block."""
    self.config.check_one_block(f"also_read={list(depths)}")
    ascending = sorted(set(depths))
    if list(depths) != ascending or not 0 < ascending[0] <= ascending[-1] < num_layers:
      raise UserError(
        f"also_read must be ascending numbers of layers below the depth. Received: {list(depths)}, "
        f"and a depth of {num_layers}. Drop or reorder them."
      )

  def read_rows(self, x: tf.Tensor, positions: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
    """What heads read of a layer's output `[B, S, H]`; of [CLS] and other `positions` `[B, 1 + Q]` alone."""
    if positions is None:
      return {"sequence_output": x, "pooled_output": self.pooler(x[:, 0])}
    x = tf.gather(x, positions, batch_dims=1)
    return {"sequence_output": x[:, 1:], "pooled_output": self.pooler(x[:, 0])}

  def get_config(self) -> dict[str, Any]:
    config = super().get_config()
    config["remat"] = self.remat
    config["layer_loop"] = self.layer_loop
    config["accelerated"] = self._requested_accelerated
    config["padding_at_end"] = self.padding_at_end
    return config
