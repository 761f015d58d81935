"""One process at a time writes in a directory: a lock of the kernel's, in a bucket a record that expires."""

from collections.abc import Iterator
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

LOCK_FILE = "lock.json"
LEASE_SECONDS = 120.0  # In a bucket, an owner that has not renewed for so long counts as dead.
_RENEWAL_SECONDS = 30.0
_SETTLING_SECONDS = 1.0  # Two that write at once both see who was the later.


class DirectoryLock:
  """The lock of one directory; `lock.json` says who holds it, or held it last.

  The kernel gives a lock on a disk back when its process ends, in whatever way. A bucket has no locks: there the owner
  renews its record, and another process takes the directory once the record has expired.
  """

  def __init__(self, directory: str):
    self._directory, self._in_bucket = directory, files.is_remote(directory)
    self._path = os.path.join(directory, LOCK_FILE)
    self._owner = {"id": uuid.uuid4().hex, "host": _host(), "pid": os.getpid()}
    self._descriptor: int | None = None  # Open as long as the lock on a disk is held.
    self._renewer: threading.Thread | None = None
    self._released = threading.Event()
    self._renewed = 0.0  # Seconds since 1970.
    self._usurper: dict[str, Any] = {}

  def refuse_others(self) -> None:
    """Refuses a directory that another live process holds."""
    if not self._in_bucket:
      with contextlib.suppress(FileNotFoundError):
        os.close(self._locked_file(os.O_RDWR))
    elif (owner := self._other()) and owner.get("expires", 0.0) > time.time() and not _has_ended(owner):
      left = owner["expires"] - time.time()
      raise self._refusal(owner, f"if it is dead, wait until its lock expires in {left:.0f} s")

  def acquire(self) -> None:
    """Takes the lock and keeps it; raises as `refuse_others`."""
    files.makedirs(self._directory)
    if not self._in_bucket:
      self._descriptor = self._locked_file(os.O_RDWR | os.O_CREAT)
      os.truncate(self._descriptor, 0)
      os.write(self._descriptor, json.dumps(self._owner).encode())
      return
    self.refuse_others()
    self._write()
    time.sleep(_SETTLING_SECONDS)
    self.refuse_others()
    self._renewer = threading.Thread(target=self._keep_renewing, name="lock", daemon=True)
    self._renewer.start()

  @contextlib.contextmanager
  def held(self) -> Iterator[None]:
    """Takes the lock, and gives it back at the end."""
    self.acquire()
    try:
      yield
    finally:
      self.release()

  def check(self) -> None:
    """Refuses a lock that another process took over, while this one was stopped; ask before writing."""
    if self._renewer is not None and time.time() - self._renewed > LEASE_SECONDS:
      self._renew()
    if self._usurper:
      raise self._refusal(self._usurper, "it took over while this process did not renew the lock")

  def release(self) -> None:
    """Gives the lock back; on a disk the file stays, so that all who wait have the same one open."""
    if self._descriptor is not None:
      os.close(self._descriptor)
      self._descriptor = None
    elif self._renewer is not None:
      self._released.set()
      self._renewer.join()
      self._renewer = None
      with contextlib.suppress(OSError):
        if not self._other():
          files.remove(self._path)

  def _locked_file(self, flags: int) -> int:
    descriptor = os.open(self._path, flags)
    try:
      fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      os.close(descriptor)
      raise self._refusal(self._other(), "stop that run, or choose another --output_dir") from error
    return descriptor

  def _keep_renewing(self) -> None:
    while not self._usurper and not self._released.wait(_RENEWAL_SECONDS):
      with contextlib.suppress(OSError):  # The next renewal may reach the bucket.
        self._renew()

  def _renew(self) -> None:
    self._usurper = self._other()
    if not self._usurper:
      self._write()

  def _other(self) -> dict[str, Any]:
    """The record of another process; empty where there is none."""
    with contextlib.suppress(UserError):  # There is none, or it is damaged.
      record = files.read_json(self._path, id=str, host=str, pid=int, expires=float | None)
      return {} if record["id"] == self._owner["id"] else record
    return {}

  def _write(self) -> None:
    self._renewed = time.time()
    files.write_json(self._path, {**self._owner, "expires": self._renewed + LEASE_SECONDS})

  def _refusal(self, owner: dict[str, Any], advice: str) -> UserError:
    return UserError(
      f"One process at a time writes in a directory. Received: {self._directory}, whose {LOCK_FILE} is held by "
      f"process {owner.get('pid', '?')} on {owner.get('host', '?').split(' ')[0]}: {advice}."
    )


def _host() -> str:
  """This machine's name and its kernel's boot; processes counted apart, as in a container, make another host."""
  with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
    return f"{socket.gethostname()} {stream.read().strip()} {os.readlink('/proc/self/ns/pid')}"
  return socket.gethostname()


def _has_ended(owner: dict[str, Any]) -> bool:
  """Whether it was a process of this machine, and is no more."""
  if owner["host"] == _host():
    try:
      os.kill(owner["pid"], 0)  # Sends nothing.
    except OSError as error:
      return isinstance(error, ProcessLookupError)  # Else it is another user's.
  return False
