"""TensorFlow bundles: `PREFIX.index` and `PREFIX.data-…`.

TF1 checkpoints, the variables of SavedModels and this project's checkpoints are bundles. Functions
read and write them, and find the bundle of a directory.
"""

from collections.abc import Iterator, Mapping
import contextlib
import os
import re
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from albert_tf import files
from albert_tf.compat import on_coordinator
from albert_tf.errors import UserError

Arrays = dict[str, np.ndarray]  # By the name of the variable.

# Names of a run's state that is not a variable of the model.
HOST_PREFIX = "albert_tf/"
# A `.meta` is the graph of a TF1 checkpoint, which is not read.
_SUFFIX = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
# The data file first: a checkpoint with an index is complete, even if the process is killed.
_WRITTEN_SUFFIXES = (".data-00000-of-00001", ".index")
# In object-based bundles: the graph of Python objects, and how the keys of their variables end.
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_OBJECT_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


def strip_suffix(path: str) -> str:
  """The prefix of a bundle, such as `model.ckpt-10` for `model.ckpt-10.index`."""
  return _SUFFIX.sub("", path)


def read_bundle(prefix: str) -> Arrays:
  """Reads every tensor of a bundle, by name.

  Object-based bundles (of `tf.train.Checkpoint` and `tf.saved_model.save`) are read with the
  variables' own names.

  Raises:
    UserError: the bundle is incomplete or damaged.
  """
  try:
    with _local_bundle(prefix) as local_prefix:
      reader = tf.train.load_checkpoint(local_prefix)
      keys = sorted(reader.get_variable_to_shape_map())
      names = {}
      if _OBJECT_GRAPH in keys:
        keys.remove(_OBJECT_GRAPH)
        names = _object_names(reader.get_tensor(_OBJECT_GRAPH))
      return {names.get(key, key): reader.get_tensor(key) for key in keys}
  except files.StoreError:
    raise
  except (OSError, tf.errors.OpError, RuntimeError, ValueError, IndexError) as error:
    # The reader raises plain RuntimeError or ValueError for some damages.
    raise UserError(
      "A checkpoint must be complete: PREFIX.index and every PREFIX.data file, undamaged. "
      f"Received: {prefix} ({_reason(error)}). Copy it again, or take another checkpoint."
    ) from error


@contextlib.contextmanager
def _local_bundle(prefix: str) -> Iterator[str]:
  """The prefix on this machine, of a copy if it is in a bucket.

  From there the reader would fetch 64 MiB for every tensor.
  """
  directory, name = os.path.split(prefix)
  with files.staging_folder(prefix) as folder:
    if files.is_remote(prefix):
      for file_name in files.listdir(directory):
        if strip_suffix(file_name) == name:
          files.copy(os.path.join(directory, file_name), os.path.join(folder, file_name))
    yield os.path.join(folder, name)


def _object_names(serialized: bytes) -> dict[str, str]:
  """Checkpoint key → the variable's own name, from the object graph.

  The key "all/0/.ATTRIBUTES/VARIABLE_VALUE" may be of the variable "bert/pooler/dense/kernel".
  """
  graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(serialized)
  names = {}
  for node in graph.nodes:
    for attribute in node.attributes:
      if attribute.full_name and attribute.checkpoint_key.endswith(_OBJECT_SUFFIX):
        names[attribute.checkpoint_key] = attribute.full_name
  if len(set(names.values())) < len(names):
    return {}  # The names are not unique; only the keys are.
  return names


def _reason(error: Exception) -> str:
  """The first line of an error; TensorFlow's own has the operation's name in its text."""
  return str(getattr(error, "message", None) or error).splitlines()[0]


def check_finite(tensors: Mapping[str, Any], source: str) -> None:
  """Raises `UserError` if a weight, or its state in an optimizer, is NaN or infinite.

  Args:
    tensors: name → array; whole numbers are left out.
    source: what holds them, for the message.
  """
  for name, tensor in tensors.items():
    array = np.asarray(tensor)
    # NumPy alone does not count bfloat16 among the floats.
    if tf.as_dtype(array.dtype).is_floating and not np.isfinite(array).all():
      raise UserError(
        f"Weights must be finite. Received: {source}, where {name} holds NaN or infinity. "
        "Take an earlier checkpoint, or train again with a lower learning rate."
      )


def write_bundle(prefix: str, variables: Mapping[str, Any]) -> None:
  """Writes a bundle of one data file, atomically; no model or session is needed.

  Args:
    prefix: path without suffix; its directory must exist.
    variables: name → array, saved with exactly these names and dtypes.

  Raises:
    UserError: a variable is not finite, or the files cannot be written; no partial files remain.
  """
  check_finite(variables, prefix)
  names = sorted(variables)
  with files.staging_folder(prefix) as folder:
    temporary = files.temporary_name(os.path.join(folder, os.path.basename(prefix)))
    try:
      with on_coordinator():
        tf.raw_ops.SaveV2(
          prefix=temporary,
          tensor_names=names,
          shape_and_slices=[""] * len(names),
          tensors=[tf.constant(variables[name]) for name in names],
        )
      for suffix in _WRITTEN_SUFFIXES:
        files.move_into_place(temporary + suffix, prefix + suffix)
    except files.StoreError:
      raise
    except (tf.errors.OpError, OSError) as error:
      raise UserError(
        f"A checkpoint must be complete. Received: {prefix} ({_reason(error)}). "
        "Free disk space or correct the permissions; earlier checkpoints are untouched."
      ) from error
    finally:
      # What a failure left; TensorFlow has suffixes of its own for incomplete files.
      for file_name in files.listdir(folder):
        if file_name.startswith(os.path.basename(temporary)):
          files.remove(os.path.join(folder, file_name))


def checkpoint_steps(directory: str) -> list[int]:
  """Steps of the complete checkpoints `model.ckpt-STEP` in `directory`, ascending."""
  steps = []
  for name in files.listdir(directory):
    match = re.fullmatch(r"model\.ckpt-(\d+)\.index", name)
    if match:
      steps.append(int(match[1]))
  return sorted(steps)


def latest_checkpoint(directory: str) -> str | None:
  """Prefix of the complete checkpoint with the highest step; None if there is none."""
  steps = checkpoint_steps(directory)
  if not steps:
    return None
  return os.path.join(directory, f"model.ckpt-{steps[-1]}")


def latest_bundle(directory: str) -> str | None:
  """The bundle `model.ckpt-best`, else the one of the highest step, else the only one.

  Raises:
    UserError: there are several without steps.
  """
  best = os.path.join(directory, "model.ckpt-best")
  if files.exists(f"{best}.index"):
    return best
  latest = latest_checkpoint(directory)
  if latest is not None:
    return latest

  # A killed process may leave an index under its temporary name, without data.
  prefixes = []
  for name in files.listdir(directory):
    prefix = name.removesuffix(".index")
    if prefix != name and not files.is_temporary(prefix):
      prefixes.append(os.path.join(directory, prefix))
  if len(prefixes) > 1:
    names = ", ".join(os.path.basename(prefix) for prefix in prefixes)
    raise UserError(
      f"Of several checkpoints one must be named. Received: {directory} with {names}. "
      f"Give one prefix, for example {prefixes[0]}."
    )
  if not prefixes:
    return None
  return prefixes[0]
