"""Paths and files, local and in buckets; no other module opens, lists, renames or removes files.

Local paths use Python's functions, `scheme://` paths TensorFlow's file systems; failures are
`OSError`s. A file for a bucket is first written to this machine's disk and uploaded under a
temporary name. It is renamed when the bucket has all bytes, because after a broken connection the
client may believe that an upload is complete. TensorFlow writes TensorBoard's event files itself.

A leaf: every package may import it. TensorFlow is imported only when a remote path (`gs://…`) is
used, so data workers on local files never load it.
"""

from collections.abc import Iterator, Sequence
import contextlib
import errno
import glob as glob_lib
import importlib
import io
import os
import pathlib
import posixpath
import re
import shutil
import stat
import sys
import tempfile
from typing import IO, Any, NamedTuple
import uuid

from albert_tf import tpu_host
from albert_tf.errors import UserError

Path = str | os.PathLike[str]

# gs://bucket/folder/file in three groups: gs://, bucket, /folder/file.
_REMOTE = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]*://)([^/]*)(.*)$", re.DOTALL)
# gs:/bucket, which pathlib makes of gs://bucket.
_COLLAPSED = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]+:/")
_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{8}$")

# Transfers of a file until its size is right; single requests TensorFlow's client repeats itself.
_TRANSFERS = 4
# What to do where a file has no room, by the system's code; a limit may be of the process, too.
_ROOM = {
  errno.ENOSPC: "Free some space, or choose another disk",
  errno.EDQUOT: "Free some space, or choose another disk",
  errno.EFBIG: "Raise the limit (ulimit -f), or choose another disk",
}
# What to do, by HTTP status.
_REFUSALS = {
  "401": "the credentials are missing or have expired (HTTP 401). Run `gcloud auth "
  "application-default login` or fix the machine's service account",
  "403": "this account has no permission (HTTP 403). Grant it roles/storage.objectAdmin on the "
  "bucket",
  "404": "there is no such bucket (HTTP 404). Make it, or check its name",
}


class StoreError(OSError, UserError):
  """A bucket refuses requests or does not answer; commands print only the message."""

  def __str__(self) -> str:
    return f"Files must be accessible. Received: {self.filename}: {self.strerror}."


class MissingFileError(FileNotFoundError, UserError):
  """A file is not there, or no longer; commands print only the message."""

  def __str__(self) -> str:
    return (
      f"A file must be there while it is read. Received: {self.filename}: {self.strerror}. Restore "
      "it and repeat the command, or correct the path."
    )


def _full_disk(path: str, code: int = errno.ENOSPC) -> StoreError:
  """The error of a disk or quota without room for a file, or for one in a directory."""
  advice = _ROOM[code]
  if path == tempfile.gettempdir():
    advice = "Free some space, or set TMPDIR to a directory of another disk"
  return StoreError(code, f"{os.strerror(code).lower()}. {advice}", path)


# Paths.


def text_of(path: Path) -> str:
  """A path as a string; raises `UserError` for no path, and for a bucket as `pathlib.Path`."""
  if not isinstance(path, (str, os.PathLike)):
    raise UserError(
      f"A path is a string or a pathlib.Path. Received: {path!r:.60}. Name a file or a folder."
    )
  text = os.fspath(path)
  if not isinstance(path, str) and _COLLAPSED.match(text):
    raise UserError(
      f"The path of a bucket is a string. Received: {path!r}. Give it without pathlib."
    )
  return text


def is_remote(path: Path) -> bool:
  """Whether `path` names a file system that only `tf.io.gfile` can open."""
  return bool(_REMOTE.match(text_of(path)))


def abspath(path: Path) -> str:
  """`path` without "." and "..", from the root or, of a remote one, from its scheme and bucket."""
  match = _REMOTE.match(text_of(path))
  if not match:
    return os.path.abspath(path)
  # "gs://b/a/../c" becomes gs://, b and /c; the root of a bucket has no slash at its end.
  scheme, bucket, file_path = match.groups()
  return scheme + bucket + posixpath.normpath("/" + file_path.lstrip("/")).rstrip("/")


def is_within(path: str, directory: str) -> bool:
  """Whether a path is the directory or lies below it; `runs/mrpc_b` is not within `runs/mrpc`."""
  return pathlib.PurePosixPath(abspath(path)).is_relative_to(abspath(directory))


def temporary_name(path: str) -> str:
  """A path in the folder of `path` for a file that is being written: `a.json.tmp-0a1b2c3d`."""
  return f"{path}.tmp-{uuid.uuid4().hex[:8]}"


