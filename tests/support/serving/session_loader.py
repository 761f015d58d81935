"""Runs signatures of a SavedModel as servers do: Session loader, tensors by name, no code of this project."""

import tensorflow as tf
import tensorflow_text  # noqa: F401  Registers its ops, as servers link them.


class SessionModel:
  """A SavedModel in a Session."""

  def __init__(self, directory):
    self._session = tf.compat.v1.Session(graph=tf.Graph())
    with self._session.graph.as_default():
      self._meta_graph = tf.compat.v1.saved_model.load(self._session, ["serve"], directory)

  @property
  def signatures(self):
    """Signature name → SignatureDef."""
    return dict(self._meta_graph.signature_def)

  def run(self, signature, inputs):
    """Returns the signature's outputs for a mapping of arrays."""
    definition = self._meta_graph.signature_def[signature]
    if set(inputs) != set(definition.inputs):
      raise ValueError(f"{signature} takes {sorted(definition.inputs)}. Received: {sorted(inputs)}.")
    fetches = {name: tensor.name for name, tensor in definition.outputs.items()}
    feeds = {definition.inputs[name].name: array for name, array in inputs.items()}
    return self._session.run(fetches, feeds)
