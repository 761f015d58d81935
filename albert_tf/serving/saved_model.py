"""What lies on disk: the versions of an export, and their signatures, read without loading them."""

from collections.abc import Mapping
import os
from typing import Any, NamedTuple

from google.protobuf import message
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from albert_tf import files
from albert_tf.errors import UserError

EXTRA_DIR = "assets.extra"  # Beside the graph: what it does not need.
INIT_SIGNATURE = "__saved_model_init_op"  # Not for clients.


class Signature(NamedTuple):
  """What clients can call: inputs and outputs by name, sorted."""

  inputs: Mapping[str, tf.TensorSpec]
  outputs: Mapping[str, tf.TensorSpec]


def read_signatures(directory: str) -> dict[str, Signature]:
  """The signatures of a SavedModel by name, sorted.

  Raises:
    UserError: there is no SavedModel, or none for serving.
  """
  path = os.path.join(directory, "saved_model.pb")
  try:
    proto = saved_model_pb2.SavedModel.FromString(files.read_bytes(path))
  except (OSError, ValueError, message.DecodeError) as error:
    raise UserError(
      f"A SavedModel is needed. Received: {directory}, whose saved_model.pb cannot be read ({error}). "
      "Make one with tpu_scripts/export_saved_model.py."
    ) from error
  for meta_graph in proto.meta_graphs:
    if "serve" in meta_graph.meta_info_def.tags:
      return {
        name: Signature(_specs(definition.inputs), _specs(definition.outputs))
        for name, definition in sorted(meta_graph.signature_def.items())
        if name != INIT_SIGNATURE
      }
  raise UserError(f"A SavedModel with the tag `serve` is needed. Received: {path}, which has none.")


def _specs(infos: Mapping[str, Any]) -> dict[str, tf.TensorSpec]:
  return {
    name: tf.TensorSpec(tf.TensorShape(info.tensor_shape), tf.as_dtype(info.dtype), name=name)
    for name, info in sorted(infos.items())
  }


def find_version(path: str) -> str:
  """The SavedModel at `path`, or the highest version in it."""
  path = files.abspath(path)
  if files.exists(os.path.join(path, "saved_model.pb")):
    return path
  versions = [
    name for name in files.listdir(path) if name.isdigit() and files.isdir(os.path.join(path, name))
  ]
  if not versions:
    raise UserError(
      f"A SavedModel or a folder of numbered versions is needed. Received: {path}, which is neither. "
      "Make one with tpu_scripts/export_saved_model.py."
    )
  return os.path.join(path, max(versions, key=int))