def is_temporary(name: str) -> bool:
  """Whether a name is one of `temporary_name`; a killed process may leave it."""
  return bool(_TEMPORARY.search(name))


# TensorFlow's file systems, and their errors.


def _tensorflow() -> Any:
  if "tensorflow" not in sys.modules:
    # No command has prepared the import, which takes 3 to 4 s.
    tpu_host.prepare_import("")
  return importlib.import_module("tensorflow")


def _gfile() -> Any:
  return _tensorflow().io.gfile


@contextlib.contextmanager
def _os_errors(path: str, *, whole_bucket: bool = False) -> Iterator[None]:
  """Turns TensorFlow's errors about `path` into `OSError`.

  With `whole_bucket` a missing bucket is a `StoreError`.
  """
  tf = _tensorflow()
  try:
    yield
  except tf.errors.OpError as error:
    reason = (error.message.strip().splitlines() or [type(error).__name__])[0]
    # This machine's disk is full.
    if "internal temporary file" in reason:
      raise _full_disk(tempfile.gettempdir()) from error
    if os.strerror(errno.ENOSPC) in reason:
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), reason.partition(";")[0]) from error

    advice = ""
    status = re.search(r"HTTP response code (\d+)", error.message)
    if status:
      advice = _REFUSALS.get(status[1], "")
    if isinstance(error, tf.errors.NotFoundError) and not (advice and whole_bucket):
      raise MissingFileError(errno.ENOENT, reason, path) from error
    if isinstance(error, tf.errors.UnimplementedError):
      scheme = path.partition("://")[0]
      advice = (
        f"TensorFlow has no file system for {scheme}:// ({reason}). "
        "Take gs://, or mount it as a folder"
      )
    no_answer = (
      tf.errors.UnavailableError,
      tf.errors.AbortedError,
      tf.errors.DeadlineExceededError,
    )
    if isinstance(error, no_answer):
      advice = f"the store did not answer, nor when asked again ({reason}). Wait until it does"
    if advice:
      raise StoreError(errno.EIO, advice, path) from error
    raise OSError(errno.EIO, reason, path) from error


class _Status(NamedTuple):
  """A file or directory at a path."""

  size: int
  time: int  # Of its last change, in nanoseconds.
  is_directory: bool


def _stat(path: str) -> _Status | None:
  """The kind and size of the file at `path`; None if there is none. A bucket must exist."""
  try:
    if not is_remote(path):
      local = os.stat(path)
      return _Status(local.st_size, local.st_mtime_ns, stat.S_ISDIR(local.st_mode))
    # `gfile.exists` and `isdir` are no use: they take a store that refuses for one that has no such
    # file. A missing object is TensorFlow's own message; HTTP's is about the bucket that should
    # have listed it.
    with _os_errors(path, whole_bucket=True):
      remote = _gfile().stat(path)
      return _Status(int(remote.length), int(remote.mtime_nsec), bool(remote.is_directory))
  except (FileNotFoundError, NotADirectoryError):
    return None


# Looking and reading.


def exists(path: str) -> bool:
  return _stat(path) is not None


def isdir(path: str) -> bool:
  status = _stat(path)
  return status is not None and status.is_directory


def size(path: str) -> int:
  """Size of the file in bytes."""
  return size_and_time(path)[0]


def size_and_time(path: str) -> tuple[int, int]:
  """Size of the file in bytes, and when it was last changed, in nanoseconds."""
  status = _stat(path)
  if status is None:
    raise MissingFileError(errno.ENOENT, os.strerror(errno.ENOENT), path)
  return status.size, status.time


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
  _stat(pattern)  # Names a missing bucket.
  with _os_errors(pattern):
    return sorted(_gfile().glob(pattern))


def expand_globs(patterns: str | Sequence[str], *, name: str = "input") -> list[str]:
  """Files that match glob patterns, a list or with commas; sorted for each pattern.

  Raises:
    UserError: a pattern matches no file, or a link that leads to none.
  """
  if isinstance(patterns, str):
    patterns = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
  paths: list[str] = []
  for pattern in patterns or [""]:
    matches = glob(pattern)
    for path in matches:
      if os.path.islink(path) and not os.path.exists(path):
        raise UserError(
          f"A link must point to a file. Received: {path}, which leads to none. "
          "Correct or remove it."
        )
    matched_files = [path for path in matches if is_remote(path) or os.path.isfile(path)]
    if not matched_files:
      raise UserError(
        f"Every {name} pattern must match at least one file. Received: {pattern!r}. "
        "Check it, and quote it."
      )
    paths += matched_files
  return list(dict.fromkeys(paths))  # Patterns may overlap.


