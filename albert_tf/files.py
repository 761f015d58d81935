"""Everything a user names may be a bucket: the one module that opens, lists, renames and removes.

Local paths go to plain Python, `scheme://` paths to `tf.io.gfile`; either way a failure is an `OSError`.
A leaf: every package may import it. TensorFlow is imported only when a remote path (`gs://…`) is used, so data
workers on local files never load it.
"""

from collections.abc import Iterator, Sequence
import contextlib
import errno
import glob as glob_lib
import io
import os
import re
import shutil
from typing import IO, Any
import uuid

from albert_tf.errors import UserError

_REMOTE = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*://")


def is_remote(path: str) -> bool:
  """Whether `path` names a file system that only `tf.io.gfile` can open."""
  return bool(_REMOTE.match(path))


def _gfile() -> Any:
  import tensorflow as tf  # Deferred: 3-4 s, and only remote paths need it.

  return tf.io.gfile


@contextlib.contextmanager
def _os_errors(path: str) -> Iterator[None]:
  """A remote store's errors become the `OSError` that a local file would raise."""
  import tensorflow as tf

  numbers = {
    tf.errors.NOT_FOUND: errno.ENOENT,
    tf.errors.ALREADY_EXISTS: errno.EEXIST,
    tf.errors.PERMISSION_DENIED: errno.EACCES,
    tf.errors.UNAUTHENTICATED: errno.EACCES,
    tf.errors.RESOURCE_EXHAUSTED: errno.ENOSPC,
  }
  try:
    yield
  except tf.errors.OpError as error:
    reason = error.message.strip().splitlines()[0] if error.message.strip() else type(error).__name__
    raise OSError(numbers.get(error.error_code, errno.EIO), reason, path) from error


class _RemoteFile(io.RawIOBase):
  """A `tf.io.gfile` file as Python's io layer expects one; its failures are OSError."""

  def __init__(self, path: str):
    super().__init__()
    self._file: Any = None  # `close` is called on collection, even when opening fails.
    self._path = path
    if not exists(path):
      raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    self._file = _gfile().GFile(path, "rb")

  def readable(self) -> bool:
    return True

  def seekable(self) -> bool:
    return True

  def readinto(self, buffer: Any) -> int:
    with _os_errors(self._path):
      data = self._file.read(len(buffer))
    buffer[: len(data)] = data
    return len(data)

  def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
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


def open_binary(path: str) -> IO[bytes]:
  """Opens `path` for reading bytes."""
  return io.BufferedReader(_RemoteFile(path), 1 << 20) if is_remote(path) else open(path, "rb")


def read_bytes(path: str) -> bytes:
  """The whole file."""
  with open_binary(path) as stream:
    return stream.read()


def exists(path: str) -> bool:
  if not is_remote(path):
    return os.path.exists(path)
  with _os_errors(path):
    return bool(_gfile().exists(path))


def isdir(path: str) -> bool:
  if not is_remote(path):
    return os.path.isdir(path)
  with _os_errors(path):
    return bool(_gfile().isdir(path))


def size(path: str) -> int:
  """Size of the file in bytes."""
  if not is_remote(path):
    return os.path.getsize(path)
  with _os_errors(path):
    return int(_gfile().stat(path).length)


def listdir(path: str) -> list[str]:
  """Names in a directory, sorted; empty where there is no such directory."""
  if not isdir(path):
    return []
  if not is_remote(path):
    return sorted(os.listdir(path))
  with _os_errors(path):
    return sorted(name.rstrip("/") for name in _gfile().listdir(path))


def glob(pattern: str) -> list[str]:
  """Paths that match, sorted."""
  if not is_remote(pattern):
    return sorted(glob_lib.glob(pattern, recursive=True))
  with _os_errors(pattern):
    return sorted(_gfile().glob(pattern))


def makedirs(path: str) -> None:
  """Creates `path` and its parents; a `UserError` where that cannot be done."""
  try:
    if not is_remote(path):
      os.makedirs(path, exist_ok=True)
    else:
      with _os_errors(path):
        _gfile().makedirs(path)
  except OSError as error:
    raise UserError(
      f"The directory must be writable. Received: {path} ({error.strerror or error}). "
      "Choose another directory or change its permissions."
    ) from error


def remove(path: str) -> None:
  """Removes a file, or a directory with all it holds."""
  if is_remote(path):
    with _os_errors(path):
      _gfile().rmtree(path) if _gfile().isdir(path) else _gfile().remove(path)
  elif os.path.isdir(path):
    shutil.rmtree(path)
  else:
    os.remove(path)


def rename(source: str, target: str) -> None:
  """Renames a file over `target`; atomic on a local file system."""
  if is_remote(target):
    with _os_errors(target):
      _gfile().rename(source, target, overwrite=True)
  else:
    os.replace(source, target)


def copy(source: str, target: str) -> None:
  """Copies one file over `target`; on one object store the server copies."""
  if not is_remote(source) and not is_remote(target):
    shutil.copyfile(source, target)
  else:
    with _os_errors(target):
      _gfile().copy(source, target, overwrite=True)


def sync(path: str) -> None:
  """Waits until a local file's bytes are on the disk; remote stores do so on closing."""
  if not is_remote(path):
    with open(path, "rb") as stream:
      os.fsync(stream.fileno())


def expand_globs(patterns: str | Sequence[str], *, what: str = "input") -> list[str]:
  """Files that match comma-separated glob patterns, sorted within each pattern.

  Args:
    patterns: one string with commas, or a list of strings.
    what: what the files are, for the message.

  Raises:
    UserError: a pattern matches no file.
  """
  if isinstance(patterns, str):
    patterns = [part.strip() for part in patterns.split(",") if part.strip()]
  paths: dict[str, None] = {}  # Ordered, without repeats.
  for pattern in patterns:
    found = [path for path in glob(pattern) if is_remote(path) or os.path.isfile(path)]
    if not found:
      raise UserError(
        f"Every {what} pattern must match at least one file. Received: {pattern!r}, which matches none. "
        "Check the path, and quote the pattern so that the shell does not expand it."
      )
    paths.update(dict.fromkeys(found))
  if not paths:
    raise UserError(
      f"At least one {what} file is needed. Received: no pattern. Name files or quoted glob patterns."
    )
  return list(paths)


@contextlib.contextmanager
def atomic_writer(path: str, mode: str = "wb") -> Iterator[IO[Any]]:
  """Writes to a temporary name beside `path` and renames on success.

  On any exception the temporary file is removed and `path` is untouched, so a
  file with the final name is always whole.
  """
  temporary = f"{path}.tmp-{uuid.uuid4().hex[:8]}"
  try:
    if is_remote(path):
      with _gfile().GFile(temporary, mode) as stream:
        yield stream
    else:
      encoding = None if "b" in mode else "utf-8"
      with open(temporary, mode, encoding=encoding) as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
    rename(temporary, path)
  except BaseException:
    with contextlib.suppress(Exception):
      remove(temporary)
    raise
