"""Memory and time of one core's training step by formula: milliseconds, no TensorFlow, no compiler."""

import dataclasses
from typing import Literal, NamedTuple

from albert_tf.configs import AlbertConfig
from albert_tf.errors import UserError
from albert_tf.planning.chips import Chip
from albert_tf.planning.flops import forward_flops_per_example

_FLOAT32 = 4
_ITEM_BYTES = {"bfloat16": 2, "float32": 4}
_COPIES = 3  # Every weight and its two moments, float32.
_BOTH_HEADS = ("masked_lm", "sentence_order")
_REMAT_FORWARD = 1 / 3  # The forward pass is a third of a step, and is done twice.


class _Costs(NamedTuple):
  """Cycles of a chip's core: fitted to the compiler's figures (docs/tpu.md has the errors)."""

  matrix: float  # times the cycles that the matrix products take at peak
  score: float  # for 1,000 attention scores, forward and backward
  row: float  # for 1,000 elements of a layer's activations
  logit: float  # for 1,000 logits
  weight: float  # for 1,000 weights: clip and update


class _Kept(NamedTuple):
  """Temporaries that the backward pass needs, in elements of the compute type."""

  scores: float  # for an attention score of a layer
  rows: float  # for an activation of a layer, as `_row_width` counts them
  logits: float  # for a logit
  gradients: float  # for a weight


class _KeptWithRemat(NamedTuple):
  """The same with rematerialisation: of all layers their inputs, and about one layer."""

  inputs: float  # for an element of a layer's input
  layer: float  # for what `_Kept` counts of one layer
  logits: float  # for what `_Kept` counts of the logits
  gradients: float  # for a weight


