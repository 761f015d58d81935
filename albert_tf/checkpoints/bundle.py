"""TensorFlow bundles (`*.index`, `*.data-…`): TF1 checkpoints, SavedModel variables, this project's checkpoints.

Functions read and write them, and find the bundle of a directory.
"""

from collections.abc import Iterator, Mapping
import contextlib
import os
import re
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2
from tensorflow.python.eager import context

from albert_tf import files
from albert_tf.errors import UserError

HOST_PREFIX = "albert_tf/"  # Names of a run's state that is not a variable of the model.
_SUFFIX = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
_DATA_SUFFIX = ".data-00000-of-00001"
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_OBJECT_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


def strip_suffix(path: str) -> str:
  """The prefix of a bundle, such as `model.ckpt-10` for `model.ckpt-10.index`."""
  return _SUFFIX.sub("", path)


def read_bundle(prefix: str) -> dict[str, np.ndarray]:
  """Reads every tensor of a bundle, by name.

  Object-based bundles (of `tf.train.Checkpoint` and `tf.saved_model.save`) are read with the
  variables' own names.

  Raises:
    UserError: the bundle is incomplete or damaged.
  """
  try:
    with _local_bundle(prefix) as local:
      reader = tf.train.load_checkpoint(local)
      keys = sorted(reader.get_variable_to_shape_map())
      names = _object_names(reader.get_tensor(_OBJECT_GRAPH)) if _OBJECT_GRAPH in keys else {}
      return {names.get(key, key): reader.get_tensor(key) for key in keys if key != _OBJECT_GRAPH}
  except files.StoreError:
    raise
  except (OSError, tf.errors.OpError, RuntimeError, ValueError, IndexError) as error:
    # The reader raises plain RuntimeError or ValueError for some damages.
    reason = str(getattr(error, "message", None) or error).splitlines()[0]
    raise UserError(
      "A checkpoint must be complete: PREFIX.index and every PREFIX.data file, undamaged. "
      f"Received: {prefix} ({reason}). Copy it again, or take another checkpoint."
    ) from error


@contextlib.contextmanager
def _local_bundle(prefix: str) -> Iterator[str]:
  """The prefix of a copy on this machine: from a bucket the reader would fetch 64 MiB for every tensor."""
  if not files.is_remote(prefix):
    yield prefix
    return
  folder, name = os.path.split(prefix)
  with tempfile.TemporaryDirectory() as local:
    for each in files.listdir(folder):
      if strip_suffix(each) == name:
        files.copy(os.path.join(folder, each), os.path.join(local, each))
    yield os.path.join(local, name)


def check_finite(tensors: Mapping[str, Any], source: str) -> None:
  """Raises `UserError` if a weight, or its state in an optimizer, is NaN or infinite.

  Args:
    tensors: name → array; whole numbers are left out.
    source: what holds them, for the message.
  """
  for name, tensor in tensors.items():
    array = np.asarray(tensor)
    if tf.as_dtype(array.dtype).is_floating and not np.isfinite(array).all():
      raise UserError(
        f"Weights must be finite. Received: {source}, where {name} holds NaN or infinity. "
        "Take an earlier checkpoint, or train again with a lower learning rate."
      )


def write_bundle(prefix: str, variables: Mapping[str, Any]) -> None:
  """Writes `PREFIX.index` and `PREFIX.data-00000-of-00001`, atomically; no model or session is needed.

  The data file is renamed before the index file, so that a checkpoint with an index is
  complete, even if the process is killed.

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
      with tf.device(coordinator_cpu()):
        tf.raw_ops.SaveV2(
          prefix=temporary,
          tensor_names=names,
          shape_and_slices=[""] * len(names),
          tensors=[tf.constant(variables[name]) for name in names],
        )
      for suffix in (_DATA_SUFFIX, ".index"):
        files.move_into_place(temporary + suffix, prefix + suffix)
    except files.StoreError:
      raise
    except (tf.errors.OpError, OSError) as error:
      reason = str(getattr(error, "message", None) or error).splitlines()[0]
      raise UserError(
        f"A checkpoint must be complete. Received: {prefix} ({reason}). Free disk space or correct the "
        "permissions; earlier checkpoints are untouched."
      ) from error
    finally:
      for left in files.listdir(folder):
        if left.startswith(os.path.basename(temporary)):
          files.remove(os.path.join(folder, left))


def coordinator_cpu() -> str:
  """The CPU of this process. With a slice of TPU hosts, "/cpu:0" is the CPU of the first host."""
  return f"{context.context().host_address_space()}/device:CPU:0"


def _object_names(serialized: bytes) -> dict[str, str]:
  """Checkpoint key → the variable's own name, from the object graph."""
  graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(serialized)
  names = {}
  for node in graph.nodes:
    for attribute in node.attributes:
      if attribute.full_name and attribute.checkpoint_key.endswith(_OBJECT_SUFFIX):
        names[attribute.checkpoint_key] = attribute.full_name
  return names if len(set(names.values())) == len(names) else {}


def checkpoint_steps(directory: str) -> list[int]:
  """Steps of the complete checkpoints `model.ckpt-STEP` in `directory`, ascending."""
  matches = (re.fullmatch(r"model\.ckpt-(\d+)\.index", name) for name in files.listdir(directory))
  return sorted(int(match[1]) for match in matches if match)


def latest_checkpoint(directory: str) -> str | None:
  """Prefix of the complete checkpoint with the highest step in `directory`; None if there is none."""
  steps = checkpoint_steps(directory)
  return os.path.join(directory, f"model.ckpt-{steps[-1]}") if steps else None


def latest_bundle(directory: str) -> str | None:
  """The bundle `model.ckpt-best` in a directory, else that with the highest step, else the only one."""
  best = os.path.join(directory, "model.ckpt-best")
  if files.exists(f"{best}.index"):
    return best
  latest = latest_checkpoint(directory)
  if latest is not None:
    return latest
  # A killed process may leave an index under its temporary name, without data.
  names = [name for name in files.listdir(directory) if name.endswith(".index")]
  prefixes = [prefix for prefix in map(strip_suffix, names) if not files.is_temporary(prefix)]
  if len(prefixes) > 1:
    raise UserError(
      f"Of several checkpoints one must be named. Received: {directory} with "
      f"{', '.join(prefixes)}. Give one prefix, for example {os.path.join(directory, prefixes[0])}."
    )
  return os.path.join(directory, prefixes[0]) if prefixes else None


def find_bundle(path: str) -> str | None:
  """The bundle in `checkpoints/best`, in `checkpoints`, or in the directory itself."""
  folders = (os.path.join(path, "checkpoints", "best"), os.path.join(path, "checkpoints"), path)
  return next((found for folder in folders if (found := latest_bundle(folder)) is not None), None)
