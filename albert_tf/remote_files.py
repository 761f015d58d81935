"""TensorFlow's remote file systems, their failures in the words of an `OSError`; and room to finish uploads in.

A leaf for `albert_tf.files` alone, which everything else goes through. TensorFlow is imported at the first use.
"""

from collections.abc import Iterator
import contextlib
import errno
import fcntl
import functools
import glob
import io
import os
import re
import shutil
import tempfile
import time
from typing import Any

from albert_tf.errors import UserError

_NO_CREDENTIALS = (
  "the credentials are missing or have expired (HTTP 401). Run `gcloud auth application-default login` or "
  "mend the machine's service account"
)
_NO_PERMISSION = "this account has no permission (HTTP 403). Grant it roles/storage.objectAdmin on the bucket"
_NO_BUCKET = "there is no such bucket (HTTP 404). Make it, or check its name"
_SCRATCH, _SCRATCH_SECONDS = "albert_tf-", 60.0
_REFUSALS = {"401": _NO_CREDENTIALS, "403": _NO_PERMISSION}


class StoreError(OSError, UserError):
  """A remote store that refuses or does not answer; commands print the message alone."""

  def __init__(self, number: int, reason: str, path: str):
    super().__init__(number, reason, path)

  def __str__(self) -> str:
    return f"Files must be within reach. Received: {self.filename}: {self.strerror}."


def gfile() -> Any:
  import tensorflow as tf  # 3-4 s, and only remote paths need it.

  return tf.io.gfile


def as_os_error(error: Any, path: str) -> OSError:
  """A `tf.errors.OpError` about a file as the `OSError` that says what happened."""
  import tensorflow as tf

  reason = error.message.strip().splitlines()[0] if error.message.strip() else type(error).__name__
  status = re.search(r"HTTP response code (\d+)", error.message)
  if status and status[1] in _REFUSALS:
    return StoreError(errno.EACCES, _REFUSALS[status[1]], path)
  if error.error_code == tf.errors.UNIMPLEMENTED:
    scheme = path.partition("://")[0]
    return StoreError(
      errno.ENOSYS,
      f"TensorFlow has no file system for {scheme}:// ({reason}). Take gs://, or mount it as a folder",
      path,
    )
  if error.error_code in (tf.errors.UNAVAILABLE, tf.errors.ABORTED, tf.errors.DEADLINE_EXCEEDED):
    return StoreError(
      errno.EIO, f"the store did not answer, nor when asked again ({reason}). Wait until it does", path
    )
  numbers = {
    tf.errors.NOT_FOUND: errno.ENOENT,
    tf.errors.ALREADY_EXISTS: errno.EEXIST,
    tf.errors.PERMISSION_DENIED: errno.EACCES,
    tf.errors.UNAUTHENTICATED: errno.EACCES,
    tf.errors.RESOURCE_EXHAUSTED: errno.ENOSPC,
  }
  return OSError(numbers.get(error.error_code, errno.EIO), reason, path)


@contextlib.contextmanager
def os_errors(path: str) -> Iterator[None]:
  """What TensorFlow says of `path` becomes an `OSError`."""
  import tensorflow as tf

  try:
    yield
  except tf.errors.OpError as error:
    raise as_os_error(error, path) from error


def stat(path: str) -> Any:
  """Size and kind of what is at `path`; None where nothing is. Its bucket must exist."""
  # `gfile.exists` and `isdir` are no use: they take a store that refuses for one that has no such file.
  import tensorflow as tf

  try:
    with os_errors(path):
      return gfile().stat(path)
  except FileNotFoundError as error:
    # A missing object is TensorFlow's own message; HTTP's is about the bucket that should have listed it.
    cause = error.__cause__
    if isinstance(cause, tf.errors.OpError) and "HTTP response code 404" in cause.message:
      raise StoreError(errno.ENOENT, _NO_BUCKET, path) from error
    return None


def size_and_time(path: str) -> tuple[int, int]:
  """Size of a file in bytes, and when it was last changed, in nanoseconds."""
  with os_errors(path):
    found = gfile().stat(path)
  return int(found.length), int(found.mtime_nsec)


class RemoteFile(io.RawIOBase):
  """A file opened for reading, as Python's io layer expects one; its failures are OSError."""

  def __init__(self, path: str):
    super().__init__()
    self._file: Any = None  # `close` is called on collection, even when opening fails.
    self._path = path
    if stat(path) is None:
      raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    self._file = gfile().GFile(path, "rb")

  def readable(self) -> bool:
    return True

  def seekable(self) -> bool:
    return True

  def readinto(self, buffer: Any) -> int:
    with os_errors(self._path):
      data = self._file.read(len(buffer))
    buffer[: len(data)] = data
    return len(data)

  def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
    with os_errors(self._path):
      if whence == io.SEEK_END:
        offset, whence = self._file.size() + offset, io.SEEK_SET
      self._file.seek(offset, whence)
      return int(self._file.tell())

  def tell(self) -> int:
    return int(self._file.tell())

  def close(self) -> None:
    if self._file is not None and not self.closed:
      self._file.close()
    super().close()


@contextlib.contextmanager
def scratch_folder() -> Iterator[str]:
  """A new folder below TMPDIR, removed at the end; where that is a kill, by the next process that needs one."""
  _remove_abandoned()
  folder = tempfile.mkdtemp(prefix=_SCRATCH)
  lock = os.open(folder, os.O_RDONLY)
  try:
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield folder
  finally:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


@functools.cache  # Once a process is enough.
def _remove_abandoned() -> None:
  """Removes the scratch folders whose lock nobody holds: their processes have ended."""
  for folder in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), f"{_SCRATCH}*")):
    with contextlib.suppress(OSError):  # Another user's, or one in use.
      lock = os.open(folder, os.O_RDONLY)
      try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.time() - os.path.getmtime(folder) > _SCRATCH_SECONDS:  # A younger one may not be locked yet.
          shutil.rmtree(folder)
      finally:
        os.close(lock)
