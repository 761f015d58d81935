"""A SavedModel as TensorFlow Serving loads it: the local server, the checks and commands use it.

`check.py` runs it without this project, so the top of the file imports only NumPy and TensorFlow.
"""

import os

import numpy as np
import tensorflow as tf

Arrays = dict[str, np.ndarray]


def find_version(path: str) -> str:
  """The SavedModel at `path`, or the highest version in it."""
  from albert_tf import errors, files

  path = files.abspath(path)
  if files.exists(os.path.join(path, "saved_model.pb")):
    return path
  versions = [
    name for name in files.listdir(path) if name.isdigit() and files.isdir(os.path.join(path, name))
  ]
  if not versions:
    raise errors.UserError(
      "A SavedModel or a folder of numbered versions is needed. "
      f"Received: {path}, which is neither. Make one with tpu_scripts/export_saved_model.py."
    )
  return os.path.join(path, max(versions, key=int))


class LoadedModel:
  """A SavedModel in a Session; `signatures` are its SignatureDefs by name."""

  def __init__(self, directory: str):
    import tensorflow_text  # noqa: F401  Registers its ops, as servers link them.

    self.directory = directory
    self._session = tf.compat.v1.Session(graph=tf.Graph())
    with self._session.graph.as_default():
      graph = tf.compat.v1.saved_model.load(self._session, ["serve"], directory)
    # TensorFlow's own, such as the one that initialises tables, begin with "__".
    self.signatures = {
      name: definition
      for name, definition in sorted(graph.signature_def.items())
      if not name.startswith("__")
    }

  def run(self, signature: str, inputs: Arrays) -> Arrays:
    """The outputs by name; strings are object arrays of bytes. An input may have a default."""
    definition = self.signatures[signature]
    defaults = {name: tf.make_ndarray(proto) for name, proto in definition.defaults.items()}
    inputs = defaults | dict(inputs)
    fetches = {name: info.name for name, info in definition.outputs.items()}
    feeds = {definition.inputs[name].name: array for name, array in inputs.items()}
    return self._session.run(fetches, feeds)
