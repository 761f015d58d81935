"""The hosts of a slice: asked before TensorFlow connects to them, and watched as long as this process lives.

TensorFlow waits without end for a host that is not there, and for one that dies while it computes.
"""

from collections.abc import Sequence
import os
import socket
import sys
import threading
import time

from albert_tf.errors import EXIT_USER_ERROR

_INTERVAL_SECONDS, _CONNECT_SECONDS = 3.0, 5.0
# Nothing listens any more: the server has ended. No answer: the network may recover.
_REFUSED_SECONDS, _SILENT_SECONDS = 2.0, 60.0


def _connect(address: str, seconds: float) -> None:
  host, _, port = address.rpartition(":")
  socket.create_connection((host, int(port)), timeout=seconds).close()


def check_hosts(addresses: Sequence[str]) -> None:
  """Raises OSError where nothing listens at a host's address."""
  for address in addresses:
    try:
      _connect(address, 4 * _CONNECT_SECONDS)
    except OSError as error:
      raise OSError(f"host {address}: {error.strerror or error}") from error


def watch_hosts(addresses: Sequence[str]) -> None:
  """From now on, ends this process with a sentence, as a `UserError` would, when a host has gone.

  It ends at once: the main thread may wait within TensorFlow, where no exception reaches it. What a run
  writes is whole or absent at any moment.
  """
  threading.Thread(target=_watch, args=(addresses,), daemon=True, name="hosts").start()


def _watch(addresses: Sequence[str]) -> None:
  silent_since: dict[str, float] = {}
  while True:
    time.sleep(_INTERVAL_SECONDS)
    for index, address in enumerate(addresses):
      try:
        _connect(address, _CONNECT_SECONDS)
        silent_since.pop(address, None)
      except OSError as error:
        silence = time.monotonic() - silent_since.setdefault(address, time.monotonic())
        if silence > (_REFUSED_SECONDS if isinstance(error, ConnectionRefusedError) else _SILENT_SECONDS):
          print(
            "error: All hosts of a slice must stay until the run ends. Received: worker "
            f"{index} at {address} no longer answers ({error.strerror or error}). Start it again; the same command "
            "continues from the last checkpoint.",
            file=sys.__stderr__ or sys.stderr,
            flush=True,
          )
          os._exit(EXIT_USER_ERROR)
