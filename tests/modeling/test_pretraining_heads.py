"""The masked-LM head's precision: its logits go into a float32 softmax."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.configs import AlbertConfig
from albert_tf.modeling import initialize_variables, named_variables
from albert_tf.modeling.pretraining import MaskedLmHead

B, P, V, E, H = 2, 3, 50, 24, 40
CONFIG = AlbertConfig.from_name("tiny", vocab_size=V, embedding_size=E, hidden_size=H)


def exact(x):
  return np.array(tf.cast(x, tf.float64))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_logits_are_not_rounded_to_16_bits(dtype):
  """Against float64 sums of the same 16-bit factors: rounded, they were off by up to 2^-9 of themselves."""
  head = MaskedLmHead(CONFIG, dtype=f"mixed_{dtype}")
  head.build()
  initialize_variables(named_variables(head), seed=1, initializer_range=0.5)
  rng = np.random.default_rng(0)
  hidden = tf.constant(rng.normal(size=(B, P, H)), dtype)
  table = tf.Variable(rng.normal(size=(V, E)), dtype=tf.float32)
  with tf.GradientTape() as tape:
    logits = head(hidden, None, table)
    loss = tf.reduce_sum(tf.sin(logits))
  assert logits.dtype == tf.float32
  factors = exact(tf.cast(head.layer_norm(head.transform(hidden)), dtype)), exact(tf.cast(table, dtype))
  want = np.einsum("bpe,ve->bpv", *factors)
  np.testing.assert_allclose(logits, want, atol=1e-5 * np.abs(want).max())
  gradient = np.einsum("bpv,bpe->ve", np.cos(want), factors[0])
  got = tape.gradient(loss, table)
  assert got.dtype == tf.float32
  np.testing.assert_allclose(got, gradient, atol=0.02 * np.abs(gradient).max())
