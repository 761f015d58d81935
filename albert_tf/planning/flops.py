"""Floating-point operations of a pretraining example, by formula; nothing is built."""

from albert_tf.configs import AlbertConfig

TRAINING = 3  # Each product has two more in the backward pass.


def forward_flops_per_example(
  config: AlbertConfig, *, max_seq_length: int, max_predictions_per_seq: int = 0, sentence_loss: bool = True
) -> float:
  """Operations of the matrix products in one forward pass; a multiply and an add are two. A step has `TRAINING` times.

  [E ≠ H] 2 S E H  +  layers · inner · (8 S H² + 4 S² H + 4 S H F)  +  2 H²
    +  [P > 0] (P (2 H E + 2 E V) + 4 H)

  Without a sentence loss 2 H² of the pooler and 4 H of the head are left out.

  Sharing parameters saves none of them. Look-ups, LayerNorm, softmax and activations are left out, as is
  usual for model FLOPs.

  Args:
    config: the architecture.
    max_seq_length, max_predictions_per_seq: S and P; P = 0 is an encoder without pretraining heads.
    sentence_loss: whether pretraining has one.

  Reference: ALBERT, arXiv 1909.11942, section 3.1.
  """
  S, P, V = max_seq_length, max_predictions_per_seq, config.vocab_size
  E, H, F = config.embedding_size, config.hidden_size, config.intermediate_size
  mapping = 2 * S * E * H if E != H else 0
  projections = 8 * S * H * H  # Query, key, value, output.
  attention = 4 * S * S * H  # Scores and context.
  feed_forward = 4 * S * H * F
  blocks = config.num_hidden_layers * config.inner_group_num
  pooler = 2 * H * H if sentence_loss else 0
  masked_lm_head = P * (2 * H * E + 2 * E * V)
  sentence_head = 4 * H if P and sentence_loss else 0
  layers = blocks * (projections + attention + feed_forward)
  return float(mapping + layers + pooler + masked_lm_head + sentence_head)
