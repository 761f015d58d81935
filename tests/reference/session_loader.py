"""Runs one signature of a SavedModel as servers do: Session loader, tensors by name, no code of this project.

As a program: `python session_loader.py DIRECTORY SIGNATURE INPUTS.npz OUTPUTS.npz`.
"""

import sys

import numpy as np
import tensorflow as tf


def run_signature(directory, signature, inputs):
  """Returns the signature's outputs for a mapping of arrays."""
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], directory)
    definition = meta_graph.signature_def[signature]
    if set(inputs) != set(definition.inputs):
      raise ValueError(f"{signature} takes {sorted(definition.inputs)}. Received: {sorted(inputs)}.")
    fetches = {name: tensor.name for name, tensor in definition.outputs.items()}
    return session.run(fetches, {definition.inputs[name].name: array for name, array in inputs.items()})


if __name__ == "__main__":
  _, directory, signature, inputs_path, outputs_path = sys.argv
  with np.load(inputs_path, allow_pickle=True) as arrays:
    outputs = run_signature(directory, signature, dict(arrays))
  np.savez(outputs_path, **outputs)
