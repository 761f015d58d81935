"""One process at a time trains in a directory: a lock that its owner renews and that expires."""

from collections.abc import Iterator
import contextlib
import dataclasses
import datetime
import fcntl
import json
import os
import socket
import threading
import time
import uuid

from albert_tf import files
from albert_tf.errors import UserError

LOCK_FILE = "lock.json"
LEASE_SECONDS = 120.0  # Without a renewal for so long, the owner counts as dead.
_RENEWAL_SECONDS = 30.0
_SETTLING_SECONDS = 1.0  # In a bucket: two that write at once both see who was the later.


@dataclasses.dataclass(frozen=True)
class _Owner:
  """Who holds a lock, the content of its file: a process, known by its start, as its number is given again."""

  id: str
  host: str
  pid: int
  process_start: str
  expires: float  # Seconds since 1970.

  def __str__(self) -> str:
    return f"process {self.pid} on {self.host.split(' ')[0]}"


class RunLock:
  """The lock of one run directory, local or in a bucket."""

  def __init__(self, directory: str):
    self._directory = directory
    self._path = os.path.join(directory, LOCK_FILE)
    self._id = uuid.uuid4().hex
    self._released = threading.Event()
    self._renewer: threading.Thread | None = None
    self._usurper: _Owner | None = None
    self._renewed = 0.0  # Seconds since 1970.

  def refuse_others(self) -> str:
    """Refuses a directory that another live process holds; returns whose lock can be taken over and why, if any."""
    owner = self._read()
    if owner is None or owner.id == self._id:
      return ""
    if owner.host == _host() and owner.process_start not in ("", _process_start(owner.pid)):
      return f"{owner}, which has ended"
    left = owner.expires - time.time()
    if left < 0:
      return f"{owner}, which has not renewed its lock for {LEASE_SECONDS - left:.0f} s"
    until = datetime.datetime.fromtimestamp(owner.expires, datetime.UTC)
    raise UserError(
      f"One process at a time trains in a directory. Received: {self._directory}, where {owner} holds {LOCK_FILE}. "
      "Stop that run, or choose another --output_dir; if that process is dead, wait until its lock expires at "
      f"{until:%H:%M:%S} UTC, in {left:.0f} s."
    )

  def acquire(self) -> str:
    """Takes the lock and keeps it renewed; returns and raises as `refuse_others`."""
    files.makedirs(self._directory)
    with self._alone():
      before = self.refuse_others()
      self._write()
    if files.is_remote(self._directory):
      time.sleep(_SETTLING_SECONDS)
      self.refuse_others()
    self._renewer = threading.Thread(target=self._keep_renewing, name="lock", daemon=True)
    self._renewer.start()
    return before

  def check(self) -> None:
    """Refuses a lock that another process took over, while this one was stopped; ask before writing."""
    if time.time() - self._renewed > LEASE_SECONDS:  # The machine or this process was suspended, or cut off.
      self._renew()
    if self._usurper is not None:
      raise UserError(
        f"One process at a time trains in a directory. Received: {self._directory}, which {self._usurper} took over, "
        f"because this process had not renewed {LOCK_FILE} for {LEASE_SECONDS:.0f} s. It goes on; this one ends."
      )

  def release(self) -> None:
    """Gives the lock back."""
    if self._renewer is None:
      return
    self._released.set()
    self._renewer.join()
    self._renewer = None
    with contextlib.suppress(OSError), self._alone():
      owner = self._read()
      if owner is not None and owner.id == self._id:
        files.remove(self._path)

  def _keep_renewing(self) -> None:
    while self._usurper is None and not self._released.wait(_RENEWAL_SECONDS):
      with contextlib.suppress(OSError, UserError):  # The next renewal may reach the bucket.
        self._renew()

  def _renew(self) -> None:
    with self._alone():
      owner = self._read()
      if owner is not None and owner.id != self._id:
        self._usurper = owner
      else:
        self._write()

  def _read(self) -> _Owner | None:
    try:
      return _Owner(**json.loads(files.read_bytes(self._path)))
    except FileNotFoundError:
      return None
    except (ValueError, TypeError) as error:
      raise UserError(
        f"{self._path} is damaged ({error}). Remove it if no run uses the directory."
      ) from error

  def _write(self) -> None:
    self._renewed = time.time()
    start = _process_start(os.getpid())
    owner = _Owner(self._id, _host(), os.getpid(), start, self._renewed + LEASE_SECONDS)
    with files.atomic_writer(self._path, "w") as stream:
      stream.write(json.dumps(dataclasses.asdict(owner)) + "\n")

  @contextlib.contextmanager
  def _alone(self) -> Iterator[None]:
    """No other process of this machine reads and writes the lock meanwhile; for a bucket there is no such thing."""
    if files.is_remote(self._directory):
      yield
      return
    descriptor = os.open(self._directory, os.O_RDONLY)
    try:
      with contextlib.suppress(OSError):  # Some network file systems have no such lock.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
      yield
    finally:
      os.close(descriptor)


def _host() -> str:
  """This machine's name; processes counted apart, as in a container, make another host."""
  with contextlib.suppress(OSError):
    return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
  return socket.gethostname()


def _process_start(pid: int) -> str:
  """When a process of this machine started, in the kernel's words; "ended", or "" on a system without /proc."""
  try:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
      state, *fields = stream.read().rpartition(")")[2].split()
    return "ended" if state in "ZX" else fields[18]  # proc(5): state is field 3, the start field 22.
  except FileNotFoundError:
    return "ended" if os.path.exists("/proc/self/stat") else ""
