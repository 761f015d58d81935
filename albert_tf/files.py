"""File operations for local paths and buckets; no other module opens, lists, renames or removes files.

Local paths use Python's functions, `scheme://` paths TensorFlow's file systems; failures are `OSError`s. A file for a
bucket is first written to this machine's disk and uploaded under a temporary name. It is renamed when the bucket has
all bytes, because after a broken connection the client may believe that an upload is complete. TensorFlow writes
TensorBoard's event files itself.
A leaf: every package may import it. TensorFlow is imported only when a remote path (`gs://…`) is used, so data
workers on local files never load it.
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import errno
import glob as glob_lib
import importlib
import io
import json
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
_REMOTE = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]*://)([^/]*)(.*)$", re.DOTALL)
_COLLAPSED = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]+:/")
_UNFINISHED = re.compile(r"\.tmp-[0-9a-f]{8}$")
_DEEPEST_JSON = 64  # Levels; Python's own recursion ends near 1,000.
_TRANSFERS = (
  4  # Of one file until its size is right; TensorFlow's client repeats single requests by itself.
)
# What to do, by HTTP status.
_REFUSALS = {
  "401": "the credentials are missing or have expired (HTTP 401). Run `gcloud auth application-default login` or fix "
  "the machine's service account",
  "403": "this account has no permission (HTTP 403). Grant it roles/storage.objectAdmin on the bucket",
  "404": "there is no such bucket (HTTP 404). Make it, or check its name",
}


class StoreError(OSError, UserError):
  """A bucket refuses requests or does not answer; commands print only the message."""

  def __str__(self) -> str:
    return f"Files must be accessible. Received: {self.filename}: {self.strerror}."


def _tensorflow() -> Any:
  """TensorFlow, imported when a remote path first needs it (3-4 s), unless a command has done so."""
  if "tensorflow" not in sys.modules:
    tpu_host.prepare_import("")
  return importlib.import_module("tensorflow")


def _gfile() -> Any:
  return _tensorflow().io.gfile


@contextlib.contextmanager
def _os_errors(path: str, *, whole_bucket: bool = False) -> Iterator[None]:
  """Turns TensorFlow's errors about `path` into `OSError`; with `whole_bucket` a missing bucket is a `StoreError`."""
  tf = _tensorflow()
  try:
    yield
  except tf.errors.OpError as error:
    reason = (error.message.strip().splitlines() or [type(error).__name__])[0]
    # This machine's disk is full.
    if "internal temporary file" in reason or "No space left on device" in reason:
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), reason.partition(";")[0]) from error
    status = re.search(r"HTTP response code (\d+)", error.message)
    words = _REFUSALS.get(status[1], "") if status else ""
    if isinstance(error, tf.errors.NotFoundError) and not (words and whole_bucket):
      raise FileNotFoundError(errno.ENOENT, reason, path) from error
    if isinstance(error, tf.errors.UnimplementedError):
      scheme = path.partition("://")[0]
      words = f"TensorFlow has no file system for {scheme}:// ({reason}). Take gs://, or mount it as a folder"
    if isinstance(
      error, (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError)
    ):
      words = f"the store did not answer, nor when asked again ({reason}). Wait until it does"
    raise (StoreError if words else OSError)(errno.EIO, words or reason, path) from error


class _Found(NamedTuple):
  """A file or directory at a path."""

  size: int
  time: int  # Of its last change, in nanoseconds.
  is_directory: bool


def _stat(path: str) -> _Found | None:
  """The kind and size of the file at `path`; None if there is none. A bucket must exist."""
  try:
    if not is_remote(path):
      local = os.stat(path)
      return _Found(local.st_size, local.st_mtime_ns, stat.S_ISDIR(local.st_mode))
    # `gfile.exists` and `isdir` are no use: they take a store that refuses for one that has no such file.
    # A missing object is TensorFlow's own message; HTTP's is about the bucket that should have listed it.
    with _os_errors(path, whole_bucket=True):
      remote = _gfile().stat(path)
      return _Found(int(remote.length), int(remote.mtime_nsec), bool(remote.is_directory))
  except (FileNotFoundError, NotADirectoryError):
    return None


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
      if whence == io.SEEK_END:
        offset, whence = self._file.size() + offset, io.SEEK_SET
      self._file.seek(offset, whence)
      return int(self._file.tell())


