"""Initial values as a function of (seed, variable name)."""

from collections.abc import Mapping
import zlib

import tensorflow as tf


def initialize_variables(
  variables: Mapping[str, tf.Variable], *, seed: int, initializer_range: float
) -> None:
  r"""Assigns the original's initial values, reproducibly.

  Kernels and tables: normal(0, `initializer_range`) cut at two deviations; biases and
  $\beta$: 0; $\gamma$: 1. Each value depends on the seed and the variable's name alone, so
  it is the same on both stacks, for any number of replicas and any order of creation.

  Args:
    variables: original checkpoint name → variable.
    seed: any integer.
    initializer_range: standard deviation, 0.02 in the paper's configurations.
  """
  for name, variable in variables.items():
    shape, leaf = variable.shape, name.rsplit("/", 1)[-1]
    if leaf == "gamma":
      value = tf.ones(shape)
    elif leaf == "beta" or leaf.endswith("bias"):
      value = tf.zeros(shape)
    else:
      key = tf.constant([seed % 2**31, zlib.crc32(name.encode()) % 2**31], tf.int32)
      value = tf.random.stateless_truncated_normal(shape, seed=key, stddev=initializer_range, alg="philox")
    variable.assign(tf.cast(value, variable.dtype))
