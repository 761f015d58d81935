"""What a command that runs others does with SIGTERM: it is passed on, so that the one that runs ends with it."""

from collections.abc import Mapping, Sequence
import signal
import subprocess
import sys

EXIT_STOPPED = 143  # What a shell reports for SIGTERM.


class StoppedError(Exception):
  """SIGTERM has ended the command that ran."""


def run_child(command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> int:
  """Runs one of this project's commands, its output shown as it comes; returns its exit status.

  Raises:
    StoppedError: SIGTERM has reached this process, or the command; the command has ended.
  """
  stopped = False
  child = subprocess.Popen([sys.executable, *command], env=environment)

  def stop(*_: object) -> None:
    nonlocal stopped
    stopped = True
    child.terminate()

  before = signal.signal(signal.SIGTERM, stop)
  try:
    status = child.wait()
  except KeyboardInterrupt:  # Control-C reaches the child as well.
    child.wait()
    raise
  finally:
    signal.signal(signal.SIGTERM, before)
  if stopped or status in (EXIT_STOPPED, -signal.SIGTERM):
    raise StoppedError
  return status
