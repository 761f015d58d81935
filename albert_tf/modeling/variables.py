"""Names of a model's variables in the original checkpoints, and their initial values."""

from collections.abc import Mapping
from typing import Any
import zlib

import numpy as np
import tensorflow as tf

from albert_tf.compat import raw_variable


def named_variables(model: Any) -> dict[str, tf.Variable]:
  """Maps the original release's names to the `tf.Variable`s of a model.

  Each layer has its names in `checkpoint_items()`. A bare encoder gets the prefix
  `bert/`, so that the names match a pretraining checkpoint.

  Args:
    model: a model or layer of this package.

  Returns:
    Every weight once, in a fixed order, without Keras' wrappers.

  Raises:
    ValueError: a trainable weight has no name, or two have the same.
  """
  names: dict[str, tf.Variable] = {}

  def walk(prefix: str, item: Any) -> None:
    if not hasattr(item, "checkpoint_items"):
      if prefix in names:
        raise ValueError(
          f"Two variables must not share a checkpoint name. Received twice: {prefix}."
        )
      names[prefix] = raw_variable(item)
      return
    for name, child in item.checkpoint_items().items():
      walk(f"{prefix}/{name}".removeprefix("/"), child)  # A model may have no prefix.

  walk(getattr(model, "checkpoint_prefix", ""), model)
  # By identity: variables are neither hashed nor compared by value.
  trainable = {id(raw_variable(variable)) for variable in model.trainable_variables}
  unnamed = trainable - {id(variable) for variable in names.values()}
  if unnamed:
    raise ValueError(
      "checkpoint_items() must name every trainable weight. "
      f"Unnamed: {len(unnamed)} of {model.name}."
    )
  return names


def initialize_variables(
  variables: Mapping[str, tf.Variable], *, seed: int, initializer_range: float
) -> None:
  r"""Assigns initial values, as in the original, by a seed.

  Kernels and tables: normal(0, `initializer_range`) cut at two deviations; biases and
  $\beta$: 0; $\gamma$: 1. Each value depends only on the seed and the variable's name, and so
  is equal on all stacks, for any number of replicas and any order of creation.

  Args:
    variables: original checkpoint name → variable.
    seed: any integer.
    initializer_range: standard deviation, 0.02 in the paper's configurations.
  """
  for name, variable in variables.items():
    shape = variable.shape
    leaf = name.rsplit("/", 1)[-1]
    if leaf == "gamma":
      value = tf.ones(shape)
    elif leaf == "beta" or leaf.endswith("bias"):
      value = tf.zeros(shape)
    else:
      # Not `hash`, which differs from process to process. "philox" is the same on all devices.
      name_hash = zlib.crc32(name.encode())
      key = tf.constant([seed % 2**31, name_hash % 2**31], tf.int32)
      value = tf.random.stateless_truncated_normal(
        shape, seed=key, stddev=initializer_range, alg="philox"
      )
    variable.assign(tf.cast(value, variable.dtype))


def merged_values(variables: Mapping[str, tf.Variable]) -> dict[str, np.ndarray]:
  """The values of an equal model without low-rank parts, by checkpoint name: $W + A B$ replaces $W$.

  Args:
    variables: result of `named_variables`, with low-rank parts or without.

  Reference: arXiv 2106.09685, section 4.1, "No Additional Inference Latency".
  """
  # First all other values, then the sums: a layer's kernel may come after its low-rank parts.
  values = {}
  for name, variable in variables.items():
    if not name.endswith(("/lora_a", "/lora_b")):
      values[name] = variable.numpy()
  for name, variable in variables.items():
    if name.endswith("/lora_a"):
      layer = name.removesuffix("/lora_a")
      b = variables[f"{layer}/lora_b"].numpy()
      values[f"{layer}/kernel"] = values[f"{layer}/kernel"] + variable.numpy() @ b
  return values