class _RemoteFile(io.RawIOBase):
  """A file opened for reading, as Python's io layer expects one; its failures are OSError."""

  def __init__(self, path: str):
    self._path = path
    size(path)  # It must be there.
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
    with _os_errors(self._path):
      # TensorFlow has no seeking from the end.
      if whence == io.SEEK_END:
        offset += self._file.size()
        whence = io.SEEK_SET
      self._file.seek(offset, whence)
      return int(self._file.tell())


def open_binary(path: str) -> IO[bytes]:
  """Opens `path` for reading bytes."""
  if is_remote(path):
    return io.BufferedReader(_RemoteFile(path), 1 << 20)
  try:
    return open(path, "rb")
  except FileNotFoundError as error:
    raise MissingFileError(error.errno, error.strerror, path) from error


def read_bytes(path: str) -> bytes:
  """The whole file."""
  with open_binary(path) as stream:
    return stream.read()


@contextlib.contextmanager
def local_copy(path: str) -> Iterator[str]:
  """`path`, or a copy of the remote file or directory, for libraries that open files themselves."""
  if not is_remote(path):
    yield path
    return
  with _temporary_folder() as folder:
    target = os.path.join(folder, os.path.basename(path.rstrip("/")))
    if isdir(path):
      _copy_tree(path, target)
    else:
      copy(path, target)
    yield target


@contextlib.contextmanager
def _temporary_folder() -> Iterator[str]:
  """A folder of this machine; if its disk is full, the error names it and not the bucket."""
  with tempfile.TemporaryDirectory() as folder, space_errors(tempfile.gettempdir()):
    yield folder


# Making, moving and removing.


def check_new(path: str) -> None:
  """Raises `UserError` if `path` is a file, a directory that is not empty, or a dangling link."""
  _check_links(path)
  if exists(path) and not (isdir(path) and not listdir(path)):
    raise UserError(
      f"The output must not exist yet, or be an empty directory. Received: {path}, which holds "
      "something. Choose another name, or remove it."
    )


def _check_links(path: str) -> None:
  """Raises `UserError` if `path`, or a directory above it, is a link that leads nowhere."""
  if is_remote(path):
    return
  for place in (path, *map(str, pathlib.Path(path).parents)):
    if os.path.islink(place) and not os.path.exists(place):
      raise UserError(
        f"A link must lead to what is there. Received: {place}, which leads to "
        f"{os.path.realpath(place)}, and that is missing. Make it, or remove the link."
      )


def makedirs(path: str) -> None:
  """Makes the directory `path`; raises `UserError` if that is not possible."""
  _check_links(path)
  try:
    with space_errors(path):
      if not is_remote(path):
        os.makedirs(path, exist_ok=True)
      # Buckets have none, and must exist: `exists` looks.
      elif not exists(path) and not path.startswith("gs://"):
        with _os_errors(path):
          _gfile().makedirs(path)
  except StoreError:
    raise
  except OSError as error:
    raise UserError(
      f"The directory must be writable. Received: {path} ({error.strerror or error})."
    ) from error


def remove(path: str) -> None:
  """Removes a file, or a directory with all it holds."""
  if is_remote(path):
    with _os_errors(path):
      if isdir(path):
        _gfile().rmtree(path)
      else:
        _gfile().remove(path)
  elif os.path.isdir(path):
    shutil.rmtree(path)
  else:
    os.remove(path)


def rename(source: str, target: str) -> None:
  """Renames a file over `target`, both on one file system.

  On a disk that is atomic; in a bucket the server copies.
  """
  if not is_remote(target):
    os.replace(source, target)
    return
  with _os_errors(target):
    _gfile().rename(source, target, overwrite=True)


def copy(source: str, target: str) -> None:
  """Copies one file atomically; between buckets the bytes pass through this machine."""
  # Readers look for `target`, so it must not exist before it is complete.
  temporary = temporary_name(target)
  try:
    with space_errors(target):
      if is_remote(target):
        _transfer(source, temporary, remote=target)
      elif is_remote(source):
        _transfer(source, temporary, remote=source)
      else:
        shutil.copyfile(source, temporary)
    rename(temporary, target)
  except BaseException:
    with contextlib.suppress(Exception):
      remove(temporary)
    raise


def _transfer(source: str, target: str, *, remote: str) -> None:
  """Copies until all bytes have arrived; `remote` is the path that messages name."""
  expected = size(source)
  arrived = 0
  for _ in range(_TRANSFERS):
    with _os_errors(remote):
      _gfile().copy(source, target, overwrite=True)
    arrived = size(target)
    if arrived == expected:
      return
  reason = f"{arrived} of {expected} bytes arrived, {_TRANSFERS} times. Look after the connection"
  raise StoreError(errno.EIO, reason, remote)


