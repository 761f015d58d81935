"""The ALBERT encoder: embeddings, the projection from E to H, shared layers, the pooler.

`AlbertForPreTraining` and all models of `keras_api` are made around it.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any, NamedTuple

import tensorflow as tf

from albert_tf.compat import device_kind, is_compiled_by_xla
from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.modeling.attention import PackedLayout, PaddedLayout, TextLayout
from albert_tf.modeling.config_model import ConfigModel
from albert_tf.modeling.dropout import Seed, resolve_seed, split_seed
from albert_tf.modeling.fused_attention import can_fuse
from albert_tf.modeling.layers import (
  AlbertEmbeddings,
  AttentionSublayer,
  Dense,
  FeedForwardSublayer,
)
from albert_tf.modeling.rematerialization import Step, rematerialize

LAYER_LOOPS = ("unrolled", "while")
# Ids, mask and segments `[B, S]` by name, and the further inputs of a model.
Inputs = Mapping[str, tf.Tensor]
TEXT_INPUTS = ("input_ids", "input_mask", "segment_ids")
# Hugging Face's name → ours.
SYNONYMS = {"attention_mask": "input_mask", "token_type_ids": "segment_ids"}


def integers(x: tf.Tensor) -> tf.Tensor:
  """Converts to int32."""
  # Under a strategy Keras 3 builds a model with means over replicas, which are floats.
  return tf.cast(x, tf.int32)


def check_has_ids(inputs: Any) -> None:
  """Raises `UserError` if inputs are no mapping, or lack ids."""
  if isinstance(inputs, Mapping) and "input_ids" in inputs:
    return
  received = repr(inputs)[:80]
  if isinstance(inputs, Mapping):
    received = ", ".join(map(str, inputs)) or "no input"
  raise UserError(
    "A model takes a mapping with input_ids, input_mask and segment_ids, int32 [B, S]. "
    f'Received: {received}. Write {{"input_ids": ids}}, with the mask of padded rows; '
    "an AlbertPreprocessor makes all three of texts."
  )


def text_inputs(inputs: Inputs) -> dict[str, tf.Tensor]:
  """Those of `input_ids`, `input_mask` and `segment_ids` that are in `inputs`, as int32.

  Args:
    inputs: inputs of a model. Hugging Face's `attention_mask` and `token_type_ids` are accepted as
      `input_mask` and `segment_ids`. Other keys are left to the model.

  Raises:
    UserError: `inputs` is no mapping, lacks ids, or has one input under both names.
  """
  check_has_ids(inputs)
  # Ours first, so that a synonym of the same input is noticed.
  tensors = {name: integers(inputs[name]) for name in TEXT_INPUTS if name in inputs}
  for synonym, name in SYNONYMS.items():
    if synonym not in inputs:
      continue
    if name in tensors:
      raise UserError(
        f"An input is given once. Received: {name} and {synonym}, which are the same. Drop one."
      )
    tensors[name] = integers(inputs[synonym])
  return tensors


@dataclasses.dataclass(frozen=True)
class Block:
  """One transformer block. Blocks that share weights hold the same sublayers."""

  attention: AttentionSublayer
  feed_forward: FeedForwardSublayer

  def __call__(
    self,
    x: tf.Tensor,
    layout: TextLayout,
    seed: Seed,
    positions: tf.Tensor | None = None,
  ) -> tf.Tensor:
    """x, as the layout packs it → an array like x, or `[B, Q, H]` of `positions` `[B, Q]` alone."""
    attention_seed, feed_forward_seed = split_seed(seed, 2)
    queries = None
    if positions is not None:
      queries = layout.at(x, positions)
    x = self.attention(x, layout=layout, seed=attention_seed, queries=queries)
    return self.feed_forward(x, seed=feed_forward_seed)


class EmbeddedTexts(NamedTuple):
  """The input of the first block."""

  embedding_output: tf.Tensor  # [B, S, E]
  x: tf.Tensor  # [B, S, H], as the layout packs it.
  layout: TextLayout


def _numbered_step(block: Block, layout: TextLayout, seeds: Sequence[Seed]) -> Step:
  """The block as a function of x and the number of its seed, which may be a tensor."""
  if seeds[0] is None:
    return lambda x, i: block(x, layout, None)
  stacked_seeds = tf.stack(seeds)
  return lambda x, i: block(x, layout, stacked_seeds[i])


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
    depths: numbers of layers to read, ascending, of `inner_group_num` blocks each: one forward pass, to
      the last, gives them all. Default: the configuration's number. Others need one block that all layers share.

  Returns:
    `sequence_output` `[B, S, H]` (`[B, Q, H]` with `read_positions`) and `pooled_output` `[B, H]` of the last
    depth; `embedding_output` `[B, S, E]`, and `encoder_input` `[B, S, H]`, $x_0$. With several depths also
    `of_depths`, a list of the first two for each of them. Without `remat`, loop, `read_positions` and several
    depths also `all_encoder_layers`: a tuple with one `[B, S, H]` for each block. Where the layout is packed,
    blocks do not compute padding, and their vectors `[B, S, H]` are zeros there.

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
    # Whether blocks leave padding out. None: on a CPU without XLA. False where a program of fixed shapes
    # is made (LiteRT).
    self.packs: bool | None = None
    # Blocks of another precision, one for each pass; see `low_precision`.
    self.served_blocks: Sequence[Any] = ()

    # The layers, in the order of the equation. A map from E to H exists only where they differ.
    policy = {"dtype": self.dtype_policy}
    forms = policy | {"accelerated": accelerated}
    dense = forms | {"initializer_range": config.initializer_range}
    width = config.hidden_size
    self.embeddings = AlbertEmbeddings(config, name="embeddings", **policy)
    self.embedding_hidden_mapping_in = None
    if config.embedding_size != width:
      self.embedding_hidden_mapping_in = Dense(
        config.embedding_size, width, name="embedding_hidden_mapping_in", **dense
      )
    self._make_blocks(forms)
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

  def call(
    self,
    inputs: Mapping[str, tf.Tensor],
    training: bool = False,
    seed: Seed = None,
    depths: Sequence[int] = (),
  ) -> dict[str, Any]:
    training = bool(training)
    depths = tuple(depths) or (self.config.num_hidden_layers,)
    num_blocks = len(self.config.at_depth(depths[-1]).owners)
    if len(depths) > 1:
      self.check_depths(depths)

    # One seed for each block. Without dropout all are None.
    embedding_seed, layers_seed = split_seed(resolve_seed(seed, training=training), 2)
    seeds = split_seed(layers_seed, num_blocks)

    embedding_output, x, layout = self.embed(inputs, embedding_seed)
    outputs: dict[str, Any] = {
      "embedding_output": embedding_output,
      "encoder_input": layout.unpack(x),
    }
    positions = None
    if "read_positions" in inputs:
      # The pooler reads position 0, [CLS]: positions [[3, 5]] become [[0, 3, 5]].
      positions = tf.pad(integers(inputs["read_positions"]), [[0, 0], [1, 0]])

    # The depths that are read on the way.
    of_depths = []
    num_done = 0
    for depth in depths[:-1]:
      x = self.run_blocks(x, layout, seeds[num_done:depth], first=num_done, training=training)[-1]
      of_depths.append(self.read(x, layout, positions))
      num_done = depth

    # The last one.
    seeds = seeds[num_done:]
    if positions is None:
      layers = self.run_blocks(x, layout, seeds, first=num_done, training=training)
      of_depths.append(self.read(layers[-1], layout))
      if self.layer_loop == "unrolled" and not self.remat and len(depths) == 1:
        outputs["all_encoder_layers"] = tuple(layout.unpack(layer) for layer in layers)
    else:
      of_depths.append(
        self.run_last(x, layout, seeds, positions, first=num_done, training=training)
      )

    outputs |= of_depths[-1]
    if len(depths) > 1:
      outputs["of_depths"] = of_depths
    return outputs

  def check_depths(self, depths: Sequence[int]) -> None:
    """Raises a `UserError` unless `depths` ascend from 1, over one shared block."""
    self.config.check_one_block(f"depths={list(depths)}")
    if list(depths) != sorted(set(depths)) or depths[0] < 1:
      raise UserError(
        f"depths must be ascending numbers of layers. Received: {list(depths)}. Drop or reorder them."
      )

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
    layout = self.layout(input_mask, has_seed=seed is not None)

    embedding_output = self.embeddings(input_ids, segment_ids, seed=seed)  # [B, S, E]
    x = layout.pack(embedding_output)
    if self.embedding_hidden_mapping_in is not None:
      x = self.embedding_hidden_mapping_in(x)  # [B, S, H]
    if isinstance(layout, PaddedLayout) and layout.key_lengths is not None:
      # The kernel would read the wrong keys of a mask with holes: NaN ends such a training.
      is_key = tf.sequence_mask(layout.key_lengths, input_ids.shape[1], tf.int32)
      has_holes = tf.reduce_any(is_key != input_mask)
      x += tf.cast(tf.where(has_holes, math.nan, 0.0), x.dtype)
    return EmbeddedTexts(embedding_output, x, layout)

  def layout(self, input_mask: tf.Tensor, *, has_seed: bool) -> TextLayout:
    """How the blocks compute texts with the mask `[B, S]`; `has_seed` where dropout may be active."""
    packs = self.packs
    if packs is None:
      packs = device_kind() == "cpu" and not is_compiled_by_xla()
    # Dropout draws masks of arrays `[B, S, H]`, so that a training is the same on every device.
    if packs and not has_seed:
      return PackedLayout(input_mask)
    key_lengths = None
    if can_fuse(
      self.config,
      input_mask,
      self.compute_dtype,
      padding_at_end=self.padding_at_end,
      has_dropout=has_seed and self.config.attention_probs_dropout_prob > 0,
    ):
      key_lengths = tf.reduce_sum(input_mask, axis=-1)
    return PaddedLayout(input_mask, accelerated=self.accelerated, key_lengths=key_lengths)

  def run_blocks(
    self,
    x: tf.Tensor,
    layout: TextLayout,
    seeds: Sequence[Seed],
    *,
    first: int = 0,
    training: bool = False,
  ) -> list[tf.Tensor]:
    """Applies as many blocks as there are `seeds`, from number `first` on.

    Returns:
      The output of each block where they are unrolled, else only that of the last.
    """
    if not seeds:  # The only block is left to the caller.
      return [x]
    if self.remat and training:
      return [self.run_rematerialized(x, layout, seeds)]
    if self.layer_loop == "while":
      return [self.run_looped(x, layout, seeds)]
    outputs = []
    for number, seed in enumerate(seeds, start=first):
      x = self.block(number)(x, layout, seed)
      outputs.append(x)
    return outputs

  def block(self, number: int) -> Block:
    """The block at a place. A model with one shared block may have any number of layers."""
    if self.served_blocks:
      return self.served_blocks[number]
    if self.config.has_one_block:
      return self.blocks[0]
    return self.blocks[number]

  def run_looped(self, x: tf.Tensor, layout: TextLayout, seeds: Sequence[Seed]) -> tf.Tensor:
    """The output of the shared block's last application, in a loop of the graph."""
    step = _numbered_step(self.block(0), layout, seeds)
    _, x = tf.while_loop(
      lambda i, _: i < len(seeds),
      lambda i, x: (i + 1, tf.ensure_shape(step(x, i), x.shape)),
      (tf.constant(0), x),
      maximum_iterations=len(seeds),
    )
    return x

  def run_rematerialized(
    self, x: tf.Tensor, layout: TextLayout, seeds: Sequence[Seed]
  ) -> tf.Tensor:
    """The output of the last block; the backward pass computes activations again."""
    if not self.config.has_one_block:
      for number, seed in enumerate(seeds):
        x = rematerialize(_numbered_step(self.block(number), layout, [seed]), x)
      return x

    step = _numbered_step(self.block(0), layout, seeds)
    # All but the last: its gradient comes first, so keeping it costs one block's memory and saves
    # one block's time.
    last = len(seeds) - 1
    if last > 0:
      x = rematerialize(step, x, last, loop=self.layer_loop == "while")
    return step(x, last)

  def run_last(
    self,
    x: tf.Tensor,
    layout: TextLayout,
    seeds: Sequence[Seed],
    positions: tf.Tensor,
    *,
    first: int,
    training: bool = False,
  ) -> dict[str, tf.Tensor]:
    """As `run_blocks` and `read`, where heads read [CLS] and a few `positions` `[B, 1 + Q]` alone.

    The last block computes only these: with 20 of 512 positions this saves most of a block. It keeps little, and
    is not rematerialized.
    """
    x = self.run_blocks(x, layout, seeds[:-1], first=first, training=training)[-1]
    last = first + len(seeds) - 1
    x = self.block(last)(x, layout, seeds[-1], positions)  # [B, 1 + Q, H]
    return {"sequence_output": x[:, 1:], "pooled_output": self.pooler(x[:, 0])}

  def read(
    self, x: tf.Tensor, layout: TextLayout, positions: tf.Tensor | None = None
  ) -> dict[str, tf.Tensor]:
    """What heads read of a block's output; of [CLS] and other `positions` `[B, 1 + Q]` alone."""
    if positions is None:
      cls_alone = tf.zeros_like(layout.mask[:, :1])
      return {
        "sequence_output": layout.unpack(x),
        "pooled_output": self.pooler(layout.at(x, cls_alone)[:, 0]),
      }
    x = layout.at(x, positions)
    return {"sequence_output": x[:, 1:], "pooled_output": self.pooler(x[:, 0])}

  def get_config(self) -> dict[str, Any]:
    config = super().get_config()
    config["remat"] = self.remat
    config["layer_loop"] = self.layer_loop
    config["accelerated"] = self._requested_accelerated
    config["padding_at_end"] = self.padding_at_end
    return config