def text_of(path: Path) -> str:
  """A path as a string; raises `UserError` for a bucket as `pathlib.Path`, which makes gs:/b of gs://b."""
  text = os.fspath(path)
  if not isinstance(path, str) and _COLLAPSED.match(text):
    raise UserError(
      f"The path of a bucket is a string. Received: {path!r}. Give it without pathlib."
    )
  return text


def is_remote(path: Path) -> bool:
  """Whether `path` names a file system that only `tf.io.gfile` can open."""
  return bool(_REMOTE.match(text_of(path)))


def is_unfinished(name: str) -> bool:
  """Whether a name is a temporary one of `unfinished`; a killed process may leave it."""
  return bool(_UNFINISHED.search(name))


def unfinished(path: str) -> str:
  """A temporary name in the folder of `path`, for a file that is being written."""
  return f"{path}.tmp-{uuid.uuid4().hex[:8]}"


def abspath(path: Path) -> str:
  """`path` without "." and "..", from the root or, of a remote one, from its scheme and bucket."""
  match = _REMOTE.match(text_of(path))
  if not match:
    return os.path.abspath(path)
  scheme, bucket, rest = match.groups()
  return scheme + bucket + posixpath.normpath("/" + rest.lstrip("/")).rstrip("/")


def is_within(path: str, directory: str) -> bool:
  """Whether a path is the directory or lies below it; `runs/mrpc_b` is not within `runs/mrpc`."""
  return pathlib.PurePosixPath(abspath(path)).is_relative_to(abspath(directory))


def open_binary(path: str) -> IO[bytes]:
  """Opens `path` for reading bytes."""
  return io.BufferedReader(_RemoteFile(path), 1 << 20) if is_remote(path) else open(path, "rb")


def read_bytes(path: str) -> bytes:
  """The whole file."""
  with open_binary(path) as stream:
    return stream.read()


def read_json(path: str, **types: Any) -> dict[str, Any]:
  """`parse_json` of a file, which must exist."""
  try:
    return parse_json(read_bytes(path), path, **types)
  except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
    raise UserError(f"The file must exist. Received: {path}. Check the path.") from error


def parse_json(text: bytes | str, source: str, **types: Any) -> dict[str, Any]:
  """The JSON object in a text, which is UTF-8.

  Args:
    text: of one object.
    source: names it in messages.
    **types: see `check_fields`.

  Raises:
    UserError: it is something else, or is nested too deeply.
  """
  try:
    values = json.loads(text if isinstance(text, str) else text.decode("utf-8-sig"))
    if not isinstance(values, dict):
      raise ValueError(type(values).__name__)
    level = [values]
    for _ in range(_DEEPEST_JSON):
      containers = (each for each in level if isinstance(each, (dict, list)))
      level = [
        child
        for each in containers
        for child in (each.values() if isinstance(each, dict) else each)
      ]
    if level:
      raise ValueError(f"more than {_DEEPEST_JSON} levels")
  except (ValueError, RecursionError) as error:
    raise UserError(
      f"{source} must hold one JSON object, in UTF-8. Received: {error}. It may have been cut off: write it again."
    ) from error
  check_fields(values, source, **types)
  return values


def check_fields(values: Mapping[str, Any], source: str, **types: Any) -> None:
  """Raises `UserError` if a field has another type, such as `dict`, or `str | None` for an optional one."""
  for name, kind in types.items():
    if not isinstance(values.get(name), kind):
      words = getattr(kind, "__name__", kind)
      raise UserError(
        f"{source} must hold {name}, of type {words}. Received: {values.get(name)!r:.60}."
      )


def exists(path: str) -> bool:
  return _stat(path) is not None


def isdir(path: str) -> bool:
  found = _stat(path)
  return found is not None and found.is_directory


def size(path: str) -> int:
  """Size of the file in bytes."""
  return size_and_time(path)[0]


def size_and_time(path: str) -> tuple[int, int]:
  """Size of the file in bytes, and when it was last changed, in nanoseconds."""
  found = _stat(path)
  if found is None:
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
  return found.size, found.time


