"""Operations, memory and time of a training step by formula: no TensorFlow, no compiler.

`plan` compares settings with it; run_pretrain.py tells the utilization of the devices by it.
docs/planner.md tells how memory and time were fitted to the compiler's programs.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from albert_tf.configs import HEADS, AlbertConfig
from albert_tf.optim.config import NEWTON_SCHULZ_ROUNDS
from albert_tf.planning.chips import Chip
from albert_tf.settings import Settings, setting

# Largest underestimate of the memory on programs of goldens/tpu_figures.json that were not used for
# the fit. tests/planning/test_estimate.py has the errors of the cycles.
MEMORY_ERROR = 0.16

# A training step has this many times the products of a forward pass: each has two more backward.
STEP_PER_FORWARD = 3

_FLOAT32 = 4
_ITEM_BYTES = {"bfloat16": 2, "float32": 4}
# With rematerialization the forward pass, a third of a step, runs twice.
_REMAT_FORWARD = 1 / 3
# Passes over arrays, relative to one attention score, forward and backward together.
_ROW_PASSES = 0.25
_LOGIT_PASSES = 3
# Each micro-batch reads and writes the sum of a weight's gradients.
_SUM_BYTES = 2 * _FLOAT32
# Share of a layer's rows that is kept for the backward pass.
_ROWS_KEPT = 0.65
# With dropout a score of 16 bits also has its mask, of 8 bits, and its value after the mask.
_SCORES_WITH_DROPOUT = 2.5
# Float32 numbers a weight: the backward loop holds its sums twice, and some more.
_GRADIENTS_WITH_REMAT = 2.5


def num_read_depths(train_depths: Sequence[int]) -> int:
  """How many depths the heads read in an update: the deepest and, of several, one other."""
  return min(2, max(1, len(train_depths)))


def forward_flops_per_example(
  config: AlbertConfig,
  *,
  max_seq_length: int,
  max_predictions_per_seq: int = 0,
  sentence_loss: bool = True,
  train_depths: Sequence[int] = (),
) -> float:
  """Operations of the matrix products in one forward pass; a multiply and an add are two.

  [E ≠ H] 2 S E H  +  layers · inner · (8 S H² + 4 S² H + 4 S H F)
    +  depths · (2 H² + [P > 0] (P (2 H E + 2 E V) + 4 H))

  Without a sentence loss 2 H² of the pooler and 4 H of the head are left out.

  Sharing parameters saves none of them. Look-ups, LayerNorm, softmax and activations are left out,
  as is usual for model FLOPs. A step has `STEP_PER_FORWARD` times as many.

  Args:
    config: the architecture.
    max_seq_length, max_predictions_per_seq: S and P; P = 0 is an encoder without pretraining heads.
    sentence_loss: whether pretraining has one.
    train_depths: see `StepShape`; the layers run once.

  Reference: ALBERT, arXiv 1909.11942, section 3.1.
  """
  S = max_seq_length
  P = max_predictions_per_seq
  E = config.embedding_size
  H = config.hidden_size

  projections = 8 * S * H * H  # Query, key, value, output.
  attention = 4 * S * S * H  # Scores and context.
  feed_forward = 4 * S * H * config.intermediate_size
  blocks = config.num_hidden_layers * config.inner_group_num
  layers = blocks * (projections + attention + feed_forward)
  if E != H:
    layers += 2 * S * E * H  # From embedding to hidden size.
  heads = P * (2 * H * E + 2 * E * config.vocab_size)  # The masked-LM head.
  if sentence_loss:
    heads += 2 * H * H  # The pooler.
    if P:
      heads += 4 * H  # The sentence head: two classes.
  return float(layers + num_read_depths(train_depths) * heads)


def muon_matrices(config: AlbertConfig) -> list[tuple[int, int]]:
  """Rows and columns of each matrix that Muon updates: of `MUON_PATTERN` in `optim/muon.py`."""
  H = config.hidden_size
  F = config.intermediate_size
  attentions = {attention for attention, _ in config.owners}
  feed_forwards = {ffn for _, ffn in config.owners}
  return [(H, H)] * 4 * len(attentions) + [(H, F), (F, H)] * len(feed_forwards)


def muon_flops(config: AlbertConfig) -> float:
  """Operations of the matrix products in one update by Muon; a multiply and an add are two.

  Σ 5 (4 s² l + 2 s³)  over the matrices, with the sides s ≤ l

  Each round has X Xᵀ, its square, and their product with X. Every replica computes them once for an
  update, whatever the batch.

  Reference: `albert_tf.optim.muon.orthogonalized`.
  """
  flops = 0.0
  for matrix in muon_matrices(config):
    short, long = sorted(matrix)
    flops += NEWTON_SCHULZ_ROUNDS * (4 * short**2 * long + 2 * short**3)
  return flops


class StepShape(Settings):
  """Settings of one core's training step."""

  per_core_batch_size: int = setting(help="Examples of one micro-batch.", minimum=1)
  max_seq_length: int = setting(512, "Tokens of an example.", minimum=1)
  max_predictions_per_seq: int = setting(20, "Masked-LM predictions of an example.", minimum=1)
  gradient_accumulation_steps: int = setting(1, "Micro-batches of one step.", minimum=1)
  mixed_precision: Literal["bfloat16", "float32"] = setting("bfloat16", "Type of the activations.")
  optimizer: Literal["lamb", "adamw", "muon", "tfa_lamb"] = setting("lamb", "The optimizer.")
  remat: bool = setting(False, "Recompute activations in the backward pass.")
  layer_loop: Literal["unrolled", "while"] = setting("unrolled", "How the layers are repeated.")
  train_depths: tuple[int, ...] = setting((), "Numbers of layers that the heads read.")

  @property
  def examples(self) -> int:
    """Examples of one core's step, all micro-batches together."""
    return self.per_core_batch_size * self.gradient_accumulation_steps

  @property
  def read_positions(self) -> int:
    """Positions of an example that the heads read: [CLS] and the predictions."""
    return min(self.max_predictions_per_seq + 1, self.max_seq_length)


