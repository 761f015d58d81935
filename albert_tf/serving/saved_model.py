"""Which version of an export is meant."""

import os

from albert_tf import files
from albert_tf.errors import UserError


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
