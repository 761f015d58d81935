"""Memory and time of one core's training step by formula: milliseconds, no TensorFlow, no compiler."""

from typing import Literal, NamedTuple

from albert_tf.configs import HEADS, AlbertConfig
from albert_tf.planning.chips import Chip
from albert_tf.planning.flops import TRAINING, forward_flops_per_example
from albert_tf.settings import Settings, setting

# Largest relative errors against the compiler on programs of goldens/tpu_figures.json that were not used for the
# fit: lengths 128 and 512, 3 to 12 layers, micro-batches. tests/planning/test_estimate.py.
MEMORY_ERROR, CYCLES_ERROR = 0.16, 0.06

_FLOAT32 = 4
_ITEM_BYTES = {"bfloat16": 2, "float32": 4}
_REMAT_FORWARD = 1 / 3  # The forward pass, a third of a step, runs twice.
# Cost of passes over arrays, relative to one attention score, forward and backward together:
_ROW_PASSES, _LOGIT_PASSES = 0.25, 3
# HBM traffic of the optimizer: gradient, weight and moments, some twice, ten float32 numbers a weight.
_WEIGHT_BYTES = 40
# A layer keeps all scores and this share of `_row_width` activations for the backward pass.
_ROWS_KEPT = 0.65
# Float32 numbers a weight: the backward loop holds its sums twice, and some more.
_GRADIENTS_WITH_REMAT = 2.5


class Constants(NamedTuple):
  """Constants of a chip, fitted to programs of the compiler (docs/tpu.md), rounded."""

  matrix: float  # Cycles of the matrix products, times those at the chip's peak.
  score: float  # Cycles for 1,000 attention scores, forward and backward.
  logits: float  # Numbers kept for each logit.


CONSTANTS = {
  # The constants of v3, which has a second matrix unit. No schedule of v2 was measured.
  "v2": Constants(1.158, 18.1, 5.5),
  "v3": Constants(1.158, 18.1, 5.5),
  # v4 and v5p: `score` from one program with `matrix` given.
  "v4": Constants(1.15, 10.5, 4.3),
  # The vector unit works while the matrix units do. Between base (1.07) and xxlarge (1.16).
  "v5e": Constants(1.12, 0.0, 2.3),
  "v5p": Constants(1.15, 3.8, 4.9),
  # Attention's 64 numbers a head fill a quarter of a unit of 256 x 256.
  "v6e": Constants(1.69, 2.9, 3.2),
}


class StepShape(Settings):
  """Settings of one core's training step."""

  per_core_batch_size: int = setting(help="Examples of one micro-batch.", minimum=1)
  max_seq_length: int = setting(512, help="Tokens of an example.", minimum=1)
  max_predictions_per_seq: int = setting(20, help="Masked-LM predictions of an example.", minimum=1)
  gradient_accumulation_steps: int = setting(1, help="Micro-batches of one step.", minimum=1)
  mixed_precision: Literal["bfloat16", "float32"] = setting("bfloat16", help="Type of the activations.")
  optimizer: Literal["lamb", "adamw", "tfa_lamb"] = setting("lamb", help="The optimizer.")
  remat: bool = setting(False, help="Recompute activations in the backward pass.")
  layer_loop: Literal["unrolled", "while"] = setting("unrolled", help="How the layers are repeated.")

  train_depths: tuple[int, ...] = setting((), help="Numbers of layers; each step runs one of them.")

  @property
  def examples(self) -> int:
    """Examples of one core's step, all micro-batches together."""
    return self.per_core_batch_size * self.gradient_accumulation_steps


class StepEstimate(NamedTuple):
  """Memory and time of one core's step, by formula."""

  argument_bytes: int  # Weights, moments and batch.
  temporary_bytes: int  # Activations, logits and gradients.
  cycles: float  # Of the core's clock.

  @property
  def required_bytes(self) -> int:
    return self.argument_bytes + self.temporary_bytes


class StepFeatures(NamedTuple):
  """Sizes of one micro-batch that determine memory and time; `weights` is of the model."""

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
  # Positions in all blocks: S in each, but only the read ones in the last.
  positions = (blocks - 1) * S + read
  # The last block does not compute query, output, attention and feed-forward at other positions.
  saved = (S - read) * (4 * H * H + 4 * S * H + 4 * H * F)
  forward = forward_flops_per_example(config, max_seq_length=S, max_predictions_per_seq=P) - saved
  return StepFeatures(
    flops=float(TRAINING * B * forward),
    scores=B * config.num_attention_heads * S * positions,
    rows=B * _row_width(config) * positions,
    layer_inputs=B * S * H * blocks,
    logits=B * P * config.vocab_size,
    weights=config.param_count(heads=HEADS),
  )


def estimate_step(config: AlbertConfig, shape: StepShape, chip: Chip) -> StepEstimate:
  """Memory and cycles of one core's step.

  memory = 12 weights + batch                                  [arguments: weights and two moments, float32]
    + item (scores + 0.65 rows + k logits) + 4 weights         [kept for the backward pass, and gradients]
  cycles = m matrix + s (scores + 0.25 rows + 3 logits) + 40 bytes a weight at the speed of HBM

  m, s and k are `Constants` of the chip. With micro-batches memory holds gradients twice, and all cycles but the last
  term count for each micro-batch. With rematerialisation a layer keeps only its input, one layer is whole in memory,
  and the forward pass runs twice.
  """
  size, constants = step_features(config, shape), CONSTANTS[chip.name]
  layers, gradients = size.scores + _ROWS_KEPT * size.rows, 1.0
  if shape.remat:
    layers = size.layer_inputs + layers / (config.num_hidden_layers * config.inner_group_num)
    gradients = _GRADIENTS_WITH_REMAT
  gradients += shape.gradient_accumulation_steps > 1
  kept = _ITEM_BYTES[shape.mixed_precision] * (layers + constants.logits * size.logits)
  again = 1 + _REMAT_FORWARD * shape.remat
  matrix = again * size.flops * chip.clock_hz / chip.peak_flops
  passes = again * (size.scores + _ROW_PASSES * size.rows) + _LOGIT_PASSES * size.logits
  micro_batch = constants.matrix * matrix + constants.score * passes / 1000
  update = _WEIGHT_BYTES * size.weights * chip.clock_hz / chip.hbm_bytes_per_second
  batch = shape.examples * (3 * shape.max_seq_length + 3 * shape.max_predictions_per_seq + 1) * _FLOAT32
  return StepEstimate(
    argument_bytes=int(3 * _FLOAT32 * size.weights + batch),
    temporary_bytes=int(kept + _FLOAT32 * gradients * size.weights),
    cycles=shape.gradient_accumulation_steps * micro_batch + update,
  )
