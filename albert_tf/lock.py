"""A lock that lets one process at a time write in a directory.

On a disk it is a file lock, in a bucket it is records that expire. Pretraining, fine-tuning and the
data tools take it before they write.
"""

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from typing import Any
import uuid

from albert_tf import files, json_files
from albert_tf.errors import UserError

# In a bucket `lock.json.ID`, one for each process that asks.
LOCK_FILE = "lock.json"
# In a bucket, an owner that has not renewed for so long counts as dead.
LEASE_SECONDS = 120.0
RENEWAL_SECONDS = 30.0
# How long the first of several processes waits for the others to withdraw.
_WITHDRAWAL_SECONDS = 30.0
_POLL_SECONDS = 0.2


class DirectoryLock:
  """The lock of one directory; `lock.json` names the process that has it, or had it last.

  The kernel releases a lock on a disk when its process ends. A bucket has no locks, and TensorFlow
  does not support "create only if absent". So each process writes its own record and then lists all
  records; of two processes the later one sees the earlier. A process withdraws if another has the
  lock or a smaller id. The owner renews its record; an expired record does not count.
  """

  def __init__(self, directory: str, *, flag: str = "--output_dir"):
    self._directory = directory
    self._in_bucket = files.is_remote(directory)
    # Of the command, with which a user chooses another directory.
    self._flag = flag
    self._owner = {"id": uuid.uuid4().hex, "host": _host(), "pid": os.getpid()}
    self._path = os.path.join(directory, LOCK_FILE)
    if self._in_bucket:
      self._path += f".{self._owner['id']}"
    # Open as long as the lock on a disk is held.
    self._descriptor: int | None = None
    # Of a lock in a bucket.
    self._renewer: threading.Thread | None = None
    self._released = threading.Event()
    self._renewed = 0.0  # Seconds since 1970.
    # The process that took the lock while this one did not renew it.
    self._new_owner: dict[str, Any] = {}

  def refuse_others(self) -> None:
    """Raises `UserError` if another running process has the lock."""
    if self._in_bucket:
      for owner in self._rivals():
        raise self._refusal(owner)
      return
    with contextlib.suppress(FileNotFoundError):
      os.close(self._open_locked(os.O_RDWR))

  def acquire(self) -> None:
    """Takes the lock; raises `UserError` if another process has it."""
    files.makedirs(self._directory)
    if not self._in_bucket:
      with files.space_errors(self._path):
        self._descriptor = self._open_locked(os.O_RDWR | os.O_CREAT)
        os.truncate(self._descriptor, 0)
        os.write(self._descriptor, json.dumps(self._owner).encode())
      return

    # Ask, and wait until all others that ask have withdrawn.
    self.refuse_others()
    self._write(held=False)
    deadline = time.monotonic() + _WITHDRAWAL_SECONDS
    try:
      rivals = self._rivals()
      while rivals:
        for owner in rivals:
          comes_first = owner.get("held") or owner["id"] < self._owner["id"]
          if comes_first or time.monotonic() > deadline:
            raise self._refusal(owner)
        time.sleep(_POLL_SECONDS)
        rivals = self._rivals()
      self._write()
    except BaseException:
      with contextlib.suppress(OSError):
        files.remove(self._path)
      raise
    self._renewer = threading.Thread(target=self._keep_renewing, name="lock", daemon=True)
    self._renewer.start()

  def check(self) -> None:
    """Raises `UserError` if another process has taken the lock; call it before writing.

    It may, after this process was stopped for longer than its record counts.
    """
    if self._renewer is not None and time.time() - self._renewed > LEASE_SECONDS:
      self._renew()
    if self._new_owner:
      raise self._refusal(self._new_owner, "It took over while this process did not renew the lock")

  def release(self) -> None:
    """Releases the lock."""
    if self._descriptor is not None:
      # The file stays, so that all waiting processes have the same file open.
      os.close(self._descriptor)
      self._descriptor = None
    elif self._renewer is not None:
      self._released.set()
      self._renewer.join()
      self._renewer = None
      with contextlib.suppress(OSError):
        files.remove(self._path)

  def _open_locked(self, flags: int) -> int:
    descriptor = os.open(self._path, flags)
    try:
      fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      os.close(descriptor)
      raise self._refusal(
        _read(self._path), f"Stop that run, or choose another {self._flag}"
      ) from error
    except OSError as error:
      os.close(descriptor)
      raise UserError(
        "The file system of a directory must have locks, so that one process alone writes in it. Received: "
        f"{error} for {self._path}. Mount it with locks (Lustre: -o flock), or choose another {self._flag}."
      ) from error
    return descriptor

  def _keep_renewing(self) -> None:
    while not self._new_owner and not self._released.wait(RENEWAL_SECONDS):
      with contextlib.suppress(OSError):  # The next renewal may reach the bucket.
        self._renew()

  def _renew(self) -> None:
    for owner in self._rivals():
      if owner.get("held"):
        self._new_owner = owner
        return
    self._write()

  def _rivals(self) -> list[dict[str, Any]]:
    """The records of other running processes in a bucket."""
    owners = []
    for name in files.listdir(self._directory):
      path = os.path.join(self._directory, name)
      if is_lock(name) and not files.is_temporary(name) and path != self._path:
        owner = _read(path)
        if owner.get("expires", 0) > time.time() and not _has_ended(owner):
          owners.append(owner)
    return owners

  def _write(self, *, held: bool = True) -> None:
    self._renewed = time.time()
    expires = self._renewed + LEASE_SECONDS
    json_files.write(self._path, self._owner | {"held": held, "expires": expires})

  def _refusal(self, owner: dict[str, Any], advice: str = "") -> UserError:
    if not advice:
      seconds = owner.get("expires", 0) - time.time()
      advice = f"If it is dead, wait until its lock expires in {seconds:.0f} s"
    host = owner.get("host", "?").partition(" ")[0]
    return UserError(
      f"One process at a time writes in a directory. Received: {self._directory}, where "
      f"{LOCK_FILE} is held by process {owner.get('pid', '?')} on {host}. {advice}."
    )


def is_lock(name: str) -> bool:
  """Whether a file in a directory is of its lock."""
  return name.startswith(LOCK_FILE)


def _read(path: str) -> dict[str, Any]:
  """A process's record; empty where it has just been withdrawn, is written now, or is damaged."""
  try:
    return json_files.read(path, id=str, host=str, pid=int, expires=float | None, held=bool | None)
  except files.StoreError:
    # The bucket did not answer. Nothing is known then, so the lock is not free.
    raise
  except (FileNotFoundError, UserError):
    return {}


def _host() -> str:
  """This machine's name, its kernel's boot, and the name space of its processes.

  A number of a process means nothing after another boot, or in another container.
  """
  name = socket.gethostname()
  try:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
      boot = stream.read().strip()
    return f"{name} {boot} {os.readlink('/proc/self/ns/pid')}"
  except OSError:  # Not Linux.
    return name


def _has_ended(owner: dict[str, Any]) -> bool:
  """Whether it was a process of this machine and has ended."""
  if owner["host"] != _host():
    return False
  try:
    os.kill(owner["pid"], 0)  # Sends nothing.
  except ProcessLookupError:
    return True
  except OSError:
    return False  # It is another user's.
  return False
