"""Turns SIGTERM, which announces a preemption, and Control-C into a request to save and stop."""

from collections.abc import Iterator
import contextlib
import os
import signal
import sys
import threading
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_EXIT_INTERRUPTED = 130  # What a shell reports for SIGINT.


class StopRequest:
  """Set by a signal; the loop looks at it between calls to the device."""

  def __init__(self) -> None:
    self.received = False

  def _on_signal(self, signum: int, frame: FrameType | None) -> None:
    del signum, frame
    self.received = True


@contextlib.contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
  """Installs the handlers for the duration of a run; a no-op outside the main thread.

  A handler runs when the call to the device has returned; what a person reads at once comes from a thread. A second
  Control-C ends the process without saving.
  """
  request = StopRequest()
  if threading.current_thread() is not threading.main_thread():
    yield request
    return
  incoming, outgoing = os.pipe()
  os.set_blocking(outgoing, False)
  handlers = {number: signal.signal(number, request._on_signal) for number in _SIGNALS}
  wakeup = signal.set_wakeup_fd(outgoing, warn_on_full_buffer=False)
  speaker = threading.Thread(target=_speak, args=(incoming,), daemon=True)
  speaker.start()
  try:
    yield request
  finally:
    signal.set_wakeup_fd(wakeup)
    for number, handler in handlers.items():
      signal.signal(number, handler)
    os.close(outgoing)
    speaker.join()
    os.close(incoming)


def _speak(incoming: int) -> None:
  """Answers each signal as it comes: its number is one byte of `incoming`, which ends with the run."""
  interrupted = False
  while received := os.read(incoming, 1):
    number = received[0]
    if number == signal.SIGINT and interrupted:
      os._exit(_EXIT_INTERRUPTED)
    interrupted |= number == signal.SIGINT
    if number in _SIGNALS:
      again = "; Control-C again ends it without saving" if interrupted else ""
      name = signal.Signals(number).name
      print(
        f"\n{name}: saves and stops when the updates under way are done{again}.", file=sys.stderr, flush=True
      )
