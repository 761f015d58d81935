"""Loads TensorFlow for a command, with the native libraries' start-up chatter kept back.

A leaf. TensorFlow 2.21 prints several lines about oneDNN and CUDA before any logging
setting applies; a person waiting for a command's own words should not have to read them.
"""

from collections.abc import Iterator
import contextlib
import importlib
import os
import sys
import tempfile

from albert_tf import tpu_host

# Keras 3 imports these where they are installed, for wrappers and pictures that no command uses: a third of the time.
_LEFT_OUT = ("matplotlib", "sklearn")


@contextlib.contextmanager
def native_stderr_kept_back() -> Iterator[None]:
  """Sends file descriptor 2 to a temporary file; shows that file only if the body fails."""
  sys.stderr.flush()
  try:
    terminal = os.dup(2)
  except OSError:  # No standard error to keep back.
    yield
    return
  with tempfile.TemporaryFile() as kept:
    os.dup2(kept.fileno(), 2)
    try:
      yield
    except BaseException:
      os.dup2(terminal, 2)
      kept.seek(0)
      os.write(2, kept.read())
      raise
    finally:
      sys.stderr.flush()
      os.dup2(terminal, 2)
      os.close(terminal)


@contextlib.contextmanager
def _left_out(*packages: str) -> Iterator[None]:
  """Importing these fails in the body, as if they were not installed; behind it, it does not."""
  kept_out = [package for package in packages if package not in sys.modules]
  sys.modules.update(dict.fromkeys(kept_out))  # type: ignore[arg-type]
  try:
    yield
  finally:
    for package in kept_out:
      del sys.modules[package]


def read_buckets_in_extents() -> None:
  """Makes TensorFlow ask a bucket for the bytes that are read, and not for the 64 MiB (on TPUs 512) behind them.

  For commands that read extents of many large files; call it before `load_tensorflow`. What the user has set wins.
  """
  os.environ.setdefault("GCS_READAHEAD_BUFFER_SIZE_BYTES", str(16 << 10))  # For small reads only.
  os.environ.setdefault("GCS_READ_CACHE_MAX_SIZE_MB", "0")  # It would round a read to whole blocks.


def load_tensorflow(tpu: str = "") -> None:
  """Imports TensorFlow quietly; call it in a command's `main`, before any library import that needs it.

  `TF_CPP_MIN_LOG_LEVEL` set by the user wins and is respected: with 0 everything is shown. A --tpu that is this
  machine's own and cannot be initialised is a `UserError`.
  """
  tpu_host.prepare_import(tpu)
  shows_all = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") == "0"
  with contextlib.nullcontext() if shows_all else native_stderr_kept_back():
    with _left_out(*_LEFT_OUT):
      import tensorflow as tf

      importlib.import_module("keras")  # With TensorFlow or, where that is lazy, only here.
    if not shows_all:
      tf.get_logger().setLevel("ERROR")
      tf.config.list_physical_devices()  # The CUDA library speaks when it first looks for devices.
