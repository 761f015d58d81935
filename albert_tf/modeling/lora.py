"""Low-rank additions to kernels, added to the kernels they belong to."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

_PARTS = ("/lora_a", "/lora_b")


def merged_values(variables: Mapping[str, tf.Variable]) -> dict[str, np.ndarray]:
  """The values of a model that computes the same without low-rank parts, by checkpoint name: $W + A B$ for $W$.

  Args:
    variables: of `named_variables`, with such parts or without.

  Reference: arXiv 2106.09685, section 4.1, "No Additional Inference Latency".
  """
  values = {name: variable.numpy() for name, variable in variables.items() if not name.endswith(_PARTS)}
  for name in variables:
    if name.endswith(_PARTS[0]):
      layer = name.removesuffix(_PARTS[0])
      a, b = (variables[layer + part].numpy() for part in _PARTS)
      values[f"{layer}/kernel"] = values[f"{layer}/kernel"] + a @ b
  return values
