"""A lock that lets one process at a time write in a directory: a file lock, or in a bucket records that expire."""

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from typing import Any
import uuid

from albert_tf import files
from albert_tf.errors import UserError

LOCK_FILE = "lock.json"  # In a bucket `lock.json.ID`, one for each process that asks.
LEASE_SECONDS = 120.0  # In a bucket, an owner that has not renewed for so long counts as dead.
_RENEWAL_SECONDS = 30.0
_WITHDRAWAL_SECONDS = 30.0  # How long the first of several processes waits for the others to withdraw.
_POLL_SECONDS = 0.2


class DirectoryLock:
  """The lock of one directory; `lock.json` names the process that has it, or had it last.

  The kernel releases a lock on a disk when its process ends. A bucket has no locks, and TensorFlow does not support
  "create only if absent". So each process writes its own record and then lists all records; of two processes the later
  one sees the earlier. A process withdraws if another has the lock or a smaller id. The owner renews its record; an
  expired record does not count.
  """

  def __init__(self, directory: str, *, flag: str = "--output_dir"):
    self._directory, self._in_bucket = directory, files.is_remote(directory)
    self._flag = flag  # Of the command, with which a user chooses another directory.
    self._owner = {"id": uuid.uuid4().hex, "host": _host(), "pid": os.getpid()}
    self._path = os.path.join(directory, LOCK_FILE + (f".{self._owner['id']}" if self._in_bucket else ""))
    self._descriptor: int | None = None  # Open as long as the lock on a disk is held.
    self._renewer: threading.Thread | None = None
    self._released = threading.Event()
    self._renewed = 0.0  # Seconds since 1970.
    self._usurper: dict[str, Any] = {}

  def refuse_others(self) -> None:
    """Raises `UserError` if another running process has the lock."""
    if not self._in_bucket:
      with contextlib.suppress(FileNotFoundError):
        os.close(self._locked_file(os.O_RDWR))
    else:
      for owner in self._others():
        raise self._refusal(owner)

  def acquire(self) -> None:
    """Takes the lock; raises `UserError` if another process has it."""
    files.makedirs(self._directory)
    if not self._in_bucket:
      self._descriptor = self._locked_file(os.O_RDWR | os.O_CREAT)
      os.truncate(self._descriptor, 0)
      os.write(self._descriptor, json.dumps(self._owner).encode())
      return
    self.refuse_others()
    self._write(held=False)
    until = time.monotonic() + _WITHDRAWAL_SECONDS
    try:
      while others := self._others():
        for owner in others:
          if owner.get("held") or owner["id"] < self._owner["id"] or time.monotonic() > until:
            raise self._refusal(owner)
        time.sleep(_POLL_SECONDS)
      self._write()
    except BaseException:
      with contextlib.suppress(OSError):
        files.remove(self._path)
      raise
    self._renewer = threading.Thread(target=self._keep_renewing, name="lock", daemon=True)
    self._renewer.start()

  def check(self) -> None:
    """Raises `UserError` if another process has taken the lock, while this one was stopped; call it before writing."""
    if self._renewer is not None and time.time() - self._renewed > LEASE_SECONDS:
      self._renew()
    if self._usurper:
      raise self._refusal(self._usurper, "It took over while this process did not renew the lock")

  def release(self) -> None:
    """Releases the lock; on a disk the file stays, so that all waiting processes have the same file open."""
    if self._descriptor is not None:
      os.close(self._descriptor)
      self._descriptor = None
    elif self._renewer is not None:
      self._released.set()
      self._renewer.join()
      self._renewer = None
      with contextlib.suppress(OSError):
        files.remove(self._path)

  def _locked_file(self, flags: int) -> int:
    descriptor = os.open(self._path, flags)
    try:
      fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      os.close(descriptor)
      raise self._refusal(_read(self._path), f"Stop that run, or choose another {self._flag}") from error
    return descriptor

  def _keep_renewing(self) -> None:
    while not self._usurper and not self._released.wait(_RENEWAL_SECONDS):
      with contextlib.suppress(OSError):  # The next renewal may reach the bucket.
        self._renew()

  def _renew(self) -> None:
    self._usurper = next((owner for owner in self._others() if owner.get("held")), {})
    if not self._usurper:
      self._write()

  def _others(self) -> list[dict[str, Any]]:
    """The records of other running processes in a bucket."""
    found = []
    for name in files.listdir(self._directory):
      path = os.path.join(self._directory, name)
      if is_lock(name) and not files.is_unfinished(name) and path != self._path:
        found.append(_read(path))
    return [owner for owner in found if owner.get("expires", 0) > time.time() and not _has_ended(owner)]

  def _write(self, *, held: bool = True) -> None:
    self._renewed = time.time()
    files.write_json(self._path, {**self._owner, "held": held, "expires": self._renewed + LEASE_SECONDS})

  def _refusal(self, owner: dict[str, Any], advice: str = "") -> UserError:
    left = owner.get("expires", 0) - time.time()
    return UserError(
      f"One process at a time writes in a directory. Received: {self._directory}, where {LOCK_FILE} is held by "
      f"process {owner.get('pid', '?')} on {owner.get('host', '?').split(' ')[0]}. "
      f"{advice or f'If it is dead, wait until its lock expires in {left:.0f} s'}."
    )


def is_lock(name: str) -> bool:
  """Whether a file in a directory is of its lock."""
  return name.startswith(LOCK_FILE)


def _read(path: str) -> dict[str, Any]:
  """A process's record; empty where it has just been withdrawn, is written now, or is damaged."""
  try:
    return files.read_json(path, id=str, host=str, pid=int, expires=float | None, held=bool | None)
  except files.StoreError:  # Nothing is known then.
    raise
  except (FileNotFoundError, UserError):
    return {}


def _host() -> str:
  """This machine's name and its kernel's boot; processes counted apart, as in a container, make another host."""
  with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
    return f"{socket.gethostname()} {stream.read().strip()} {os.readlink('/proc/self/ns/pid')}"
  return socket.gethostname()


def _has_ended(owner: dict[str, Any]) -> bool:
  """Whether it was a process of this machine and has ended."""
  if owner["host"] == _host():
    try:
      os.kill(owner["pid"], 0)  # Sends nothing.
    except OSError as error:
      return isinstance(error, ProcessLookupError)  # Else it is another user's.
  return False
