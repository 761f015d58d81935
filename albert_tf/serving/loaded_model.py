"""A SavedModel as TensorFlow Serving loads it: the local server, the checks and commands use it.

`check.py` runs `LoadedModel` without this project, so the top of the file imports only NumPy and
TensorFlow.
"""

import os

import numpy as np
import tensorflow as tf

Arrays = dict[str, np.ndarray]
_GRAPH = "saved_model.pb"  # The file by which servers find a version.


def find_version(path: str) -> str:
  """The SavedModel at `path`, or the highest version in it; empty folders are no versions."""
  from absl import logging

  from albert_tf import errors, files

  path = files.abspath(path)
  if files.exists(os.path.join(path, _GRAPH)):
    return path
  numbers = [name for name in files.listdir(path) if name.isdigit()]
  # The highest first.
  for number in sorted(numbers, key=int, reverse=True):
    version = os.path.join(path, number)
    if files.listdir(version):
      return version
    if files.isdir(version):
      logging.warning("%s is left out: it is empty, and no version of a model", version)
  raise errors.UserError(
    "A SavedModel or a folder of numbered versions is needed. "
    f"Received: {path}, which is neither. Make one with tpu_scripts/export_saved_model.py."
  )


def open_version(path: str) -> "LoadedModel":
  """Loads the SavedModel at `path`, or the highest version in it.

  Raises:
    UserError: there is none, or it does not load.
  """
  from albert_tf import errors

  directory = find_version(path)
  try:
    return LoadedModel(directory)
  # TensorFlow's loader has no error of its own for what is missing or damaged.
  except (tf.errors.OpError, OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
    raise errors.UserError(
      f"A SavedModel must be complete and undamaged. Received: {directory} "
      f"({message_of(error)}). Copy it again, export it again with "
      "tpu_scripts/export_saved_model.py, or name another version's folder."
    ) from error


def message_of(error: Exception) -> str:
  """An error's own words, without TensorFlow's headline and the names of ops of the graph."""
  text = str(getattr(error, "message", error))
  lines = [line for line in text.splitlines() if line.strip() and "[[" not in line]
  words = "\n".join(line for line in lines if line != "Graph execution error:")
  return words or type(error).__name__


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