class _Arrays(NamedTuple):
  """Numbers in the arrays of one micro-batch."""

  weights: int  # Of the whole model.
  second_moments: int  # Weights that have one: not the matrices of Muon.
  blocks: int  # Layers, each as often as its inner group says.
  scores: int  # Of attention, in all blocks.
  rows: int  # Of a hidden or intermediate size for each position, in all blocks.
  logits: int


def _arrays(config: AlbertConfig, shape: StepShape) -> _Arrays:
  B = shape.per_core_batch_size
  S = shape.max_seq_length
  blocks = config.num_hidden_layers * config.inner_group_num
  # Of one example in all blocks. The last block is computed only where the heads read it.
  positions = (blocks - 1) * S + shape.read_positions
  predictions = shape.max_predictions_per_seq * num_read_depths(shape.train_depths)
  # Of a position: x, Q, K, V, context, two sums, one norm; intermediate before and after.
  row = 8 * config.hidden_size + 2 * config.intermediate_size
  weights = config.param_count(heads=HEADS)
  second_moments = weights
  if shape.optimizer == "muon":
    second_moments -= sum(rows * columns for rows, columns in muon_matrices(config))
  return _Arrays(
    weights=weights,
    second_moments=second_moments,
    blocks=blocks,
    scores=B * config.num_attention_heads * S * positions,
    rows=B * positions * row,
    logits=B * predictions * config.vocab_size,
  )


