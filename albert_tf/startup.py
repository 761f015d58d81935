"""Imports TensorFlow for a command, without start-up messages of native libraries. A leaf."""

from collections.abc import Iterator
import contextlib
import importlib
import os
import subprocess
import sys

from albert_tf import tpu_host

# Keras 3 imports these where they are installed, for wrappers and pictures that no command uses: a third of the time.
_LEFT_OUT = ("matplotlib", "sklearn")
# Prints its input unless that ends with a zero byte. It outlives a process that a native library aborts.
_SHOW_UNLESS_DONE = (
  "import sys; kept = sys.stdin.buffer.read(); kept.endswith(b'\\0') or sys.stderr.buffer.write(kept)"
)


@contextlib.contextmanager
def native_stderr_kept_back() -> Iterator[None]:
  """Holds output to file descriptor 2, and shows it only if the body fails or ends the process."""
  sys.stderr.flush()
  terminal = os.dup(2)
  shower = subprocess.Popen([sys.executable, "-ISc", _SHOW_UNLESS_DONE], stdin=subprocess.PIPE)
  assert shower.stdin is not None
  os.dup2(shower.stdin.fileno(), 2)
  shower.stdin.close()
  try:
    yield
    sys.stderr.flush()
    os.write(2, b"\0")
  finally:
    sys.stderr.flush()
    os.dup2(terminal, 2)  # The end of what the other process reads.
    os.close(terminal)
    shower.wait()


def load_tensorflow(tpu: str = "", *, reads_extents: bool = False) -> None:
  """Imports TensorFlow quietly; call it in a command's `main`, before any library import that needs it.

  With TF_CPP_MIN_LOG_LEVEL=0, set by the user, everything is shown.

  Args:
    tpu: the command's --tpu; raises `UserError` if it is this machine's TPU and cannot be used.
    reads_extents: whether parts of large files are read. Requests to a bucket are then for these bytes, and not for
      64 MiB (on TPUs 512 MiB). Settings of the user take precedence.
  """
  if reads_extents:
    os.environ.setdefault("GCS_READAHEAD_BUFFER_SIZE_BYTES", str(16 << 10))  # For small reads only.
    os.environ.setdefault("GCS_READ_CACHE_MAX_SIZE_MB", "0")  # It would round a read to whole blocks.
  if os.uname().machine == "x86_64":
    # TensorFlow's default on processors with AVX-512 VNNI; on one without, the demo's model trains twice as fast.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
  tpu_host.prepare_import(tpu)
  if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") == "0":
    importlib.import_module("keras")
    return
  with native_stderr_kept_back():
    left_out = [package for package in _LEFT_OUT if package not in sys.modules]
    sys.modules.update(dict.fromkeys(left_out))  # type: ignore[arg-type]  # Their import fails.
    import tensorflow as tf

    importlib.import_module("keras")  # TensorFlow may load it lazily.
    for package in left_out:
      del sys.modules[package]
    tf.get_logger().setLevel("ERROR")
    tf.config.list_physical_devices()  # The CUDA library speaks when it first looks for devices.