# Each chip's from 8 programs (v3: 17): four sizes, 3 and 6 layers, 8 examples of 512 and, on v3, as many as fit; 20
# more with rematerialisation. v2's times are one program's of an earlier attention, less what the others gained.
_COSTS = {
  "v2": _Costs(1.05, 20.06, 21.29, 78.21, 117.6),
  "v3": _Costs(1.02, 45.65, 11.11, 92.08, 190.9),
  "v4": _Costs(1.157, 63.06, 7.34, 108.8, 152.5),
  "v5e": _Costs(1.215, 33.3, 0.0, 59.82, 137.5),
  "v5p": _Costs(1.233, 23.05, 3.88, 44.67, 58.47),
  "v6e": _Costs(1.694, 24.41, 0.0, 34.61, 76.35),
}
_KEPT = {
  "v3": _Kept(0.999, 0.6461, 5.593, 1.814),
  "v4": _Kept(1.129, 0.5812, 4.493, 1.905),
  "v5e": _Kept(0.8812, 0.7013, 2.166, 2.169),
  "v5p": _Kept(1.203, 0.5512, 5.093, 1.909),
  "v6e": _Kept(1.098, 0.6182, 3.008, 2.014),
}
_KEPT_WITH_REMAT = _KeptWithRemat(1.0, 1.162, 0.816, 4.504)  # All chips'.
_KEPT["v2"] = _KEPT["v3"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepShape:
  """What one core computes in a step, and how.

  Attributes:
    per_core_batch_size: examples a core computes at a time: one micro-batch.
    max_seq_length: S.
    max_predictions_per_seq: P.
    gradient_accumulation_steps: micro-batches of one step.
    mixed_precision: "bfloat16" or "float32".
    remat: recompute activations in the backward pass.
    optimizer: "lamb", "adamw" or "tfa_lamb".
    use_one_hot_embeddings, layer_loop: see `AlbertEncoder`.
  """

  per_core_batch_size: int
  max_seq_length: int = 512
  max_predictions_per_seq: int = 77
  gradient_accumulation_steps: int = 1
  mixed_precision: str = "bfloat16"
  remat: bool = False
  optimizer: Literal["lamb", "adamw", "tfa_lamb"] = "lamb"
  use_one_hot_embeddings: bool = True
  layer_loop: str = "unrolled"

  def __post_init__(self) -> None:
    names = (
      "per_core_batch_size",
      "max_seq_length",
      "max_predictions_per_seq",
      "gradient_accumulation_steps",
    )
    wrong = [f"{name}={getattr(self, name)}" for name in names if getattr(self, name) < 1]
    if wrong:
      raise UserError(f"Sizes must be at least 1. Received: {', '.join(wrong)}. Give the sizes of the run.")

  @property
  def examples(self) -> int:
    """Examples of one core's step, all micro-batches together."""
    return self.per_core_batch_size * self.gradient_accumulation_steps

  def replace(self, **changes: object) -> "StepShape":
    return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def trainable_parameters(config: AlbertConfig) -> int:
  """Trainable numbers of the pretraining model: encoder, pooler and both heads."""
  return config.param_count(heads=_BOTH_HEADS)


class StepEstimate(NamedTuple):
  """What one core's step needs, by formula.

  Attributes:
    argument_bytes: weights, moments and batch.
    activation_bytes: what the backward pass keeps of the forward pass.
    temporary_bytes: activations, logits and gradients.
    cycles: of the core's clock.
  """

  argument_bytes: int
  activation_bytes: int
  temporary_bytes: int
  cycles: float

  @property
  def required_bytes(self) -> int:
    return self.argument_bytes + self.temporary_bytes


class StepFeatures(NamedTuple):
  """The sizes that memory and time are proportional to: of one micro-batch; weights: of the model."""

  flops: float  # Matrix products, forward and backward, without rematerialisation.
  scores: int  # B N S^2 of all layers but the last.
  rows: int  # B S (8 H + 2 F) of all layers but the last, and the last where it is read.
  layer_inputs: int  # B S H of all layers.
  logits: int  # B P V
  weights: int


def _row_width(config: AlbertConfig) -> int:
  """Activations of a position in one layer: x, Q, K, V, context, two sums, one norm; intermediate before and after."""
  return 8 * config.hidden_size + 2 * config.intermediate_size


def step_features(config: AlbertConfig, shape: StepShape) -> StepFeatures:
  """The sizes of one micro-batch. The last block is computed only at the P + 1 positions that are read."""
  B, S, P = shape.per_core_batch_size, shape.max_seq_length, shape.max_predictions_per_seq
  H, F = config.hidden_size, config.intermediate_size
  blocks = config.num_hidden_layers * config.inner_group_num
  read = min(P + 1, S)
  whole = blocks - 1 if blocks else 0
  # What the last block saves: query, output, attention and feed-forward at the positions that nobody reads.
  saved = (S - read) * (4 * H * H + 4 * S * H + 4 * H * F) if blocks else 0
  forward = forward_flops_per_example(config, max_seq_length=S, max_predictions_per_seq=P) - saved
  lookup = 2 * S * config.vocab_size * config.embedding_size if shape.use_one_hot_embeddings else 0
  return StepFeatures(
    flops=3.0 * B * forward + 2.0 * B * lookup,  # A look-up has no gradient for its ids.
    scores=B * config.num_attention_heads * S * (whole * S + (read if blocks else 0)),
    rows=B * _row_width(config) * (whole * S + (read if blocks else 0)),
    layer_inputs=B * S * H * blocks,
    logits=B * P * config.vocab_size,
    weights=trainable_parameters(config),
  )


def estimate_step(config: AlbertConfig, shape: StepShape, chip: Chip) -> StepEstimate:
  """Memory and cycles of one core's step.

  memory = 12 weights + batch  [arguments]
    + item (k_s scores + k_r rows + k_l logits) + 2 k_g weights  [temporaries]
  cycles = accumulation (c_m flops / flops a cycle + c_s scores + c_r rows + c_l logits) + c_w weights

  With rematerialisation the layers keep their inputs alone, and are computed once more.

  Args:
    config: the architecture.
    shape: the step of one core.
    chip: where it runs.
  """
  size = step_features(config, shape)
  costs = _COSTS[chip.name]
  item = _ITEM_BYTES[shape.mixed_precision]
  blocks = max(1, config.num_hidden_layers * config.inner_group_num)
  kept, remat = _KEPT[chip.name], _KEPT_WITH_REMAT
  layers, logits = kept.scores * size.scores + kept.rows * size.rows, kept.logits * size.logits
  if shape.remat:
    activations = remat.inputs * size.layer_inputs + remat.layer * layers / blocks + remat.logits * logits
    gradients = remat.gradients * size.weights
  else:
    activations = layers + logits
    gradients = kept.gradients * size.weights
  accumulators = _FLOAT32 * size.weights if shape.gradient_accumulation_steps > 1 else 0
  again = 1 + _REMAT_FORWARD if shape.remat else 1.0
  vector = costs.score * size.scores + costs.row * size.rows
  matrix = costs.matrix * size.flops * chip.clock_hz / chip.peak_flops
  micro_batch = again * (matrix + vector / 1000) + costs.logit * size.logits / 1000
  batch = shape.examples * (3 * shape.max_seq_length + 3 * shape.max_predictions_per_seq + 1) * _FLOAT32
  return StepEstimate(
    argument_bytes=int(_COPIES * _FLOAT32 * size.weights + batch),
    activation_bytes=int(item * activations),
    temporary_bytes=int(item * activations + 2 * gradients + accumulators),
    cycles=shape.gradient_accumulation_steps * micro_batch + costs.weight * size.weights / 1000,
  )