def listdir(path: str) -> list[str]:
  """Names in a directory, sorted; empty where there is no such directory."""
  if not isdir(path):
    return []
  if not is_remote(path):
    return sorted(os.listdir(path))
  with _os_errors(path):
    return sorted(name.rstrip("/") for name in _gfile().listdir(path))


def tree(path: str) -> list[str]:
  """Names of all files below a directory, relative to it."""
  found: list[str] = []
  for name in listdir(path):
    below = os.path.join(path, name)
    found += [os.path.join(name, each) for each in tree(below)] if isdir(below) else [name]
  return found


def glob(pattern: str) -> list[str]:
  """Paths that match, sorted."""
  if not is_remote(pattern):
    return sorted(glob_lib.glob(pattern, recursive=True))
  _stat(pattern)  # Names a missing bucket.
  with _os_errors(pattern):
    return sorted(_gfile().glob(pattern))


def check_new(path: str) -> None:
  """Raises `UserError` if `path` is a file, or a directory that is not empty."""
  if exists(path) and not (isdir(path) and not listdir(path)):
    raise UserError(
      f"The output must not exist yet, or be an empty directory. Received: {path}, which holds something. Choose "
      "another name, or remove it."
    )


def makedirs(path: str) -> None:
  """Makes the directory `path`; raises `UserError` if that is not possible."""
  try:
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
      _gfile().rmtree(path) if isdir(path) else _gfile().remove(path)
  elif os.path.isdir(path):
    shutil.rmtree(path)
  else:
    os.remove(path)


def rename(source: str, target: str) -> None:
  """Renames a file over `target`, both on one file system; atomic on a disk, copied by the server in a bucket."""
  if is_remote(target):
    with _os_errors(target):
      _gfile().rename(source, target, overwrite=True)
  else:
    os.replace(source, target)


def copy(source: str, target: str) -> None:
  """Copies one file to `target`, atomically; between buckets the bytes pass through this machine."""
  temporary = unfinished(target)
  expected = size(source)
  try:
    if not is_remote(source) and not is_remote(target):
      shutil.copyfile(source, temporary)
    else:
      for _ in range(_TRANSFERS):
        with _os_errors(target if is_remote(target) else source):
          _gfile().copy(source, temporary, overwrite=True)
        arrived = size(temporary)
        if arrived == expected:
          break
      else:
        reason = (
          f"{arrived} of {expected} bytes arrived, {_TRANSFERS} times. Look after the connection"
        )
        raise StoreError(errno.EIO, reason, target)
    rename(temporary, target)
  except BaseException:
    with contextlib.suppress(Exception):
      remove(temporary)
    raise


def copy_tree(source: str, target: str, *, last: str = "") -> None:
  """Copies all files below `source` to the same names below `target`, `last` at the end."""
  for name in sorted(tree(source), key=lambda name: name == last):
    if not is_remote(target):
      makedirs(os.path.dirname(os.path.join(target, name)))
    copy(os.path.join(source, name), os.path.join(target, name))


def publish(source: str, target: str) -> None:
  """Moves a finished local file to its path: on a disk by renaming, in a bucket by a checked upload."""
  if is_remote(target):
    copy(source, target)
    os.remove(source)
  else:
    with open(source, "rb") as stream:
      os.fsync(stream.fileno())
    os.replace(source, target)


@contextlib.contextmanager
def _scratch() -> Iterator[str]:
  """A temporary folder of this machine; if its disk is full, the error names it and not the bucket."""
  with tempfile.TemporaryDirectory() as folder:
    try:
      yield folder
    except OSError as error:
      if error.errno != errno.ENOSPC:
        raise
      reason = "no space is left for this machine's temporary files. Free some, or set TMPDIR to a larger disk"
      raise StoreError(errno.ENOSPC, reason, tempfile.gettempdir()) from error


@contextlib.contextmanager
def workplace(path: str) -> Iterator[str]:
  """The local folder for a file that `publish` moves to `path`: the same folder, or for a bucket a temporary one."""
  if is_remote(path):
    with _scratch() as folder:
      yield folder
  else:
    yield os.path.dirname(path) or "."