def _copy_tree(source: str, target: str, *, last: str = "") -> None:
  """Copies all files below `source` to the same names below `target`, `last` at the end."""
  for name in sorted(_names_below(source), key=lambda name: name == last):
    copied = os.path.join(target, name)
    if not is_remote(target):
      makedirs(os.path.dirname(copied))
    copy(os.path.join(source, name), copied)


def _names_below(directory: str) -> list[str]:
  """Names of all files below a directory, relative to it."""
  names: list[str] = []
  for name in listdir(directory):
    path = os.path.join(directory, name)
    if isdir(path):
      names += [os.path.join(name, inner) for inner in _names_below(path)]
    else:
      names.append(name)
  return names


# Writing. What is complete appears at its path; nothing else does.


@contextlib.contextmanager
def staging_folder(path: str) -> Iterator[str]:
  """The local folder for a file that `move_into_place` moves to `path`.

  It is the folder of `path`, so that renaming suffices, or for a bucket a temporary one.
  """
  if is_remote(path):
    with _temporary_folder() as folder:
      yield folder
  else:
    yield os.path.dirname(path) or "."


def move_into_place(source: str, target: str) -> None:
  """Moves a complete local file to its path: by renaming, or to a bucket by a checked upload."""
  if is_remote(target):
    copy(source, target)
    os.remove(source)
    return
  # The bytes first: after a power cut the new name must not be of an empty file.
  with open(source, "rb") as stream:
    os.fsync(stream.fileno())
  os.replace(source, target)


@contextlib.contextmanager
def atomic_writer(path: str) -> Iterator[IO[bytes]]:
  """Writes a file that is renamed to `path` when it is complete.

  On an exception `path` does not change.
  """
  with space_errors(path), staging_folder(path) as folder:
    temporary = temporary_name(os.path.join(folder, os.path.basename(path)))
    try:
      with open(temporary, "wb") as stream:
        yield stream
      move_into_place(temporary, path)
    except BaseException:
      with contextlib.suppress(OSError):
        os.remove(temporary)
      raise


def write_bytes(path: str, content: bytes) -> None:
  """Writes a file, atomically."""
  with atomic_writer(path) as stream:
    stream.write(content)


def write_text(path: str, text: str) -> None:
  """Writes a file of text in UTF-8, atomically."""
  write_bytes(path, text.encode())


@contextlib.contextmanager
def atomic_directory(path: str, *, last: str = "") -> Iterator[str]:
  """A local folder to fill. When it is complete, it becomes `path`.

  On a disk it appears at once; in a bucket file by file.

  Args:
    path: is missing, or an empty directory, or a link to one, which stays.
    last: the file by which readers find the directory; in a bucket it is written at the end.
  """
  # From the root, so that the temporary folder of "." is next to it, not inside.
  path = abspath(path)
  if is_remote(path):
    makedirs(path)
    temporary = tempfile.mkdtemp()
  else:
    path = os.path.realpath(path)
    # A complete directory takes the place of an empty one, which cannot be that of a mount.
    if os.path.ismount(path):
      raise UserError(
        f"The output must be a directory that can be replaced. Received: {path}, which is a mount "
        "point. Name a folder in it."
      )
    temporary = temporary_name(path)
    makedirs(temporary)
  try:
    with space_errors(os.path.dirname(temporary)):
      yield temporary
    if is_remote(path):
      _upload_directory(temporary, path, last=last)
    else:
      _rename_directory(temporary, path)
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def _upload_directory(source: str, target: str, *, last: str) -> None:
  # A bucket renames no folders: half of one is removed again.
  try:
    _copy_tree(source, target, last=last)
  except BaseException:
    with contextlib.suppress(OSError):
      remove(target)
    raise


def _rename_directory(source: str, target: str) -> None:
  try:
    with contextlib.suppress(FileNotFoundError):
      os.rmdir(target)  # Removes only an empty one.
    os.rename(source, target)
  except OSError as error:
    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
      raise
    raise UserError(
      f"A directory is written once. Received: {target}, which another process has written "
      "meanwhile."
    ) from error


@contextlib.contextmanager
def space_errors(path: str) -> Iterator[None]:
  """Turns any library's error of a full disk, quota or limit into a `StoreError` about `path`."""
  try:
    yield
  except UserError:
    raise
  except Exception as error:
    # TensorFlow and safetensors have errors of their own, with the system's words.
    for code in _ROOM:
      if os.strerror(code) in str(error):
        raise _full_disk(path, code) from error
    raise
