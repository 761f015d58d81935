"""Turns SIGTERM, which announces a preemption, and Control-C into a request to save and stop."""

from collections.abc import Iterator
import contextlib
import signal
import sys
import threading
from types import FrameType


@contextlib.contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
  """Installs the handlers for the duration of a run; a no-op outside the main thread.

  A handler runs when the call to the device has returned. A second Control-C then ends the run
  without saving.
  """
  request = threading.Event()  # Read between calls to the device.
  if threading.current_thread() is not threading.main_thread():
    yield request
    return

  def ask(number: int, frame: FrameType | None) -> None:
    del frame
    request.set()
    print(f"\n{signal.Signals(number).name}: saving and stopping.", file=sys.stderr, flush=True)
    # From now on Control-C interrupts, for whoever does not want to wait.
    signal.signal(signal.SIGINT, before[signal.SIGINT])

  before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
  try:
    yield request
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