@contextlib.contextmanager
def local_copy(path: str) -> Iterator[str]:
  """`path` itself, or a copy of the remote file or directory: for libraries that open files themselves."""
  if not is_remote(path):
    yield path
    return
  with _scratch() as folder:
    target = os.path.join(folder, os.path.basename(path.rstrip("/")))
    (copy_tree if isdir(path) else copy)(path, target)
    yield target


def expand_globs(patterns: str | Sequence[str], *, what: str = "input") -> list[str]:
  """Files that match glob patterns (a list, or with commas), sorted for each; raises `UserError` if there are none."""
  if isinstance(patterns, str):
    patterns = [part.strip() for part in patterns.split(",") if part.strip()]
  paths: dict[str, None] = {}  # Ordered, without repeats.
  for pattern in patterns or [""]:
    matched = glob(pattern)
    found = [path for path in matched if is_remote(path) or os.path.isfile(path)]
    broken = next(
      (path for path in matched if os.path.islink(path) and not os.path.exists(path)), ""
    )
    if broken:
      raise UserError(
        f"A link must point to a file. Received: {broken}, which leads to none. Correct or remove it."
      )
    if not found:
      raise UserError(
        f"Every {what} pattern must match at least one file. Received: {pattern!r}. Check it, and quote it."
      )
    paths.update(dict.fromkeys(found))
  return list(paths)


@contextlib.contextmanager
def _room_for(path: str) -> Iterator[None]:
  """Turns any library's error of a full disk or quota into a `StoreError` about the output `path`."""
  try:
    yield
  except UserError:
    raise
  except Exception as error:
    # TensorFlow and safetensors have errors of their own, with the system's words.
    for code in (errno.ENOSPC, errno.EDQUOT):
      if os.strerror(code) in str(error):
        reason = f"{os.strerror(code).lower()}. Free some space, or choose another disk"
        raise StoreError(code, reason, path) from error
    raise


@contextlib.contextmanager
def atomic_writer(path: str, mode: str = "wb") -> Iterator[IO[Any]]:
  """Writes a file that is renamed to `path` when it is complete; on an exception `path` does not change."""
  with _room_for(path), workplace(path) as folder:
    temporary = unfinished(os.path.join(folder, os.path.basename(path)))
    try:
      with open(temporary, mode, encoding=None if "b" in mode else "utf-8") as stream:
        yield stream
      publish(temporary, path)
    except BaseException:
      with contextlib.suppress(OSError):
        os.remove(temporary)
      raise


def write_text(path: str, text: str) -> None:
  """Writes a file of text, atomically."""
  with atomic_writer(path, "w") as stream:
    stream.write(text)


def write_json(path: str, values: Any) -> None:
  """Writes a JSON object, atomically; raises `UserError` for NaN and infinity, which JSON does not have."""
  try:
    text = json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False)
  except ValueError as error:
    raise UserError(
      f"Results are finite numbers. Received: NaN or infinity for {path} ({error}). The weights or "
      "the data that gave them are damaged: check those first."
    ) from error
  write_text(path, text + "\n")


@contextlib.contextmanager
def atomic_directory(path: str, *, last: str = "") -> Iterator[str]:
  """A local folder to fill. When it is complete, it becomes `path`, which must be missing or empty.

  On a disk it appears at once; in a bucket file by file, with `last` at the end, by which readers find it.
  """
  path = abspath(path)  # So that the temporary folder of "." is next to it, not inside.
  if is_remote(path):
    makedirs(path)
  temporary = tempfile.mkdtemp() if is_remote(path) else unfinished(path)
  makedirs(temporary)
  try:
    with _room_for(os.path.dirname(temporary)):
      yield temporary
    if is_remote(path):
      try:
        copy_tree(temporary, path, last=last)
      except BaseException:
        with contextlib.suppress(OSError):
          remove(path)
        raise
    else:
      try:
        with contextlib.suppress(FileNotFoundError):
          os.rmdir(path)  # Removes only an empty one.
        os.rename(temporary, path)
      except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
          raise
        raise UserError(
          f"A directory is written once. Received: {path}, which another process has written meanwhile."
        ) from error
  finally:
    shutil.rmtree(temporary, ignore_errors=True)