def memory(config: AlbertConfig, shape: StepShape, chip: Chip) -> int:
  """Bytes that one core's step needs.

  memory = 12 weights + batch        [arguments: weights and two moments, float32; see below]
    + item (max(scores, terms) + 0.65 rows + k logits)           [kept for the backward pass]
    + 4 weights                                                                   [gradients]

  The terms are those of the largest weight's gradient, H · F numbers a layer, in memory after the
  scores. k is a constant of the chip. Micro-batches hold gradients twice. With rematerialization a
  layer keeps only its input, one layer is complete in memory, and gradients take 10 weights. The
  matrices of Muon have one moment.
  """
  arrays = _arrays(config, shape)
  S = shape.max_seq_length
  H = config.hidden_size
  numbers_per_example = 3 * S + 3 * shape.max_predictions_per_seq + 1
  batch = shape.examples * numbers_per_example * _FLOAT32
  arguments = _FLOAT32 * (2 * arrays.weights + arrays.second_moments) + batch

  # Kept of the layers.
  scores: float = arrays.scores
  if config.attention_probs_dropout_prob:
    scores *= _SCORES_WITH_DROPOUT
  terms = arrays.blocks * H * config.intermediate_size
  layers = max(scores, terms) + _ROWS_KEPT * arrays.rows
  if shape.remat:
    inputs = shape.per_core_batch_size * S * H * arrays.blocks
    layers = inputs + layers / arrays.blocks

  # Gradients, in numbers a weight.
  gradients = 1.0
  if shape.remat:
    gradients = _GRADIENTS_WITH_REMAT
  if shape.gradient_accumulation_steps > 1:
    gradients += 1

  logits = chip.constants.logits * arrays.logits
  activations = _ITEM_BYTES[shape.mixed_precision] * (layers + logits)
  return int(arguments + (activations + _FLOAT32 * gradients * arrays.weights))


def cycles(config: AlbertConfig, shape: StepShape, chip: Chip) -> float:
  """Cycles of one core's step.

  cycles = micro-batches · (m matrix + vector + p spill / HBM) + u weights / HBM
  vector = s (scores + 0.25 rows + 3 logits) + d scores
  spill = full layers · max(0, bytes of a layer's scores - room) + max(0, bytes of logits - room)

  HBM is its speed in bytes a cycle. m, s, d, p, u and room are `Constants` of the chip; d counts
  only with dropout. Each of several micro-batches also takes 8 weights / HBM, for the sum of the
  gradients. With rematerialization the forward pass runs twice. Muon adds its products, at the
  chip's peak: the compiler's program of base takes 3% more for them on v3, and 3% less on v5e.
  """
  arrays = _arrays(config, shape)
  constants = chip.constants
  B = shape.per_core_batch_size
  S = shape.max_seq_length
  H = config.hidden_size
  passes = 1.0
  if shape.remat:
    passes += _REMAT_FORWARD

  # Matrix products. The last block has no query, output, attention and feed-forward at positions
  # that nothing reads.
  unread = S - shape.read_positions
  saved = unread * (4 * H * H + 4 * S * H + 4 * H * config.intermediate_size)
  flops = forward_flops_per_example(
    config,
    max_seq_length=S,
    max_predictions_per_seq=shape.max_predictions_per_seq,
    train_depths=shape.train_depths,
  )
  at_peak = passes * STEP_PER_FORWARD * B * (flops - saved) * chip.clock_hz / chip.peak_flops
  matrix = constants.matrix * at_peak

  # The vector unit, and bytes that find no room in the chip's own memory.
  vector = passes * (arrays.scores + _ROW_PASSES * arrays.rows) + _LOGIT_PASSES * arrays.logits
  vector *= constants.score
  if config.attention_probs_dropout_prob:
    vector += constants.dropout * passes * arrays.scores
  item_bytes = _ITEM_BYTES[shape.mixed_precision]
  layer_scores = item_bytes * B * config.num_attention_heads * S * S
  full_layers = passes * (arrays.blocks - 1)
  spill = full_layers * max(0, layer_scores - constants.room)
  spill += max(0, item_bytes * arrays.logits - constants.room)
  hbm_bytes = constants.transfers * spill
  if shape.gradient_accumulation_steps > 1:
    hbm_bytes += _SUM_BYTES * arrays.weights

  cycles_per_byte = chip.clock_hz / chip.hbm_bytes_per_second
  micro_batch = matrix + vector / 1000 + hbm_bytes * cycles_per_byte
  update = constants.update * arrays.weights * cycles_per_byte
  if shape.optimizer == "muon":
    update += muon_flops(config) * chip.clock_hz / chip.peak_flops
  return shape.gradient_accumulation_steps * micro_batch + update
