"""Check the hosts of a slice before TensorFlow connects to them, and watch them during the run.

TensorFlow waits forever for a missing host, and for a host that dies during a computation.
"""

from collections.abc import Sequence
import os
import socket
import sys
import threading
import time

from albert_tf.errors import EXIT_USER_ERROR

_INTERVAL_SECONDS = 3.0  # Between two looks at all hosts.
_CONNECT_SECONDS = 5.0
# How long a host may be away. Refused: its server has ended. Silent: the network may recover.
_REFUSED_SECONDS = 2.0
_SILENT_SECONDS = 60.0


def check_hosts(addresses: Sequence[str]) -> None:
  """Raises OSError if a host does not accept a connection."""
  for address in addresses:
    # Longer than in the watch: at the start nothing is lost by waiting.
    try:
      _connect(address, 4 * _CONNECT_SECONDS)
    except OSError as error:
      raise OSError(f"host {address}: {error.strerror or error}") from error


def watch_hosts(addresses: Sequence[str]) -> None:
  """Starts a thread that ends this process, with a message, when a host has gone.

  The process ends immediately: the main thread may wait in TensorFlow, where no exception reaches
  it. Files of a run are complete or absent at any moment.
  """
  threading.Thread(target=_watch, args=(addresses,), daemon=True, name="hosts").start()


def _watch(addresses: Sequence[str]) -> None:
  # Only the addresses that did not answer the last time.
  silent_since: dict[str, float] = {}
  while True:
    time.sleep(_INTERVAL_SECONDS)
    for index, address in enumerate(addresses):
      try:
        _connect(address, _CONNECT_SECONDS)
      except OSError as error:
        now = time.monotonic()
        silence = now - silent_since.setdefault(address, now)
        is_refused = isinstance(error, ConnectionRefusedError)
        allowed = _REFUSED_SECONDS if is_refused else _SILENT_SECONDS
        if silence > allowed:
          _end_process(index, address, error)
      else:
        silent_since.pop(address, None)


def _connect(address: str, seconds: float) -> None:
  host, _, port = address.rpartition(":")
  socket.create_connection((host, int(port)), timeout=seconds).close()


def _end_process(index: int, address: str, error: OSError) -> None:
  print(
    f"error: All hosts of a slice must stay until the run ends. Received: worker {index} at "
    f"{address} no longer answers ({error.strerror or error}). Start it again; the same command "
    "continues from the last checkpoint.",
    file=sys.__stderr__ or sys.stderr,
    flush=True,
  )
  os._exit(EXIT_USER_ERROR)
