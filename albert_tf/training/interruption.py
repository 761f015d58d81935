"""Turns SIGTERM, which announces a preemption, into a request to save and stop."""

from collections.abc import Iterator
import contextlib
import signal
import threading
from types import FrameType


class StopRequest:
  """Set by SIGTERM; the loop looks at it between calls to the device."""

  def __init__(self) -> None:
    self.received = False

  def _on_signal(self, signum: int, frame: FrameType | None) -> None:
    del signum, frame
    self.received = True


@contextlib.contextmanager
def stop_on_sigterm() -> Iterator[StopRequest]:
  """Installs the handler for the duration of a run; a no-op outside the main thread."""
  request = StopRequest()
  if threading.current_thread() is not threading.main_thread():
    yield request
    return
  before = signal.signal(signal.SIGTERM, request._on_signal)
  try:
    yield request
  finally:
    signal.signal(signal.SIGTERM, before)
