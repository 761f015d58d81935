"""Turns SIGTERM, which announces a preemption, SIGHUP and Control-C into a request to save and stop."""

from collections.abc import Iterator
import contextlib
import os
import signal
import stat
import sys
import threading
from types import FrameType


@contextlib.contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
  """Installs the handlers for the duration of a run; a no-op outside the main thread.

  A handler runs when the call to the device has returned. A second Control-C then ends the run
  without saving.

  A machine that shuts down sends SIGTERM, and to processes of a login (ssh, tmux) SIGHUP with it.
  """
  request = threading.Event()  # Read between calls to the device.
  if threading.current_thread() is not threading.main_thread():
    yield request
    return

  def ask(number: int, frame: FrameType | None) -> None:
    del frame
    request.set()
    if number == signal.SIGHUP:
      silence_lost_output()
    print(f"\n{signal.Signals(number).name}: saving and stopping.", file=sys.stderr, flush=True)
    # From now on Control-C interrupts, for whoever does not want to wait.
    signal.signal(signal.SIGINT, before[signal.SIGINT])

  numbers = [signal.SIGTERM, signal.SIGINT]
  # `nohup` ignores SIGHUP, and the run goes on without its terminal.
  if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
    numbers.append(signal.SIGHUP)
  before = {number: signal.signal(number, ask) for number in numbers}
  try:
    yield request
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


def silence_lost_output() -> None:
  """Sends to /dev/null what went to a terminal or a pipe: nobody reads it, and writing would fail."""
  nowhere = os.open(os.devnull, os.O_WRONLY)
  for descriptor in (1, 2):
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
      os.dup2(nowhere, descriptor)
  os.close(nowhere)
