"""Floating-point operations of a pretraining example, by formula; nothing is built.

The planner (`estimate`, `plan`) uses them, and run_pretrain.py for the utilization of the devices.
"""

from albert_tf.configs import AlbertConfig

# A training step has this many times the products of a forward pass: each has two more backward.
STEP_PER_FORWARD = 3


def forward_flops_per_example(
  config: AlbertConfig,
  *,
  max_seq_length: int,
  max_predictions_per_seq: int = 0,
  sentence_loss: bool = True,
) -> float:
  """Operations of the matrix products in one forward pass; a multiply and an add are two.

  [E ≠ H] 2 S E H  +  layers · inner · (8 S H² + 4 S² H + 4 S H F)  +  2 H²
    +  [P > 0] (P (2 H E + 2 E V) + 4 H)

  Without a sentence loss 2 H² of the pooler and 4 H of the head are left out.

  Sharing parameters saves none of them. Look-ups, LayerNorm, softmax and activations are left out,
  as is usual for model FLOPs. A step has `STEP_PER_FORWARD` times as many.

  Args:
    config: the architecture.
    max_seq_length, max_predictions_per_seq: S and P; P = 0 is an encoder without pretraining heads.
    sentence_loss: whether pretraining has one.

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
  total = blocks * (projections + attention + feed_forward)
  total += P * (2 * H * E + 2 * E * config.vocab_size)  # The masked-LM head.
  if E != H:
    total += 2 * S * E * H  # From embedding to hidden size.
  if sentence_loss:
    total += 2 * H * H  # The pooler.
    if P:
      total += 4 * H  # The sentence head: two classes.
  return float(total)
