"""Names of a model's variables in the original checkpoints, and their initial values."""

from collections.abc import Mapping
from typing import Any
import zlib

import tensorflow as tf

from albert_tf.compat import raw_variable
from albert_tf.modeling.name_map import variable_entries


def named_variables(model: Any) -> dict[str, tf.Variable]:
  """Maps the original release's names to the `tf.Variable`s of a model.

  A bare encoder has the names of a pretraining checkpoint, which begin with `bert/`.

  Args:
    model: a model of this package.

  Returns:
    Every weight once, in the order of `name_map`, without Keras' wrappers.

  Raises:
    ValueError: a trainable weight has no name.
  """
  root = model
  if not hasattr(model, "encoder"):
    root = {"encoder": model}
  variables = {}
  for entry in variable_entries(model.config, model.checkpoint_heads):
    path, _, attribute = entry.attribute.rpartition(".")
    layer = _look_up(root, path)
    variables[entry.name] = raw_variable(getattr(layer, attribute))

  # By identity: variables are neither hashed nor compared by value.
  named = {id(variable) for variable in variables.values()}
  unnamed = [
    variable for variable in model.trainable_variables if id(raw_variable(variable)) not in named
  ]
  if unnamed:
    raise ValueError(
      f"name_map must name every trainable weight. Unnamed: {len(unnamed)} of {model.name}."
    )
  return variables


def _look_up(item: Any, path: str) -> Any:
  """What a path names: "encoder.pooler" is the attribute or key `pooler` of `encoder`."""
  for name in path.split("."):
    if isinstance(item, Mapping):
      item = item[name]
    else:
      item = getattr(item, name)
  return item


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
