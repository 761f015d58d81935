"""Memory and time of one core's training step by formula: milliseconds, no TensorFlow, no compiler."""

from typing import Literal, NamedTuple

from albert_tf.configs import HEADS, AlbertConfig
from albert_tf.planning.chips import Chip
from albert_tf.planning.flops import TRAINING, forward_flops_per_example
from albert_tf.settings import Settings, setting

# Largest underestimate of the memory on programs of goldens/tpu_figures.json that were not used for the fit.
# tests/planning/test_estimate.py has the errors of the cycles.
MEMORY_ERROR = 0.16

_FLOAT32 = 4
_ITEM_BYTES = {"bfloat16": 2, "float32": 4}
_REMAT_FORWARD = 1 / 3  # The forward pass, a third of a step, runs twice.
# Cost of passes over arrays, relative to one attention score, forward and backward together:
_ROW_PASSES, _LOGIT_PASSES = 0.25, 3
# A micro-batch reads and writes the sum of a weight's gradients.
_SUM_BYTES = 2 * _FLOAT32
# Kept for the backward pass: a share of a layer's rows; with dropout also the scores' random bits and masks.
_ROWS_KEPT, _SCORES_WITH_DROPOUT = 0.65, 3.5
# Float32 numbers a weight: the backward loop holds its sums twice, and some more.
_GRADIENTS_WITH_REMAT = 2.5


class Constants(NamedTuple):
  """Constants of a chip, fitted to programs of the compiler (docs/tpu.md), rounded."""

  matrix: float  # Cycles of the matrix products, times those at the chip's peak.
  score: float  # Cycles for 1,000 attention scores, forward and backward.
  logits: float  # Numbers kept for each logit.
  update: int  # Bytes to and from HBM for a weight's update: gradient, weight and two moments, some twice.
  room: float  # Bytes of a layer's scores, or of the logits, that stay in the chip's own memory.
  passes: float  # Transfers of each further byte to or from HBM for which the core waits.
  dropout: float  # Cycles for 1,000 numbers with dropout: scores, and two rows a layer.
  dropout_passes: float  # As `passes`, of a layer's random bits, masks and scores.


# v3 keeps nothing in its own memory between instructions; `score` includes the waits.
_V3 = Constants(1.167, 18.1, 5.5, 48, 0, 0, 51, 0)
CONSTANTS = {
  "v2": _V3,  # It has half of v3's matrix units. No schedule of v2 was measured.
  "v3": _V3,
  "v4": Constants(1.075, 10.5, 4.3, 28, 12.6e6, 3.5, 40, 0),
  # The vector unit works while the matrix units do.
  "v5e": Constants(1.09, 0.0, 2.3, 28, 53e6, 8.4, 12, 2.3),
  # `score` from one program with `matrix` given. The compiler fails on larger batches: room and passes of v6e.
  # Dropout of both is that of v5e.
  "v5p": Constants(1.15, 3.8, 4.9, 28, 53e6, 4.3, 12, 2.3),
  # Attention's 64 numbers a head fill a quarter of a unit of 256 x 256. The room is that of v5e.
  "v6e": Constants(1.85, 2.9, 3.2, 28, 53e6, 4.3, 12, 2.3),
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

  required_bytes: int  # Weights, moments, batch, activations, logits and gradients.
  cycles: float  # Of the core's clock.


def estimate_step(config: AlbertConfig, shape: StepShape, chip: Chip) -> StepEstimate:
  """Memory and cycles of one core's step.

  memory = 12 weights + batch                                     [arguments: weights and two moments, float32]
    + item (max(scores, terms) + 0.65 rows + k logits) + 4 weights  [kept for the backward pass, and gradients]
  cycles = m matrix + s (scores + 0.25 rows + 3 logits) + dropout + (p spill + u weights) at the speed of HBM
  spill = whole layers · max(0, item scores of a layer - room) + max(0, item logits - room)

  The terms are those of the largest weight's gradient, H · F numbers a layer, in memory after the scores.
  dropout = d (scores + 2 H a position) + q layers · max(0, 3.5 item scores of a layer - room) at the speed of HBM
  m, s, k, p, u, d, q and room are `Constants` of the chip. Micro-batches hold gradients twice; each takes all cycles
  but those of u, and those of 8 weights at the speed of HBM. With rematerialisation a layer keeps only its input, one
  layer is whole in memory, and the forward pass runs twice.
  """
  B, S, P = shape.per_core_batch_size, shape.max_seq_length, shape.max_predictions_per_seq
  H, F = config.hidden_size, config.intermediate_size
  constants, parts = CONSTANTS[chip.name], shape.gradient_accumulation_steps
  item, weights = _ITEM_BYTES[shape.mixed_precision], config.param_count(heads=HEADS)
  blocks = config.num_hidden_layers * config.inner_group_num
  read = min(P + 1, S)
  positions = (blocks - 1) * S + read  # In all blocks. The last is computed only where it is read.
  # The last block does not compute query, output, attention and feed-forward at other positions.
  saved = (S - read) * (4 * H * H + 4 * S * H + 4 * H * F)
  forward = forward_flops_per_example(config, max_seq_length=S, max_predictions_per_seq=P) - saved
  scores, logits = B * config.num_attention_heads * S * positions, B * P * config.vocab_size
  # Of a position: x, Q, K, V, context, two sums, one norm; intermediate before and after.
  rows = B * positions * (8 * H + 2 * F)

  kept_scores = scores * (_SCORES_WITH_DROPOUT if config.attention_probs_dropout_prob else 1)
  layers, gradients = max(kept_scores, blocks * H * F) + _ROWS_KEPT * rows, 1.0
  if shape.remat:
    layers, gradients = B * S * H * blocks + layers / blocks, _GRADIENTS_WITH_REMAT
  gradients += parts > 1
  batch = shape.examples * (3 * S + 3 * P + 1) * _FLOAT32
  kept = item * (layers + constants.logits * logits) + _FLOAT32 * gradients * weights

  again = 1 + _REMAT_FORWARD * shape.remat
  matrix = again * TRAINING * B * forward * chip.clock_hz / chip.peak_flops
  vector = again * (scores + _ROW_PASSES * rows) + _LOGIT_PASSES * logits
  layer_scores, whole = item * B * config.num_attention_heads * S * S, again * (blocks - 1)
  spill = whole * max(0, layer_scores - constants.room) + max(0, item * logits - constants.room)
  cycles_per_byte = chip.clock_hz / chip.hbm_bytes_per_second
  waits = constants.passes * spill + _SUM_BYTES * weights * (parts > 1)
  vector *= constants.score
  if config.attention_probs_dropout_prob:
    vector += constants.dropout * again * (scores + 2 * B * positions * H)
    waits += constants.dropout_passes * whole * max(0, _SCORES_WITH_DROPOUT * layer_scores - constants.room)
  micro_batch = constants.matrix * matrix + vector / 1000 + waits * cycles_per_byte
  return StepEstimate(
    required_bytes=int(3 * _FLOAT32 * weights + batch + kept),
    cycles=parts * micro_batch + constants.update * weights * cycles_per_byte,
  )
