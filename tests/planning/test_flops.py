"""FLOPs by formula against a count of every matrix product."""

from albert_tf.configs import AlbertConfig
from albert_tf.planning.flops import forward_flops_per_example


def small_config(**changes):
  sizes = {"vocab_size": 11, "embedding_size": 4, "hidden_size": 6, "num_hidden_layers": 3,
           "num_attention_heads": 2, "intermediate_size": 10}  # fmt: skip
  return AlbertConfig(**(sizes | changes))


def test_counts_every_matrix_product():
  """Each product counted as 2 · rows · inner · columns."""
  S, E, H, F, N, D, V, P = 5, 4, 6, 10, 2, 3, 11, 2
  layer = 4 * (2 * S * H * H) + N * (2 * S * D * S) + N * (2 * S * S * D) + 2 * S * H * F + 2 * S * F * H
  encoder = 2 * S * E * H + 3 * layer + 2 * H * H
  heads = 2 * P * H * E + 2 * P * E * V + 2 * H * 2
  assert forward_flops_per_example(small_config(), max_seq_length=S) == encoder
  got = forward_flops_per_example(small_config(), max_seq_length=S, max_predictions_per_seq=P)
  assert got == encoder + heads
  off = forward_flops_per_example(
    small_config(), max_seq_length=S, max_predictions_per_seq=P, sentence_loss=False
  )
  assert off == got - 2 * H * H - 2 * H * 2  # Pooler and sentence head.
