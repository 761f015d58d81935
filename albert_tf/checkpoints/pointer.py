"""`checkpoints/best/checkpoint`: names the best checkpoint of a run, which lies one directory above."""

import os
import re

from albert_tf import files

_NAME = "checkpoint"
# TensorFlow's own format and name: `tf.train.latest_checkpoint("RUN/checkpoints/best")` reads it too. Only what
# points upwards is one of ours; the file beside a released checkpoint may name its author's machine.
_POINTER = re.compile(r'^model_checkpoint_path: "\.\./([^"/]+)"$', re.MULTILINE)


def write_pointer(directory: str, name: str) -> None:
  """Makes `directory` stand for the checkpoint `name` beside it, atomically.

  Args:
    directory: such as `RUN/checkpoints/best`; created if it is not there.
    name: such as "model.ckpt-8", in the directory above.
  """
  files.makedirs(directory)
  with files.atomic_writer(os.path.join(directory, _NAME), "w") as stream:
    stream.write(f'model_checkpoint_path: "../{name}"\n')


def read_pointer(directory: str) -> str | None:
  """Prefix of the checkpoint that `directory` stands for, whether it is still there or not; None without a pointer."""
  path = os.path.join(directory, _NAME)
  if not files.exists(path):
    return None
  found = _POINTER.search(files.read_bytes(path).decode("utf-8", "replace"))
  if not found:
    return None
  parent, own = os.path.split(directory.rstrip("/"))
  if own in ("", ".", ".."):
    parent = os.path.join(directory, "..")
  return os.path.join(parent or ".", found[1])
