"""Imports TensorFlow for a command, without start-up messages of native libraries."""

import importlib
import os
import sys

from albert_tf import tpu_host
from albert_tf.progress import native_stderr_kept_back

# Keras 3 imports these where they are installed, for wrappers and pictures that no command uses: a
# third of the time.
_LEFT_OUT = ("matplotlib", "sklearn")


def load_tensorflow(tpu: str = "", *, reads_extents: bool = False) -> None:
  """Imports TensorFlow quietly; call it in `main`, before any library import that needs it.

  With TF_CPP_MIN_LOG_LEVEL=0, set by the user, everything is shown.

  Args:
    tpu: the command's --tpu; raises `UserError` if it is this machine's TPU and cannot be used.
    reads_extents: whether parts of large files are read. Requests to a bucket are then for these
      bytes, and not for 64 MiB (on TPUs 512 MiB). Settings of the user take precedence.
  """
  if reads_extents:
    # Reading ahead helps small reads only, and the cache would round a read to whole blocks.
    os.environ.setdefault("GCS_READAHEAD_BUFFER_SIZE_BYTES", str(16 << 10))
    os.environ.setdefault("GCS_READ_CACHE_MAX_SIZE_MB", "0")
  if os.uname().machine == "x86_64":
    # TensorFlow's default on processors with AVX-512 VNNI. On one without, the demo's model trains
    # twice as fast.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
  tpu_host.prepare_import(tpu)
  if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") == "0":
    importlib.import_module("keras")
    return

  with native_stderr_kept_back():
    left_out = [package for package in _LEFT_OUT if package not in sys.modules]
    # An import of a module that is None fails.
    sys.modules.update(dict.fromkeys(left_out))  # type: ignore[arg-type]
    import tensorflow as tf

    # TensorFlow may load it lazily.
    importlib.import_module("keras")
    for package in left_out:
      del sys.modules[package]
    tf.get_logger().setLevel("ERROR")
    # The CUDA library speaks when it first looks for devices.
    tf.config.list_physical_devices()
